"""Schedule: which order the stages of each microbatch loop follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mmruntime import schedules
from mmruntime._core.marks import LoopSpec
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Region, Step, num_bytes
from mmruntime._partition.pipeline_stages import Stage, dependencies, pipeline_stages
from mmruntime._partition.place import Placement
from mmruntime._partition.segment import Segment, Segments, segment
from mmruntime._partition.split_backward import halves_of, split_backward


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
    stages, _ = pipeline_stages(first, dependencies(first, every.made_on))
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
