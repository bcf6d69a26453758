"""Interleaved 1F1B: several chunks of the model on every submesh, dealt out round-robin."""

import itertools
from collections.abc import Sequence

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._algorithms.one_forward_one_backward import one_forward_one_backward
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import ROUND_ROBIN


def interleaved(sizes: ScheduleSizes) -> Order:
    """Interleaved 1F1B of Megatron-LM (arXiv:2104.04473, section 2.2), for any number of microbatches.

    Microbatches go in groups; a group passes the first chunk of a submesh, then the second, and so on:

        forwards  = [(chunk, microbatch) for group in groups for chunk in chunks           for microbatch in group]
        backwards = [(chunk, microbatch) for group in groups for chunk in reversed(chunks) for microbatch in group]

    Submesh r of p warms up with `(chunks - 1) * len(first group) + 2 * (p - r - 1)` forwards, then alternates. The
    original has groups of p and needs m divisible by p. Here the m microbatches make `m // p` groups of p or more
    (one if m < p), of sizes as equal as possible: a group of fewer than p would leave a gap in every chunk.
    """
    p, m, chunks = sizes.num_submeshes, sizes.num_microbatches, sizes.chunks
    if chunks == 1:
        # With nothing to interleave, the formula below would warm up like eager 1F1B, in twice the memory.
        return one_forward_one_backward(sizes)
    return Order(interleaved_rows(p, m, chunks))


def interleaved_rows(num_submeshes: int, num_microbatches: int, chunks: int, slices: int = 1) -> Rows:
    """The order of `interleaved`, where a microbatch may be several slices of its sequence.

    A slice is a unit of its own, number `microbatch * slices + slice`. Groups are of whole microbatches, with a slice
    or more for each submesh; backward passes of a microbatch go from its last slice to its first, so the first of them
    waits for `slices - 1` forwards more.

    Args:
        num_submeshes: Number of submeshes.
        num_microbatches: Number of microbatches.
        chunks: Stages on each submesh, at least two.
        slices: Slices of each microbatch.
    """
    groups = max(1, num_microbatches // -(-num_submeshes // slices))
    forwards: list[tuple[int, int]] = []
    backwards: list[tuple[int, int]] = []
    first, largest = 0, -(-num_microbatches // groups) * slices
    for group in range(groups):
        units = range(first, first + (num_microbatches // groups + (group < num_microbatches % groups)) * slices)
        for chunk in range(chunks):
            forwards += ((chunk, unit) for unit in units)
            backwards += ((chunks - 1 - chunk, backward_unit(unit, slices)) for unit in units)
        first = units.stop
    rows = []
    for submesh in range(num_submeshes):
        ups = [Action("F", chunk * num_submeshes + submesh, unit) for chunk, unit in forwards]
        downs = [Action("B", chunk * num_submeshes + submesh, unit) for chunk, unit in backwards]
        ahead = (chunks - 1) * largest + 2 * (num_submeshes - submesh - 1) + slices - 1
        rows.append(alternating(ups, downs, ahead))
    return tuple(rows)


def alternating(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> tuple[Action, ...]:
    """Forwards and backwards in turn, each in their order, with so many forwards ahead, or all if there are fewer."""
    turns = itertools.zip_longest(forwards[ahead:], backwards)
    return (*forwards[:ahead], *(action for turn in turns for action in turn if action is not None))


def backward_unit(position: int, slices: int) -> int:
    """The slice that goes back at a position: in each microbatch from the last to the first."""
    microbatch, behind = divmod(position, slices)
    return microbatch * slices + slices - 1 - behind


INTERLEAVED = NamedSchedule(
    name="interleaved-1f1b",
    rank=40,
    summary="1F1B over several chunks of the model on each submesh, for a shorter bubble",
    source="https://arxiv.org/abs/2104.04473",
    order=interleaved,
    placements=ROUND_ROBIN,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)/v", live="p+(p-1)/v", only_if=("m divisible by p", "v at least 2")),
)
