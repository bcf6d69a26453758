"""Between which numbers pairs of positions lie, of the ranges of what they are made of.

A slice does not compute the pairs that a mask hides. A mask that puts a number in place of scores hides them whatever
they are. One that adds a number does so if they are not larger, and the step bounds them by what it has computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from mmruntime._jaxpr.primitives import MOVES

# The least and the largest entry.
Range = tuple[Any, Any]


def _hull(eqn: Any, *ranges: Range) -> Range:
    return functools.reduce(jnp.minimum, [low for low, _ in ranges]), functools.reduce(
        jnp.maximum, [high for _, high in ranges]
    )


def _product(eqn: Any, one: Range, other: Range) -> Range:
    ends = [a * b for a in one for b in other]
    return _hull(eqn, *[(end, end) for end in ends])


def _times(count: int, found: Range) -> Range:
    return count * found[0], count * found[1]


def _dot_general(eqn: Any, one: Range, other: Range) -> Range:
    ((contracted, _), _) = eqn.params["dimension_numbers"]
    return _times(math.prod(eqn.invars[0].aval.shape[dim] for dim in contracted), _product(eqn, one, other))


def _even(eqn: Any, found: Range) -> Range:
    """The range of a square or absolute value: from zero to that of the largest magnitude."""
    most = jnp.maximum(jnp.abs(found[0]), jnp.abs(found[1]))
    return 0.0, most if eqn.primitive.name == "abs" else most * most


_HULLS = ("convert_element_type", "optimization_barrier", "reduce_max", "reduce_min", "reduce_precision")
# By primitive: the range of its result, of those of its operands.
RANGES: dict[str, Callable[..., Range]] = {
    **dict.fromkeys((*MOVES, *_HULLS, "sharding_constraint"), _hull),
    **dict.fromkeys(("add", "add_any"), lambda eqn, one, other: (one[0] + other[0], one[1] + other[1])),
    **dict.fromkeys(("cos", "erf", "sin", "tanh"), lambda eqn, _: (-1.0, 1.0)),
    **dict.fromkeys(("abs", "square"), _even),
    "dot_general": _dot_general,
    "exp": lambda eqn, found: (jnp.exp(found[0]), jnp.exp(found[1])),
    "logistic": lambda eqn, _: (0.0, 1.0),
    "max": lambda eqn, one, other: (jnp.maximum(one[0], other[0]), jnp.maximum(one[1], other[1])),
    "min": lambda eqn, one, other: (jnp.minimum(one[0], other[0]), jnp.minimum(one[1], other[1])),
    # The divisor's range is that of its inverse.
    **dict.fromkeys(("div", "mul"), _product),
    "neg": lambda eqn, found: (-found[1], -found[0]),
    "reduce_sum": lambda eqn, found: _times(
        math.prod(eqn.invars[0].aval.shape[dim] for dim in eqn.params["axes"]), found
    ),
    "select_n": lambda eqn, _, *cases: _hull(eqn, *cases),
    "sub": lambda eqn, one, other: (one[0] - other[1], one[1] - other[0]),
}
