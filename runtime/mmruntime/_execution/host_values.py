"""Arrays of the host that a step reads: as they are when it is called, whatever the caller writes into them later.

On CPU devices `jax.device_put` may leave an array of NumPy where it is, or read it once it has returned. `jax.jit` for
one device is done with it when any result is there, so that a program may refill its batch once it has read the loss;
programs of a pipeline still read the batch then, in backward passes, and so do other devices of a step that is one
program. Captured arrays are even read by later calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

# XLA takes memory that begins at a multiple of this as it is, so that the copy here is the only one.
_ALIGNMENT = 64
_UNWRITTEN = (jax.Array, np.generic)


def unshared(values: Sequence[Any], shardings: Iterable[Sharding]) -> list[Any]:
    """Values with memory of their own, where they are arrays of the host that go to CPU devices."""
    return [own(value, layout) if is_shared(value) else value for value, layout in zip(values, shardings, strict=True)]


def own(value: Any, layout: Sharding, dtype: Any = None) -> Any:
    """A copy of an array of the host, if it goes to CPU devices: others copy it before anything reads it.

    Args:
        value: The array.
        layout: Where it goes.
        dtype: The type of the copy; None for that of the array.
    """
    if not on_cpu(layout):
        return value
    array = np.asarray(value)
    dtype = array.dtype if dtype is None else np.dtype(dtype)
    size = array.size * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(array.shape)
    copy[...] = array
    return copy


def on_cpu(layout: Sharding) -> bool:
    """Whether a layout is on CPU devices, whose memory may be that of the host's arrays."""
    devices: Any = layout.device_set
    return bool(next(iter(devices)).platform == "cpu")


def is_shared(value: Any) -> bool:
    """Whether a value is an array that the caller, or the program, may write into; one without dimensions as well."""
    return not isinstance(value, _UNWRITTEN) and hasattr(value, "shape")
