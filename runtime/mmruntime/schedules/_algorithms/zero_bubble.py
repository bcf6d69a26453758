"""Zero-bubble schedules: the weight half of the backward pass fills the gaps that the input half leaves.

Only the input half has a successor on another submesh, so weight halves may wait without delaying anybody
(arXiv:2401.10241, section 2).
"""

import heapq
from collections import deque
from collections.abc import Sequence

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._algorithms.one_forward_one_backward import one_forward_one_backward
from mmruntime.schedules._algorithms.wavefront import wavefront
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import ANY_PLACEMENT

_NEVER = 1 << 60


def with_input_halves(rows: Rows) -> Rows:
    """The rows with an input half (I) in place of every whole backward (B), and no weight halves yet."""
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
    """Insert the weight halves into rows of F and I, and keep the order of those.

    The rows run in simulated time with all costs equal. The oldest weight half runs when the input of the next F or I
    has not arrived, or when the next F would hold more microbatches between F and W than the submesh may.

    Args:
        rows: F and I of each submesh; with W right behind I they must stay within `caps`.
        placement: Submesh of each stage.
        caps: Most microbatches that each submesh may hold, all its stages together.
    """
    last = len(placement) - 1
    count = 1 + max((action.microbatch for row in rows for action in row), default=0)
    # Arrival of the inputs of F and of I, for each stage and microbatch.
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


def _in_gaps_of(order: Order, sizes: ScheduleSizes) -> Order:
    """The order with its backwards split, and weight halves in its gaps.

    Every submesh may hold as many microbatches as the one that holds most without weight halves.
    """
    rows = with_input_halves(order.rows)
    return Order(fill_weights(rows, sizes.placement, [max(peak_counts(rows))] * sizes.num_submeshes))


def zb_h1(sizes: ScheduleSizes) -> Order:
    """ZB-H1 (arXiv:2401.10241, section 2.1): 1F1B with weight halves in its gaps, in the memory of its first submesh.

    With equal costs and one stage on each submesh, its bubble is a third of that of 1F1B.
    """
    return _in_gaps_of(one_forward_one_backward(sizes), sizes)


def zb_h2(sizes: ScheduleSizes) -> Order:
    """ZB-H2 (arXiv:2401.10241, section 2.2): eager 1F1B with weight halves in its gaps, up to 2p-1 live microbatches.

    With equal costs, one stage on each submesh and no barrier between steps, no time is idle.
    """
    return _in_gaps_of(wavefront(sizes), sizes)


ZB_H1 = NamedSchedule(
    name="zb-h1",
    rank=60,
    summary="1F1B with weight halves in its gaps, in the same memory",
    source="https://arxiv.org/abs/2401.10241",
    order=zb_h1,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)(tF+tI-tW)", live="p"),
    splits_backward=True,
)

ZB_H2 = NamedSchedule(
    name="zb-h2",
    rank=70,
    summary="eager 1F1B with weight halves in its gaps: twice the memory, hardly a bubble",
    source="https://arxiv.org/abs/2401.10241",
    order=zb_h2,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(
        idle="(p-1)max(tF, tF+tI-2tW)", idle_without_barrier="(p-1)max(0, tF+tI-2tW)", live="2p-1"
    ),
    splits_backward=True,
)
