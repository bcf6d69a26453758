"""Plan a step by tracing it: build the rewritten program in a temporary folder and trace it in a process of its own.

The tool imports no JAX: the process is started as `mmruntime._commands.plan` and prints a JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.select import RewrittenProgram
from mmrewrite.mirror.child_process import Mirror, NotRun, check_named, check_runtime, environment, mirrored, run_module
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline
from mmrewrite.tracking import Tell, untold


class NotPlanned(NotRun):
    """Why the step was not planned, as a sentence; `details` is the standard error of its process."""


@dataclass(frozen=True)
class Tracing:
    """What to trace.

    Attributes:
        step: The step, as `module:function`.
        arguments: The function that returns its arguments, as `module:function`.
        devices: Number of virtual devices.
        measure: Whether to run the step and time its programs.
        limits: Bounds of the process's time, memory and output.
    """

    step: str
    arguments: str
    devices: int
    measure: bool
    limits: ProgramLimits = USUAL


def plan_entry(tracing: Tracing, program: RewrittenProgram, tell: Tell = untold) -> dict[str, Any]:
    """The document of `mmruntime._commands.plan` about the rewritten program.

    Raises:
        NotPlanned: If the program cannot be built, imported or planned.
    """
    try:
        check_named(entry=tracing.step, args=tracing.arguments)
        check_runtime("--entry")
        with mirrored(program) as mirror:
            document, details = _trace(tracing, _roots(tracing, mirror), tell)
    except NotRun as problem:
        raise NotPlanned(str(problem), problem.details) from None
    if "error" in document:
        raise NotPlanned(mirror.told(str(document["error"])), details)
    # Lines of the program are those of the rewritten files, wherever these were.
    named: dict[str, Any] = _each_text(document, mirror.named)
    warnings = list(map(mirror.told, document.get("warnings", ())))
    return {**named, "warnings": warnings, "sources": dict(mirror.hashes)}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return {key: _each_text(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def _roots(tracing: Tracing, mirror: Mirror) -> list[str]:
    """The folders of the mirror from which the two modules are imported."""
    module = tracing.step.partition(":")[0]
    root = mirror.root(module)
    if root is None:
        raise NotPlanned(
            f"--entry {tracing.step}: none of the files given is the module `{module}`; give its file or folder as PATH"
        )
    other = mirror.root(tracing.arguments.partition(":")[0])
    return [root] if other is None else [root, other]


def _trace(tracing: Tracing, roots: Sequence[str], tell: Tell) -> tuple[dict[str, Any], str]:
    arguments = [tracing.step, tracing.arguments, *(["--measure"] if tracing.measure else [])]
    what = f"--entry {tracing.step}: the process that plans it"
    return run_module("_commands.plan", arguments, roots, environment(tracing.devices), what, tracing.limits, tell)


def section_of(tracing: Tracing, document: Mapping[str, Any], remarks: Sequence[str] = ()) -> PlanSection:
    """The section of a traced step, from its document, with remarks ahead of its own."""
    tables = [_table(table) for table in document["tables"] if table["rows"]]
    tables += _measured(document)
    once = document["measured"]["once"] if document["measured"] is not None else []
    outside = 1e3 * max((row["seconds"] for row in once), default=0.0) if document["measured"] is not None else None
    timelines = tuple(_timeline(loop, outside) for loop in document["loops"])
    title = f"{tracing.step}, traced for {tracing.arguments} on {tracing.devices} virtual devices"
    proofs = tuple(document["proofs"])
    # What the report says anyway is not said twice.
    said = [line.removeprefix("WARNING: ") for line in document["headlines"]]
    warned = [text for text in document.get("warnings", ()) if not any(line in text for line in said)]
    notes = (
        *(f"WARNING: {text}" for text in warned),
        *remarks,
        *(line for line in document["headlines"] if line not in proofs),
    )
    return PlanSection(title, notes, _grid(document), tuple(tables), timelines, proofs)


def _table(table: Mapping[str, Any]) -> PlanTable:
    return PlanTable(table["title"], tuple(table["head"]), tuple(tuple(row) for row in table["rows"]))


def _grid(document: Mapping[str, Any]) -> PlanGrid:
    devices = tuple(document["mesh"]["devices"])
    owners = tuple(
        tuple(row["number"] for row in document["submeshes"] if device in row["devices"]) for device in devices
    )
    return PlanGrid("Mesh: device ids", tuple(document["mesh"]["axes"].items()), devices, owners)


def _timeline(loop: Mapping[str, Any], outside: float | None) -> PlanTimeline:
    from mmruntime import schedules

    schedule = schedules.Schedule.from_csv(loop["order"], loop["schedule"])
    rows = list(loop["submeshes"])
    notes = () if rows == sorted(rows) else (f"its rows are submeshes {', '.join(map(str, rows))}, in that order",)
    costs = loop["costs"]
    if costs is None:
        return PlanTimeline(f"schedule {schedule.name}", "unit", notes, schedules.simulate(schedule))
    # A stage without a time for its backward runs it with its forward, as the last one does.
    fused = {
        stage: "FB" if not any(costs["backward_weight"]) else "FI"
        for stage, seconds in enumerate(costs["backward_input"])
        if not seconds and costs["forward"][stage] and any(costs["backward_input"])
    }
    notes = (*notes, "in milliseconds; a forward and a backward that run as one program are drawn as both")
    milliseconds = {kind: [1e3 * seconds for seconds in stages] for kind, stages in costs.items()}
    simulation = schedules.simulate(
        schedule,
        forward=milliseconds["forward"],
        backward_input=milliseconds["backward_input"],
        backward_weight=milliseconds["backward_weight"],
    )
    return PlanTimeline(f"schedule {schedule.name}", "measured", notes, simulation, fused, outside)


def _measured(document: Mapping[str, Any]) -> list[PlanTable]:
    measured = document["measured"]
    if measured is None:
        return []
    tables = []
    for loop in document["loops"]:
        costs = loop["costs"]
        kinds = ("forward", "backward_input", "backward_weight")
        rows = [
            (str(stage), str(where), *(_milliseconds(costs[kind][stage]) for kind in kinds))
            for stage, where in enumerate(loop["stages"])
        ]
        head = ("stage", "submesh", "forward ms", "backward ms, or its input half", "weight half ms")
        tables.append(PlanTable("Measured, each program alone, one microbatch", head, tuple(rows)))
    once = [(str(row["submesh"]), _milliseconds(row["seconds"])) for row in measured["once"]]
    tables.append(PlanTable("Measured outside of microbatches, per step", ("submesh", "ms"), tuple(once)))
    moved = [(str(row["source"]), str(row["target"]), _milliseconds(row["seconds"])) for row in measured["transfers"]]
    tables.append(PlanTable("Measured, the slowest transfer", ("from", "to", "ms"), tuple(moved)))
    return [table for table in tables if table.rows]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
