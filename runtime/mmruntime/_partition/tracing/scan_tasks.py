"""Scans with tasks in their bodies: one scan for each task, as far as none needs what another makes a turn later.

A recurrent network of several layers is one scan over time, which runs all layers in each turn:

    (h, k), ys = scan(lambda (h, k), x: (f(h, x), g(k, f(h, x))), (h, k), xs)
    ->  h, hs = scan(f, h, xs)      # task of f
        k, ys = scan(g, k, hs)      # task of g

Every scan makes the same values as before; what goes from one to the other is stacked. The scan of the backward pass,
whose body has the tasks of the forward one, is cut in the same way, in reverse.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.task import Task
from mmruntime._jaxpr.ir import Op, tasks_of
from mmruntime._jaxpr.rewrite import part_of_scan


@dataclass(frozen=True)
class MarkedScan:
    """A scan with the equations of its body.

    Attributes:
        op: The scan.
        invars: The body's arguments: constants, carried values, slices.
        ops: The body's equations with their tasks. They may read variables from outside of the scan, too.
        outs: The body's results: carried values, then stacked ones.
    """

    op: Op
    invars: tuple[Var, ...]
    ops: tuple[Op, ...]
    outs: tuple[Atom, ...]


def scans_of_tasks(body: MarkedScan) -> list[Op] | None:
    """The scans of the tasks in a scan's body, in order; None if it cannot be cut.

    An equation without a task goes with what it works on, else with what reads its results. If there is one task, the
    scan is that task's as it is. It cannot be cut if two tasks depend on each other from turn to turn, or if it has
    effects, whose order is that of the turns.
    """
    tasks = tasks_of(body.ops)
    backward = body.op.backward or any(op.backward for op in body.ops)
    if len({_place(task) for task in tasks}) < 2:
        task = tasks[0] if tasks else None
        return [Op(body.op.eqn, task, backward)]
    if body.op.eqn.effects:
        return None
    return _ScanParts.of(body).scans()


def _place(task: Task) -> Task:
    """What tasks on one submesh have in common."""
    return task.replace(name=None)


class _ScanParts:
    """A body cut into parts: for each equation its part, (level, task). Parts run in this order."""

    def __init__(self, body: MarkedScan, invariant: Mapping[Var, Atom], ops: list[Op], outs: list[Atom]) -> None:
        self.body = body
        # Carried values that stay what they are, by what the scan is given for them.
        self.invariant = invariant
        self.ops = ops
        self.outs = outs
        self.producer = {var: index for index, op in enumerate(ops) for var in op.writes()}
        self.num_consts, self.num_carry = _compat.scan_counts(body.op.eqn)
        self.carries = body.invars[self.num_consts : self.num_consts + self.num_carry]
        # What differs from turn to turn and is there before the scan: slices, and stacks of earlier parts.
        self.sliced = set(body.invars[self.num_consts + self.num_carry :])

    @staticmethod
    def of(body: MarkedScan) -> _ScanParts:
        """Give every result that changes an equation of its own."""
        num_consts, num_carry = _compat.scan_counts(body.op.eqn)
        carries = body.invars[num_consts : num_consts + num_carry]
        operands = body.op.eqn.invars[num_consts : num_consts + num_carry]
        invariant = {
            var: operand for var, operand, out in zip(carries, operands, body.outs, strict=False) if out is var
        }
        made = {var for op in body.ops for var in op.writes()}
        ops, outs = list(body.ops), list(body.outs)
        seen: set[Atom] = set()
        for index, atom in enumerate(outs):
            stays = index < num_carry and carries[index] in invariant
            is_dropped = index >= num_carry and not is_var(body.op.eqn.outvars[index])
            if stays or is_dropped:
                continue
            if not is_var(atom) or atom not in made or atom in seen:
                aval = body.op.eqn.outvars[index].aval if index < num_carry else atom.aval
                outs[index] = copy = _compat.new_var(aval)
                ops.append(Op(_compat.copy_eqn(atom, copy)))
            else:
                seen.add(atom)
        return _ScanParts(body, invariant, ops, outs)

    def scans(self) -> list[Op] | None:
        """The scan of each part, in order; None where two tasks are in one circle."""
        parts = self._parts()
        if parts is None:
            return None
        eqn = self.body.op.eqn
        outer: dict[Var, Atom] = dict(zip(self.body.invars, eqn.invars, strict=True))
        scans = [scan for part in sorted(set(parts)) for scan in self._scan(part, parts, outer)]
        for index, var in enumerate(self.carries):
            if var in self.invariant and is_var(eqn.outvars[index]):
                scans.append(Op(_compat.copy_eqn(self.invariant[var], eqn.outvars[index])))
        return scans

    def _before(self) -> list[list[int]]:
        """The equations that each one needs, in the same turn or the one before."""
        changed = dict(zip(self.carries, self.outs, strict=False))

        def makers(op: Op) -> list[int]:
            read = [changed.get(var, var) if var not in self.invariant else var for var in op.reads()]
            return [self.producer[atom] for atom in read if is_var(atom) and atom in self.producer]

        return [makers(op) for op in self.ops]

    def _parts(self) -> list[tuple[int, int]] | None:
        """For each equation its part: how many changes of task come before it, and its task's number, -1 for none."""
        before = self._before()
        circles = _components(before)
        circle_of = {index: number for number, circle in enumerate(circles) for index in circle}
        needs = [
            sorted({circle_of[each] for index in circle for each in before[index]} - {number})
            for number, circle in enumerate(circles)
        ]
        numbers = {task: number for number, task in enumerate(tasks_of(self.ops))}
        found: list[int] = []
        for circle in circles:
            own = dict.fromkeys(task for index in circle if (task := self.ops[index].task) is not None)
            if len({_place(task) for task in own}) > 1:
                return None
            found.append(min((numbers[task] for task in own), default=-1))
        levels: list[int] = []
        for number, needed in enumerate(needs):
            placed = [each for each in needed if found[each] >= 0]
            if found[number] < 0 and placed:
                found[number] = found[max(placed, key=levels.__getitem__)]
            levels.append(_level(number, needed, found, levels))
        # What needs no task goes with the first that needs it.
        for number in reversed(range(len(needs))):
            readers = [each for each, needed in enumerate(needs) if number in needed and found[each] >= 0]
            if found[number] < 0 and readers:
                found[number] = found[min(readers, key=levels.__getitem__)]
        levels = []
        for number, needed in enumerate(needs):
            levels.append(_level(number, needed, found, levels))
        return [(levels[circle_of[index]], found[circle_of[index]]) for index in range(len(self.ops))]

    def _scan(self, part: tuple[int, int], parts: Sequence[tuple[int, int]], outer: dict[Var, Atom]) -> list[Op]:
        """The scan of a part; the stacks that later parts read are added to `outer`, the body's variables outside."""
        ops = [op for op, each in zip(self.ops, parts, strict=True) if each == part]
        later = [op for op, each in zip(self.ops, parts, strict=True) if each > part]
        made = {var for op in ops for var in op.writes()}
        results = list(enumerate(self.outs))
        carries = [index for index, atom in results[: self.num_carry] if atom in made]
        stacked = [index for index, atom in results[self.num_carry :] if atom in made]
        own = [self.carries[index] for index in carries]
        kept = list(dict.fromkeys(var for op in later for var in op.reads() if var in made or var in own))
        eqn = self.body.op.eqn
        ends = [(self.outs[index], eqn.outvars[index]) for index in (*carries, *stacked)]
        opened, stacks = part_of_scan(eqn, [op.eqn for op in ops], own, ends, kept, outer, self.sliced)
        outer.update(zip(kept, stacks, strict=True))
        self.sliced.update(kept)
        task = None if part[1] < 0 else tasks_of(self.ops)[part[1]]
        backward = self.body.op.backward or any(op.backward for op in ops)
        return [Op(each, task, backward) for each in opened]


def _level(number: int, needed: Sequence[int], found: Sequence[int], levels: Sequence[int]) -> int:
    """How many changes of task come before a circle of equations."""
    return max((levels[each] + (found[each] != found[number]) for each in needed), default=0)


def _components(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """The strongly connected components of a graph, each after all that it needs, their members in order.

    Members of one reach the same, and more than what it needs reaches. What a node reaches is a number of bits: carried
    values close circles, so that a few rounds do for a body of thousands of equations.
    """
    reached = [1 << node for node in range(len(before))]
    grows = True
    while grows:
        grows = False
        for node, needed in enumerate(before):
            found = functools.reduce(operator.or_, (reached[each] for each in needed), reached[node])
            grows |= found != reached[node]
            reached[node] = found
    components: dict[int, list[int]] = {}
    for node, found in enumerate(reached):
        components.setdefault(found, []).append(node)
    return [components[found] for found in sorted(components, key=int.bit_count)]
