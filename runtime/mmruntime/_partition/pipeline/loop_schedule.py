"""Schedule: which order the stages of each microbatch loop follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mmruntime import schedules
from mmruntime._compat import Var, is_var
from mmruntime._core.marks import LoopSpec, accumulator_type
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Region, Step, num_bytes
from mmruntime._partition.pipeline.pipeline_stages import Stage, check_runs_again, dependencies, pipeline_stages, remade
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments, segment
from mmruntime._partition.programs.split_backward import halves_of, split_backward
from mmruntime.schedules._custom import check_task_names
from mmruntime.schedules._slices import check_slices


@dataclass(eq=False, slots=True, frozen=True)
class LoopSchedule:
    """The schedule of a loop.

    Attributes:
        schedule: The order of its stages.
        choice: The report of the search, if the schedule was searched for.
    """

    schedule: schedules.Schedule
    choice: schedules.Choice | None = None


def make_schedule(index: int, step: Step, placed: Placement, every: Segments) -> LoopSchedule:
    """The schedule that a loop requests, for the stages that its tasks make.

    Raises:
        ValueError: If the schedule does not suit the placement of the stages.
    """
    region, segments = step.regions[index], every.by_region[index]
    assert region.loop is not None
    loop = region.loop
    first = [each for each in segments if each.variant == 0]
    stages, _ = pipeline_stages(first, dependencies(first, every.made_on))
    used = list(dict.fromkeys(stage.forward.submesh for stage in stages))
    placement = tuple(used.index(stage.forward.submesh) for stage in stages)
    _check_stages(loop, placement)
    if region.num_slices > 1:
        return LoopSchedule(_schedule_of_slices(loop, placement))
    if loop.custom is not None:
        tasks = _task_names(stages)
        made = schedules.custom(loop.custom, tasks=tasks, placement=placement, num_microbatches=loop.count)
        return LoopSchedule(_check_again(made, stages, step, every))
    requested = schedules.Auto() if loop.schedule == schedules.AUTO else loop.schedule
    if isinstance(requested, schedules.Schedule):
        fitting = _check_fit(requested, placement, loop.count)
        return LoopSchedule(_check_again(fitting, stages, step, every))
    if isinstance(requested, str):
        made = schedules.make(requested, len(used), loop.count, placement=placement)
        _check_interleaves(made.name, placement)
        return LoopSchedule(made)
    assert isinstance(requested, schedules.Auto)
    if requested.memory_bytes is not None:
        requested = replace(requested, memory_bytes=_left_by_sums(requested.memory_bytes, index, step, placed, used))
    costs = [_stage_cost(stage, region, placed, every) for stage in stages]

    def searched(wish: schedules.Auto, sizes: Sizes) -> schedules.Choice:
        is_bounded = wish.memory_bytes is not None and wish.recompute
        return wish.choose(
            len(used),
            loop.count,
            placement,
            forward=[cost.forward for cost in costs],
            backward_input=[cost.backward_input for cost in costs],
            backward_weight=[cost.backward_weight for cost in costs],
            activation_bytes=sizes[0],
            weight_activation_bytes=sizes[1],
            input_bytes=_input_bytes(stages, sizes[0], step, region, every) if is_bounded else None,
        )

    in_halves = activation_bytes(stages, region, every, requested.split)
    undivided = activation_bytes(stages, region, every, split=False)
    choice = best_choice(requested, searched, in_halves, undivided)
    return LoopSchedule(choice.schedule, choice)


def _left_by_sums(
    bound: float | Sequence[float], index: int, step: Step, placed: Placement, used: Sequence[int]
) -> list[float]:
    """What sums in float32 leave of a bound on bytes of each submesh, beyond the type that they are converted to."""
    after = step.regions[index + 1].ops
    producer = {var: op for op in after for var in op.writes()}
    totals = {total for total, _ in step.regions[index].sums}
    left = [float(bound)] * len(used) if isinstance(bound, int | float) else list(map(float, bound))
    for op in after:
        if op.eqn.primitive.name != "convert_element_type" or not is_var(op.eqn.invars[0]):
            continue
        (result,), source = op.eqn.outvars, op.eqn.invars[0]
        # Between the two stand what joins the sums of devices, or takes packed ones apart.
        while source in producer and len(producer[source].reads()) == 1:
            (source,) = producer[source].reads()
        where = placed.of[op][0]
        is_known = source in totals and where in used and len(left) == len(used)
        if is_known and accumulator_type(result.aval.dtype) == source.aval.dtype:
            left[used.index(where)] -= num_bytes(op.eqn.invars[0]) - num_bytes(result)
    return left


Sizes = tuple[list[float], list[float]]


def best_choice(
    requested: schedules.Auto,
    searched: Callable[[schedules.Auto, Sizes], schedules.Choice],
    halved: Sizes,
    whole: Sizes,
) -> schedules.Choice:
    """The shorter of an order in which backward passes may run in halves, and of one in which they are whole.

    Args:
        requested: The search that the user asks for.
        searched: Runs a search where stages hold these bytes: all, and what input halves leave for weight halves.
        halved: The bytes if backward passes run in halves.
        whole: Those if they do not. What weight halves need counts from the forward on, so there is room for more.

    Raises:
        ValueError: If the memory cannot hold a microbatch.
    """
    if requested.memory_bytes is None or halved[0] == whole[0]:
        return searched(requested, halved)
    choice = searched(replace(requested, split=False), whole)
    if requested.split:
        with contextlib.suppress(ValueError):
            other = searched(requested, halved)
            if other.simulation.step_time < choice.simulation.step_time * (1 - 1e-9):
                return other
    return choice


def _schedule_of_slices(loop: LoopSpec, placement: tuple[int, ...]) -> schedules.Schedule:
    """The schedule of a loop whose microbatches are cut into slices of their sequence."""
    requested = loop.schedule
    if isinstance(requested, schedules.Schedule):
        count = loop.count * loop.slices
        if requested.slices != loop.slices:
            raise ValueError(
                f"microbatch: the schedule {requested.name!r} is for microbatches in {requested.slices} slices, but "
                f"slices={loop.slices}. Give schedules.sliced(..., slices={loop.slices})."
            )
        made = _check_fit(requested, placement, count)
        check_slices(made)
        return made
    if not isinstance(requested, str) or loop.custom is not None or requested == schedules.AUTO:
        raise ValueError(
            f"microbatch: slices={loop.slices} goes with the schedules gpipe, 1f1b, interleaved-1f1b and zb-h1, or "
            "with one of schedules.sliced(...), not with a search or with rows of task names. Write one of these, or "
            "leave slices= out."
        )
    try:
        made = schedules.sliced(requested, len(set(placement)), loop.count, loop.slices, placement=placement)
    except ValueError as error:
        raise ValueError(f"microbatch: slices={loop.slices}: {error}") from None
    _check_interleaves(made.name, placement)
    return made


def _check_stages(loop: LoopSpec, placement: tuple[int, ...]) -> None:
    """Compare the stages with `num_stages` and `interleave` of the user."""
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


def _check_interleaves(name: str, placement: tuple[int, ...]) -> None:
    """Refuse an interleaved schedule where each submesh has one stage: it would be another schedule, unseen."""
    if name == "interleaved-1f1b" and 1 < len(placement) == len(set(placement)):
        count = len(placement)
        raise ValueError(
            f"microbatch: {name} takes turns between several stages of a submesh, but the tasks make one stage on each "
            f'of {count} submeshes, where it would be 1f1b. Write schedule="1f1b"; or deal the layers out in two '
            "rounds, with chunks=2 in mm.stage or in the hint stages(chunks=2)."
        )


def _check_fit(schedule: schedules.Schedule, placement: tuple[int, ...], count: int) -> schedules.Schedule:
    """The user's own schedule, after a check that it fits the loop's microbatches and stages and can run."""
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


def _check_again(
    schedule: schedules.Schedule, stages: Sequence[Stage], step: Step, every: Segments
) -> schedules.Schedule:
    """The schedule, once the stages that run their forward pass again can, and hold less for it."""
    again = sorted({stage for stage, _ in schedule.recomputed})
    check_runs_again([(number, stages[number]) for number in again], step, every, schedule.name)
    return schedule


def _task_names(stages: Sequence[Stage]) -> dict[str, tuple[Literal["F", "B", "I", "W"], int]]:
    """The kind of action and the stage that each task name stands for in a custom schedule.

    A task's name is its forward pass. Its backward pass is the task's name followed by `_bwd`, or the name that a
    registration gave it; its halves are the task's name with the suffixes of `split_backprop`.
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


def check_custom_schedules(step: Step) -> None:
    """Check the names in custom schedules of a step that is one program, which follows no schedule.

    Raises:
        ValueError: If a schedule names no task of its loop.
    """
    for region in step.regions:
        if region.loop is None or region.loop.custom is None:
            continue
        known: set[str] = set()
        for task in {op.task for op in region.ops if op.task is not None and op.task.name is not None}:
            suffixes = ("", "_bwd", *(task.split_backprop or ()))
            known.update(f"{task.name}{suffix}" for suffix in suffixes)
        check_task_names(region.loop.custom, known)


@dataclass(eq=False, slots=True, frozen=True)
class _StageFlops:
    """Floating-point operations of a stage's programs for one microbatch, on each device of its submesh."""

    forward: float
    backward_input: float
    backward_weight: float


def _stage_cost(stage: Stage, region: Region, placed: Placement, every: Segments) -> _StageFlops:
    """The cost of the stage's programs, as if the backward pass were split.

    An input half in the program of the forward pass, as on the last stage, counts as forward.
    """
    work = {"": 0.0, "I": 0.0, "W": 0.0}
    for each in (stage.forward, *stage.backward, *stage.weights):
        for half in halves_of(each, region, every) if each.backward else [each]:
            part = "W" if half.part == "W" else "" if each is stage.forward else "I"
            work[part] += sum(_cost.flops(op.eqn) for op in half.ops)
    devices = placed.submeshes.meshes[stage.forward.submesh].size
    return _StageFlops(work[""] / devices, work["I"] / devices, work["W"] / devices)


def activation_bytes(
    stages: Sequence[Stage], region: Region, every: Segments, split: bool
) -> tuple[list[float], list[float]]:
    """Bytes that one microbatch of each stage holds, on all devices of its submesh together.

    Returns:
        Those from the forward on, and those of them that the input half leaves for the weight half: residuals, and the
        cotangents that the input half makes. Where there are more of these, as behind `jax.checkpoint`, they count from
        the forward on, so that no bound is broken. None are left where the backward pass is not split.
    """
    residuals = set(region.slices) | {var for op in region.ops if not op.backward for var in op.writes()}
    whole, kept = [], []
    for stage in stages:
        programs = (stage.forward, *stage.backward, *stage.weights) if split else ()
        late = [
            half for each in programs if each.backward for half in halves_of(each, region, every) if half.part == "W"
        ]
        read = {var for half in late for op in half.ops for var in op.reads()}
        made = {var for each in late if each.input_half for op in each.input_half.ops for var in op.writes()}
        kept.append(_bytes_of(read & (residuals | made)))
        read = {var for each in (*stage.backward, *stage.weights) for var in each.reads}
        whole.append(max(_bytes_of(read & residuals), kept[-1]))
    return whole, kept


def _input_bytes(
    stages: Sequence[Stage], whole: Sequence[float], step: Step, region: Region, every: Segments
) -> list[float]:
    """Bytes that one microbatch of each stage holds until its forward pass runs again; all, if it may not."""
    residuals = set(region.slices) | {var for op in region.ops if not op.backward for var in op.writes()}
    found = []
    for stage, most in zip(stages, whole, strict=True):
        again = set(remade(stage, step, every))
        read = {var for each in (*stage.backward, *stage.weights) for var in each.reads} & residuals
        # Pieces of the batch are cut out of it when they are read.
        inputs = set(stage.forward.reads) & residuals - set(region.slices)
        found.append(min(most, _bytes_of((read - again) | inputs)) if again else most)
    return found


def _bytes_of(values: Iterable[Var]) -> float:
    return float(sum(num_bytes(var) for var in values))


def schedule_loops(step: Step, placement: Placement, segments: Segments) -> tuple[Segments, dict[int, LoopSchedule]]:
    """The segments, cut as the schedules need it, and the schedule of each loop by its region.

    Neighbouring tasks of one submesh are one program, unless the schedule only suits a placement in which each task is
    a stage, such as the V in which the last stage of the way up neighbours the first of the way back. Backward passes
    are split for schedules with weight halves.

    Raises:
        ValueError: If a loop's schedule suits neither cut.
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
                # The merged cut is the one that `explain` shows, so its message makes more sense to the user.
                raise first from None
    for index, each in chosen.items():
        if each.schedule.splits_backward:
            segments = split_backward(step, segments, index)
    return segments, chosen


def _names_several_tasks(loop: LoopSpec, segments: Iterable[Segment]) -> bool:
    """Whether a custom schedule names several tasks of one merged program, and so means each to be a stage."""
    cells = [cell for row in loop.custom or () for cell in row if not isinstance(cell, schedules.Action)]
    named = {cell if isinstance(cell, str) else cell[1] for cell in cells}
    return any(each.forward and len(named.intersection(each.tasks)) > 1 for each in segments)
