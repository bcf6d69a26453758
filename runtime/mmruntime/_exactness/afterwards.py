"""What is computed once after the loop, of totals over the whole batch: a perplexity, an F1, the norm of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.lattice import AbstractValue, Kind
from mmruntime._exactness.needed import needed
from mmruntime._exactness.rules.equation import shape_of

# What the whole batch's value can be made of without keeping anything for each example.
_TOTALS = {Kind.ZERO, Kind.FREE, Kind.SUM, Kind.MAX, Kind.MIN, Kind.AFTER}
_REDUCED = {Kind.SUM, Kind.MAX, Kind.MIN, Kind.AFTER}


@dataclass(frozen=True)
class Afterwards:
    """Equations of the whole batch's program that run once, on totals.

    Attributes:
        program: Their closed jaxpr, from the totals to the results.
        positions: Which results of the function it gives.
        totals: The variables, or literals, of the microbatch's program that it takes.
        whole_totals: Those of the whole batch's program.
    """

    program: Any
    positions: tuple[int, ...]
    totals: tuple[Any, ...]
    whole_totals: tuple[Any, ...]


def may_run_afterwards(part: Any, whole: Any, ins: Sequence[AbstractValue]) -> bool:
    """Whether an equation of both programs reads totals, and nothing else, and gives nothing for each example."""
    kinds = {value.kind for value in ins}
    if not kinds <= _TOTALS or kinds.isdisjoint(_REDUCED) or _compat.acts(part):
        return False
    if any(value.is_on_devices or value.own for value in ins):
        return False
    # Zeros and what is free may have an entry for each example as well.
    pairs = [*zip(part.outvars, whole.outvars, strict=True), *zip(part.invars, whole.invars, strict=True)]
    return all(shape_of(one) == shape_of(other) for one, other in pairs)


def afterwards(part: Any, whole: Any, indices: Sequence[int], positions: Sequence[int]) -> Afterwards:
    """What runs after the loop.

    Args:
        part: The open jaxpr for a microbatch.
        whole: The one for the whole batch, with the same equations.
        indices: The equations that may run after it.
        positions: The results that need them.
    """
    twin = {
        var: other
        for one, two in zip(part.eqns, whole.eqns, strict=True)
        for var, other in zip(two.outvars, one.outvars, strict=True)
    }
    twin.update(zip((*whole.constvars, *whole.invars), (*part.constvars, *part.invars), strict=True))
    wanted = [whole.outvars[position] for position in positions]
    eqns, reads = needed([whole.eqns[index] for index in indices], wanted, keep_effects=False)
    made = {var for eqn in eqns for var in eqn.outvars}
    totals = [var for var in twin if var in reads and var not in made]
    closed = _compat.with_consts(_compat.close(whole, totals, wanted, eqns), [])
    return Afterwards(closed, tuple(positions), tuple(twin[var] for var in totals), tuple(totals))
