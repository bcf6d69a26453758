"""How low and how high a program's own numbers take the numbers that it works on: the proof that an entry is visible.

A causal mask is of use where each row sees something, and a score that something else has made very low is not seen:
`scores + (valid - 1) * 1e9` hides padding, and so do `(valid - 1) * 1e5 * 1e5`, `jnp.log(valid)` and `-1 / (scores**2 *
valid + 1e-20)`. A value has two intervals. Its reach is what its entries would lie in if those of the batch and of the
parameters lay in [-1, 1], and a product with weights were no larger than what they multiply. They do not, but scores of
a model that trains are nearer to that than to a billion. Its span is what they lie in whatever the inputs are. A
function that has a pole in the span of what it is applied to, such as a division by what may be zero, gives anything: a
mask may lie on the pole.
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
    optimization_barrier pad real reduce_max reduce_min reshape rev
    sharding_constraint slice sort split squeeze stack stop_gradient transpose unstack
"""
_MOVES = frozenset(_MOVES_NAMES.split())
# Where the result lies whatever the operand is.
_RANGES: dict[str, Reach] = {
    "acos": (0.0, math.pi),
    "asin": (-math.pi / 2, math.pi / 2),
    "atan": (-math.pi / 2, math.pi / 2),
    "atan2": (-math.pi, math.pi),
    "bessel_i0e": (0.0, 1.0),
    "bessel_i1e": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "erfc": (0.0, 2.0),
    "igamma": (0.0, 1.0),
    "igammac": (0.0, 1.0),
    "logistic": (0.0, 1.0),
    "sign": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "tanh": (-1.0, 1.0),
}


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
    "acosh": lambda reach: (0.0, math.asinh(max(0.0, reach[1]))),
    "asinh": _ascending(math.asinh),
    "cbrt": lambda reach: (min(-1.0, reach[0]), max(1.0, reach[1])),
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


# Functions whose result's parts may have the other sign, or be larger, where the operands are complex numbers.
_COMPLEX = frozenset((*_RANGES, *_POLES, *_OF_ONE, "exp", "exp2", "expm1", "integer_pow", "mul", "pow")) - {
    "neg",
    "sign",
}

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


def reach_of(eqn: Any, ins: Sequence[SlicedValue], *, learned: bool, is_gradient: bool) -> Reach:
    """The reach of an equation's results.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        learned: Whether it is made of parameters alone.
        is_gradient: Whether it is a gradient, which hides nothing: products make it ordinary.
    """
    found = _interval(eqn, ins, learned=learned, sure=False, is_gradient=is_gradient)
    return _held(found, eqn.outvars[0].aval.dtype)


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


def _interval(eqn: Any, ins: Sequence[SlicedValue], *, learned: bool, sure: bool, is_gradient: bool = False) -> Reach:
    """The span of an equation's results where that is asked for, otherwise their reach."""
    name, params, dtype = eqn.primitive.name, eqn.params, eqn.outvars[0].aval.dtype
    shapes = [atom.aval.shape for atom in eqn.invars]
    reaches = [value.span if sure else value.reach for value in ins]
    if dtype == np.bool_:
        return 0.0, 1.0
    if jnp.issubdtype(dtype, jnp.complexfloating) and name in _COMPLEX:
        return _of_complex(name, reaches, params, is_turn=ins[0].turn == 1)
    if name == "reduce_precision":
        low, high = (_in_precision(end, params["exponent_bits"]) for end in reaches[0])
        return low, high
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
        return _quotient(*reaches) if not _has_zero(reaches[1]) else _by_parameter(reaches[0], reaches[1], sure=sure)
    if name == "max":
        return max(reaches[0][0], reaches[1][0]), max(reaches[0][1], reaches[1][1])
    if name == "min":
        return min(reaches[0][0], reaches[1][0]), min(reaches[0][1], reaches[1][1])
    if name == "integer_pow":
        exponent = params["y"]
        if exponent >= 0:
            return _power(reaches[0], exponent)
        below = _power_of_ends(reaches[0], -exponent)
        if _has_zero(reaches[0]):
            return _by_parameter(ORDINARY, below, sure=sure)
        sign = -1.0 if exponent % 2 and reaches[0][1] < 0 else 1.0
        return _quotient((sign, sign), below)
    if name == "pow":
        if sure or not ins[0].learned:
            return _raised(*reaches)
        below = _power_of_ends(reaches[0], max(0.0, -reaches[1][0]))
        return _hull([_raised(_largest(reaches[0]), _largest(reaches[1])), _by_parameter(ORDINARY, below, sure=sure)])
    if name in _POLES:
        low, high, function = _POLES[name]
        if _is_between(reaches[0], low, high):
            return function(reaches[0])
        return _by_parameter(ORDINARY, reaches[0], sure=sure)
    if name in ("exp", "exp2", "expm1"):
        return _of_exponential(name, reaches[0])
    if name == "rem":
        return _hull([reaches[0], (0.0, 0.0)])
    if name == "reduce_sum":
        return _times(reaches[0], math.prod(shapes[0][dim] for dim in params["axes"]))
    if name == "cumsum":
        return _hull([reaches[0], _times(reaches[0], shapes[0][params["axis"]])])
    if name == "dot_general":
        ((contracted, _), _) = params["dimension_numbers"]
        count = math.prod(shapes[0][dim] for dim in contracted)
        return _sum_of_products(eqn, ins, reaches, count, sure=sure, is_gradient=is_gradient)
    if name == "conv_general_dilated":
        count = math.prod(shapes[1]) // max(1, shapes[1][params["dimension_numbers"].rhs_spec[0]])
        return _sum_of_products(eqn, ins, reaches, count, sure=sure, is_gradient=is_gradient)
    if name == "scatter-add":
        windows = params["dimension_numbers"].update_window_dims
        count = math.prod(size for dim, size in enumerate(shapes[2]) if dim not in windows)
        added = _hull([(0.0, 0.0), _times(reaches[2], count)])
        return _ends((reaches[0][0] + added[0], reaches[0][1] + added[1]))
    if name == "cumlogsumexp":
        return reaches[0][0], reaches[0][1] + math.log(max(1, shapes[0][params["axis"]]))
    if name in ("cumprod", "reduce_prod"):
        largest = max(1.0, abs(reaches[0][0]), abs(reaches[0][1]))
        largest = raised_to(largest, math.prod(shapes[0]))
        return (0.0 if reaches[0][0] >= 0 else -largest), largest
    # Of a function without a rule nothing is known, but that parameters stay ordinary.
    is_ordinary = learned and not sure and all(map(_is_ordinary, reaches))
    return _hull([ORDINARY, *reaches]) if is_ordinary else ANYTHING


def _of_complex(name: str, reaches: Sequence[Reach], params: Any, *, is_turn: bool) -> Reach:
    """Between what the parts of a product, power or exponential of complex numbers lie."""
    if name in ("exp", "exp2"):
        # Of imaginary exponents it turns what it multiplies. Others take it no further than their parts do.
        most = 1.0 if is_turn else _of_exponential(name, reaches[0])[1]
        return -most, most
    if name not in ("mul", "integer_pow", "square"):
        return ANYTHING
    exponent = params["y"] if name == "integer_pow" else 2
    if exponent < 0:
        return ANYTHING
    # A number is at most that much larger than its parts.
    sizes = [math.sqrt(2) * max(abs(low), abs(high)) for low, high in reaches]
    most = sizes[0] * sizes[1] if name == "mul" else raised_to(max(1.0, sizes[0]), exponent)
    # Zero times infinity.
    return ANYTHING if math.isnan(most) else (-most, most)


def _in_precision(x: float, exponent_bits: int) -> float:
    """A number that overflows where an exponent has fewer bits."""
    return x if exponent_bits >= 11 or abs(x) < 2.0 ** (2 ** (exponent_bits - 1) - 1) else math.copysign(math.inf, x)


def _sum_of_products(
    eqn: Any, ins: Sequence[SlicedValue], reaches: Sequence[Reach], count: int, *, sure: bool, is_gradient: bool
) -> Reach:
    """A sum of `count` products of an entry of one operand with one of the other."""
    product = _product(*reaches)
    low, high = _times(product, count)
    if sure or all(value.free for value in ins):
        return low, high
    if is_gradient and shows(product) and shows((-product[1], -product[0])):
        return (0.0 if product[0] >= 0 else -1.0), 1.0
    if any(value.weights for value in ins):
        # Weights are such that the sum is as large as one of its products.
        return _hull([(0.0, 0.0), product])
    dtype = eqn.outvars[0].aval.dtype
    most = _most_of_scores(dtype)
    if max(abs(product[0]), abs(product[1])) <= most:
        return max(low, -most), min(high, most)
    return low, high


def _most_of_scores(dtype: Any) -> float:
    """What a sum of products that fit into a type of few bits is taken not to leave, lest it overflow: 4094 of float16.

    The bound of a sum is that of one whose products all have the same sign.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return math.inf
    most = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return most / 16 if most < -SHOWN else math.inf


def _by_parameter(reach: Reach, below: Reach, *, sure: bool) -> Reach:
    """A quotient by parameters, which are taken for ones; the numbers that make them small count."""
    if sure:
        return ANYTHING
    size = min(1.0, max(abs(below[0]), abs(below[1])))
    return _quotient(reach, (size, size))


def _power_of_ends(reach: Reach, exponent: float) -> Reach:
    return _ends([raised_to(abs(end), exponent) for end in reach])


def _of_exponential(name: str, reach: Reach) -> Reach:
    base = math.log(2) if name == "exp2" else 1.0
    low, high = _exponential(reach[0] * base), _exponential(reach[1] * base)
    return (low - 1, high) if name == "expm1" else (low, high)
