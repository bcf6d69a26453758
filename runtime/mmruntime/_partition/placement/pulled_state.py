"""State that lives away from its stage: which, how large, and the line that is the cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Op, Step, num_bytes
from mmruntime._partition.placement.namesakes import Namesakes, computed_after, read_before
from mmruntime._partition.placement.place import Placement


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

    It is that of the parameter of its shape at the same place in the tree, as `m['w']` beside `params['w']`. Failing
    that it is the one submesh that reads the state; but what tasks compute with is no such state: an argument that only
    has the type of a result, such as a batch that is laid out and handed to the first task, counts as carried too.
    """
    tasks: dict[Var, set[int]] = defaultdict(set)
    readers: dict[Var, set[int]] = defaultdict(set)
    for op, places in placement.of.items():
        for var in op.reads():
            readers[var].update(places)
            if op.task is not None:
                tasks[var].update(places)
    carried = [step.invars[position] for position in step.carried if position < len(names)]
    data = read_before(step, lambda op: op.task is not None)
    # Parameters of a model without tasks may lie beside one with tasks whose parameters have the same names.
    finder = Namesakes(dict(zip(step.invars, names, strict=True)), [var for var in carried if var in data])
    stages: dict[Var, int] = {}
    for var in carried:
        if var not in placement.makers:
            continue
        namesakes = [each for each in finder.of(var) if each is not var and each.aval.shape == var.aval.shape]
        known = [each for each in namesakes if each in tasks]
        if known and var in data:
            continue
        if len(known) < len(namesakes):
            known = [each for each in known if each in _updated_from(step, var)]
            if not known:
                continue
        found = set[int]().union(*(tasks[each] for each in known))
        found = found or (readers[var] if var not in data else set())
        if len(found) == 1:
            (stages[var],) = found
    return stages


def _updated_from(step: Step, var: Var) -> set[Var]:
    """The carried inputs whose next value comes from a value without a task between."""
    reached = computed_after(
        step, lambda op, found: op.writes() if op.task is None and not found.isdisjoint(op.reads()) else (), [var]
    )
    return {step.invars[position] for position, result in step.carried.items() if step.outvars[result] in reached}


def warn_of_pulled_state(step: Step, placement: Placement, names: Sequence[str]) -> None:
    """Warn of state that lives away from its stage."""
    for each in pulled_state(step, placement, names):
        warn(f"mjit: {each}")
