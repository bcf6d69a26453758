"""Submeshes, stages and schedules of a program, from the source alone; schedules are simulated with unit costs.

Schedules are made and drawn by `mmruntime.schedules`, which needs no JAX. Nothing is guessed in silence: a note names
every assumption, and everything that the source leaves open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.plan.read_placement import PlacedRegion
from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline
from mmrewrite.plan.sites import ALL_LAYERS, LoopSite, TaskSite, WrittenValue
from mmrewrite.results import counted

# The title of the section without a mesh.
STEPS = "Steps"
UNREACHED = "Tasks that no step of these files reaches, so that their mesh is unknown"


@dataclass(frozen=True)
class _Stages:
    """The stages of a pipeline, as far as the source gives them.

    Attributes:
        slices: The slice of the mesh of each submesh; none if they are unknown.
        placement: The submesh of each stage, in the order in which a microbatch visits them; None if unknown.
        notes: Assumptions, and reasons why something is unknown.
    """

    slices: tuple[Mapping[str, int], ...]
    placement: tuple[int, ...] | None
    notes: tuple[str, ...] = ()


def plan_regions(
    regions: Iterable[PlacedRegion], microbatches: int | None, *, simulate: bool = True
) -> tuple[PlanSection, ...]:
    """A section for each region.

    Args:
        regions: The meshes, with the tasks and loops that run on them.
        microbatches: How many microbatches a batch is cut into, for loops whose source does not say.
        simulate: Whether to simulate the schedules with unit costs.
    """
    return tuple(_section(region, microbatches, simulate) for region in regions)


def _section(region: PlacedRegion, microbatches: int | None, simulate: bool) -> PlanSection:
    mesh = region.mesh
    stages = _stages(region) if mesh is not None else None
    sizes = mesh.sizes if mesh is not None else None
    notes = list(stages.notes) if stages else []
    if mesh is None:
        title = UNREACHED
    elif sizes is None:
        title = f"{mesh.place}: mesh `{mesh.name}`"
        notes.insert(0, f"its size is unknown from the source: {mesh.unknown}")
    else:
        shape = " x ".join(f"{name}={size}" for name, size in sizes.items())
        title = f"{mesh.place}: mesh `{mesh.name}` of {counted(math.prod(sizes.values()), 'device')}, {shape}"
    if mesh is not None and not region.steps:
        notes.append("no step in these files is compiled for this mesh")
    grid = _grid(sizes, stages) if sizes is not None else None
    tables = list(_tables(region, stages, sizes))
    timelines: list[PlanTimeline] = []
    if simulate and mesh is not None:
        timelines = [_timeline(loop, stages, microbatches) for loop in region.loops]
        if region.tasks and not region.loops:
            notes.append("no `microbatch` hint: a step runs its stages one after the other, on the whole batch")
    return PlanSection(title, tuple(notes), grid, tuple(tables), tuple(timelines))


def _tables(region: PlacedRegion, stages: _Stages | None, sizes: Mapping[str, int] | None) -> Iterator[PlanTable]:
    if region.mesh is not None and region.mesh.logical_axes:
        yield PlanTable("Logical axes", ("name", "device axis"), region.mesh.logical_axes)
    if region.steps:
        yield PlanTable(STEPS, ("line", "step"), tuple((str(step.place), step.name) for step in region.steps))
    if region.tasks:
        rows = tuple((str(task.place), task.code, _task_name(task), _where(task, sizes)) for task in region.tasks)
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
        submeshes = tuple(
            (str(index), ", ".join(f"{axis}={position}" for axis, position in mesh_slice.items()), _ids(devices))
            for index, mesh_slice in enumerate(stages.slices)
            for devices in [_devices(sizes, mesh_slice)]
        )
        yield PlanTable("Submeshes", ("submesh", "slice", "devices"), submeshes)


def _stages(region: PlacedRegion) -> _Stages | None:
    """The submeshes of the pipeline, and the order in which a microbatch visits them; None without placed tasks."""
    assert region.mesh is not None
    sizes = region.mesh.sizes
    placed = [task for task in region.tasks if task.mesh_slice or task.unknown]
    if sizes is None or not placed:
        return None
    misplaced = _misplaced(placed, sizes)
    if misplaced is not None:
        return _Stages((), None, (misplaced,))
    by_expression = [task for task in placed if task.unknown is not None] or [
        task for task in placed if task.layers is None and any(value.number is None for _, value in task.mesh_slice)
    ]
    if by_expression:
        return _assumed_stages(by_expression[0], _axes(placed), sizes)
    if any(task.layers is not None for task in placed):
        return _layer_stages(placed, sizes)
    return _written_stages(placed)


def _axes(tasks: Iterable[TaskSite]) -> set[str]:
    return {axis for task in tasks for axis, _ in task.mesh_slice}


def _misplaced(tasks: Sequence[TaskSite], sizes: Mapping[str, int]) -> str | None:
    """Why a task runs on a slice that the mesh does not have; None if all slices exist."""
    missing = sorted(_axes(tasks) - sizes.keys())
    if missing:
        return f"the mesh has no axis {', '.join(missing)}, so its stages are unknown"
    for task in tasks:
        for axis, value in task.mesh_slice:
            if value.number is not None and not 0 <= value.number < sizes[axis]:
                return f"{task.place}: {axis}={value} is not a slice of the mesh, which has {axis}={sizes[axis]}"
    return None


def _assumed_stages(task: TaskSite, axes: set[str], sizes: Mapping[str, int]) -> _Stages:
    """Stages on every slice of the one axis in use, as the slice of `task` is an expression."""
    reason = f"where `{task.code}` of {task.place} runs is an expression"
    if len(axes) != 1:
        return _Stages((), None, (f"{reason}, so the stages are unknown from the source",))
    (axis,) = axes
    note = f"{reason}; assumed: every slice of `{axis}` is used"
    return _Stages(_all_slices(axis, sizes), None, (note,))


def _layer_stages(tasks: Sequence[TaskSite], sizes: Mapping[str, int]) -> _Stages:
    """Stages of layers that are dealt out: one for each slice of their axis in each round of each loop, in order."""
    axes = _axes(tasks)
    if len(axes) != 1:
        return _Stages((), None, ("tasks are cut along several axes, so the stages are unknown from the source",))
    (axis,) = axes
    loops = {task.place: (task.rounds, task.is_folded) for task in tasks if task.layers is not None}
    if len(set(loops.values())) > 1:
        note = "loops over layers are dealt out in different ways, so the stages' order is unknown from the source"
        return _Stages(_all_slices(axis, sizes), None, (note,))
    count, is_folded = next(iter(loops.values()))
    there = tuple(range(sizes[axis]))
    rounds = [there[::-1] if is_folded and number % 2 else there for number in range(count)]
    places = " and ".join(map(str, loops))
    note = f"assumed: a microbatch passes through the loops over layers at {places}, one after the other"
    return _Stages(
        _all_slices(axis, sizes), (*itertools.chain(*rounds),) * len(loops), (note,) if len(loops) > 1 else ()
    )


def _written_stages(tasks: Sequence[TaskSite]) -> _Stages:
    """Stages of tasks whose slices are all written out; neighbours on one submesh are one stage."""
    visits = [tuple((axis, value.number or 0) for axis, value in task.mesh_slice) for task in tasks]
    stages = [visit for visit, _ in itertools.groupby(visits)]
    submeshes = sorted(set(stages))
    slices = tuple(dict(submesh) for submesh in submeshes)
    if len(stages) == len(submeshes):
        return _Stages(slices, tuple(range(len(submeshes))))
    # Tasks are listed in the order of the source, which is not that of their calls: no order is claimed for revisits.
    note = "several tasks share a submesh; the order in which a microbatch visits them is unknown from the source"
    return _Stages(slices, None, (note,))


def _all_slices(axis: str, sizes: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    return tuple({axis: index} for index in range(sizes[axis]))


def _timeline(loop: LoopSite, stages: _Stages | None, microbatches: int | None) -> PlanTimeline:
    from mmruntime import schedules

    title = f"{loop.place}: schedule {_schedule_text(loop)}"

    def undrawn(*notes: str) -> PlanTimeline:
        return PlanTimeline(title, "unit", notes, None)

    if stages is None or not stages.slices:
        return undrawn("not drawn: the number of stages is unknown from the source")
    name = schedules.DEFAULT if loop.schedule is None else loop.schedule.literal
    if loop.custom or not isinstance(name, str):
        return undrawn("not drawn: its order is made when the program runs; use --entry")
    size = len(stages.slices)
    count, notes = _num_microbatches(loop, size, microbatches)
    try:
        options: dict[str, Any] = {}
        if name == schedules.AUTO:
            options["memory"] = schedules.Auto().memory_bound(size, count, stages.placement)
            notes.append("searched with unit costs; the program itself searches with the operations of its stages")
        slices = 1 if loop.slices is None else loop.slices.number
        if slices is None:
            return undrawn(*notes, f"not drawn: slices={loop.slices} is an expression; use --entry")
        if slices == 1:
            schedule = schedules.make(name, size, count, placement=stages.placement, **options)
        else:
            schedule = schedules.sliced(name, size, count, slices, placement=stages.placement)
            notes.append(f"each microbatch is drawn as its {slices} slices")
    except ValueError as error:
        return undrawn(*notes, f"this does not run: {error}")
    if stages.placement is None and schedule.num_stages != size:
        notes.append(f"assumed: {schedule.num_stages} stages, as this schedule places them")
    elif stages.placement is None:
        notes.append("assumed: one stage on each submesh, in order")
    return PlanTimeline(title, "unit", tuple(notes), schedules.simulate(schedule))


def _num_microbatches(loop: LoopSite, stages: int, requested: int | None) -> tuple[int, list[str]]:
    """The number of microbatches, and a note if the source does not give it.

    Twice the number of stages, so that the timeline has a steady state between filling and draining.
    """
    if loop.count is not None and loop.count.number is not None:
        return loop.count.number, []
    reason = f"count={loop.count}" if loop.count is not None else f"size={_shown(loop.size)} and on the batch"
    source = "--microbatches" if requested else f"2 x {counted(stages, 'stage')}; --microbatches sets another number"
    count = requested or 2 * stages
    return count, [f"the number of microbatches depends on {reason}; assumed: {count} ({source})"]


def _grid(sizes: Mapping[str, int], stages: _Stages | None) -> PlanGrid:
    total = math.prod(sizes.values())
    owners: list[tuple[int, ...]] = [()] * total
    for number, mesh_slice in enumerate(stages.slices if stages else ()):
        for device in _devices(sizes, mesh_slice):
            owners[device] += (number,)
    return PlanGrid("Mesh: device numbers", tuple(sizes.items()), tuple(range(total)), tuple(owners))


def _devices(sizes: Mapping[str, int], mesh_slice: Mapping[str, int]) -> list[int]:
    """Device numbers of a slice; the last axis of the mesh varies fastest, as in `jax.sharding.Mesh`."""
    ranges = [[mesh_slice[axis]] if axis in mesh_slice else range(size) for axis, size in sizes.items()]
    found = []
    for position in itertools.product(*ranges):
        number = 0
        for index, size in zip(position, sizes.values(), strict=True):
            number = number * size + index
        found.append(number)
    return found


def _task_name(task: TaskSite) -> str:
    if task.layers is not None:
        return "one for each slice"
    return task.code if task.name is None else str(task.name)


def _where(task: TaskSite, sizes: Mapping[str, int] | None) -> str:
    """The slice of a task, or how its layers are dealt out."""
    if task.unknown is not None:
        return task.unknown
    if task.layers is None:
        return ", ".join(f"{axis}={value}" for axis, value in task.mesh_slice) or "not placed"
    ((axis, _),) = task.mesh_slice
    count = counted(sizes[axis], "slice") if sizes and axis in sizes else "slices"
    slices = f"the {count} of `{axis}`"
    rounds = f", in {task.rounds} rounds{' to and fro' if task.is_folded else ''}" if task.rounds > 1 else ", in order"
    return f"{_layers(task.layers)} dealt out to {slices}{rounds}"


def _layers(count: WrittenValue) -> str:
    if count.number is not None:
        return f"{count} layers"
    return "all layers," if count == ALL_LAYERS else f"`{count.text}` layers (an expression),"


def _schedule_text(loop: LoopSite) -> str:
    from mmruntime import schedules

    if loop.custom:
        return "custom"
    return f"{schedules.DEFAULT} (the default)" if loop.schedule is None else str(loop.schedule)


def _shown(value: WrittenValue | None) -> str:
    return "-" if value is None else str(value)


def _ids(devices: Sequence[int]) -> str:
    if len(devices) > 2 and list(devices) == list(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ", ".join(map(str, devices))
