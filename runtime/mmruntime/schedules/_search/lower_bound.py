"""Lower bound on the time of a step over all orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmruntime.schedules._search.list_scheduling import PipelineModel


def shortest_step(pipeline: PipelineModel, *, split: bool, barrier: bool) -> float:
    """A time that no order of this pipeline can beat.

    With a barrier the bound is the largest of these:

    - for each stage, the span from it, which may end on any submesh, see `_span`;
    - for each submesh, the path to it, and the product of time and memory that its microbatches hold, divided by the
      memory that there is.

    Without one, paths of a step overlap with work of the next, and only what delays a row counts:

    - for each submesh, its work, and time and memory as above;
    - for each stage, the span from it that ends on its own submesh, which only then starts its next step.
    """
    stages = range(len(pipeline.placement))
    trip = _Trip.of(pipeline, 0, split)
    held = _held(pipeline, trip, split)
    spans = [_span(pipeline, _Trip.of(pipeline, stage, split), split, anywhere=barrier) for stage in stages]
    if barrier:
        return max([*spans, *(trip.before[stage] + time for stage, time in held)])
    work = [0.0] * pipeline.num_submeshes
    for stage in stages:
        work[pipeline.placement[stage]] += pipeline.num_microbatches * (
            pipeline.costs.forward[stage] + trip.whole[stage]
        )
    return max([*work, *spans, *(time for _, time in held)])


@dataclass(frozen=True)
class _Trip:
    """The way of a microbatch from a stage to the last one and back.

    Attributes:
        first: The stage where it starts. Times of stages before it are 0.
        down: For each stage, the time of the shorter of a whole backward and an input half; that of a whole backward
            where backwards do not split.
        whole: For each stage, the time of the shorter of a whole backward and both halves.
        before: For each stage, the forwards and transfers before its own.
        away: For each stage, the time from the end of its forward until its backward can start.
        after: For each stage, the backwards and transfers after its own, the last one with its weight half.
    """

    first: int
    down: list[float]
    whole: list[float]
    before: list[float]
    away: list[float]
    after: list[float]

    @classmethod
    def of(cls, pipeline: PipelineModel, first: int, split: bool) -> _Trip:
        costs, placement = pipeline.costs, pipeline.placement
        stages = len(placement)
        down = whole = list(costs.backward)
        if split:
            halves = zip(costs.backward_input, costs.backward_weight, strict=True)
            whole = [
                min(both, inputs + weights) for both, (inputs, weights) in zip(costs.backward, halves, strict=True)
            ]
            down = [min(pair) for pair in zip(costs.backward, costs.backward_input, strict=True)]
        before, away, after = [0.0] * stages, [0.0] * stages, [0.0] * stages
        for stage in range(first + 1, stages):
            hop = _hop(pipeline, stage - 1)
            before[stage] = before[stage - 1] + costs.forward[stage - 1] + hop
            after[stage] = after[stage - 1] + (whole if stage - 1 == first else down)[stage - 1] + hop
        for stage in range(stages - 2, first - 1, -1):
            away[stage] = away[stage + 1] + costs.forward[stage + 1] + down[stage + 1] + 2 * _hop(pipeline, stage)
        return cls(first, down, whole, before, away, after)


def _hop(pipeline: PipelineModel, stage: int) -> float:
    """The time of a transfer from the stage to the next."""
    return pipeline.latency[stage] if pipeline.placement[stage] != pipeline.placement[stage + 1] else 0.0


def _span(pipeline: PipelineModel, trip: _Trip, split: bool, *, anywhere: bool) -> float:
    """A time that no order can beat from the first forward of a stage on, with later stages alone.

    It ends on the stage's own submesh, or `anywhere`. It is the largest of these:

    - one microbatch up and down;
    - for each stage, the path to it, all its forwards, and the rest of the last microbatch's trip; or the first
      microbatch's trip until it is back, all other backwards, and the path from it;
    - for each submesh, the path to its first stage, all its work but weight halves, and the path from it;
    - the same with the weight halves that its memory cannot hold after its last backward, and with all of them where
      the span may end on this submesh;
    - the last two from the end of the first microbatch's trip on, without the forwards that memory can hold until then.
    """
    first, before, away, after, down = trip.first, trip.before, trip.away, trip.after, trip.down
    costs, count, placement = pipeline.costs, pipeline.num_microbatches, pipeline.placement
    forward = costs.forward
    bounds = [forward[first] + away[first] + trip.whole[first]]
    for stage in range(first, len(placement)):
        own = trip.whole[stage] if stage == first else down[stage] + after[stage]
        bounds.append(before[stage] + count * forward[stage] + away[stage] + own)
        bounds.append(before[stage] + forward[stage] + away[stage] + (count - 1) * down[stage] + own)
    for submesh in range(pipeline.num_submeshes):
        mine = [stage for stage in range(first, len(placement)) if placement[stage] == submesh]
        if not mine:
            continue
        head = min(before[stage] for stage in mine)
        tail = min(after[stage] for stage in mine)
        work = count * sum(forward[stage] + trip.whole[stage] for stage in mine)
        # Forwards before the first backward and weight halves after the last one: no more than memory can hold.
        memory = pipeline.memory[submesh]
        back = min(before[stage] + forward[stage] + away[stage] for stage in mine)
        ahead = _most_time([(forward[stage], pipeline.inputs[stage]) for stage in mine], count, memory)
        weights = [(costs.backward_weight[stage], pipeline.kept[stage]) for stage in mine]
        behind = _most_time(weights, count, memory) if split else 0.0
        bounds += [
            head + count * sum(forward[stage] + down[stage] for stage in mine) + tail,
            head + max(0.0, work - behind) + tail,
            back + max(0.0, work - ahead - behind) + tail,
        ]
        if anywhere or submesh == placement[first]:
            # The span may end here, with weight halves that nobody waits for.
            last = 0.0 if split else tail
            bounds += [head + work + last, back + max(0.0, work - ahead) + last]
    return max(bounds)


def _held(pipeline: PipelineModel, trip: _Trip, split: bool) -> list[tuple[int, float]]:
    """For each submesh with a bound on memory, its first stage, and how long its microbatches hold all of it."""
    costs, found = pipeline.costs, []
    for submesh, memory in enumerate(pipeline.memory):
        mine = [stage for stage, home in enumerate(pipeline.placement) if home == submesh]
        if not mine or not memory:
            continue
        held = 0.0
        for stage in mine:
            # Where forwards may run once more, their inputs are all that is held until then.
            size, kept, least = pipeline.whole[stage], pipeline.kept[stage], pipeline.inputs[stage]
            unsplit = size * costs.backward[stage]
            halves = size * costs.backward_input[stage] + kept * costs.backward_weight[stage]
            own = min(unsplit, halves) if split else unsplit
            held += pipeline.num_microbatches * (least * (costs.forward[stage] + trip.away[stage]) + own)
        if len(mine) == 1 and pipeline.whole[mine[0]] and not split and not pipeline.recomputable:
            # Only whole microbatches fit.
            memory = (memory + 1e-9) // pipeline.whole[mine[0]] * pipeline.whole[mine[0]]
        found.append((mine[0], held / memory if memory else 0.0))
    return found


def _most_time(pieces: Sequence[tuple[float, float]], count: int, memory: float) -> float:
    """The most time that actions (time, size) can take together in this memory, up to `count` of each.

    A fractional knapsack, which is at least the best whole one; greedy by time per size is optimal.
    """
    total, left = 0.0, memory + 1e-9
    for time, size in sorted(pieces, key=lambda piece: -piece[0] / piece[1] if piece[1] else -math.inf):
        share = min(count, left / size) if size else count
        # With a single kind of action, the best whole number is known.
        total += time * (math.floor(share) if len(pieces) == 1 else share)
        left -= share * size
    return total
