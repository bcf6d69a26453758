"""Split: the backward programs of a loop in two, so that a schedule may put weight gradients off.

The input half computes the cotangents of activations, for which other submeshes wait; the weight half computes the
gradients of weights, for which only this submesh's accumulators wait. Calls are opened first (a task's transposed jit,
rematerialised bodies) and scans over layers cut in two, so that each equation is in one half and nothing is computed
twice. The zero-bubble schedules need this (Qi et al., https://arxiv.org/abs/2401.10241, section 2).

Of a scan over layers, the first half passes cotangents from layer to layer and stacks what the second one needs to
compute the gradients of weights:

    carry, weight_grads = scan(body, carry, xs)
    ->  carry, kept = scan(input_half, carry, xs)
        weight_grads = scan(weight_half, None, (xs, kept))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op, Region, Step, is_tiny, num_elements
from mmruntime._jaxpr.rewrite import has_effects, needed, open_calls, part_of_scan
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
    """Split equations into those that pass cotangents on and those that only make weight gradients from them.

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


# (equations, variables that are summed up, variables that are read elsewhere) -> (input half, weight half)
Halve = Callable[[Sequence[Op], Collection[Var], Collection[Var]], tuple[list[Op], list[Op]]]


def split_scan(op: Op, last: Collection[Var], halve: Halve) -> tuple[list[Op], list[Op]] | None:
    """The two halves of a scan, each in order, None if it has only one.

    Weight gradients are either stacked, one for each layer, or (of weights that all layers share) added up in a
    carried value that nothing else reads.

    Args:
        op: The scan.
        last: Its results that only go into accumulators.
        halve: How to cut the body.
    """
    body, consts = _compat.split(op.eqn.params["jaxpr"])
    if consts:
        return None
    scan = _BackwardScan.of(op.eqn, body)
    ops = [opened for eqn in body.eqns for opened in open_calls(op.with_eqn(eqn))]
    late_outs = {position for position, var in enumerate(op.eqn.outvars) if is_var(var) and var in last}
    while late_outs:
        early, late = halve(ops, *scan.ends(late_outs))
        read = scan.ends(late_outs)[1] | {var for op in late for var in op.reads()}
        early, _ = needed(early, read, has_effects)
        unfit = scan.misfits(early, late, late_outs)
        if not unfit:
            return scan.halves(op, early, late, late_outs) if early else None
        late_outs -= unfit
    return None


@dataclass(frozen=True)
class _BackwardScan:
    """A scan with its body's variables, carried ones and slices apart."""

    eqn: Any
    body: Any
    carries: tuple[Var, ...]
    slices: tuple[Var, ...]

    @staticmethod
    def of(eqn: Any, body: Any) -> _BackwardScan:
        num_consts, num_carry = _compat.scan_counts(eqn)
        first_slice = num_consts + num_carry
        invars = tuple(body.invars)
        return _BackwardScan(eqn, body, invars[num_consts:first_slice], invars[first_slice:])

    def early_outs(self, late_outs: Collection[int]) -> list[int]:
        """Positions of the results of the first half: every other carried value, and every other stack that is read."""
        return [
            position
            for position, var in enumerate(self.eqn.outvars)
            if position not in late_outs and (position < len(self.carries) or is_var(var))
        ]

    def ends(self, late_outs: Collection[int]) -> tuple[set[Var], set[Var]]:
        """The body's variables of the late results, and of the early ones."""
        outs = self.body.outvars
        late = {outs[position] for position in late_outs if is_var(outs[position])}
        return late, {outs[position] for position in self.early_outs(late_outs) if is_var(outs[position])}

    def misfits(self, early: Sequence[Op], late: Sequence[Op], late_outs: Collection[int]) -> set[int]:
        """Late results that the second half cannot compute after all."""
        made_late = {var for op in late for var in op.writes()}
        read_early = {var for op in early for var in op.reads()} | self.ends(late_outs)[1]
        return {
            position
            for position in late_outs
            if self.body.outvars[position] not in made_late
            or (position < len(self.carries) and self.carries[position] in read_early)
        }

    def halves(
        self, op: Op, early: Sequence[Op], late: Sequence[Op], late_outs: Collection[int]
    ) -> tuple[list[Op], list[Op]]:
        """Both scans, given the equations and results of each."""
        carries = range(len(self.carries))
        late_carries = [self.carries[position] for position in carries if position in late_outs]
        early_carries = [self.carries[position] for position in carries if position not in late_outs]
        made_early = {var for each in early for var in each.writes()} | set(early_carries)
        kept = list(dict.fromkeys(var for each in late for var in each.reads() if var in made_early))
        outer = dict(zip(self.body.invars, self.eqn.invars, strict=True))

        def ends(outs: Iterable[int]) -> list[tuple[Atom, Any]]:
            return [(self.body.outvars[position], self.eqn.outvars[position]) for position in outs]

        outs = ends(self.early_outs(late_outs))
        eqns = [each.eqn for each in early]
        first, stacks = part_of_scan(self.eqn, eqns, early_carries, outs, kept, outer, self.slices)
        outer.update(zip(kept, stacks, strict=True))
        outs, eqns = ends(sorted(late_outs)), [each.eqn for each in late]
        second, _ = part_of_scan(self.eqn, eqns, late_carries, outs, (), outer, {*self.slices, *kept})
        return [op.with_eqn(eqn) for eqn in first], [op.with_eqn(eqn) for eqn in second]
