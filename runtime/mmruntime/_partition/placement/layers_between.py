"""Layers between tasks: where the derivative of an equation outside of tasks runs.

An equation outside of tasks joins the latest of its operands. Its derivative has the cotangent of the stage behind it
among these, and would run there, with the layer's parameters and residuals sent after it. It runs where the equation
does instead. JAX gives the equations of a derivative the lines of those that they are derivatives of; where one line is
run on several submeshes, as in a loop, it is the first of these at which everything that the derivative reads has been
made, and from which its results need not go back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.task import Task
from mmruntime._jaxpr.ir import Op, Region

# Files, lines and columns, from where to where, the innermost call first.
_Line = tuple[tuple[str, int, int, int, int], ...]
_NONE: frozenset[Task] = frozenset()


class LayersBetween:
    """Finds the equation of the forward pass that one of the backward pass belongs to.

    Equations are placed one after the other, and each is noted when it is.
    """

    def __init__(self, source: Callable[[Var], Op | None]) -> None:
        """Begin with a function that says which equation makes a variable; None for an input of the step."""
        self._source = source
        # The tasks of the backward pass that read what is made of a variable outside of tasks.
        self._read_by: dict[Var, frozenset[Task]] = {}
        # How many crossings come before the forward pass of each task, which may run more than once, and before that
        # of what each equation belongs to.
        self._depths_of_task: dict[Task, set[int]] = defaultdict(set)
        self._depth: dict[Op, int] = {}
        # The equations of the forward pass outside of tasks: those whose lines were not asked for yet, and the others.
        self._new: list[Op] = []
        self._by_line: dict[_Line, list[Op]] = defaultdict(list)
        self._seen: set[Op] = set()

    def enter(self, region: Region) -> None:
        """Begin with the equations of a region."""
        self._read_by, self._new, self._by_line = {}, [], defaultdict(list)
        for op in reversed(region.ops):
            if op.task is not None:
                read = frozenset({op.task}) if op.backward else _NONE
            else:
                read = _NONE.union(*(self._read_by.get(var, _NONE) for var in op.writes()))
            for var in op.reads() if read else ():
                self._read_by[var] = self._read_by.get(var, _NONE) | read

    def note(self, op: Op, depth: int, forward: Op | None) -> None:
        """Take note of an equation that has been placed.

        Args:
            op: The equation.
            depth: How many crossings between submeshes come before it.
            forward: What `forward_of` said of it.
        """
        if forward is not None:
            self._depth[op] = self._depth[forward]
        elif not op.backward:
            self._depth[op] = depth
            if op.task is None:
                self._new.append(op)
            else:
                self._depths_of_task[op.task].add(depth)
        else:
            sources = [source for var in op.reads() if (source := self._source(var)) is not None]
            found = latest = self._latest(sources)
            if op.task is not None:
                kept = [each for each in sources if each.task == op.task and not each.backward]
                found = self._latest(kept) if kept else self._visit(op.task, latest, latest)
            self._depth[op] = found

    def forward_of(self, op: Op, sources: Sequence[Op]) -> Op | None:
        """The equation of the forward pass that one of the backward pass is part of the derivative of, if it is known.

        Args:
            op: The equation, outside of tasks; none is known for one that depends on no backward pass.
            sources: The placed equations whose results it reads.
        """
        if not any(each.backward for each in sources):
            return None
        readers = _NONE.union(*(self._read_by.get(var, _NONE) for var in op.writes()))
        if not readers:
            # The gradient of a parameter; the cotangent that it is made of says how far the backward pass has come.
            cotangents = [var for var in op.reads() if (source := self._source(var)) is not None and source.backward]
            readers = _NONE.union(*(self._read_by.get(var, _NONE) for var in cotangents))
        if not readers:
            return None
        made = [self._depth[each] for each in sources if not each.backward and each in self._depth]
        latest = self._latest(sources)
        earliest = max([*made, *(self._visit(each, latest, 0) for each in readers)])
        if earliest >= latest:
            return None
        alike = [each for each in self._same_lines(op) if earliest <= self._depth[each] <= latest]
        return min(alike, key=lambda each: self._depth[each], default=None)

    def _visit(self, task: Task, latest: int, otherwise: int) -> int:
        """The depth of a task's forward pass, of several that the backward pass comes to next."""
        return max((each for each in self._depths_of_task.get(task, ()) if each <= latest), default=otherwise)

    def _latest(self, sources: Sequence[Op]) -> int:
        """How deep in the forward pass what an equation reads belongs to.

        The backward pass comes up: the cotangent of a value that several layers read, as decoders read what an encoder
        has made, is complete with the first of these.
        """
        known = [each for each in sources if each in self._depth]
        cotangents = [self._depth[each] for each in known if each.backward]
        return min(cotangents) if cotangents else max((self._depth[each] for each in known), default=0)

    def _same_lines(self, op: Op) -> list[Op]:
        for each in self._new:
            for line in self._lines_with_parameters(each):
                self._by_line[line].append(each)
        self._new = []
        return [each for line in _lines(op.eqn) for each in self._by_line.get(line, ())]

    def _lines_with_parameters(self, op: Op) -> dict[_Line, None]:
        """The lines of an equation and of what only it has seen of the step's inputs, such as a bias that is broadcast.

        Equations that depend on inputs alone are placed after all others, with those that read them.
        """
        found = _lines(op.eqn)
        ahead = [source for var in op.reads() if (source := self._source(var)) is not None]
        while ahead:
            each = ahead.pop()
            if each not in self._depth and each not in self._seen:
                self._seen.add(each)
                found |= _lines(each.eqn)
                ahead += [source for var in each.reads() if (source := self._source(var)) is not None]
        return found


def _lines(eqn: Any) -> dict[_Line, None]:
    """The lines of an equation and of those in its bodies.

    The forward pass of a layer under `jax.checkpoint` is opened, and its backward pass is one equation.
    """
    return dict.fromkeys(own for each in _compat.every_equation([eqn]) if (own := _compat.own_frames(each)))
