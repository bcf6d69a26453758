"""What is computed once after the loop, of totals over the whole batch and of a few numbers of each example.

Of totals a perplexity, an F1, the norm of a gradient; of numbers of each example a standard deviation or a median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.lattice import AbstractValue, Kind
from mmruntime._exactness.rules.equation import shape_of
from mmruntime._jaxpr.rewrite import needed

# What the whole batch's value can be made of without keeping anything for each example.
_TOTALS = {Kind.ZERO, Kind.FREE, Kind.SUM, Kind.MAX, Kind.MIN, Kind.AFTER}
_REDUCED = {Kind.SUM, Kind.MAX, Kind.MIN, Kind.AFTER}
_BY_EXAMPLE = {Kind.ROWS, Kind.INDEX, Kind.COLUMNS}

# Of one value, for each example. Of more, whoever wants a metric says so, by returning it: the model's own activations
# would have the model itself run after the loop, in one place.
ROW_BYTES = 1024


@dataclass(frozen=True)
class Afterwards:
    """Equations of the whole batch's program that run once, on totals and on what examples have, joined.

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


def may_run_afterwards(part: Any, whole: Any, ins: Sequence[AbstractValue], num_examples: int) -> bool:
    """Whether an equation of both programs reads totals and a few numbers of each example, and nothing else.

    Args:
        part: The equation in the microbatch's program.
        whole: The one in the whole batch's.
        ins: What is known of what it reads.
        num_examples: How many examples the whole batch has.
    """
    kinds = {value.kind for value in ins}
    if not kinds <= _TOTALS | _BY_EXAMPLE or kinds.isdisjoint(_REDUCED | _BY_EXAMPLE) or _compat.acts(part):
        return False
    if any(value.is_on_devices or value.own for value in ins):
        return False
    # Zeros and what is free may have an entry for each example as well.
    pairs = [*zip(part.outvars, whole.outvars, strict=True), *zip(part.invars, whole.invars, strict=True)]
    if kinds <= _TOTALS and all(shape_of(one) == shape_of(other) for one, other in pairs):
        return True
    if ("transpose", True) in _compat.scopes(part):
        # A gradient reads what the forward pass has kept of each example.
        return False
    for value, atom in zip(ins, whole.invars, strict=True):
        is_number = jnp.issubdtype(atom.aval.dtype, np.number) or atom.aval.dtype == np.bool_
        if not (is_number or value.hoistable) or (value.kind in _BY_EXAMPLE - {Kind.ROWS} and not value.hoistable):
            return False
        # Parameters of any size would be those of the model.
        is_parameter = value.kind is Kind.FREE and not value.hoistable
        if _bytes_of(atom) > ROW_BYTES * (1 if is_parameter else num_examples):
            return False
    return all(_bytes_of(var) <= ROW_BYTES * num_examples for var in whole.outvars)


def _bytes_of(atom: Any) -> int:
    dtype = atom.aval.dtype
    itemsize = 8 if jnp.issubdtype(dtype, jax.dtypes.extended) else dtype.itemsize
    return math.prod(shape_of(atom)) * itemsize


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
    eqns, reads = needed([whole.eqns[index] for index in indices], wanted)
    made = {var for eqn in eqns for var in eqn.outvars}
    totals = [var for var in twin if var in reads and var not in made]
    closed = _compat.with_consts(_compat.close(whole, totals, wanted, eqns), [])
    return Afterwards(closed, tuple(positions), tuple(twin[var] for var in totals), tuple(totals))
