"""Schedule: in which order the programs of a microbatch loop are issued."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mmruntime import schedules
from mmruntime._compat import Var
from mmruntime._core.marks import LoopSpec
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Region, Step, num_bytes
from mmruntime._partition.place import Placement
from mmruntime._partition.segment import Segment, Segments, segment
from mmruntime._partition.split_backward import halves_of, split_backward

# Relative time of a program in the order of issue; only its proportions matter.
_FORWARD, _BACKWARD = 1, 2


# A program and the microbatch that it runs for.
ProgramRun = tuple[Segment, int]


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
        variants: The stages of each variant of the body, in the order in which a microbatch passes through them.
        others: Programs that belong to no stage; they run when a stage needs them, or as soon as they can.
        schedule: The schedule of the stages.
        choice: Why that schedule, if it was searched for.
        order: Programs and microbatches in order of issue.
    """

    variants: tuple[tuple[Stage, ...], ...]
    others: tuple[Segment, ...]
    schedule: schedules.Schedule
    choice: schedules.Choice | None
    order: tuple[ProgramRun, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the first variant; all variants have their stages on the same submeshes."""
        return self.variants[0]


@dataclass(eq=False, slots=True, frozen=True)
class LoopSchedule:
    """The schedule of a loop, and why that one, if it was searched for."""

    schedule: schedules.Schedule
    choice: schedules.Choice | None = None


def make_schedule(index: int, step: Step, placed: Placement, every: Segments) -> LoopSchedule:
    """The schedule that a loop asks for, on the stages that its tasks make.

    Raises:
        ValueError: If the schedule does not suit the order of the stages' submeshes.
    """
    region, segments = step.regions[index], every.by_region[index]
    assert region.loop is not None
    loop = region.loop
    first = [each for each in segments if each.variant == 0]
    stages, _ = _stages(first, _dependencies(first, every.made_on))
    used = list(dict.fromkeys(stage.forward.submesh for stage in stages))
    placement = tuple(used.index(stage.forward.submesh) for stage in stages)
    _check_stages(loop, placement)
    if loop.custom is not None:
        tasks = _task_names(stages)
        return LoopSchedule(
            schedules.custom(loop.custom, tasks=tasks, placement=placement, num_microbatches=loop.count)
        )
    wanted = schedules.Auto() if loop.schedule == "auto" else loop.schedule
    if isinstance(wanted, schedules.Schedule):
        return LoopSchedule(_check_fit(wanted, placement, loop.count))
    if isinstance(wanted, str):
        return LoopSchedule(schedules.make(wanted, len(used), loop.count, placement=placement))
    assert isinstance(wanted, schedules.Auto)
    costs = [_stage_cost(stage, region, placed, every) for stage in stages]
    choice = wanted.choose(
        len(used),
        loop.count,
        placement,
        forward=[cost.forward for cost in costs],
        backward_input=[cost.backward_input for cost in costs],
        backward_weight=[cost.backward_weight for cost in costs],
        activation_bytes=_activation_bytes(stages, region),
    )
    return LoopSchedule(choice.schedule, choice)


def _check_stages(loop: LoopSpec, placement: tuple[int, ...]) -> None:
    """Hold the tasks against what the user said of them."""
    counts = {placement.count(where) for where in placement}
    if loop.num_stages is not None and loop.num_stages != len(placement):
        raise ValueError(
            f"microbatch: num_stages={loop.num_stages}, but the tasks make {len(placement)} stages, on submeshes "
            f"{placement}. Place the tasks on {loop.num_stages}, or leave num_stages out."
        )
    if loop.interleave is not None and counts != {loop.interleave}:
        raise ValueError(
            f"microbatch: interleave={loop.interleave} stages on each submesh, but the tasks make stages on submeshes "
            f"{placement}. Place the tasks so, or leave interleave out."
        )


def _check_fit(schedule: schedules.Schedule, placement: tuple[int, ...], count: int) -> schedules.Schedule:
    if schedule.num_microbatches != count:
        raise ValueError(
            f"microbatch: the schedule {schedule.name!r} is for {schedule.num_microbatches} microbatches, but the "
            f"batch is cut into {count}. Make it for {count}."
        )
    if tuple(schedule.placement) != placement:
        raise ValueError(
            f"microbatch: the schedule {schedule.name!r} has its stages on submeshes {tuple(schedule.placement)}, "
            f"but the tasks make stages on {placement}. Give schedules.make(..., placement={placement}), "
            "or move the tasks."
        )
    schedule.validate()
    return schedule


def _task_names(stages: Sequence[Stage]) -> dict[str, tuple[Literal["F", "B", "I", "W"], int]]:
    """What task names mean in a custom schedule.

    A task's name is its forward pass; that of the backward pass is the name of its own that a registration may
    have given, or the task's with `_bwd` behind it, or with the suffixes of `split_backprop`.
    """
    names: dict[str, tuple[Literal["F", "B", "I", "W"], int]] = {}
    for index, stage in enumerate(stages):
        names.update(dict.fromkeys(stage.forward.tasks, ("F", index)))
    for index, stage in enumerate(stages):
        for task in (op.task for each in (stage.forward, *stage.backward) for op in each.ops):
            if task is None or task.name is None:
                continue
            names.setdefault(task.name, ("B", index))
            names.setdefault(f"{task.name}_bwd", ("B", index))
            if task.split_backprop is not None:
                critical, rest = task.split_backprop
                names.setdefault(task.name + critical, ("I", index))
                names.setdefault(task.name + rest, ("W", index))
    return names


@dataclass(eq=False, slots=True, frozen=True)
class _StageFlops:
    """Floating-point operations of a stage's programs for one microbatch, on each device of its submesh."""

    forward: float
    backward_input: float
    backward_weight: float


def _stage_cost(stage: Stage, region: Region, placed: Placement, every: Segments) -> _StageFlops:
    """What the stage's programs cost, as they are if the backward pass is split.

    The input half that shares a program with the forward pass, as on the last stage, counts as forward.
    """
    work = {"": 0.0, "I": 0.0, "W": 0.0}
    for each in (stage.forward, *stage.backward, *stage.weights):
        for half in halves_of(each, region, every) if each.backward else [each]:
            part = "W" if half.part == "W" else "" if each is stage.forward else "I"
            work[part] += sum(_cost.flops(op.eqn) for op in half.ops)
    devices = placed.submeshes.meshes[stage.forward.submesh].size
    return _StageFlops(work[""] / devices, work["I"] / devices, work["W"] / devices)


def _activation_bytes(stages: Sequence[Stage], region: Region) -> list[float]:
    """What each stage keeps of one microbatch from its forward to its backward pass, on all its devices together."""
    kept = set(region.slices) | {var for op in region.ops if not op.backward for var in op.writes()}
    return [
        float(
            sum(
                num_bytes(var)
                for var in {var for each in (*stage.backward, *stage.weights) for var in each.reads} & kept
            )
        )
        for stage in stages
    ]


def schedule_loops(step: Step, placement: Placement, segments: Segments) -> tuple[Segments, dict[int, LoopSchedule]]:
    """The schedule of each loop, and the segments cut as the schedules need it.

    Neighbouring tasks of one submesh are one program, unless the schedule only fits when each task is a stage of
    its own, as the V-shaped ones do. Backward passes are split for schedules that put weight gradients off.
    """
    loops = [index for index, region in enumerate(step.regions) if region.loop is not None]
    chosen: dict[int, LoopSchedule] = {}
    refused: dict[int, ValueError] = {}
    for index in loops:
        try:
            chosen[index] = make_schedule(index, step, placement, segments)
        except ValueError as error:
            refused[index] = error
    if refused:
        merged, segments = segments, segment(step, placement, list(refused))
        for index, first in refused.items():
            try:
                chosen[index] = make_schedule(index, step, placement, segments)
            except ValueError:
                loop = step.regions[index].loop
                if loop is not None and _names_several_tasks(loop, merged.by_region[index]):
                    raise
                # Of the two cuts, the user knows the one that `explain` shows.
                raise first from None
    for index, each in chosen.items():
        if each.schedule.splits_backward:
            split_backward(step, segments, index)
    return segments, chosen


def _names_several_tasks(loop: LoopSpec, segments: Iterable[Segment]) -> bool:
    """Whether rows of a custom schedule name several tasks of one program, so that each is to be a stage."""
    cells = [cell for row in loop.custom or () for cell in row if not isinstance(cell, schedules.Action)]
    named = {cell if isinstance(cell, str) else cell[1] for cell in cells}
    return any(each.forward and len(named.intersection(each.tasks)) > 1 for each in segments)


def order_loop(
    region: Region,
    chosen: LoopSchedule,
    segments: Sequence[Segment],
    made_on: Mapping[Var, tuple[int, ...]],
) -> Pipeline:
    """Make the pipeline of a loop and its order of issue."""
    assert region.loop is not None
    waits = _dependencies(segments, made_on)
    variants: list[tuple[Stage, ...]] = []
    others: list[Segment] = []
    for variant in sorted({each.variant for each in segments}):
        stages, rest = _stages([each for each in segments if each.variant == variant], waits)
        variants.append(stages)
        others.extend(rest)
    queues: list[list[ProgramRun]] = []
    for row in chosen.schedule.rows:
        queue: list[ProgramRun] = []
        for action in row:
            variant = region.variant_of[action.microbatch] if region.variant_of else 0
            stage = variants[variant][action.stage]
            if action.kind == "F":
                queue.append((stage.forward, action.microbatch))
            if action.kind in ("B", "I"):
                queue.extend((each, action.microbatch) for each in stage.backward)
            if action.kind in ("B", "W"):
                queue.extend((each, action.microbatch) for each in stage.weights)
        queues.append(queue)
    free = {each: region.microbatches(each.variant) for each in others}
    order = _issue(queues, free, waits)
    return Pipeline(tuple(variants), tuple(others), chosen.schedule, chosen.choice, order)


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
    forwards = [each for each in segments if each.forward and not each.submesh_varies]
    backwards: dict[Segment, list[Segment]] = defaultdict(list)
    weights: dict[Segment, list[Segment]] = defaultdict(list)
    others = []
    stage_of: dict[Segment, Segment] = {each: each for each in forwards}
    for each in segments:
        if each in stage_of:
            continue
        if each.submesh_varies:
            others.append(each)
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
    queues: Sequence[Sequence[ProgramRun]],
    free: Mapping[Segment, Sequence[int]],
    waits: Mapping[Segment, tuple[Segment, ...]],
) -> tuple[ProgramRun, ...]:
    """One order of all programs: by simulated start time, each queue in its own order.

    Args:
        queues: The cells of each submesh, in the schedule's order.
        free: Programs of no stage and their microbatches. What a stage waits for runs when it does, not earlier, so
            that it is not held in memory; the rest follows as soon as it can.
        waits: What each program reads from.
    """
    wanted = _sources([cell[0] for queue in queues for cell in queue], waits)
    all_queues = [list(queue) for queue in queues]
    all_queues += [[(each, k) for k in microbatches] for each, microbatches in free.items() if each not in wanted]
    on_demand = {(each, k) for each, microbatches in free.items() if each in wanted for k in microbatches}
    done: dict[ProgramRun, float] = {}
    busy: dict[int, float] = defaultdict(float)
    position = [0] * len(all_queues)
    order: list[ProgramRun] = []

    def ready(cell: ProgramRun) -> ProgramRun | None:
        """The cell, if all that it reads is there; else what has to run before and can; else None."""
        for source in waits[cell[0]]:
            need = (source, cell[1])
            if need not in done:
                return ready(need) if need in on_demand else None
        return cell

    while any(at < len(queue) for at, queue in zip(position, all_queues, strict=True)):
        best: tuple[float, int, ProgramRun] | None = None
        for index, queue in enumerate(all_queues):
            if position[index] == len(queue):
                continue
            cell = ready(queue[position[index]])
            if cell is None:
                continue
            start = max([busy[cell[0].submesh], *[done[source, cell[1]] for source in waits[cell[0]]]])
            if best is None or start < best[0]:
                best = (start, index, cell)
        if best is None:
            return _in_program_order([*all_queues, list(on_demand)])
        start, index, cell = best
        if cell in on_demand:
            on_demand.discard(cell)
        else:
            position[index] += 1
        segment = cell[0]
        cost = (_FORWARD if segment.forward else 0) + (_BACKWARD if segment.backward else 0)
        done[cell] = busy[segment.submesh] = start + cost
        order.append(cell)
    return tuple(order)


def _sources(segments: Iterable[Segment], waits: Mapping[Segment, tuple[Segment, ...]]) -> set[Segment]:
    """All that the segments read from, directly or not."""
    found: set[Segment] = set()
    todo = list(dict.fromkeys(segments))
    while todo:
        for source in waits[todo.pop()]:
            if source not in found:
                found.add(source)
                todo.append(source)
    return found


def _in_program_order(queues: Sequence[Sequence[ProgramRun]]) -> tuple[ProgramRun, ...]:
    """Microbatch by microbatch: for programs whose dependencies are not those of a pipeline."""
    cells = [cell for queue in queues for cell in queue]
    return tuple(sorted(cells, key=lambda cell: (cell[1], cell[0].level, cell[0].submesh)))
