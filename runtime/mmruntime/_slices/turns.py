"""Which complex numbers are real or imaginary: the exponential of an imaginary one only turns what it multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._slices.constants import once_each
from mmruntime._slices.values import SlicedValue

# What all operands are, the result is.
_KEEP_NAMES = """
    add add_any broadcast_in_dim concatenate conj convert_element_type copy copy_p expand_dims neg optimization_barrier
    reduce_sum reshape slice squeeze stop_gradient sub transpose
"""
_KEEP = frozenset(_KEEP_NAMES.split())


def turn_of_constant(array: np.ndarray[Any, Any]) -> int | None:
    """The turn of known numbers; see `SlicedValue`."""
    once = once_each(array, ())
    if not np.iscomplexobj(once):
        return None
    return 0 if not once.imag.any() else 1 if not once.real.any() else None


def turn_of(eqn: Any, ins: Sequence[SlicedValue], constants: Sequence[np.ndarray[Any, Any] | None]) -> int | None:
    """The turn of an equation's result; see `SlicedValue`.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        constants: Their values, where they are known.
    """
    name = eqn.primitive.name
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.complexfloating):
        return None
    if name == "complex":
        real, imaginary = (array is not None and not once_each(array, ()).any() for array in constants)
        return 0 if imaginary else 1 if real else None
    if name == "convert_element_type" and not jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating):
        return 0
    turns = [value.turn for value in ins]
    if name in ("mul", "div"):
        one, other = turns
        return None if one is None or other is None else (one + other) % 2
    return turns[0] if name in _KEEP and len({*turns}) == 1 else None
