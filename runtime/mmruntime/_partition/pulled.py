"""State that lives away from its stage: which, how large, and because of which line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Op, Step, num_bytes
from mmruntime._partition.place import Placement

# A step in the user's name of a leaf, such as ['w'], [0] or .kernel.
_STEP = re.compile(r"\[[^\]]*\]|\.\w+")


@dataclass(frozen=True)
class PulledState:
    """Parameters or optimizer state that one equation put on a submesh which is not their stage.

    Attributes:
        names: The user's names for them.
        size: How many bytes they have together.
        submesh: Where they live.
        line: The line of the equation, and the user's line that led to it; empty if it is not known.
        operation: The name of its primitive.
        stage: The submesh of their stage; None if they are state of several stages.
    """

    names: tuple[str, ...]
    size: int
    submesh: int
    line: str
    operation: str
    stage: int | None = None

    def __str__(self) -> str:
        shown = ", ".join(self.names[:4]) + (f" and {len(self.names) - 4} more" if len(self.names) > 4 else "")
        where = f" at {self.line}" if self.line else ""
        if self.stage is not None:
            return (
                f"state of submesh {self.stage} lives on submesh {self.submesh}, {self.size:,} bytes: {shown}. Its "
                f"next value is made there by {self.operation!r}{where}. Compute it from values of its own stage, "
                "with nothing but scalars of other stages, for it to live there."
            )
        if self.operation == "cond":
            return (
                f"state of several stages lives on submesh {self.submesh}, {self.size:,} bytes: {shown}. It is pulled "
                f"there by 'cond'{where}, which runs as one program, since its branches compute with arrays of several "
                "submeshes. Compute gradients and updates in front of it, in every step, and have it only choose "
                "between the old values and the new, for state to live on its stage."
            )
        return (
            f"state of several stages lives on submesh {self.submesh}, {self.size:,} bytes: {shown}. It is pulled "
            f"there by {self.operation!r}{where}, which works on arrays of several submeshes at once. For state to "
            "live on its stage, update each parameter by itself, with nothing but scalars in common; a layer of the "
            "model has its parameters on a stage by the hint task(stage=...), or by mm.task."
        )


def pulled_state(step: Step, placement: Placement, names: Sequence[str]) -> tuple[PulledState, ...]:
    """The carried state that lives away from its stage, by the equation that pulled it there.

    Args:
        step: The step.
        placement: Where it runs.
        names: The user's names for the step's inputs.
    """
    stages = _stages(step, placement, names)
    groups: dict[tuple[Op, int, int | None], list[int]] = defaultdict(list)
    for position, var in enumerate(step.invars):
        home = placement.homes.get(var)
        if var in placement.pulled:
            groups[placement.pulled[var], placement.homes[var], None].append(position)
        elif var in placement.makers and home is not None and stages.get(var, home) != home:
            groups[placement.makers[var], home, stages[var]].append(position)
    return tuple(
        PulledState(
            tuple(names[position] for position in positions),
            sum(num_bytes(step.invars[position]) for position in positions),
            where,
            _compat.source_lines_outside_packages(op.eqn),
            op.eqn.primitive.name,
            stage,
        )
        for (op, where, stage), positions in groups.items()
    )


def _stages(step: Step, placement: Placement, names: Sequence[str]) -> Mapping[Var, int]:
    """The stage of carried state that no task reads, where it has one.

    It is that of the parameter whose name and shape the state has, as in `m['w']` beside `params['w']`. Failing that it
    is the one submesh that reads the state; but what tasks compute with is no such state: an argument that only has
    the type of a result, such as a batch that is laid out and handed to the first task, counts as carried too.
    """
    tasks: dict[Var, set[int]] = defaultdict(set)
    readers: dict[Var, set[int]] = defaultdict(set)
    for op, places in placement.of.items():
        for var in op.reads():
            readers[var].update(places)
            if op.task is not None:
                tasks[var].update(places)
    carried = [position for position in step.carried if position < len(names)]
    keys = {
        position: (*path, step.invars[position].aval.shape) for position in carried if (path := _path(names[position]))
    }
    parameters: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, key in keys.items():
        if step.invars[position] in tasks:
            parameters[key].append(position)
    data = _read_by_tasks(step)
    # Parameters of a model without tasks, beside one with tasks whose parameters have the same names.
    others: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position, key in keys.items():
        if key in parameters and step.invars[position] in data and step.invars[position] not in tasks:
            others[key].append(position)
    stages: dict[Var, int] = {}
    for position in carried:
        var, key = step.invars[position], keys.get(position, ())
        if var not in placement.makers or position in others.get(key, ()):
            continue
        known = next((key[first:] for first in range(len(key) - 1) if key[first:] in parameters), None)
        namesakes = [] if known is None else parameters[known]
        if known in others:
            updated = _updated_from(step, var)
            namesakes = [each for each in namesakes if each in updated]
            if not namesakes:
                continue
        found = set[int]().union(*(tasks[step.invars[each]] for each in namesakes))
        found = found or (readers[var] if var not in data else set())
        if len(found) == 1:
            (stages[var],) = found
    return stages


def _updated_from(step: Step, var: Var) -> set[int]:
    """The carried inputs whose next value comes from a value without a task between."""
    reached = {var}
    for region in step.regions:
        for op in region.ops:
            if op.task is None and not reached.isdisjoint(op.reads()):
                reached.update(op.writes())
        reached.update(result for total, result in region.sums if total in reached)
    return {position for position, result in step.carried.items() if step.outvars[result] in reached}


def _read_by_tasks(step: Step) -> set[Var]:
    """What tasks read, and all that it is computed from outside of tasks."""
    found: set[Var] = set()
    for region in reversed(step.regions):
        found.update(result for total, result in region.sums if total in found)
        for op in reversed(region.ops):
            if op.task is not None or not found.isdisjoint(op.writes()):
                found.update(op.reads())
        found.update(stacked for piece, stacked in region.slices.items() if piece in found)
    return found


def _path(name: str) -> tuple[str, ...]:
    return tuple(_STEP.findall(name))


def warn_of_pulled_state(step: Step, placement: Placement, names: Sequence[str]) -> None:
    """Warn of state that lives away from its stage."""
    for each in pulled_state(step, placement, names):
        warn(f"mjit: {each}")
