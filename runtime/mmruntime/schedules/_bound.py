"""Lower bound on the time of a step over all orders."""

import math
from collections.abc import Sequence
from itertools import accumulate

from ._list_scheduling import PipelineModel


def shortest_step(pipeline: PipelineModel, *, split: bool, barrier: bool) -> float:
    """A time that no order of this pipeline can beat.

    Let f(s) be the time of a forward of stage s, d(s) that of the shorter of a whole backward and an input half (a
    whole backward without `split`), and b(s) that of the shorter of a whole backward and both halves. The path to a
    stage is the forwards and transfers before its own, the path from it the backwards and transfers after its own. The
    bound is the largest of these:

    - one microbatch up and down all stages;
    - for each stage, the path to it, all its forwards, and the rest of the last microbatch's trip; or the first
      microbatch's trip until it is back, all other backwards, and the path from it;
    - for each submesh, the path to its first stage, all its work (f + b), and the path from it unless the last action
      can be a weight half; or all f + d, and the path from it in any case;
    - for each submesh with a bound on memory, the path to it, and the product of time and memory that its microbatches
      hold, divided by the memory that there is;
    - for each submesh, the first microbatch's trip until it is back; all work of the submesh except for the forwards
      that its memory can hold until then and the weight halves that it can hold after its last backward; and the path
      from it.

    Without a barrier only work and memory count, since paths of one step overlap with work of the next.
    """
    costs, count = pipeline.costs, pipeline.num_microbatches
    placement, stages = pipeline.placement, len(pipeline.placement)
    hops = [pipeline.latency[stage] if placement[stage] != placement[stage + 1] else 0.0 for stage in range(stages - 1)]
    forward = costs.forward
    both = [inputs + weights for inputs, weights in zip(costs.backward_input, costs.backward_weight, strict=True)]
    if split:
        down = [min(pair) for pair in zip(costs.backward, costs.backward_input, strict=True)]
        whole = [min(pair) for pair in zip(costs.backward, both, strict=True)]
    else:
        down = whole = list(costs.backward)
    # The path to each stage and the path from it.
    before = list(accumulate((time + hop for time, hop in zip(forward, hops, strict=False)), initial=0.0))
    after = list(accumulate((time + hop for time, hop in zip([whole[0], *down[1:]], hops, strict=False)), initial=0.0))
    # Trip of a microbatch from the end of a stage's forward until its backward can start.
    away = [0.0] * stages
    for stage in range(stages - 2, -1, -1):
        away[stage] = away[stage + 1] + forward[stage + 1] + down[stage + 1] + 2 * hops[stage]
    bounds = [forward[0] + away[0] + whole[0]]
    for stage in range(stages):
        own = whole[0] if stage == 0 else down[stage] + after[stage]
        bounds.append(before[stage] + count * forward[stage] + away[stage] + own)
        bounds.append(before[stage] + forward[stage] + away[stage] + (count - 1) * down[stage] + own)
    steady = [0.0]
    for submesh in range(pipeline.num_submeshes):
        mine = [stage for stage in range(stages) if placement[stage] == submesh]
        if not mine:
            continue
        head = min(before[stage] for stage in mine)
        tail = min(after[stage] for stage in mine)
        last = 0.0 if split else tail
        work = count * sum(forward[stage] + whole[stage] for stage in mine)
        held = 0.0
        for stage in mine:
            size, kept = pipeline.whole[stage], pipeline.kept[stage]
            unsplit = size * costs.backward[stage]
            halves = size * costs.backward_input[stage] + kept * costs.backward_weight[stage]
            held += count * (size * (forward[stage] + away[stage]) + (min(unsplit, halves) if split else unsplit))
        memory = pipeline.memory[submesh]
        # Forwards before the first backward and weight halves after the last one: no more than memory can hold.
        back = min(before[stage] + forward[stage] + away[stage] for stage in mine)
        ahead = _most_time([(forward[stage], pipeline.whole[stage]) for stage in mine], count, memory)
        weights = [(costs.backward_weight[stage], pipeline.kept[stage]) for stage in mine]
        behind = _most_time(weights, count, memory) if split else 0.0
        bounds.append(back + max(0.0, work - ahead - behind) + tail)
        bounds.append(back + max(0.0, work - ahead))
        bounds.append(head + max(0.0, work - behind) + tail)
        if len(mine) == 1 and pipeline.whole[mine[0]] and not split:
            memory = (memory + 1e-9) // pipeline.whole[mine[0]] * pipeline.whole[mine[0]]
        squeezed = held / memory if memory else 0.0
        steady += [work, squeezed]
        bounds.append(head + work + last)
        bounds.append(head + count * sum(forward[stage] + down[stage] for stage in mine) + tail)
        bounds.append(head + squeezed + last)
    return max(bounds) if barrier else max(steady)


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
