"""Put microbatches' results together in NumPy: what every other way of running them is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmruntime._exactness.prove import Verdict

_COMBINERS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def microbatch_of(value: Any, dim: int, n: int, index: int) -> Any:
    """One of `n` equal parts of an array along a dimension."""
    return np.split(np.asarray(value), n, axis=dim)[index]


def combine(verdict: Verdict, results: Sequence[Any]) -> Any:
    """One result for the whole batch from those of the microbatches, in order.

    Raises:
        KeyError: If there is no proof how.
    """
    if verdict.kind == "concat":
        return _scaled(_join(results, verdict.dim, verdict.outer), verdict.power, len(results))
    if verdict.kind == "same":
        return _scaled(results[0], verdict.power, len(results))
    combiner = _COMBINERS[verdict.kind]
    total = results[0]
    for result in results[1:]:
        total = combiner(total, result, dtype=total.dtype)
    return _scaled(total, verdict.power, len(results))


def _join(results: Sequence[Any], dim: int, outer: int) -> Any:
    shape = results[0].shape
    size = shape[dim] // outer
    pieces = [np.reshape(result, (*shape[:dim], outer, size, *shape[dim + 1 :])) for result in results]
    joined = np.concatenate(pieces, axis=dim + 1)
    return np.reshape(joined, (*shape[:dim], shape[dim] * len(results), *shape[dim + 1 :]))


def _scaled(value: Any, power: int, n: int) -> Any:
    if not power:
        return value
    factor = np.asarray(n ** abs(power), value.dtype)
    return value * factor if power > 0 else value / factor
