"""Orders for the V placement: two chunks on every submesh, the first going up and the second coming back."""

from collections import Counter
from collections.abc import Sequence

from mmruntime.schedules._action import Action, Kind, Rows
from mmruntime.schedules._algorithms.zero_bubble import fill_weights
from mmruntime.schedules._placements import v_placement

# Ticks in which one microbatch occupies a submesh: F, I and W of two chunks.
_PERIOD = 6


def zb_v(num_submeshes: int, num_microbatches: int) -> Rows:
    """ZB-V (arXiv:2401.10241, section 6): no idle time with equal costs and no barrier, in the memory of 1F1B.

    Submesh r of p, with chunk a going up and chunk b coming back, runs

        F a           2(p - r) - 1 times
        F b, F a      r times
        F b, I b      p - r times
        F a, I a, F b, I b   until there are no forwards left
        I a, I b      r times
        I a           p - r times

    and weight halves where there is room. It needs m >= 2p; with fewer microbatches it is that order without the
    ones that do not exist.
    """
    p = num_submeshes
    count = max(num_microbatches, 2 * p)
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
        rows.append(_numbered(turns, num_microbatches))
    return fill_weights(tuple(rows), v_placement(p), [2 * p] * p)


def _numbered(turns: Sequence[Action], num_microbatches: int) -> tuple[Action, ...]:
    """The turns with microbatches in order, each kind and stage on its own; those beyond the last one are left out."""
    following: Counter[Action] = Counter()
    row = []
    for turn in turns:
        if following[turn] < num_microbatches:
            row.append(Action(turn.kind, turn.stage, following[turn]))
        following[turn] += 1
    return tuple(row)


def v_half(num_submeshes: int, num_microbatches: int) -> Rows:
    """V-Half (arXiv:2405.15362): less than half of the bubble of 1F1B, in (p+2)/2 instead of p activations."""
    pauses = (1, 1, 2) if num_submeshes % 2 else (4, 1, 5)
    rows = _blocks(num_submeshes, num_microbatches, (1, 2), pauses)
    return fill_weights(rows, v_placement(num_submeshes), [num_submeshes + 2] * num_submeshes)


def v_min(num_submeshes: int, num_microbatches: int) -> Rows:
    """V-Min (arXiv:2405.15362): less than two thirds of the bubble of 1F1B, in (p+4)/3 instead of p activations."""
    pauses = (1, 1, 1) if num_submeshes % 3 else (3, 1, 3)
    rows = _blocks(num_submeshes, num_microbatches, (1, 1), pauses)
    return fill_weights(rows, v_placement(num_submeshes), [2 * (num_submeshes + 4) // 3] * num_submeshes)


def _blocks(num_submeshes: int, num_microbatches: int, spacing: tuple[int, int], pauses: tuple[int, int, int]) -> Rows:
    """The building block of one microbatch, repeated every six ticks; F and I only.

    A microbatch goes up and comes back, forward and then backward: four passes over the submeshes.

    Args:
        num_submeshes: Number of submeshes p.
        num_microbatches: Number of microbatches.
        spacing: Ticks from one submesh to the next when going up and when coming back. Short ones keep activations
            for a short time; with an up-and-back sum of 2 or 3 the passes can be kept apart on all submeshes.
        pauses: Ticks between passes on the submesh where one ends and the next starts. With the right ones, which
            depend on p, no two passes of any microbatches meet on a submesh.
    """
    p = num_submeshes
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
            for microbatch in range(num_microbatches)
        ]
        rows.append(tuple(action for _, action in sorted(ticks, key=lambda cell: cell[0])))
    return tuple(rows)
