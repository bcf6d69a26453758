"""Schedules for the V placement: two chunks on every submesh, the first going up and the second coming back.

Activations of the first stage live longest and those of the last stage shortest. In a V these two share a submesh, as
do the second and the last but one, and so on: all submeshes hold equally much (arXiv:2405.15362).
"""

from collections import Counter
from collections.abc import Sequence

from mmruntime.schedules._action import Action, Kind, Rows
from mmruntime.schedules._algorithms.zero_bubble import fill_weights
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import V_SHAPED, v_placement

# Actions of one microbatch on a submesh, F, I and W of two chunks: the shortest period in which the building block of a
# microbatch can repeat.
_PERIOD = 6


def zb_v(sizes: ScheduleSizes) -> Order:
    """ZB-V (arXiv:2401.10241, section 6): no idle time with equal costs and no barrier, in the memory of 1F1B.

    Submesh r of p, with chunk a going up and chunk b coming back, runs

        F a           2(p - r) - 1 times
        F b, F a      r times
        F b, I b      p - r times
        F a, I a, F b, I b   until there are no forwards left
        I a, I b      r times
        I a           p - r times

    and weight halves in the gaps. The pattern needs m >= 2p; with fewer microbatches it is the order for 2p without
    those that do not exist.
    """
    p = sizes.num_submeshes
    count = max(sizes.num_microbatches, 2 * p)
    rows = []
    for submesh in range(p):
        f_up, f_back = Action("F", submesh, 0), Action("F", 2 * p - 1 - submesh, 0)
        i_up, i_back = Action("I", submesh, 0), Action("I", 2 * p - 1 - submesh, 0)
        turns = [f_up] * (2 * (p - submesh) - 1)
        turns += [f_back, f_up] * submesh
        turns += [f_back, i_back] * (p - submesh)
        for step in range(count - p):
            if step < count - (2 * p - submesh - 1):
                turns.append(f_up)
            turns += [i_up, f_back, i_back]
        turns += [i_up, i_back] * submesh
        turns += [i_up] * (p - submesh)
        rows.append(_numbered(turns, sizes.num_microbatches))
    return Order(fill_weights(tuple(rows), v_placement(p), [2 * p] * p))


def _numbered(turns: Sequence[Action], num_microbatches: int) -> tuple[Action, ...]:
    """The turns with the microbatches of each kind and stage counted up, without those beyond the last."""
    following: Counter[Action] = Counter()
    row = []
    for turn in turns:
        if following[turn] < num_microbatches:
            row.append(Action(turn.kind, turn.stage, following[turn]))
        following[turn] += 1
    return tuple(row)


def v_half(sizes: ScheduleSizes) -> Order:
    """V-Half (arXiv:2405.15362): at most half of the bubble of 1F1B, in (p+2)/2 instead of p activations."""
    p = sizes.num_submeshes
    rows = _blocks(sizes, spacing=(1, 2), pauses=(1, 1, 2) if p % 2 else (4, 1, 5))
    return Order(fill_weights(rows, v_placement(p), [p + 2] * p))


def v_min(sizes: ScheduleSizes) -> Order:
    """V-Min (arXiv:2405.15362): at most two thirds of the bubble of 1F1B, in (p+4)/3 instead of p activations."""
    p = sizes.num_submeshes
    rows = _blocks(sizes, spacing=(1, 1), pauses=(1, 1, 1) if p % 3 else (3, 1, 3))
    return Order(fill_weights(rows, v_placement(p), [2 * (p + 4) // 3] * p))


def _blocks(sizes: ScheduleSizes, spacing: tuple[int, int], pauses: tuple[int, int, int]) -> Rows:
    """F and I in the building block of one microbatch, repeated every six ticks.

    A microbatch goes up and comes back, forward and then backward: four passes over the submeshes. The peak of live
    activations is their lifetime within the block divided by the period (arXiv:2405.15362).

    Args:
        sizes: What the schedule is made for.
        spacing: Ticks from one submesh to the next when going up and when coming back. Short ones keep activations
            for a short time; where up and back add up to 2 or 3, the passes can be kept apart on all submeshes.
        pauses: Ticks between passes on the submesh where one ends and the next starts. They depend on p and are
            chosen so that no two passes of any microbatches collide on a submesh.
    """
    p = sizes.num_submeshes
    up, back = spacing
    rows = []
    for submesh in range(p):
        left = p - 1 - submesh
        forward_up = up * submesh
        forward_back = up * (p - 1) + pauses[0] + back * left
        input_up = (up + back) * (p - 1) + pauses[0] + pauses[1] + up * submesh
        input_back = (2 * up + back) * (p - 1) + sum(pauses) + back * left
        cells: list[tuple[int, Kind, int]] = [
            (forward_up, "F", submesh),
            (forward_back, "F", 2 * p - 1 - submesh),
            (input_up, "I", 2 * p - 1 - submesh),
            (input_back, "I", submesh),
        ]
        ticks = [
            (tick + _PERIOD * microbatch, Action(kind, stage, microbatch))
            for tick, kind, stage in cells
            for microbatch in range(sizes.num_microbatches)
        ]
        rows.append(tuple(action for _, action in sorted(ticks, key=lambda cell: cell[0])))
    return tuple(rows)


ZB_V = NamedSchedule(
    name="zb-v",
    rank=80,
    summary="zero-bubble in a V: no bubble without a barrier, in the memory of 1F1B",
    source="https://arxiv.org/abs/2401.10241",
    order=zb_v,
    placements=V_SHAPED,
    closed_forms=ClosedForms(idle="(p-1)(tF+tI-tW)/2", idle_without_barrier="0", live="p", only_if=("tF = tI = tW",)),
    splits_backward=True,
)

V_HALF = NamedSchedule(
    name="v-half",
    rank=90,
    summary="zero-bubble in a V, in about half the memory of 1F1B",
    source="https://arxiv.org/abs/2405.15362",
    order=v_half,
    placements=V_SHAPED,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)/2", live="(p+2)/2", only_if=("tF = tI = tW",), are_bounds=True),
    splits_backward=True,
)

V_MIN = NamedSchedule(
    name="v-min",
    rank=100,
    summary="zero-bubble in a V, in about a third of the memory of 1F1B",
    source="https://arxiv.org/abs/2405.15362",
    order=v_min,
    placements=V_SHAPED,
    closed_forms=ClosedForms(idle="2(p-1)(tF+tB)/3", live="(p+4)/3", only_if=("tF = tI = tW",), are_bounds=True),
    splits_backward=True,
)
