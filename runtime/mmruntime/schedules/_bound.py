"""How short a step could be at best, whatever the order."""

import math
from collections.abc import Sequence
from itertools import accumulate

from ._list_scheduling import PipelineModel


def shortest_step(pipeline: PipelineModel, *, split: bool, barrier: bool) -> float:
    """A time that no order of this pipeline can beat.

    The largest of these, where d(s) is the shorter of a whole backward and an input half of stage s (a whole one
    without `split`), and b(s) the shorter of a whole backward and both halves:

    - the way of one microbatch up and down all stages;
    - for each stage, the way there, all its forwards, and the way of the last one on; or all its backwards;
    - for each submesh, the way to its first stage, then all its work (f + b), then the way down from it if the
      last action cannot be a weight half; or all f + d and the way down in any case;
    - for each submesh with a bound on memory, the way there, then the time for which its microbatches hold memory,
      divided by as much of it as there is;
    - for each submesh, the way to the end of the first microbatch's trip beyond it, then all its work but the forwards
      that its memory can hold until then, and but the weight halves that it can hold after its last backward, then
      the way down from that.

    Without a barrier only work and memory count.
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
    # Time until a stage can start its first forward; time from the end of its backward until the step ends.
    before = list(accumulate((time + hop for time, hop in zip(forward, hops, strict=False)), initial=0.0))
    after = list(accumulate((time + hop for time, hop in zip([whole[0], *down[1:]], hops, strict=False)), initial=0.0))
    # Time from the end of a stage's forward until its own backward starts.
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
        # What can run before the first backward, which is no more than memory holds, and after the last one.
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
    """The most time that `count` of each piece (time, size) can take if what runs must fit the memory together."""
    total, left = 0.0, memory + 1e-9
    for time, size in sorted(pieces, key=lambda piece: -piece[0] / piece[1] if piece[1] else -math.inf):
        share = min(count, left / size) if size else count
        # Of pieces that are alike a whole number fits.
        total += time * (math.floor(share) if len(pieces) == 1 else share)
        left -= share * size
    return total
