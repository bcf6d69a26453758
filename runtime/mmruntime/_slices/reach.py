"""How low and how high a program's own numbers take the numbers that it works on: the proof that an entry is visible.

A causal mask is of use where each row sees something, and a score that something else has made very low is not seen:
`scores + (valid - 1) * 1e9` hides padding, and so do `(valid - 1) * 1e5 * 1e5` and `jnp.log(valid)`. The reach of a
value is an interval: what its entries would lie in if those of the batch and of the parameters lay in [-1, 1]. They do
not, but scores of a model that trains are nearer to that than to a billion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._slices.constants import once_each
from mmruntime._slices.values import SHOWN, Reach

ORDINARY: Reach = (-1.0, 1.0)
ANYTHING: Reach = (-math.inf, math.inf)
# The exponential of what is smaller is visible with either sign.
_VISIBLE = math.log(-SHOWN)

# The result's entries are among those of the operands.
_MOVES_NAMES = """
    broadcast_in_dim clamp complex concatenate conj convert_element_type copy copy_p cummax cummin expand_dims imag
    optimization_barrier pad real reduce_max reduce_min reduce_precision reshape rev scatter
    sharding_constraint slice sort split squeeze stack stop_gradient top_k transpose unstack
"""
_MOVES = frozenset(_MOVES_NAMES.split())
# The result lies in [-1, 1] whatever the operand is, or is a truth or a position.
_BOUNDED_NAMES = """
    acos argmax argmin asin asinh atan atan2 cos eq erf erfc ge gt iota is_finite le logistic lt ne
    reduce_and reduce_or sign sin tanh
"""
_BOUNDED = frozenset(_BOUNDED_NAMES.split())


def reach_of_constant(array: np.ndarray[Any, Any]) -> Reach:
    """The least and the largest entry."""
    once = once_each(array, ())
    if not once.size:
        return (0.0, 0.0)
    if not (once.dtype == np.bool_ or jnp.issubdtype(once.dtype, jnp.number)):
        return ANYTHING
    if np.iscomplexobj(once):
        # The parts of a complex number are no larger.
        most = float(abs(once).max())
        return (-most, most) if math.isfinite(most) else ANYTHING
    low, high = float(once.min()), float(once.max())
    return ANYTHING if math.isnan(low) or math.isnan(high) else (low, high)


def shows(reach: Reach) -> bool:
    """Whether nothing in an interval is so low that it hides an entry."""
    return reach[0] > SHOWN


def _hull(reaches: Sequence[Reach]) -> Reach:
    return min(low for low, _ in reaches), max(high for _, high in reaches)


def _product(one: Reach, other: Reach) -> Reach:
    # Zero times an end that is infinite is no end: the interval does not hold infinity itself.
    ends = [0.0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(ends), max(ends)


def _power(reach: Reach, exponent: int) -> Reach:
    most = max(abs(reach[0]), abs(reach[1]))
    try:
        high = max(1.0, most) ** exponent
    except OverflowError:
        high = math.inf
    return (0.0 if exponent % 2 == 0 else -high), high


def _times(reach: Reach, count: int) -> Reach:
    return reach[0] * count, reach[1] * count


def _quotient(one: Reach, other: Reach, *, is_ordinary: bool) -> Reach:
    """A quotient; of a denominator that may be zero nothing is known, unless it is one of the model's own."""
    if other[0] > 0 or other[1] < 0:
        ends = [0.0 if math.isinf(b) else a / b for a in one for b in other]
        return min(ends), max(ends)
    return one if is_ordinary else ANYTHING


def _largest(reach: Reach) -> Reach:
    return 0.0, max(abs(reach[0]), abs(reach[1]))


def _raised(one: Reach, other: Reach) -> Reach:
    """A power with a base that is positive, whose extremes are those of the ends."""
    if one[0] <= 0:
        return ANYTHING
    try:
        ends = [a**b for a in one for b in other]
    except OverflowError:
        return 0.0, math.inf
    return (min(ends), max(ends)) if all(map(math.isfinite, (*one, *other))) else ANYTHING


def _where_positive(function: Callable[[float], float], least: float = 0.0) -> Callable[[Reach], Reach]:
    """A function that only ascends or only descends above `least`, at which it has a pole."""

    def bounds(reach: Reach) -> Reach:
        if reach[0] <= least or math.isinf(reach[1]):
            return ANYTHING
        ends = function(reach[0]), function(reach[1])
        return min(ends), max(ends)

    return bounds


_POLES: dict[str, Callable[[Reach], Reach]] = {
    "log": _where_positive(math.log),
    "log1p": _where_positive(math.log1p, -1.0),
    "log2": _where_positive(math.log2),
    "rsqrt": _where_positive(lambda x: 1 / math.sqrt(x)),
}


def _is_ordinary(reach: Reach) -> bool:
    """Whether even an exponential of it, with either sign, hides nothing."""
    return max(abs(reach[0]), abs(reach[1])) < _VISIBLE


def _exponential(reach: Reach, *, is_ordinary: bool) -> Reach:
    if (is_ordinary and reach[1] < _VISIBLE) or reach[1] <= 1:
        # Ordinary numbers are taken to have ordinary exponentials, of softmax and gates.
        return ORDINARY
    return -1.0, math.exp(reach[1]) if reach[1] < 700 else math.inf


_OF_ONE: dict[str, Callable[[Reach], Reach]] = {
    "abs": _largest,
    "neg": lambda reach: (-reach[1], -reach[0]),
    "one_minus_square": lambda reach: (1 - _power(reach, 2)[1], 1.0),
    "round": lambda reach: (reach[0] - 1, reach[1] + 1),
    "floor": lambda reach: (reach[0] - 1, reach[1] + 1),
    "ceil": lambda reach: (reach[0] - 1, reach[1] + 1),
    "sqrt": lambda reach: (0.0, max(1.0, reach[1])),
    "square": lambda reach: _power(reach, 2),
}


def _held(reach: Reach, dtype: Any) -> Reach:
    """What a type makes of an interval: float16 ends at 65504."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return reach
    ends: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return (
        -math.inf if reach[0] < float(ends.min) else reach[0],
        math.inf if reach[1] > float(ends.max) else reach[1],
    )


def reach_of(eqn: Any, reaches: Sequence[Reach], *, of_batch: bool) -> Reach:
    """The reach of an equation's results.

    Args:
        eqn: The equation.
        reaches: Those of its operands.
        of_batch: Whether it comes of the batch and of constants alone, as masks do. What an activation is beside a
            pole, such as a quotient of features, is taken to be ordinary; a mask may lie on it.
    """
    return _held(_reach_of(eqn, reaches, of_batch=of_batch), eqn.outvars[0].aval.dtype)


def _reach_of(eqn: Any, reaches: Sequence[Reach], *, of_batch: bool) -> Reach:
    name, params, dtype = eqn.primitive.name, eqn.params, eqn.outvars[0].aval.dtype
    shapes = [atom.aval.shape for atom in eqn.invars]
    if dtype == np.bool_ or name in _BOUNDED:
        return ORDINARY
    if not jnp.issubdtype(dtype, jnp.number) or not reaches:
        return ANYTHING if of_batch else ORDINARY
    if name in _MOVES or name.startswith("mm_"):
        return _hull(reaches)
    if name in _OF_ONE:
        return _OF_ONE[name](reaches[0])
    if name == "select_n":
        return _hull(reaches[1:])
    if name == "dynamic_slice":
        return reaches[0]
    if name == "gather":
        fill = params.get("fill_value")
        # Without a fill value, floats outside of the operand are NaN and integers the least or largest.
        own = () if fill is None else ((float(fill), float(fill)),)
        return _hull([reaches[0], *own])
    if name == "dynamic_update_slice":
        return _hull(reaches[:2])
    if name in ("add", "add_any"):
        return reaches[0][0] + reaches[1][0], reaches[0][1] + reaches[1][1]
    if name == "sub":
        return reaches[0][0] - reaches[1][1], reaches[0][1] - reaches[1][0]
    if name == "mul":
        return _product(*reaches)
    if name == "div":
        return _quotient(*reaches, is_ordinary=not of_batch)
    if name == "max":
        return max(reaches[0][0], reaches[1][0]), max(reaches[0][1], reaches[1][1])
    if name == "min":
        return min(reaches[0][0], reaches[1][0]), min(reaches[0][1], reaches[1][1])
    if name == "integer_pow" and params["y"] >= 0:
        return _power(reaches[0], params["y"])
    if name == "pow" and of_batch:
        return _raised(*reaches)
    if name in _POLES and of_batch:
        return _POLES[name](reaches[0])
    if name in ("exp", "exp2", "expm1"):
        # Complex numbers are turned by it, as rotary positions are.
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return ORDINARY
        return _exponential(reaches[0], is_ordinary=not of_batch)
    if name == "rem":
        return _hull([reaches[0], (0.0, 0.0)])
    if name == "reduce_sum":
        return _times(reaches[0], math.prod(shapes[0][dim] for dim in params["axes"]))
    if name == "cumsum":
        return _hull([reaches[0], _times(reaches[0], shapes[0][params["axis"]])])
    if name == "dot_general":
        product = _product(*reaches)
        ((contracted, _), _) = params["dimension_numbers"]
        if of_batch:
            return _times(product, math.prod(shapes[0][dim] for dim in contracted))
        # Weights are such that products are ordinary again, unless one of the operands has something very low.
        return ORDINARY if shows(product) and shows((-product[1], -product[0])) else product
    # Of a function without a rule nothing is known, but that activations are ordinary if what they are made of is.
    return ORDINARY if not of_batch and all(map(_is_ordinary, reaches)) else ANYTHING
