"""Interleaved 1F1B: several chunks of the model on every submesh, dealt out round-robin."""

from mmruntime.schedules._action import Action
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
    groups = max(1, m // p)
    forwards: list[tuple[int, int]] = []
    backwards: list[tuple[int, int]] = []
    first = 0
    for group in range(groups):
        members = range(first, first + m // groups + (group < m % groups))
        for chunk in range(chunks):
            forwards += ((chunk, microbatch) for microbatch in members)
            backwards += ((chunks - 1 - chunk, microbatch) for microbatch in members)
        first = members.stop
    largest = -(-m // groups)
    rows = []
    for submesh in range(p):
        warm_up = min(len(forwards), (chunks - 1) * largest + 2 * (p - submesh - 1))
        row = []
        for step in range(len(forwards) + warm_up):
            if step < len(forwards):
                chunk, microbatch = forwards[step]
                row.append(Action("F", chunk * p + submesh, microbatch))
            if step >= warm_up:
                chunk, microbatch = backwards[step - warm_up]
                row.append(Action("B", chunk * p + submesh, microbatch))
        rows.append(tuple(row))
    return Order(tuple(rows))


INTERLEAVED = NamedSchedule(
    name="interleaved-1f1b",
    rank=40,
    summary="1F1B over several chunks of the model on each submesh, for a shorter bubble",
    source="https://arxiv.org/abs/2104.04473",
    order=interleaved,
    placements=ROUND_ROBIN,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)/v", live="p+(p-1)/v", only_if=("m divisible by p", "v at least 2")),
)
