"""List scheduling: run the pipeline in simulated time; a policy picks among the actions that are ready."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._costs import Costs

Pick = Literal["low", "high", "old"]
Preference = Literal["backward", "forward", "alternate"]
Recompute = Literal["never", "when full", "at first", "always"]


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
        recompute: Of which microbatches each stage keeps the input alone, and runs the forward once more: of none, of
            those for whose activations no memory is left, also of those before its first backward, for which it has to
            wait anyway, or of all. Of none if empty.
    """

    split: bool
    caps: tuple[int, ...]
    prefer: Preference = "backward"
    forward_pick: Pick = "high"
    backward_pick: Pick = "high"
    weight_slack: float = math.inf
    recompute: tuple[Recompute, ...] = ()


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
        inputs: The part of it that a forward takes which runs once more; all of it where none may.
        memory: Bound on the memory of each submesh.
    """

    placement: tuple[int, ...]
    num_submeshes: int
    num_microbatches: int
    costs: Costs
    latency: tuple[float, ...]
    whole: tuple[float, ...]
    kept: tuple[float, ...]
    inputs: tuple[float, ...]
    memory: tuple[float, ...]

    @property
    def recomputable(self) -> tuple[int, ...]:
        """The stages that hold less where their forward runs once more; none without a bound on memory."""
        bounded = [self.memory[submesh] < math.inf for submesh in self.placement]
        # The last stage goes back as soon as it has come.
        return tuple(
            stage
            for stage in range(len(self.placement) - 1)
            if bounded[stage] and self.inputs[stage] < self.whole[stage]
        )

    def least_memory(self, recompute: Sequence[Recompute] = ()) -> list[float]:
        """For each submesh, what one microbatch of all its stages takes, with these forwards run once more."""
        held, more = [0.0] * self.num_submeshes, [0.0] * self.num_submeshes
        for stage, submesh in enumerate(self.placement):
            again = bool(recompute) and recompute[stage] != "never"
            held[submesh] += self.inputs[stage] if again else self.whole[stage]
            if again:
                more[submesh] = max(more[submesh], self.whole[stage] - self.inputs[stage])
        return [each + extra for each, extra in zip(held, more, strict=True)]


def list_schedule(pipeline: PipelineModel, policy: Policy) -> Rows:
    """The rows that result when every free submesh follows the policy.

    Microbatches of one stage and kind run in order. A forward only starts if memory is left for one microbatch of every
    later stage of its submesh that holds none. This rules out deadlock: ahead of the oldest unfinished microbatch
    later stages hold none, since no younger microbatch overtakes it, and earlier stages have left room for it. Where
    forwards run once more, room is left for what the largest of them makes, unless one has just made it; they run in
    the order of microbatches, in gaps or when their backward has come.

    Raises:
        ValueError: If the memory of a submesh is less than one microbatch of all its stages takes.
    """
    # A hot loop, of which `auto` runs thousands: calls and attributes in it would cost more than its length.
    placement, count, costs = pipeline.placement, pipeline.num_microbatches, pipeline.costs
    stages, latency = len(placement), pipeline.latency
    whole, kept, memory, caps = pipeline.whole, pipeline.kept, pipeline.memory, policy.caps
    inputs, recompute = pipeline.inputs, policy.recompute
    split, weight_slack = policy.split, policy.weight_slack
    down_cost = costs.backward_input if split else costs.backward
    down_kind: Literal["I", "B"] = "I" if split else "B"
    up_high, up_old = policy.forward_pick == "high", policy.forward_pick == "old"
    down_high, down_old = policy.backward_pick == "high", policy.backward_pick == "old"
    homes: list[list[int]] = [[] for _ in range(pipeline.num_submeshes)]
    for stage, submesh in enumerate(placement):
        homes[submesh].append(stage)
    for submesh, needed in enumerate(pipeline.least_memory(recompute)):
        if needed > memory[submesh] + 1e-9:
            raise ValueError(
                f"One microbatch takes {needed:g} of the memory of submesh {submesh}, which has {memory[submesh]:g}. "
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
    # What a forward must leave room for, what forwards that ran once more have taken of it; for each stage, what such
    # a forward makes, and the microbatches that wait for one.
    workspace, made = [0.0] * pipeline.num_submeshes, [0.0] * pipeline.num_submeshes
    least = list(whole)
    waiting: list[deque[int]] = [deque() for _ in range(stages)]
    repeated: list[set[int]] = [set() for _ in range(stages)]
    for stage in range(stages) if recompute else ():
        if recompute[stage] != "never":
            least[stage] = inputs[stage]
            workspace[placement[stage]] = max(workspace[placement[stage]], whole[stage] - inputs[stage])
    wake = [(0.0, submesh) for submesh in range(pipeline.num_submeshes)]

    while wake:
        now, submesh = heapq.heappop(wake)
        if free_at[submesh] > now:
            continue
        up = down = -1
        soonest = math.inf
        blocked, up_room = False, 0.0
        free = memory[submesh] - live[submesh] + 1e-9
        room = free - max(0.0, workspace[submesh] - made[submesh])
        # From the last stage to the first, because the room that a forward must leave depends on later stages.
        for stage in reversed(homes[submesh]):
            index = downs[stage]
            if index < len(down_at[stage]):
                at = down_at[stage][index]
                if at > now:
                    soonest = min(soonest, at)
                elif waiting[stage] and waiting[stage][0] == index and whole[stage] - inputs[stage] > free:
                    blocked = True
                elif down < 0 or (index < downs[down] if down_old else not down_high):
                    down = stage
            index = ups[stage]
            if index < len(up_at[stage]) and index - downs[stage] < caps[stage]:
                at = up_at[stage][index]
                if least[stage] > room:
                    blocked = blocked or at <= now
                elif at > now:
                    soonest = min(soonest, at)
                elif up < 0 or (index < ups[up] if up_old else not up_high):
                    up, up_room = stage, room
            if index == downs[stage]:
                # Room for one microbatch of this stage; its weight halves will free what they hold.
                held = kept[stage] * (downs[stage] - weights[stage]) if split else 0.0
                room -= max(0.0, least[stage] - held)
        if up >= 0 and down >= 0:
            if policy.prefer == "forward" or (policy.prefer == "alternate" and not last_was_up[submesh]):
                down = -1
            else:
                up = -1
        again = down if down >= 0 and waiting[down] and waiting[down][0] == downs[down] else -1
        if up < 0 and down < 0 and recompute and len(homes[submesh]) == 1:
            # A gap. With several stages on a submesh, one might take the room that another needs first.
            (stage,) = homes[submesh]
            if waiting[stage] and whole[stage] - inputs[stage] <= free:
                is_next = waiting[stage][0] == downs[stage]
                if is_next or now + costs.forward[stage] <= soonest:
                    again = stage
        if again >= 0:
            stage = again
            microbatch = waiting[stage].popleft()
            repeated[stage].add(microbatch)
            rows[submesh].append(Action("R", stage, microbatch))
            end = now + costs.forward[stage]
            live[submesh] += whole[stage] - inputs[stage]
            made[submesh] += whole[stage] - inputs[stage]
        elif down >= 0:
            stage, microbatch = down, downs[down]
            downs[stage] += 1
            if microbatch in repeated[stage]:
                made[submesh] -= whole[stage] - inputs[stage]
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
            again_later = recompute[stage] if recompute else "never"
            if again_later != "never" and (
                whole[stage] > up_room or again_later == "always" or (again_later == "at first" and not downs[stage])
            ):
                waiting[stage].append(microbatch)
                live[submesh] += inputs[stage]
            else:
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
    assert all(number == count for number in downs), "room is left for every action"
    return tuple(map(tuple, rows))


def hops_to_end(placement: Sequence[int]) -> tuple[int, ...]:
    """For each stage, one more than the number of transfers between submeshes from there to the last stage."""
    hops = [1] * len(placement)
    for stage in range(len(placement) - 2, -1, -1):
        hops[stage] = hops[stage + 1] + (placement[stage] != placement[stage + 1])
    return tuple(hops)
