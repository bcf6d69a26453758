"""Split: the backward programs of a loop in two, so that a schedule may put weight gradients off.

The input half computes the cotangents of activations, for which other submeshes wait; the weight half computes the
gradients of weights, for which only this submesh's accumulators wait. Calls are opened first (a task's transposed jit,
rematerialised bodies) and scans over layers cut in two, so that each equation is in one half and nothing is computed
twice.
The zero-bubble schedules need this (Qi et al., https://arxiv.org/abs/2401.10241, section 2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.inline import open_calls
from mmruntime._jaxpr.ir import Op, Region, Step, is_tiny, num_elements
from mmruntime._partition.programs.scan_fission import split_scan
from mmruntime._partition.programs.segment import Segment, Segments, connect


def split_backward(step: Step, segments: Segments, index: int) -> Segments:
    """The segments with each backward program of a loop cut into its two halves, where it has two."""
    region = step.regions[index]
    halves: list[Segment] = []
    for segment in segments.by_region[index]:
        halves.extend(halves_of(segment, region, segments) if segment.backward else [segment])
    by_region = (*segments.by_region[:index], tuple(halves), *segments.by_region[index + 1 :])
    # Opened calls and cut scans have variables that were not there before.
    made_on = dict(segments.made_on)
    for segment in halves:
        for op in segment.ops:
            for var in op.writes():
                made_on.setdefault(var, (segment.submesh,))
    return connect(step, Segments(by_region, made_on))


def halves_of(segment: Segment, region: Region, segments: Segments) -> list[Segment]:
    """The input half and the weight half of a backward program, or the program itself if it has only one."""
    ops = [opened for op in segment.ops for opened in (open_calls(op) if _may_wait(op) else [op])]
    summed = {result for _, result in region.sums}
    others = {var for each in segments if each is not segment for var in each.reads}
    awaited = {var for var in segment.writes if var not in summed or var in others}
    early, late = halve(ops, summed, awaited)
    if not early or not late:
        return [segment]
    first = Segment(segment.region, segment.submesh, segment.level, tuple(early), part="I", variant=segment.variant)
    return [first, replace(first, ops=tuple(late), part="W", input_half=first)]


def halve(ops: Sequence[Op], summed: Collection[Var], awaited: Collection[Var]) -> tuple[list[Op], list[Op]]:
    """Cut equations into those that pass cotangents on, and those that only make weight gradients of them.

    The second ones are the last equations before each accumulator: the contraction over the batch, and those that only
    reshape, convert or add up its result. Equations that lead to several accumulators, or come before the contraction,
    pass cotangents on through the layers; on the first stage too, the cotangents of whose inputs nothing reads.
    A scan over layers is itself cut in two.

    Args:
        ops: The equations, in order, without calls.
        summed: Variables that are added to accumulators.
        awaited: Variables that other programs read.

    Returns:
        Both halves, each in order. Equations of the first read nothing of the second.
    """
    needed: set[Var] = set(awaited)
    ending: set[Var] = set(summed)
    early: list[Op] = []
    late: list[Op] = []
    for op in reversed(ops):
        written = list(op.writes())
        last = {var for var in written if var in ending and var not in needed} if _may_wait(op) else set()
        scans = split_scan(op, last, halve) if last and op.eqn.primitive is _compat.scan_p else None
        if scans is not None:
            early.extend(reversed(scans[0]))
            late.extend(reversed(scans[1]))
            needed.update(var for each in scans[0] for var in each.reads())
            ending.difference_update(op.reads())
        elif last and len(last) == len(written):
            late.append(op)
            if _is_thin(op):
                ending.update(op.reads())
            else:
                ending.difference_update(op.reads())
        else:
            early.append(op)
            needed.update(op.reads())
            ending.difference_update(op.reads())
    return early[::-1], late[::-1]


def _may_wait(op: Op) -> bool:
    return op.backward and not op.eqn.effects


def _is_thin(op: Op) -> bool:
    """Whether an equation only rearranges, converts or adds up values, without reducing their size."""
    size = sum(num_elements(var) for var in op.eqn.outvars)
    large = [var for var in op.reads() if not is_tiny(var)]
    if op.eqn.primitive in (_compat.add_p, _compat.add_any_p) or op.eqn.primitive.name == "concatenate":
        return True
    return len(large) <= 1 and all(num_elements(var) <= size for var in large) and _cost.flops(op.eqn) <= size
