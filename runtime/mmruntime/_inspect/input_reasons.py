"""Why an input lives where it does and is laid out as it is: the lines of the program that decided it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.logical_axes import spec_axes
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.place import Placement

UNDECIDED = "-"


@dataclass(frozen=True)
class InputReason:
    """What decided about an input.

    Attributes:
        logical: Its logical names, one for each dimension; None if it has none of its own.
        placed_by: What keeps it on its submesh: the task that reads it, or what makes its next value, with the line; or
            the parameter at the same place in its tree; or the caller, in a step without tasks.
        laid_out_by: What cuts it: its own names, or the nearest constraint over the same mesh axes, with the line;
            `UNDECIDED` for an input that is whole on each device.
    """

    logical: tuple[object, ...] | None
    placed_by: str
    laid_out_by: str


def input_reasons(step: Step, placement: Placement, shardings: Shardings, names: Sequence[str]) -> list[InputReason]:
    """What decided about each input of a step, in their order.

    Args:
        step: The step.
        placement: Where it runs.
        shardings: Its layouts.
        names: The user's names for its inputs.
    """
    readers = _Readers(step)
    labels = dict(zip(step.invars, names, strict=True))
    constraints = _Constraints(step, placement, shardings, labels)
    found = []
    for var in step.invars:
        where = placement.homes.get(var)
        spec = shardings.input_names.get(var)
        if where is None or var not in readers:
            found.append(InputReason(_entries(spec), UNDECIDED, UNDECIDED))
            continue
        namesake = placement.namesakes.get(var)
        if namesake is None:
            placed = _placed_by(var, where, placement, readers)
        else:
            placed = f"{labels[namesake]}, at the same place in its tree"
        found.append(InputReason(_entries(spec), placed, constraints.laid_out_by(var, where)))
    return found


def _entries(spec: PartitionSpec | None) -> tuple[object, ...] | None:
    return None if spec is None else tuple(spec)


class _Readers:
    """The equations that read each variable, a loop's slices of it included, in program order."""

    def __init__(self, step: Step) -> None:
        self._of: dict[Var, list[Op]] = defaultdict(list)
        for region in step.regions:
            for op in region.ops:
                for var in op.reads():
                    self._of[var].append(op)
                    if var in region.slices:
                        self._of[region.slices[var]].append(op)

    def __contains__(self, var: Var) -> bool:
        return var in self._of

    def on(self, var: Var, where: int, placement: Placement) -> list[Op]:
        """The reasons on a submesh: of tasks first, and forward before backward."""
        found = [op for op in self._of[var] if where in placement.of.get(op, ())]
        return sorted(found, key=lambda op: (op.task is None, op.backward))


def _placed_by(var: Var, where: int, placement: Placement, readers: _Readers) -> str:
    if var in placement.followed:
        return "the caller, which has it there"
    if var in placement.pulled or var in placement.makers:
        maker = placement.pulled.get(var) or placement.makers[var]
        return f"its next value{_at(maker.eqn)}"
    for op in readers.on(var, where, placement):
        name = op.task.name if op.task is not None else None
        reader = f"task {name}" if name else "a task" if op.task is not None else op.eqn.primitive.name
        return f"{reader}{_at(op.call or op.eqn)}"
    return UNDECIDED


def _at(eqn: Any) -> str:
    line = _compat.own_line(eqn)
    return f" at {line}" if line else ""


class _Constraints:
    """Looks for what cuts an input, along the values that are computed from it or with it."""

    def __init__(self, step: Step, placement: Placement, shardings: Shardings, names: dict[Var, str]) -> None:
        self._placement, self._shardings, self._names = placement, shardings, names
        self._ops: dict[Var, list[Op]] = defaultdict(list)
        self._same: dict[Var, list[Var]] = defaultdict(list)
        self._cuts: dict[tuple[Op, int], list[tuple[frozenset[str], str]]] = {}
        for region in step.regions:
            for op in region.ops:
                for var in (*op.reads(), *op.writes()):
                    self._ops[var].append(op)
            for one, other in (*region.slices.items(), *region.sums):
                self._same[one].append(other)
                self._same[other].append(one)

    def laid_out_by(self, var: Var, where: int) -> str:
        """What cuts an input on a submesh: its names, or the nearest value that is cut over the same axes."""
        sharding = self._shardings[var, where]
        axes = spec_axes(sharding.spec)
        if not axes:
            return UNDECIDED
        if var in self._shardings.input_names:
            return "its names"
        seen_ops, seen = set[Op](), {var}
        queue = deque([var])
        while queue:
            near = queue.popleft()
            is_named = near is not var and near in self._shardings.input_names
            if is_named and axes & spec_axes(self._shardings[near, where].spec):
                return f"the names of {self._names[near]}"
            for op in self._ops[near]:
                if op in seen_ops or where not in self._placement.of.get(op, ()):
                    continue
                seen_ops.add(op)
                for cut, line in self._cuts_in(op, where):
                    if axes & cut:
                        return f"the constraint{line}"
                fresh = [each for each in (*op.reads(), *op.writes()) if each not in seen]
                seen.update(fresh)
                queue.extend(fresh)
            fresh = [each for each in self._same[near] if each not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        return "what the program computes with it"

    def _cuts_in(self, op: Op, where: int) -> list[tuple[frozenset[str], str]]:
        """The mesh axes of each constraint in an equation, at any depth, and its line."""
        if (op, where) not in self._cuts:
            eqn = self._shardings.in_mesh_axes(op, where)
            self._cuts[op, where] = [
                (spec_axes(sharding.spec), _at(each))
                for each in _compat.every_equation([eqn])
                if each.primitive.name == "sharding_constraint"
                and isinstance(sharding := each.params.get("sharding"), NamedSharding)
            ]
        return self._cuts[op, where]
