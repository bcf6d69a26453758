"""Schedule: in which order the programs of a microbatch loop are issued."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmruntime import schedules
from mmruntime._compat import Var
from mmruntime._ir import Region, Step
from mmruntime._place import Placement
from mmruntime._segment import Segment, Segments, segment
from mmruntime._split import split_backward

# Relative time of a program in the order of issue; only its proportions matter.
_FORWARD, _BACKWARD = 1, 2


@dataclass(eq=False, slots=True, frozen=True)
class Stage:
    """A pipeline stage.

    Attributes:
        forward: The program of its forward pass, and of its backward pass on the last stage.
        backward: The programs of its backward pass, or of their input halves.
        weights: The weight halves, where the backward pass is split.
    """

    forward: Segment
    backward: tuple[Segment, ...]
    weights: tuple[Segment, ...]


@dataclass(eq=False, slots=True, frozen=True)
class Pipeline:
    """A microbatch loop as a pipeline.

    Attributes:
        stages: In the order in which a microbatch passes through them.
        others: Programs that belong to no stage; they run as soon as they can.
        schedule: The schedule of the stages.
        order: Programs and microbatches in order of issue.
    """

    stages: tuple[Stage, ...]
    others: tuple[Segment, ...]
    schedule: schedules.Schedule
    order: tuple[tuple[Segment, int], ...]


def make_schedule(
    region: Region, segments: Sequence[Segment], made_on: Mapping[Var, tuple[int, ...]]
) -> schedules.Schedule:
    """The schedule that a loop asks for, on the stages that its tasks make.

    Raises:
        ValueError: If the schedule does not suit the order of the stages' submeshes.
    """
    assert region.loop is not None
    stages, _ = _stages(segments, _dependencies(segments, made_on))
    used = list(dict.fromkeys(stage.forward.submesh for stage in stages))
    placement = tuple(used.index(stage.forward.submesh) for stage in stages)
    assert isinstance(region.loop.schedule, str)
    return schedules.make(region.loop.schedule, len(used), region.loop.count, placement=placement)


def schedule_loops(
    step: Step, placement: Placement, segments: Segments
) -> tuple[Segments, dict[int, schedules.Schedule]]:
    """The schedule of each loop, and the segments cut as the schedules need it.

    Neighbouring tasks of one submesh are one program, unless the schedule only fits when each task is a stage of
    its own, as the V-shaped ones do. Backward passes are split for schedules that put weight gradients off.
    """
    loops = [index for index, region in enumerate(step.regions) if region.loop is not None]
    chosen: dict[int, schedules.Schedule] = {}
    by_task: list[int] = []
    for index in loops:
        try:
            chosen[index] = make_schedule(step.regions[index], segments.by_region[index], segments.made_on)
        except ValueError:
            by_task.append(index)
    if by_task:
        segments = segment(step, placement, by_task)
        for index in by_task:
            chosen[index] = make_schedule(step.regions[index], segments.by_region[index], segments.made_on)
    for index, schedule in chosen.items():
        if schedule.splits_backward:
            split_backward(step, segments, index)
    return segments, chosen


def order_loop(
    region: Region,
    schedule: schedules.Schedule,
    segments: Sequence[Segment],
    made_on: Mapping[Var, tuple[int, ...]],
) -> Pipeline:
    """Make the pipeline of a loop and its order of issue."""
    assert region.loop is not None
    waits = _dependencies(segments, made_on)
    stages, others = _stages(segments, waits)
    queues: list[list[tuple[Segment, int]]] = []
    for row in schedule.rows:
        queue: list[tuple[Segment, int]] = []
        for action in row:
            stage = stages[action.stage]
            if action.kind == "F":
                queue.append((stage.forward, action.microbatch))
            if action.kind in ("B", "I"):
                queue.extend((each, action.microbatch) for each in stage.backward)
            if action.kind in ("B", "W"):
                queue.extend((each, action.microbatch) for each in stage.weights)
        queues.append(queue)
    queues.extend([(each, microbatch) for microbatch in range(region.loop.count)] for each in others)
    return Pipeline(stages, others, schedule, _issue(queues, waits))


def _dependencies(
    segments: Sequence[Segment], made_on: Mapping[Var, tuple[int, ...]]
) -> dict[Segment, tuple[Segment, ...]]:
    writer = {(var, each.submesh): each for each in segments for var in each.writes}
    waits = {}
    for each in segments:
        sources: dict[Segment, None] = {}
        for var in each.reads:
            source = writer.get((var, each.submesh)) or writer.get((var, made_on.get(var, (-1,))[0]))
            if source is not None:
                sources[source] = None
        waits[each] = tuple(sources)
    return waits


def _stages(
    segments: Sequence[Segment], waits: Mapping[Segment, tuple[Segment, ...]]
) -> tuple[tuple[Stage, ...], tuple[Segment, ...]]:
    forwards = [each for each in segments if each.forward]
    backwards: dict[Segment, list[Segment]] = defaultdict(list)
    weights: dict[Segment, list[Segment]] = defaultdict(list)
    others = []
    stage_of: dict[Segment, Segment] = {each: each for each in forwards}
    for each in segments:
        if each.forward:
            continue
        if each.input_half in stage_of:
            weights[stage_of[each.input_half]].append(each)
            continue
        here = [forward for forward in forwards if forward.submesh == each.submesh]
        kept = [forward for forward in here if forward in waits[each]]
        if here:
            # The stage whose residuals it reads; without any, the last one of its submesh.
            stage_of[each] = (kept or here)[-1]
            backwards[stage_of[each]].append(each)
        else:
            others.append(each)
    stages = tuple(Stage(each, tuple(backwards[each]), tuple(weights[each])) for each in forwards)
    return stages, tuple(others)


def _issue(
    queues: Sequence[Sequence[tuple[Segment, int]]], waits: Mapping[Segment, tuple[Segment, ...]]
) -> tuple[tuple[Segment, int], ...]:
    """One order of all queues: by simulated start time, each queue in its own order."""
    done: dict[tuple[Segment, int], float] = {}
    free: dict[int, float] = defaultdict(float)
    position = [0] * len(queues)
    order: list[tuple[Segment, int]] = []
    total = sum(len(queue) for queue in queues)
    while len(order) < total:
        best: tuple[float, int] | None = None
        for index, queue in enumerate(queues):
            if position[index] == len(queue):
                continue
            segment, microbatch = queue[position[index]]
            needs = [(source, microbatch) for source in waits[segment]]
            if any(need not in done for need in needs):
                continue
            start = max([free[segment.submesh], *[done[need] for need in needs]])
            if best is None or start < best[0]:
                best = (start, index)
        if best is None:
            return _in_program_order(queues, waits)
        start, index = best
        segment, microbatch = queues[index][position[index]]
        position[index] += 1
        cost = (_FORWARD if segment.forward else 0) + (_BACKWARD if segment.backward else 0)
        done[segment, microbatch] = free[segment.submesh] = start + cost
        order.append((segment, microbatch))
    return tuple(order)


def _in_program_order(
    queues: Sequence[Sequence[tuple[Segment, int]]], waits: Mapping[Segment, tuple[Segment, ...]]
) -> tuple[tuple[Segment, int], ...]:
    """Microbatch by microbatch: for programs whose dependencies are not those of a pipeline."""
    cells = [cell for queue in queues for cell in queue]
    return tuple(sorted(cells, key=lambda cell: (cell[1], cell[0].level, cell[0].submesh)))
