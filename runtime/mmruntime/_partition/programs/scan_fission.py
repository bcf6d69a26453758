"""Fission: cut a scan over layers of a backward pass into two, so that weight gradients can be delayed.

    carry, weight_grads = scan(body, carry, xs)
    ->  carry, kept = scan(input_half, carry, xs)
        weight_grads = scan(weight_half, None, (xs, kept))

The first scan passes cotangents from layer to layer and stacks the residuals of the weight gradients, which the second
one computes. Every equation of the body is in one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.inline import inlined, open_calls
from mmruntime._jaxpr.ir import Op
from mmruntime._jaxpr.rewrite import has_effects, needed
from mmruntime._jaxpr.scans import trace_scan

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
    """A scan, with its body's variables by role."""

    eqn: Any
    body: Any
    consts: tuple[Var, ...]
    carries: tuple[Var, ...]
    slices: tuple[Var, ...]

    @staticmethod
    def of(eqn: Any, body: Any) -> _BackwardScan:
        num_consts, num_carry = _compat.scan_counts(eqn)
        first_slice = num_consts + num_carry
        invars = tuple(body.invars)
        return _BackwardScan(eqn, body, invars[:num_consts], invars[num_consts:first_slice], invars[first_slice:])

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
        first, stacks = self._scan(early, early_carries, (), self.early_outs(late_outs), kept, outer)
        outer.update(zip(kept, stacks, strict=True))
        second, _ = self._scan(late, late_carries, kept, sorted(late_outs), (), outer)
        return [op.with_eqn(eqn) for eqn in first], [op.with_eqn(eqn) for eqn in second]

    def _scan(
        self,
        ops: Sequence[Op],
        carries: Sequence[Var],
        residuals: Sequence[Var],
        outs: Sequence[int],
        kept: Sequence[Var],
        outer: Mapping[Var, Atom],
    ) -> tuple[list[Any], list[Var]]:
        """The scan of some of the body's equations.

        Args:
            ops: The equations.
            carries: Its carried values.
            residuals: Values of the other scan, stacked.
            outs: Positions of its results among the original scan's, carried values first.
            kept: Further results, stacked.
            outer: The operand of the original scan, or the stack, for each variable of the body.

        Returns:
            The scan, with other equations from tracing it, and the variables of the stacks of `kept`.
        """
        results = [self.body.outvars[position] for position in outs] + list(kept)
        read = {var for op in ops for var in op.reads()} | {atom for atom in results if is_var(atom)}
        consts = [var for var in self.consts if var in read]
        invars = [*consts, *carries, *(var for var in (*self.slices, *residuals) if var in read)]
        compute = _compat.as_fun(_compat.close(self.body, invars, results, [op.eqn for op in ops]))
        reads = [outer[var] for var in invars]
        traced, captured = trace_scan(self.eqn, compute, reads, len(consts), len(carries))
        assert not captured, "all that the body reads is an argument"
        stacks = [_compat.new_var(atom.aval) for atom in traced.outvars[len(outs) :]]
        outvars = [*(self.eqn.outvars[position] for position in outs), *stacks]
        return inlined(traced, reads, outvars, self.eqn), stacks
