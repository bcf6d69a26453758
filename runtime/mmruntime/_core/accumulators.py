"""Accumulators: the type in which values of many microbatches are added up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

FLOAT32 = "float32"
PARAMETER = "parameter"


def accumulator_type(dtype: Any, accumulate: str = FLOAT32) -> Any:
    """The type of a sum of values of a type.

    A sum of 8 significant bits, as bfloat16 has, stops growing after 256 equal terms, and one of float16 overflows at
    65,504. So floats shorter than float32 are added up in float32, and converted back once.

    Args:
        dtype: The type of the values.
        accumulate: "float32", or "parameter" for the type of the values themselves.
    """
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32  # type: ignore[no-untyped-call]
    return np.dtype(np.float32) if accumulate == FLOAT32 and is_short else dtype
