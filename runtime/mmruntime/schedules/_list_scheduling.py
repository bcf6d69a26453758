"""List scheduling: run the pipeline in simulated time; a policy picks among the actions that are ready."""

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
    """The rule by which a free submesh picks its next action.

    Attributes:
        split: Whether the backward pass runs in two halves.
        caps: Most microbatches between the forward and the backward (or its input half) of each stage.
        prefer: The first of a ready forward and a ready backward: the `"backward"`, the `"forward"`, or the kind that
            did not run last (`"alternate"`).
        forward_pick: The first of several ready forwards: that of the `"low"` or `"high"` stage, or of the oldest
            microbatch (`"old"`).
        backward_pick: The same for backwards.
        weight_slack: By how much a weight half may delay the next arrival, as a share of its time: at 0 it only fills
            gaps that are long enough, at `inf` it fills every gap.
    """

    split: bool
    caps: tuple[int, ...]
    prefer: Preference = "backward"
    forward_pick: Pick = "high"
    backward_pick: Pick = "high"
    weight_slack: float = math.inf


@dataclass(frozen=True)
class PipelineModel:
    """A pipeline with its costs and its bound on memory.

    Attributes:
        placement: Submesh of each virtual stage.
        num_submeshes: Number of submeshes.
        num_microbatches: Number of microbatches.
        costs: Time of each action, for each stage.
        latency: Time of a transfer between submeshes, for each stage's output and its cotangent.
        whole: Memory that one microbatch of each stage takes on its submesh, from the forward on.
        kept: The part of it that an input half leaves for the weight half.
        memory: Bound on the memory of each submesh.
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
    """The rows that result when every free submesh follows the policy.

    Microbatches of one stage and kind run in order. A forward only starts if memory is left for one microbatch of every
    later stage of its submesh that holds none. This rules out deadlock: ahead of the oldest unfinished microbatch
    later stages hold none, since no younger microbatch overtakes it, and earlier stages have left room for it.

    Raises:
        ValueError: If the memory of a submesh is less than one microbatch of all its stages takes.
    """
    # A hot loop, of which `auto` runs thousands: calls and attributes in it would cost more than its length.
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
    # Arrival of the input of each microbatch's forward and backward; known as soon as its producer starts.
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
        # From the last stage to the first, because the room that a forward must leave depends on later stages.
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
                # Room for one microbatch of this stage; its weight halves will free what they hold.
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
    """For each stage, one more than the number of transfers between submeshes from there to the last stage."""
    hops = [1] * len(placement)
    for stage in range(len(placement) - 2, -1, -1):
        hops[stage] = hops[stage + 1] + (placement[stage] != placement[stage + 1])
    return tuple(hops)
