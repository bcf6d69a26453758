"""Shared updates: what programs behind a loop have in common on several submeshes becomes a program of its own.

Stages in the middle of a pipeline are copies of each other; the first has an embedding as well, and the last a head. So
their optimizers' programs were equal to none, and XLA compiled the updates of a layer three times. An update runs once
per step, so that another program costs next to nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Op, Step, is_scalar
from mmruntime._jaxpr.rewrite import needed, renamed
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments, connected
from mmruntime._partition.tracing.trace import remove_dead_code

# Fewer equations are compiled in less time than another program costs.
_FEWEST = 16

# To compare two programs takes as many steps as one has parts, times those of the other. These are a tenth of a second.
_MOST_STEPS = 1 << 18

# The kinds of the parts of a program by their numbers, in order.
_Kinds = tuple[int, ...]


def share_updates(step: Step, placement: Placement, segments: Segments) -> tuple[Step, Placement]:
    """The step with what programs behind loops do not share in programs of their own, and where it runs.

    The parts of a program are equations that share no value but scalars, such as the updates of one parameter each.
    Programs that have parts of the same kinds in the same order keep these; their other parts get another variant.
    """
    for index, region in enumerate(step.regions):
        if region.loop is None and index > 0:
            numbers: dict[Hashable, int] = {}
            rests = _rests([_parts(each, placement, numbers) for each in segments.by_region[index]])
            if rests:
                step, placement = _apart(step, index, placement, rests)
    return step, placement


@dataclass(frozen=True, eq=False)
class _PartedProgram:
    """A program in parts.

    Attributes:
        where: Its submesh.
        parts: The equations of each part, in order.
        kinds: The kind of each; parts of one kind are taken to compute the same.
        scalars: Equations of scalars that follow from nothing in the program but such; any part may read them.
    """

    where: int
    parts: Sequence[tuple[Op, ...]]
    kinds: _Kinds
    scalars: Sequence[Op]

    def without(self, shared: _Kinds) -> list[Op]:
        """The equations that are left when parts of some kinds are taken away, each behind the one before."""
        wanted = iter(shared)
        left: list[Op] = []
        kind = next(wanted, None)
        for part, own in zip(self.parts, self.kinds, strict=True):
            if own == kind:
                kind = next(wanted, None)
            else:
                left.extend(part)
        return left


# A program, and the equations of its parts that others do not have.
_Rest = tuple[_PartedProgram, list[Op]]


def _parts(segment: Segment, placement: Placement, numbers: dict[Hashable, int]) -> _PartedProgram:
    """A program in parts; none if it cannot be taken apart.

    Args:
        segment: The program.
        placement: Where everything runs.
        numbers: The number of each kind; new ones are added.
    """
    nothing = _PartedProgram(segment.submesh, (), (), ())
    if any(op.eqn.effects or op.task is not None for op in segment.ops):
        return nothing
    every = _scalars(segment.ops)
    others = set(segment.ops).difference(every)
    if any(len(placement.of[op]) > 1 for op in others):
        return nothing
    # Those that the rest does not read, such as a mean of losses, are parts as well, if they run here alone.
    read = {*needed(every, (var for op in others for var in op.reads()))[0]}
    scalars = [op for op in every if op in read or len(placement.of[op]) > 1]
    others.update(set(every).difference(scalars))
    parts = connected([op for op in segment.ops if op in others])
    mesh = placement.submeshes.meshes[segment.submesh]
    found = [(mesh.axis_names, mesh.axis_sizes, _kind(ops)) for ops in parts]
    return _PartedProgram(
        segment.submesh, parts, tuple([numbers.setdefault(kind, len(numbers)) for kind in found]), scalars
    )


def _scalars(ops: Iterable[Op]) -> list[Op]:
    """The equations of scalars that follow from nothing in a program but such."""
    found: list[Op] = []
    made: set[Var] = set()
    for op in ops:
        if all(map(is_scalar, (*op.reads(), *op.writes()))) and made.isdisjoint(op.reads()):
            found.append(op)
        else:
            made.update(op.writes())
    return found


def _kind(ops: Iterable[Op]) -> Hashable:
    """What some equations do, without their parameters. Whether they are compiled once depends on more."""
    numbers: dict[Var, int] = {}

    def operand(atom: Any) -> Hashable:
        if is_var(atom):
            return numbers.setdefault(atom, len(numbers)), atom.aval
        return str(atom), atom.aval

    return tuple((op.eqn.primitive, tuple(map(operand, op.eqn.invars)), tuple(map(operand, op.writes()))) for op in ops)


def _rests(programs: Sequence[_PartedProgram]) -> list[_Rest]:
    """What is not shared of each program that shares enough with another one."""
    sizes = {kind: len(part) for each in programs for kind, part in zip(each.kinds, each.parts, strict=True)}
    classes: dict[_Kinds, list[_PartedProgram]] = defaultdict(list)
    for each in programs:
        if each.parts:
            classes[each.kinds].append(each)
    rests: list[_Rest] = []
    comparison = _Comparison()
    while len(classes) > 1:
        pairs = [comparison.of(one, other) for one, other in itertools.combinations(classes, 2)]
        sharing = {kinds: [each for each in classes if _has(each, kinds)] for kinds in dict.fromkeys(pairs)}
        size = {kinds: sum(sizes[kind] for kind in kinds) for kinds in sharing}
        # The most that is compiled once, not by each of those that have it; of equals, what leaves them least.
        shared = max(sharing, key=lambda kinds: (size[kinds] * (len(sharing[kinds]) - 1), size[kinds]))
        if size[shared] < _FEWEST:
            break
        for kinds in sharing[shared]:
            for each in classes.pop(kinds):
                own = each.without(shared)
                if own:
                    rests.append((each, own))
    return rests


def _has(kinds: _Kinds, some: _Kinds) -> bool:
    """Whether some kinds are among others, in this order."""
    others = iter(kinds)
    return all(kind in others for kind in some)


class _Comparison:
    """Looks for what programs have in common, as long as that takes no time to speak of."""

    def __init__(self) -> None:
        self._known: dict[tuple[_Kinds, _Kinds], _Kinds] = {}
        self._left = _MOST_STEPS

    def of(self, one: _Kinds, other: _Kinds) -> _Kinds:
        """The longest common subsequence of kinds of both; empty where finding it would take long."""
        if (one, other) not in self._known:
            self._known[one, other] = self._found(one, other)
        return self._known[one, other]

    def _found(self, one: _Kinds, other: _Kinds) -> _Kinds:
        """By dynamic programming (Wagner and Fischer 1974, https://doi.org/10.1145/321796.321811)."""
        # What both begin and end with need not be compared.
        length = min(len(one), len(other))
        begin = next((k for k in range(length) if one[k] != other[k]), length)
        end = next((k for k in range(length - begin) if one[-1 - k] != other[-1 - k]), length - begin)
        first, last = one[:begin], one[len(one) - end :]
        one, other = one[begin : len(one) - end], other[begin : len(other) - end]
        self._left -= len(one) * len(other)
        if self._left < 0:
            return ()
        longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
        for i, kind in reversed(list(enumerate(one))):
            for j, its in reversed(list(enumerate(other))):
                longest[i][j] = longest[i + 1][j + 1] + 1 if kind == its else max(longest[i + 1][j], longest[i][j + 1])
        found: list[int] = []
        i = j = 0
        while longest[i][j]:
            if one[i] == other[j]:
                found.append(one[i])
                i, j = i + 1, j + 1
            elif longest[i + 1][j] >= longest[i][j + 1]:
                i += 1
            else:
                j += 1
        return (*first, *found, *last)


def _apart(step: Step, index: int, placement: Placement, rests: Sequence[_Rest]) -> tuple[Step, Placement]:
    """The step with the rest of each program as another variant, which has copies of the scalars that it reads."""
    instead: dict[Op, Op] = {}
    copies: dict[Op, list[Op]] = defaultdict(list)
    like: dict[Op, Op] = {}
    where: dict[Op, tuple[int, ...]] = {}
    for program, mine in rests:
        env: dict[Var, Var] = {}

        for op in needed(program.scalars, (var for own in mine for var in own.reads()))[0]:
            env.update((var, _compat.new_var(var.aval)) for var in op.writes())
            copy = replace(op, eqn=renamed(op.eqn, env, env), variant=1)
            copies[op].append(copy)
            like[copy], where[copy] = op, (program.where,)
        for op in mine:
            instead[op] = replace(op, eqn=renamed(op.eqn, env, env), variant=1)
            like[instead[op]] = op
    region = step.regions[index]
    ops = tuple([each for op in region.ops for each in (instead.get(op, op), *copies[op])])
    step = remove_dead_code(step.with_region(index, replace(region, ops=ops)))
    return step, placement.with_ops(like, where)
