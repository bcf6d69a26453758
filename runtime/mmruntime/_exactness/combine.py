"""Put microbatches' results together, in plain JAX: what every other way of running them is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._exactness.lattice import Kind
from mmruntime._exactness.prove import ArgumentSpec, Proof, Verdict
from mmruntime._exactness.split import split


def run_split(proof: Proof, arguments: Sequence[ArgumentSpec], values: Sequence[Any]) -> list[Any]:
    """The results of a proved function for the whole batch, computed from microbatches.

    Args:
        proof: The proof.
        arguments: What each flat argument is.
        values: The flat arguments for the whole batch.
    """
    n = proof.num_microbatches
    parts = split(proof)
    before = _compat.as_fun(parts.before)(*values)
    hoisted, same = before[: len(parts.hoisted)], before[len(parts.hoisted) :]
    body = _compat.as_fun(parts.body)
    results = []
    for index in range(n):
        own = [
            value if argument.dim is None else microbatch_of(value, argument.dim, n, index)
            for argument, value in zip(arguments, values, strict=True)
        ]
        own += [
            microbatch_of(value, each.value.dim, n, index) if each.value.kind is Kind.ROWS else value
            for each, value in zip(parts.hoisted, hoisted, strict=True)
        ]
        results.append(body(*own))
    found = dict(zip(parts.same, same, strict=True))
    for position, each in zip(parts.combined, zip(*results, strict=True), strict=True):
        found[position] = combine(proof.verdicts[position], each)
    return [found[position] for position in range(len(proof.verdicts))]


def microbatch_of(value: Any, dim: int, n: int, index: int) -> Any:
    """One of `n` equal parts of an array along a dimension."""
    return jnp.split(value, n, axis=dim)[index]


def combine(verdict: Verdict, results: Sequence[Any]) -> Any:
    """One result for the whole batch from those of the microbatches, in order.

    Raises:
        ValueError: If there is no proof how.
    """
    if verdict.kind == "concat":
        joined = _join(results, verdict.dim, verdict.outer)
        return _scaled(joined, verdict.power, len(results))
    if verdict.kind == "same":
        return _scaled(results[0], verdict.power, len(results))
    combiner = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum}.get(verdict.kind)
    if combiner is None:
        raise ValueError(f"Cannot put together microbatches' results: {verdict.reason}.")
    total = results[0]
    for result in results[1:]:
        total = combiner(total, result)
    return _scaled(total, verdict.power, len(results))


def _join(results: Sequence[Any], dim: int, outer: int) -> Any:
    shape = results[0].shape
    size = shape[dim] // outer
    pieces = [jnp.reshape(result, (*shape[:dim], outer, size, *shape[dim + 1 :])) for result in results]
    joined = jnp.concatenate(pieces, axis=dim + 1)
    return jnp.reshape(joined, (*shape[:dim], shape[dim] * len(results), *shape[dim + 1 :]))


def _scaled(value: Any, power: int, n: int) -> Any:
    if not power:
        return value
    return value * n**power if power > 0 else value / jnp.asarray(n**-power, value.dtype)
