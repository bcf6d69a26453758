"""Schedules for microbatches in slices of their sequence: Seq1F1B, and other schedules on slices.

A slice runs like a microbatch of its own, number `microbatch * slices + slice`. Its forward pass comes after that of
the slice before it, whose keys and values it reads; its backward pass comes after that of the slice behind it.

Source: Sun, Zhao, Han, Yang, Liu, Shi, Sun, "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language
Model Training", https://arxiv.org/abs/2406.03488.
"""

from collections.abc import Sequence

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._algorithms.interleaved import INTERLEAVED, alternating, backward_unit, interleaved_rows
from mmruntime.schedules._algorithms.zero_bubble import ZB_H1, fill_weights, peak_counts, with_input_halves
from mmruntime.schedules._catalog import canonical_name, check_counts
from mmruntime.schedules._placements import round_robin
from mmruntime.schedules._schedule import Schedule

# The schedules that have an order of slices.
SLICED = ("gpipe", "1f1b", INTERLEAVED.name, ZB_H1.name)

# The slice whose action of a kind comes before one's own.
_NEIGHBOUR = {"F": -1, "B": 1, "I": 1, "W": 1}


def sliced(
    name: str,
    num_stages: int,
    num_microbatches: int,
    slices: int,
    chunks: int = 1,
    *,
    placement: Sequence[int] | None = None,
) -> Schedule:
    """The schedule called `name` for microbatches in slices.

    Of p submeshes, submesh s runs p - s - 1 + (slices - 1) forward passes ahead in `1f1b`, as the first backward pass
    of a microbatch waits for its last slice. It is idle for (p - 1) (tF + tB) / slices of a step, where tF and tB are
    the times of a whole microbatch, and holds at most p - s + slices - 1 slices of activations, of which each is one
    of `slices` parts of a microbatch. In `gpipe` it holds all slices.

    `interleaved-1f1b` has groups of whole microbatches with p slices or more. With so many slices in a step and
    `chunks` stages on each submesh, it is idle for (p - 1) (tF + tB) / (slices * chunks). `zb-h1` is `1f1b` with weight
    halves in its gaps, idle for (p - 1) (tF + tI - tW) / slices, and holds up to p + slices - 1 slices everywhere.

    Args:
        name: `gpipe`, `1f1b`, `interleaved-1f1b` or `zb-h1`.
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches.
        slices: Slices of each.
        chunks: Stages on each submesh, placed round-robin; 1 but for `interleaved-1f1b`.
        placement: Submesh of each stage, which must be round-robin; `chunks` is then not used.

    Raises:
        ValueError: If the schedule has no order of slices, or a number is below one or does not suit the schedule.
    """
    name = canonical_name(name)
    if name not in SLICED:
        raise ValueError(
            f"{name} has no order for slices of a sequence; {', '.join(SLICED[:-1])} and {SLICED[-1]} have. Write one "
            "of these, or leave slices out."
        )
    check_counts({"num_stages": num_stages, "num_microbatches": num_microbatches, "slices": slices, "chunks": chunks})
    if placement is not None:
        _check_round(name, placement, num_stages)
        chunks = len(placement) // num_stages
    homes = round_robin(num_stages, chunks)
    if chunks > 1 and name != INTERLEAVED.name:
        raise ValueError(
            f"{name} with slices needs one stage on each submesh, but there are {chunks}. Write {INTERLEAVED.name}, or "
            "leave chunks= out."
        )
    if chunks > 1:
        rows = interleaved_rows(num_stages, num_microbatches, chunks, slices)
    else:
        rows = _in_one_pass(num_stages, num_microbatches * slices, slices, eager=name == "gpipe")
    if name == ZB_H1.name:
        halves = with_input_halves(rows)
        rows = fill_weights(halves, homes, [max(peak_counts(halves))] * num_stages)
    return Schedule(name, rows, homes, len(homes), num_microbatches * slices, slices=slices)


def _in_one_pass(num_stages: int, units: int, slices: int, *, eager: bool) -> Rows:
    """GPipe if `eager`, else 1F1B."""
    rows = []
    for stage in range(num_stages):
        forwards = [Action("F", stage, unit) for unit in range(units)]
        backwards = [Action("B", stage, backward_unit(unit, slices)) for unit in range(units)]
        rows.append(alternating(forwards, backwards, units if eager else num_stages - stage - 1 + slices - 1))
    return tuple(rows)


def check_slices(schedule: Schedule) -> None:
    """Check that the slices of each microbatch follow each other, stages go round, and nothing else is in the order.

    Raises:
        ValueError: If a forward pass comes before that of the slice before it, or a backward pass or a half of one
            before that of the slice behind it; if stages are not placed round-robin; or if an action is none of these.
    """
    _check_round(schedule.name, schedule.placement, len(schedule.rows))
    slices = schedule.slices
    places = {
        action: (number, position) for number, row in enumerate(schedule.rows) for position, action in enumerate(row)
    }
    for action, (number, position) in places.items():
        if action.kind not in _NEIGHBOUR:
            raise ValueError(
                f"{action}: in slices of a sequence no forward pass runs once more. Write jax.checkpoint into the "
                "model, which is looked through."
            )
        other = action.microbatch + _NEIGHBOUR[action.kind]
        if other < 0 or other // slices != action.microbatch // slices:
            continue
        found = places.get(Action(action.kind, action.stage, other))
        if found is not None and (found[0] != number or found[1] > position):
            raise ValueError(
                f"{action} comes before {Action(action.kind, action.stage, other)}: forward passes of a microbatch's "
                "slices run from the first to the last, and backward passes from the last to the first, each stage on "
                "one submesh."
            )


def _check_round(name: str, placement: Sequence[int], num_submeshes: int) -> None:
    """Check that stages are placed round-robin."""
    if tuple(placement) != round_robin(num_submeshes, max(1, len(placement) // num_submeshes)):
        raise ValueError(
            f"{name} with slices needs the round-robin placement, such as {round_robin(num_submeshes, 2)}, but stages "
            f"are on submeshes {tuple(placement)}. Leave placement= out of mm.stage or of the hint stages(...)."
        )
