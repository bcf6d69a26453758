"""Two traces of one function, lined up: which equation, variable and number is which for another batch size."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat


def same_program(part: Any, whole: Any) -> bool:
    """Whether two open jaxprs have the same equations on the same variables, parameters and numbers aside."""
    counts = [tuple(map(len, (each.eqns, each.outvars, each.invars, each.constvars))) for each in (part, whole)]
    if counts[0] != counts[1]:
        return False
    twin: dict[Any, Any] = {}
    if not _same_types((*part.constvars, *part.invars), (*whole.constvars, *whole.invars), twin):
        return False
    if not all(same_equation(eqn, other, twin) for eqn, other in zip(part.eqns, whole.eqns, strict=True)):
        return False
    return all(_same_atom(one, other, twin) for one, other in zip(part.outvars, whole.outvars, strict=True))


def same_equation(eqn: Any, other: Any, twin: dict[Any, Any]) -> bool:
    """Whether two equations are alike but for parameters; `twin` maps what the first ones give to the second ones'."""
    if eqn.primitive is not other.primitive or len(eqn.invars) != len(other.invars):
        return False
    if len(eqn.outvars) != len(other.outvars):
        return False
    if not all(_same_atom(one, two, twin) for one, two in zip(eqn.invars, other.invars, strict=True)):
        return False
    return _same_types(eqn.outvars, other.outvars, twin)


def _same_types(ones: Any, others: Any, twin: dict[Any, Any]) -> bool:
    for one, other in zip(ones, others, strict=True):
        if _dtype(one) != _dtype(other) or len(_shape(one)) != len(_shape(other)):
            return False
        twin[one] = other
    return True


def _same_atom(one: Any, other: Any, twin: dict[Any, Any]) -> bool:
    if isinstance(one, _compat.Literal) or isinstance(other, _compat.Literal):
        both = isinstance(one, _compat.Literal) and isinstance(other, _compat.Literal)
        dtype, other_dtype = (getattr(atom.aval, "dtype", None) for atom in (one, other))
        return both and dtype == other_dtype
    return twin.get(one) is other


def _dtype(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", type(atom.aval))


def _shape(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def same_params(part: Mapping[str, Any], whole: Mapping[str, Any], loose: Collection[str]) -> bool:
    """Whether two equations of one primitive have equal parameters, those in `loose` aside."""
    if part.keys() != whole.keys():
        return False
    return all(name in loose or same_value(value, whole[name]) for name, value in part.items())


def same_value(one: Any, other: Any) -> bool:
    """Whether two parameters, or two constants, are equal for certain."""
    if one is other:
        return True
    if _compat.is_jaxpr(one):
        return _compat.is_jaxpr(other) and _same_jaxpr(one, other)
    if type(one) in (tuple, list):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        return all(map(same_value, one, other))
    if _compat.is_tracer(one) or _compat.is_tracer(other):
        return False
    if isinstance(one, np.ndarray | jax.Array) or isinstance(other, np.ndarray | jax.Array):
        return _same_array(one, other)
    try:
        return bool(one == other)
    except (TypeError, ValueError):
        return False


def _same_array(one: Any, other: Any) -> bool:
    if np.shape(one) != np.shape(other) or getattr(one, "dtype", None) != getattr(other, "dtype", None):
        return False
    if jnp.issubdtype(getattr(one, "dtype", np.bool_), jax.dtypes.extended):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def _same_jaxpr(one: Any, other: Any) -> bool:
    (part, part_consts), (whole, whole_consts) = _compat.split(one), _compat.split(other)
    if not same_program(part, whole) or not same_value(part_consts, whole_consts):
        return False
    for eqn, twin in zip(part.eqns, whole.eqns, strict=True):
        if not same_params(eqn.params, twin.params, ()):
            return False
        for atom, other_atom in zip(eqn.invars, twin.invars, strict=True):
            if isinstance(atom, _compat.Literal) and not same_literal(atom, other_atom):
                return False
    pairs = zip((*part.invars, *part.outvars), (*whole.invars, *whole.outvars), strict=True)
    return all(_shape(atom) == _shape(other_atom) for atom, other_atom in pairs)


def same_literal(one: Any, other: Any) -> bool:
    """Whether two literals are one number, or one array."""
    return same_value(one.val, other.val) or _same_array(np.asarray(one.val), np.asarray(other.val))


def power_between(part: Any, whole: Any, n: int | Fraction) -> int | None:
    """The `k` for which one number is `n**k` times the other, up to its rounding; None if there is none.

    Numbers of less precision than `float32` have to be equal: a ratio of roundings says too little.
    """
    small, large = np.asarray(part), np.asarray(whole)
    if small.shape or small.dtype != large.dtype or small.dtype.kind not in "iuf":
        return None
    if small.dtype.kind == "f" and small.dtype.itemsize < 4:
        return None
    one, other = float(small), float(large)
    if not (math.isfinite(one) and math.isfinite(other)) or one == 0 or other == 0 or (one < 0) != (other < 0):
        return None
    tolerance = 0.0 if small.dtype.kind in "iu" else 2 * float(np.finfo(small.dtype).eps)
    for power in (-1, 1, -2, 2):
        scaled = float(Fraction(one) * Fraction(n) ** power)
        if abs(scaled - other) <= tolerance * abs(other):
            return power
    return None
