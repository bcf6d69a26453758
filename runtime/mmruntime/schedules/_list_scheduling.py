"""List scheduling: run the pipeline in simulated time and let a policy pick among what is ready."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ._action import Action, Rows
from ._costs import Costs

Pick = Literal["low", "high", "old"]
Preference = Literal["backward", "forward", "alternate"]


@dataclass(frozen=True)
class Policy:
    """What a free submesh runs next.

    Attributes:
        split: Whether the backward pass runs in two halves.
        caps: Most microbatches between the forward and the backward (or its input half) of each stage.
        prefer: What comes first if both are ready: a `"backward"`, a `"forward"`, or the one that did not run last
            (`"alternate"`).
        forward_pick: Among forwards of one submesh's stages: the lowest stage, the highest, or the oldest microbatch.
        backward_pick: The same among backwards.
        weight_slack: A weight half starts only if it ends before anything else arrives, give or take this share of its
            time: 0 leaves no gap for it to be late, `inf` fills every gap.
    """

    split: bool
    caps: tuple[int, ...]
    prefer: Preference = "backward"
    forward_pick: Pick = "high"
    backward_pick: Pick = "high"
    weight_slack: float = math.inf


@dataclass(frozen=True)
class PipelineModel:
    """What is to be scheduled.

    Attributes:
        placement: Submesh of each virtual stage.
        num_submeshes: Number of submeshes.
        num_microbatches: Number of microbatches.
        costs: Time of each action, for each stage.
        latency: Time of a transfer between submeshes, for each stage's output and its cotangent.
        whole: What one microbatch of each stage takes of its submesh's memory, from the forward on.
        kept: The part of it that an input half leaves for the weight half.
        memory: Most of that on each submesh.
    """

    placement: tuple[int, ...]
    num_submeshes: int
    num_microbatches: int
    costs: Costs
    latency: tuple[float, ...]
    whole: tuple[float, ...]
    kept: tuple[float, ...]
    memory: tuple[float, ...]


def list_schedule(pipeline: PipelineModel, policy: Policy) -> Rows:
    """The rows that come out when every free submesh follows the policy.

    Microbatches of one stage and kind run in order. A forward leaves room for one microbatch of every later stage of
    its submesh that has none between forward and backward. So nothing gets stuck: where the oldest unfinished
    microbatch goes, later stages have none, since no younger one is ahead of it, and earlier ones left room.

    Raises:
        ValueError: If the memory of a submesh is less than one microbatch of all its stages takes.
    """
    placement, count, costs = pipeline.placement, pipeline.num_microbatches, pipeline.costs
    stages, latency = len(placement), pipeline.latency
    whole, kept, memory, caps = pipeline.whole, pipeline.kept, pipeline.memory, policy.caps
    split, weight_slack = policy.split, policy.weight_slack
    down_cost = costs.backward_input if split else costs.backward
    down_kind: Literal["I", "B"] = "I" if split else "B"
    up_high, up_old = policy.forward_pick == "high", policy.forward_pick == "old"
    down_high, down_old = policy.backward_pick == "high", policy.backward_pick == "old"
    homes: list[list[int]] = [[] for _ in range(pipeline.num_submeshes)]
    for stage, submesh in enumerate(placement):
        homes[submesh].append(stage)
    for submesh, mine in enumerate(homes):
        least = sum(whole[stage] for stage in mine)
        if least > memory[submesh] + 1e-9:
            raise ValueError(
                f"One microbatch takes {least:g} of the memory of submesh {submesh}, which has {memory[submesh]:g}. "
                "Allow more, cut the batch into more microbatches, or cut the model into more stages."
            )
    # When the input of each microbatch's forward and backward is there; known as soon as its producer starts.
    up_at: list[list[float]] = [[0.0] * count, *([] for _ in range(stages - 1))]
    down_at: list[list[float]] = [[] for _ in range(stages)]
    ups, downs, weights = [0] * stages, [0] * stages, [0] * stages
    live = [0.0] * pipeline.num_submeshes
    free_at = [0.0] * pipeline.num_submeshes
    last_was_up = [False] * pipeline.num_submeshes
    rows: list[list[Action]] = [[] for _ in range(pipeline.num_submeshes)]
    wake = [(0.0, submesh) for submesh in range(pipeline.num_submeshes)]

    while wake:
        now, submesh = heapq.heappop(wake)
        if free_at[submesh] > now:
            continue
        up = down = -1
        soonest = math.inf
        blocked = False
        room = memory[submesh] - live[submesh] + 1e-9
        # From the last stage to the first, so that what later stages need is known.
        for stage in reversed(homes[submesh]):
            index = downs[stage]
            if index < len(down_at[stage]):
                at = down_at[stage][index]
                if at > now:
                    soonest = min(soonest, at)
                elif down < 0 or (index < downs[down] if down_old else not down_high):
                    down = stage
            index = ups[stage]
            if index < len(up_at[stage]) and index - downs[stage] < caps[stage]:
                at = up_at[stage][index]
                if whole[stage] > room:
                    blocked = blocked or at <= now
                elif at > now:
                    soonest = min(soonest, at)
                elif up < 0 or (index < ups[up] if up_old else not up_high):
                    up = stage
            if index == downs[stage]:
                # Its room for one: what its weight halves hold, they give back.
                held = kept[stage] * (downs[stage] - weights[stage]) if split else 0.0
                room -= max(0.0, whole[stage] - held)
        if up >= 0 and down >= 0:
            if policy.prefer == "forward" or (policy.prefer == "alternate" and not last_was_up[submesh]):
                down = -1
            else:
                up = -1
        if down >= 0:
            stage, microbatch = down, downs[down]
            downs[stage] += 1
            rows[submesh].append(Action(down_kind, stage, microbatch))
            end = now + down_cost[stage]
            last_was_up[submesh] = False
            live[submesh] -= whole[stage] - (kept[stage] if split else 0.0)
            if stage:
                target = placement[stage - 1]
                at = end + (latency[stage - 1] if target != submesh else 0.0)
                down_at[stage - 1].append(at)
                if target != submesh:
                    heapq.heappush(wake, (at, target))
        elif up >= 0:
            stage, microbatch = up, ups[up]
            ups[stage] += 1
            rows[submesh].append(Action("F", stage, microbatch))
            end = now + costs.forward[stage]
            last_was_up[submesh] = True
            live[submesh] += whole[stage]
            if stage + 1 < stages:
                target = placement[stage + 1]
                at = end + (latency[stage] if target != submesh else 0.0)
                up_at[stage + 1].append(at)
                if target != submesh:
                    heapq.heappush(wake, (at, target))
            else:
                down_at[stage].append(end)
        else:
            pending = [stage for stage in homes[submesh] if split and weights[stage] < downs[stage]]
            if not pending:
                continue
            stage = min(pending, key=lambda stage: weights[stage])
            cost = costs.backward_weight[stage]
            if now + cost > soonest + weight_slack * cost and not blocked:
                continue
            rows[submesh].append(Action("W", stage, weights[stage]))
            weights[stage] += 1
            end = now + cost
            live[submesh] -= kept[stage]
        free_at[submesh] = end
        heapq.heappush(wake, (end, submesh))
    return tuple(map(tuple, rows))


def hops_to_end(placement: Sequence[int]) -> tuple[int, ...]:
    """For each stage, one more than the transfers between submeshes that are left from there to the last stage."""
    hops = [1] * len(placement)
    for stage in range(len(placement) - 2, -1, -1):
        hops[stage] = hops[stage + 1] + (placement[stage] != placement[stage + 1])
    return tuple(hops)
