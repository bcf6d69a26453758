"""How low and how high a program's own numbers take the numbers that it works on: the proof that an entry is visible.

A causal mask is of use where each row sees something, and a score that something else has made very low is not seen:
`scores + (valid - 1) * 1e9` hides padding, and so do `(valid - 1) * 1e5 * 1e5`, `jnp.log(valid)` and
`-1 / (scores**2 * valid + 1e-20)`. A value has two intervals. Its reach is what its entries would lie in if those of
the batch and of the parameters lay in [-1, 1]. They do not, but scores of a model that trains are nearer to that than
to a billion. Its span is what they lie in whatever the inputs are. A function that has a pole in the span of what it is
applied to, such as a division by what may be zero, gives anything: a mask may lie on the pole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._slices.constants import once_each
from mmruntime._slices.values import ANYTHING, ORDINARY, SHOWN, Reach, SlicedValue

# The exponential of what is smaller is visible with either sign.
_VISIBLE = math.log(-SHOWN)

_PRODUCTS = frozenset(("mul", "div", "dot_general"))
# The result's entries are among those of the operands.
_MOVES_NAMES = """
    broadcast_in_dim complex concatenate conj convert_element_type copy copy_p cummax cummin expand_dims imag
    optimization_barrier pad real reduce_max reduce_min reduce_precision reshape rev
    sharding_constraint slice sort split squeeze stack stop_gradient transpose unstack
"""
_MOVES = frozenset(_MOVES_NAMES.split())
# Where the result lies whatever the operand is.
_RANGES: dict[str, Reach] = {
    "acos": (0.0, math.pi),
    "asin": (-math.pi / 2, math.pi / 2),
    "atan": (-math.pi / 2, math.pi / 2),
    "atan2": (-math.pi, math.pi),
    "cos": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "erfc": (0.0, 2.0),
    "logistic": (0.0, 1.0),
    "sign": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "tanh": (-1.0, 1.0),
}
# Functions without a pole that make nothing larger.
_TAME_NAMES = """
    acosh bessel_i0e bessel_i1e cbrt conv_general_dilated cumlogsumexp igamma igammac nextafter scatter-add
"""
_TAME = frozenset(_TAME_NAMES.split())


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


def _ends(values: Sequence[float]) -> Reach:
    # Infinity less infinity.
    return ANYTHING if any(map(math.isnan, values)) else (min(values), max(values))


def _product(one: Reach, other: Reach) -> Reach:
    # Zero times an end that is infinite is no end: the interval does not hold infinity itself.
    return _ends([0.0 if 0 in (a, b) else a * b for a in one for b in other])


def raised_to(x: float, exponent: float) -> float:
    """A power, infinity if it is too large for a float."""
    try:
        return float(x**exponent)
    except OverflowError:
        return math.inf


def _power(reach: Reach, exponent: int) -> Reach:
    high = raised_to(max(1.0, abs(reach[0]), abs(reach[1])), exponent)
    if exponent % 2:
        return -high, high
    outside = 0.0 if reach[0] <= 0 <= reach[1] else min(abs(reach[0]), abs(reach[1]))
    return min(1.0, outside) ** exponent, high


def _times(reach: Reach, count: int) -> Reach:
    return _product(reach, (float(count), float(count)))


def _has_zero(reach: Reach) -> bool:
    return reach[0] <= 0 <= reach[1]


def _is_between(reach: Reach, low: float, high: float) -> bool:
    """Whether an interval holds neither of two poles; infinity is none."""
    return low < reach[0] and (high == math.inf or reach[1] < high)


def _quotient(one: Reach, other: Reach) -> Reach:
    """A quotient whose denominator is known not to be zero."""

    def of_ends(a: float, b: float) -> float:
        if math.isinf(b) or a == 0:
            return 0.0
        # An end that is too small for a float is not zero.
        return math.copysign(math.inf, a) * math.copysign(1.0, b) if b == 0 else a / b

    return _ends([of_ends(a, b) for a in one for b in other])


def _largest(reach: Reach) -> Reach:
    least = 0.0 if _has_zero(reach) else min(abs(reach[0]), abs(reach[1]))
    return least, max(abs(reach[0]), abs(reach[1]))


def _raised(one: Reach, other: Reach) -> Reach:
    """A power with an exponent that is known to be positive, or a base that is known to be."""
    if one[0] > 0:
        return _ends([raised_to(a, b) for a in one for b in other]) if all(map(math.isfinite, other)) else ANYTHING
    most = raised_to(max(1.0, abs(one[0]), abs(one[1])), other[1])
    return (0.0 if one[0] >= 0 else -most), most


def _ascending(function: Callable[[float], float], low: float = -math.inf, high: float = math.inf) -> Any:
    """A function that only ascends, and is `low` and `high` at minus infinity and infinity."""

    def at(x: float) -> float:
        return low if x == -math.inf else high if x == math.inf else function(x)

    return lambda reach: (at(reach[0]), at(reach[1]))


# Functions with a pole at a number that their operands lie above, or below it where they have another.
_POLES: dict[str, tuple[float, float, Callable[[Reach], Reach]]] = {
    "atanh": (-1.0, 1.0, _ascending(math.atanh)),
    "digamma": (0.0, math.inf, lambda reach: (-1 / reach[0] - 2, max(1.0, reach[1]))),
    "lgamma": (0.0, math.inf, lambda reach: (-1.0, 1 / reach[0] + _power(reach, 2)[1])),
    "log": (0.0, math.inf, _ascending(math.log)),
    "log1p": (-1.0, math.inf, _ascending(math.log1p)),
    "log2": (0.0, math.inf, _ascending(math.log2)),
    "rsqrt": (0.0, math.inf, lambda reach: (_root_below(reach[1]), 1 / math.sqrt(reach[0]))),
    "tan": (-math.pi / 2, math.pi / 2, _ascending(math.tan)),
}


def _root_below(x: float) -> float:
    return 0.0 if math.isinf(x) else 1 / math.sqrt(x)


def _is_ordinary(reach: Reach) -> bool:
    """Whether even an exponential of it, with either sign, hides nothing."""
    return max(abs(reach[0]), abs(reach[1])) < _VISIBLE


def _exponential(x: float) -> float:
    return math.inf if x > 709 else 0.0 if x < -745 else math.exp(x)


_OF_ONE: dict[str, Callable[[Reach], Reach]] = {
    "abs": _largest,
    "asinh": _ascending(math.asinh),
    "neg": lambda reach: (-reach[1], -reach[0]),
    "one_minus_square": lambda reach: (1 - _power(reach, 2)[1], 1.0),
    "round": lambda reach: (reach[0] - 1, reach[1] + 1),
    "floor": lambda reach: (reach[0] - 1, reach[1] + 1),
    "ceil": lambda reach: (reach[0] - 1, reach[1] + 1),
    "cosh": lambda reach: (1.0, _exponential(max(abs(reach[0]), abs(reach[1])))),
    "sinh": lambda reach: (-_exponential(-reach[0]), _exponential(reach[1])),
    "sqrt": lambda reach: (math.sqrt(max(0.0, reach[0])), math.sqrt(max(0.0, reach[1]))),
    "square": lambda reach: _power(reach, 2),
}


def _held(reach: Reach, dtype: Any) -> Reach:
    """What a type makes of an interval: float16 ends at 65504, and integers wrap round."""
    if dtype == np.bool_:
        return max(0.0, reach[0]), min(1.0, reach[1])
    if jnp.issubdtype(dtype, jnp.integer):
        ends: Any = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
        whole = float(ends.min), float(ends.max)
        if not (whole[0] <= reach[0] and reach[1] <= whole[1]):
            return whole
        # What is converted is cut towards zero.
        return (math.floor(reach[0]) if reach[0] > 0 else reach[0]), (math.ceil(reach[1]) if reach[1] < 0 else reach[1])
    if not jnp.issubdtype(dtype, jnp.floating):
        return reach
    least = float(jnp.finfo(dtype).tiny)  # type: ignore[no-untyped-call]
    with np.errstate(over="ignore"):
        low, high = (float(np.asarray(end).astype(dtype)) for end in reach)
    # Smaller numbers may be taken for zero.
    return (0.0 if 0 < low < least else low), (0.0 if -least < high < 0 else high)


def span_of_input(dtype: Any) -> Reach:
    """What entries of an input may be."""
    return _held(ANYTHING, dtype)


def chosen_case(ins: Sequence[SlicedValue]) -> int | None:
    """Which operand a `select_n` chooses, where that is known."""
    low, high = ins[0].span
    return 1 + int(low) if low == high and low in range(len(ins) - 1) else None


# Joins, in which a constant stands beside parameters as a mask does.
_JOINS = frozenset(("concatenate", "pad", "stack", "scatter", "dynamic_update_slice"))

# They make zeros of some entries, and not of others.
_VANISHING = frozenset(("ceil", "clamp", "floor", "max", "min", "round", "sign"))


def is_learned(eqn: Any, ins: Sequence[SlicedValue], constants: Sequence[np.ndarray[Any, Any] | None]) -> bool:
    """Whether a result is made of parameters alone, and of numbers that are the same for all entries.

    Not so where some parameters may become zero and others not: rounded ones, and distances between them.
    """
    if not any(value.learned for value in ins):
        return False
    name = eqn.primitive.name
    if name == "select_n" and (chosen := chosen_case(ins)) is not None:
        return ins[chosen].learned
    is_of_floats = jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact)
    if name in _VANISHING or (name == "convert_element_type" and not is_of_floats):
        return False
    if name == "sub" and all(value.learned for value in ins):
        return False
    if name in ("add", "add_any") and all(value.span[0] >= 0 for value in ins):
        # As in a softplus: nothing takes it back to zero.
        return True
    for value, array in zip(ins, constants, strict=True):
        if value.learned:
            continue
        is_number = array is not None and value.reach[0] == value.reach[1]
        if not is_number or name in _JOINS or (value.reach[0] == 0 and name in _PRODUCTS):
            return False
    return True


def reach_of(eqn: Any, ins: Sequence[SlicedValue], *, learned: bool) -> Reach:
    """The reach of an equation's results.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        learned: Whether it is made of parameters alone.
    """
    return _held(_interval(eqn, ins, learned=learned, sure=False), eqn.outvars[0].aval.dtype)


def span_of(eqn: Any, ins: Sequence[SlicedValue]) -> Reach:
    """The span of an equation's results."""
    dtype = eqn.outvars[0].aval.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return ANYTHING
    return _held(_interval(eqn, ins, learned=False, sure=True), dtype)


def has_pole(eqn: Any, ins: Sequence[SlicedValue]) -> bool:
    """Whether an operand may lie at a pole of the function that is applied to it; parameters are taken not to."""
    name = eqn.primitive.name
    if name == "div":
        return _has_zero(ins[1].span) and not ins[1].learned
    if name == "integer_pow":
        return eqn.params["y"] < 0 and _has_zero(ins[0].span) and not ins[0].learned
    if name == "pow":
        return ins[0].span[0] <= 0 and ins[1].span[0] < 0 and not ins[0].learned
    if name in _POLES:
        low, high, _ = _POLES[name]
        return not (ins[0].learned or _is_between(ins[0].span, low, high))
    return False


def scale_of_value(value: SlicedValue) -> float:
    """How large the program's numbers and masks make a value."""
    return max(abs(value.reach[0]), abs(value.reach[1])) if value.free else value.scale


def _divisor(scale: float) -> float:
    """By how much what is divided becomes smaller."""
    return max(1.0, scale) if math.isfinite(scale) else 1.0


def scale_of(eqn: Any, ins: Sequence[SlicedValue], reach: Reach, *, is_ratio: bool) -> float:
    """The scale of an equation's results.

    What a product with weights makes ordinary again is as large as numbers and masks have made what it is applied to.
    Sums count as the largest addend, and what is divided by an activation is taken to be smaller by as much as that is
    larger: of what it is normalised by.
    """
    name = eqn.primitive.name
    if not ins or is_ratio:
        return 1.0
    scales = [scale_of_value(value) for value in ins]
    has_numbers = any(value.free or value.learned for value in ins)
    if name == "rsqrt" and not has_numbers:
        return 1 / math.sqrt(_divisor(scales[0]))
    if name == "sqrt":
        return math.sqrt(scales[0])
    if name == "div":
        if ins[1].free:
            least = 0.0 if _has_zero(ins[1].reach) else min(abs(ins[1].reach[0]), abs(ins[1].reach[1]))
            return scales[0] / least if least else math.inf
        if ins[1].learned:
            return scales[0]
        # Of a number that is divided, such as one, an activation makes what normalises.
        return scales[0] / _divisor(scales[1]) if has_numbers else max(1.0, scales[0] / _divisor(scales[1]))
    if name in ("mul", "dot_general"):
        product = 0.0 if 0 in scales else math.prod(scales)
        return product if has_numbers else max(1.0, product)
    if name in ("integer_pow", "square"):
        return raised_to(max(1.0, scales[0]), abs(eqn.params.get("y", 2)))
    if name in _MOVES or name.startswith("mm_") or name in _TAME or name in ("neg", "dynamic_slice", "reduce_sum"):
        return max(scales)
    if name in ("gather", "abs", "cumsum"):
        return scales[0]
    if name in ("add", "add_any", "sub", "max", "min", "select_n", "clamp", "scatter", "dynamic_update_slice"):
        return max(1.0, *scales[1 if name == "select_n" else 0 :])
    return max(1.0, abs(reach[0]), abs(reach[1]))


def _interval(eqn: Any, ins: Sequence[SlicedValue], *, learned: bool, sure: bool) -> Reach:
    """The span of an equation's results where that is asked for, otherwise their reach."""
    name, params, dtype = eqn.primitive.name, eqn.params, eqn.outvars[0].aval.dtype
    shapes = [atom.aval.shape for atom in eqn.invars]
    reaches = [value.span if sure else value.reach for value in ins]
    # What masks do is followed exactly; activations are ordinary numbers again after a product with weights.
    is_exact = sure or all(value.free for value in ins)
    if dtype == np.bool_:
        return 0.0, 1.0
    if name in _RANGES:
        return _RANGES[name]
    if not jnp.issubdtype(dtype, jnp.number) or not reaches:
        return ANYTHING
    if name in _MOVES or name.startswith("mm_"):
        return _hull(reaches)
    if has_pole(eqn, ins):
        return ANYTHING
    if name in _OF_ONE:
        return _OF_ONE[name](reaches[0])
    if name in ("argmax", "argmin"):
        return 0.0, float(max(0, math.prod(shapes[0][dim] for dim in params["axes"]) - 1))
    if name == "top_k":
        return _hull([reaches[0], (0.0, float(max(shapes[0])))])
    if name == "select_n":
        chosen = chosen_case(ins)
        return _hull(reaches[1:]) if chosen is None else reaches[chosen]
    if name == "clamp":
        least, x, most = reaches
        return min(max(least[0], x[0]), most[0]), min(max(least[1], x[1]), most[1])
    if name == "dynamic_slice":
        return reaches[0]
    if name == "gather":
        fill = params.get("fill_value")
        # Without a fill value, floats outside of the operand are NaN and integers the least or largest.
        own = () if fill is None else ((float(fill), float(fill)),)
        if fill is None and jnp.issubdtype(dtype, jnp.integer):
            return ANYTHING if sure else reaches[0]
        return _hull([reaches[0], *own])
    if name == "scatter":
        return _hull([reaches[0], reaches[2]])
    if name == "dynamic_update_slice":
        return _hull(reaches[:2])
    if name in ("add", "add_any"):
        return _ends((reaches[0][0] + reaches[1][0], reaches[0][1] + reaches[1][1]))
    if name == "sub":
        return _ends((reaches[0][0] - reaches[1][1], reaches[0][1] - reaches[1][0]))
    if name == "mul":
        if eqn.invars[0] is eqn.invars[1]:
            return _power(reaches[0], 2)
        return _product(*reaches)
    if name == "div":
        # A parameter that divides is taken to leave numbers as they are.
        return _quotient(*reaches) if not _has_zero(reaches[1]) else reaches[0]
    if name == "max":
        return max(reaches[0][0], reaches[1][0]), max(reaches[0][1], reaches[1][1])
    if name == "min":
        return min(reaches[0][0], reaches[1][0]), min(reaches[0][1], reaches[1][1])
    if name == "integer_pow":
        exponent = params["y"]
        if exponent >= 0:
            return _power(reaches[0], exponent)
        return ORDINARY if _has_zero(reaches[0]) else _quotient((1.0, 1.0), _power_of_ends(reaches[0], -exponent))
    if name == "pow":
        return _raised(*reaches) if sure or not ins[0].learned else ORDINARY
    if name in _POLES:
        low, high, function = _POLES[name]
        return function(reaches[0]) if _is_between(reaches[0], low, high) else ORDINARY
    if name in ("exp", "exp2", "expm1"):
        return _of_exponential(name, reaches[0], dtype)
    if name == "rem":
        return _hull([reaches[0], (0.0, 0.0)])
    if name == "reduce_sum":
        return _times(reaches[0], math.prod(shapes[0][dim] for dim in params["axes"]))
    if name == "cumsum":
        return _hull([reaches[0], _times(reaches[0], shapes[0][params["axis"]])])
    if name == "dot_general":
        product = _product(*reaches)
        ((contracted, _), _) = params["dimension_numbers"]
        if is_exact:
            return _times(product, math.prod(shapes[0][dim] for dim in contracted))
        # Weights are such that products are ordinary again, unless one of the operands has something very low.
        if shows(product) and shows((-product[1], -product[0])):
            scales = [scale_of_value(value) for value in ins]
            largest = 1.0 if 0 in scales else max(1.0, math.prod(scales))
            if not any(value.learned for value in ins):
                # Nothing learns to make it ordinary.
                largest *= math.prod(shapes[0][dim] for dim in contracted)
            return (0.0 if product[0] >= 0 else -largest), largest
        return product
    if name in ("cumprod", "reduce_prod"):
        largest = max(1.0, abs(reaches[0][0]), abs(reaches[0][1]))
        largest = raised_to(largest, math.prod(shapes[0]))
        return (0.0 if reaches[0][0] >= 0 else -largest), largest
    # Of a function without a rule nothing is known, but that some leave activations ordinary, and parameters are.
    is_tame = (name in _TAME or learned) and not is_exact
    return _hull([ORDINARY, *reaches]) if is_tame and all(map(_is_ordinary, reaches)) else ANYTHING


def _power_of_ends(reach: Reach, exponent: int) -> Reach:
    return _ends([raised_to(end, exponent) for end in reach])


def _of_exponential(name: str, reach: Reach, dtype: Any) -> Reach:
    # Complex numbers are turned by it, as rotary positions are.
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return ORDINARY
    base = math.log(2) if name == "exp2" else 1.0
    low, high = _exponential(reach[0] * base), _exponential(reach[1] * base)
    return (low - 1, high) if name == "expm1" else (low, high)
