"""What will run where, from the source alone: submeshes, stages, and the schedule simulated with unit costs.

The schedule is made and drawn by `mmruntime.schedules`, which needs no JAX. What the source does not say is said in a
note, never guessed in silence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.plan.read_placement import LoopSite, MeshSite, Region, TaskSite, Value
from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline

_DEFAULT_SCHEDULE = "gpipe"


@dataclass(frozen=True)
class _Stages:
    """The pipeline's submeshes as far as the source tells.

    `slices` has one for each submesh. `placement` gives the submesh of each stage, None where the source does not tell.
    """

    slices: tuple[Mapping[str, int], ...]
    placement: tuple[int, ...] | None
    notes: tuple[str, ...] = ()


def plan_regions(
    regions: Iterable[Region], microbatches: int | None, *, simulate: bool = True
) -> tuple[PlanSection, ...]:
    """What there is to show about each region.

    Args:
        regions: What runs where.
        microbatches: How many microbatches a batch is cut into, for loops whose source does not tell.
        simulate: Whether to simulate the schedules with unit costs.
    """
    return tuple(_section(region, microbatches, simulate) for region in regions)


def _section(region: Region, microbatches: int | None, simulate: bool) -> PlanSection:
    mesh = region.mesh
    stages = _stages(region) if mesh is not None else None
    sizes = mesh.sizes if mesh is not None else None
    notes = list(stages.notes) if stages else []
    if mesh is None:
        title = "tasks that no step of these files reaches, so that their mesh is not known"
    elif sizes is None:
        title = f"{mesh.place}: mesh `{mesh.name}`"
        notes.insert(0, f"its size cannot be told from the source: {mesh.unknown}")
    else:
        shape = " x ".join(f"{name}={size}" for name, size in sizes.items())
        title = f"{mesh.place}: mesh `{mesh.name}` of {_count(math.prod(sizes.values()), 'device')}, {shape}"
    if mesh is not None and not region.steps:
        notes.append("no step in these files is compiled for this mesh")
    grid = _grid(mesh, sizes, stages) if mesh is not None and sizes is not None else None
    tables = list(_tables(region, stages, sizes))
    timelines: list[PlanTimeline] = []
    if simulate and mesh is not None:
        timelines = [_timeline(loop, stages, microbatches) for loop in region.loops]
        if region.tasks and not region.loops:
            notes.append("no `microbatch` hint: a step runs its stages one after the other, on the whole batch")
    return PlanSection(title, tuple(notes), grid, tuple(tables), tuple(timelines))


def _tables(region: Region, stages: _Stages | None, sizes: Mapping[str, int] | None) -> Iterator[PlanTable]:
    if region.mesh is not None and region.mesh.logical_axes:
        yield PlanTable("Logical axes", ("name", "device axis"), region.mesh.logical_axes)
    if region.steps:
        yield PlanTable("Steps", ("line", "step"), tuple((str(step.place), step.name) for step in region.steps))
    if region.tasks:
        rows = tuple((str(task.place), task.what, _task_name(task), _where(task, sizes)) for task in region.tasks)
        yield PlanTable("Tasks", ("line", "what", "task", "where"), rows)
    if region.loops:
        yield PlanTable(
            "Microbatches",
            ("line", "size", "count", "schedule"),
            tuple(
                (str(loop.place), _shown(loop.size), _shown(loop.count), _schedule_text(loop)) for loop in region.loops
            ),
        )
    if stages is not None and stages.slices and sizes is not None:
        numbers = [_devices(sizes, piece) for piece in stages.slices]
        pieces = [", ".join(f"{axis}={index}" for axis, index in piece.items()) for piece in stages.slices]
        submeshes = tuple(
            (str(index), piece, _ids(devices))
            for index, (piece, devices) in enumerate(zip(pieces, numbers, strict=True))
        )
        yield PlanTable("Submeshes", ("submesh", "slice", "devices"), submeshes)


def _stages(region: Region) -> _Stages | None:
    """The submeshes of the pipeline and the order in which a microbatch visits them."""
    assert region.mesh is not None
    sizes = region.mesh.sizes
    placed = [task for task in region.tasks if task.where or task.unknown]
    if sizes is None or not placed:
        return None
    unknown = [task for task in placed if task.unknown is not None]
    axes = {axis for task in placed for axis, _ in task.where}
    missing = sorted(axes - sizes.keys())
    if missing:
        return _Stages((), None, (f"the mesh has no axis {', '.join(missing)}, so the stages cannot be told",))
    for task in placed:
        for axis, value in task.where:
            if value.number is not None and not 0 <= value.number < sizes[axis]:
                note = f"{task.place}: {axis}={value} is not a slice of the mesh, which has {axis}={sizes[axis]}"
                return _Stages((), None, (note,))
    expressions = [task for task in placed for _, value in task.where if value.number is None and task.layers is None]
    layered = [task for task in placed if task.layers is not None and task.unknown is None]
    if unknown or expressions:
        task = (unknown or expressions)[0]
        along = next(iter(axes)) if len(axes) == 1 else None
        text = f"where `{task.what}` of {task.place} runs is an expression"
        if along is None:
            return _Stages((), None, (f"{text}, so the stages cannot be told from the source",))
        note = f"{text}; assumed: every slice of `{along}` is used"
        return _Stages(tuple({along: index} for index in range(sizes[along])), None, (note,))
    if layered:
        (axis, _), *_ = layered[0].where
        if axes != {axis}:
            return _Stages(
                (), None, ("tasks are cut along several axes, so the stages cannot be told from the source",)
            )
        slices = tuple({axis: index} for index in range(sizes[axis]))
        return _Stages(slices, tuple(range(len(slices))))
    return _explicit(placed)


def _explicit(tasks: Sequence[TaskSite]) -> _Stages:
    """Stages of tasks whose slices are all written out."""
    visits = [tuple((axis, value.number or 0) for axis, value in task.where) for task in tasks]
    merged = [visit for visit, _ in itertools.groupby(visits)]
    used = sorted(set(merged))
    slices = tuple(dict(visit) for visit in used)
    if len(merged) == len(used):
        return _Stages(slices, tuple(range(len(used))))
    note = "several tasks share a submesh; in which order a microbatch visits them cannot be told from the source"
    return _Stages(slices, None, (note,))


def _timeline(loop: LoopSite, stages: _Stages | None, microbatches: int | None) -> PlanTimeline:
    from mmruntime import schedules

    title = f"{loop.place}: schedule {_schedule_text(loop)}"
    if stages is None or not stages.slices:
        return PlanTimeline(
            title, "unit", ("not drawn: how many stages there are cannot be told from the source",), None
        )
    name = _DEFAULT_SCHEDULE if loop.schedule is None else loop.schedule.literal
    if loop.custom or not isinstance(name, str):
        return PlanTimeline(title, "unit", ("not drawn: its order is made when the program runs; use --entry",), None)
    count, notes = _num_microbatches(loop, len(stages.slices), microbatches)
    size = len(stages.slices)
    try:
        options: dict[str, Any] = {}
        if name == "auto":
            classic = schedules.simulate(schedules.make("1f1b", size, count, placement=stages.placement))
            options["memory"] = max(classic.live)
            notes.append("searched with unit costs; the program itself searches with the operations of its stages")
        schedule = schedules.make(name, size, count, placement=stages.placement, **options)
    except ValueError as error:
        return PlanTimeline(title, "unit", (*notes, f"this does not run: {error}"), None)
    if stages.placement is None and schedule.num_stages != size:
        notes.append(f"assumed: {schedule.num_stages} stages, as this schedule places them")
    elif stages.placement is None:
        notes.append("assumed: one stage on each submesh, in order")
    return PlanTimeline(title, "unit", tuple(notes), schedules.simulate(schedule))


def _num_microbatches(loop: LoopSite, stages: int, given: int | None) -> tuple[int, list[str]]:
    if loop.count is not None and loop.count.number is not None:
        return loop.count.number, []
    of = f"count={loop.count}" if loop.count is not None else f"size={_shown(loop.size)} and on the batch"
    source = "--microbatches" if given else f"2 x {_count(stages, 'stage')}; give another with --microbatches"
    count = given or 2 * stages
    return count, [f"how many microbatches there are depends on {of}: {count} used ({source})"]


def _grid(mesh: MeshSite, sizes: Mapping[str, int], stages: _Stages | None) -> PlanGrid:
    total = math.prod(sizes.values())
    owners: list[tuple[int, ...]] = [()] * total
    for number, piece in enumerate(stages.slices if stages else ()):
        for device in _devices(sizes, piece):
            owners[device] += (number,)
    return PlanGrid("Mesh: device numbers", tuple(sizes.items()), tuple(range(total)), tuple(owners))


def _devices(sizes: Mapping[str, int], piece: Mapping[str, int]) -> list[int]:
    """Device numbers of a slice; the last axis of the mesh varies fastest."""
    ranges = [[piece[axis]] if axis in piece else range(size) for axis, size in sizes.items()]
    found = []
    for place in itertools.product(*ranges):
        number = 0
        for index, size in zip(place, sizes.values(), strict=True):
            number = number * size + index
        found.append(number)
    return [number for number in found if number < math.prod(sizes.values())]


def _task_name(task: TaskSite) -> str:
    if task.layers is not None:
        return "one for each slice"
    return task.what if task.name is None else str(task.name)


def _where(task: TaskSite, sizes: Mapping[str, int] | None) -> str:
    if task.unknown is not None:
        return task.unknown
    if task.layers is not None:
        axis = task.where[0][0]
        over = (
            f"the {_count(sizes[axis], 'slice')} of `{axis}`" if sizes and axis in sizes else f"the slices of `{axis}`"
        )
        literal = task.layers.number is not None
        layers = f"{task.layers} layers" if literal else f"as many layers as {task.layers} says,"
        return f"{layers} dealt out to {over}, in order"
    return ", ".join(f"{axis}={value}" for axis, value in task.where) or "not placed"


def _schedule_text(loop: LoopSite) -> str:
    if loop.custom:
        return "custom"
    return f"{_DEFAULT_SCHEDULE} (the default)" if loop.schedule is None else str(loop.schedule)


def _shown(value: Value | None) -> str:
    return "-" if value is None else str(value)


def _ids(devices: Sequence[int]) -> str:
    if len(devices) > 2 and list(devices) == list(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ", ".join(map(str, devices))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
