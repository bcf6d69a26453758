"""Zero-bubble orders: the weight half of the backward pass fills the gaps that the input half leaves."""

import heapq
from collections import deque
from collections.abc import Sequence

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._algorithms.one_forward_one_backward import one_forward_one_backward
from mmruntime.schedules._algorithms.wavefront import visits, waves

_NEVER = 1 << 60


def split_backward(rows: Rows) -> Rows:
    """The rows with the input half (I) in place of every whole backward (B), and no weight halves yet."""
    return tuple(
        tuple(Action("I", action.stage, action.microbatch) if action.kind == "B" else action for action in row)
        for row in rows
    )


def peak_counts(rows: Rows) -> list[int]:
    """The most microbatches that each row holds between F and B or I, all its stages together."""
    peaks = []
    for row in rows:
        live = peak = 0
        for action in row:
            live += 1 if action.kind == "F" else -1
            peak = max(peak, live)
        peaks.append(peak)
    return peaks


def fill_weights(rows: Rows, placement: Sequence[int], caps: Sequence[int]) -> Rows:
    """Put the weight halves into rows of F and I, whose order is kept.

    The rows run in simulated time with all costs equal. A weight half runs, oldest first, when the next F or I has not
    arrived, or when a forward would exceed the number of microbatches between F and W that the submesh may hold.

    Args:
        rows: F and I of each submesh. F to I alone must stay within `caps`.
        placement: Submesh of each stage.
        caps: Most microbatches that each submesh may hold, all its stages together.
    """
    last = len(placement) - 1
    count = 1 + max((action.microbatch for row in rows for action in row), default=0)
    # When the input of F and of I is there, for each stage and microbatch.
    inputs = [[0] * count, *([_NEVER] * count for _ in range(last))]
    cotangents = [*([_NEVER] * count for _ in range(last)), [0] * count]
    at = [0] * len(rows)
    free_at = [0] * len(rows)
    live = [0] * len(rows)
    pending: list[deque[Action]] = [deque() for _ in rows]
    filled: list[list[Action]] = [[] for _ in rows]
    wake = [(0, submesh) for submesh in range(len(rows))]
    while wake:
        now, submesh = heapq.heappop(wake)
        if free_at[submesh] > now:
            continue
        action = None
        if at[submesh] < len(rows[submesh]):
            following = rows[submesh][at[submesh]]
            if following.kind == "F":
                goes = live[submesh] < caps[submesh] and inputs[following.stage][following.microbatch] <= now
            else:
                goes = cotangents[following.stage][following.microbatch] <= now
            if goes:
                action = following
                at[submesh] += 1
        if action is None:
            if not pending[submesh]:
                continue
            action = pending[submesh].popleft()
        filled[submesh].append(action)
        free_at[submesh] = now + 1
        heapq.heappush(wake, (now + 1, submesh))
        if action.kind == "W":
            live[submesh] -= 1
            continue
        if action.kind == "F":
            live[submesh] += 1
            target, arrivals = action.stage + 1, inputs
        else:
            pending[submesh].append(Action("W", action.stage, action.microbatch))
            target, arrivals = action.stage - 1, cotangents
        if 0 <= target <= last:
            arrivals[target][action.microbatch] = now + 1
            if placement[target] != submesh:
                heapq.heappush(wake, (now + 1, placement[target]))
    return tuple(map(tuple, filled))


def zb_h1(placement: Sequence[int], num_submeshes: int, num_microbatches: int) -> Rows:
    """ZB-H1 (arXiv:2401.10241, section 2.1): 1F1B with weight halves in its gaps, in the memory of its first submesh.

    With equal costs and one stage for each submesh the bubble is (p-1)(tF+tI-tW), a third of that of 1F1B.
    """
    rows = split_backward(one_forward_one_backward(placement, num_submeshes, num_microbatches))
    return fill_weights(rows, placement, [max(peak_counts(rows))] * num_submeshes)


def zb_h2(placement: Sequence[int], num_submeshes: int, num_microbatches: int) -> Rows:
    """ZB-H2 (arXiv:2401.10241, section 2.2): eager 1F1B with weight halves in its gaps, up to 2p-1 live microbatches.

    With equal costs, one stage for each submesh and no barrier between steps no time is idle. Behind a barrier it
    takes as long as ZB-H1.
    """
    path = visits(len(placement), "FB")
    rows = split_backward(waves(path, placement, num_submeshes, num_microbatches, delay=len(placement)))
    return fill_weights(rows, placement, [max(peak_counts(rows))] * num_submeshes)
