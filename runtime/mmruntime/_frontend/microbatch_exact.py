"""Microbatches whose results are proved to be those of the whole batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.lattice import Kind
from mmruntime._exactness.messages import because, contradiction, not_exact, summary
from mmruntime._exactness.prove import ArgumentSpec, Proof, Verdict, prove
from mmruntime._exactness.split import split

log = logging.getLogger("mmruntime")


class NotExactWarning(UserWarning):
    """Nothing is known of how microbatches' results make up those of the whole batch."""


@dataclass(frozen=True)
class ProvedFunction:
    """A function of a batch and keys, traced for one microbatch and for the whole batch.

    Attributes:
        proof: What is proved of it.
        tree: The tree of its result.
        names: What messages call each leaf of the result.
        values: Leaves of the whole batch, then of the keys.
    """

    proof: Proof
    tree: Any
    names: list[str]
    values: list[Any]


def trace_and_prove(
    call: Callable[[Any, Any], Any],
    batch: Any,
    keys: Any,
    dim: int,
    num_microbatches: int,
    parameters: Sequence[Any],
    *,
    as_written: bool = False,
) -> ProvedFunction:
    """Trace a function at both sizes and prove what it gives.

    Args:
        call: The function of a batch, or a microbatch, and of keys.
        batch: A pytree of arrays whose dimension `dim` counts examples.
        keys: A pytree of keys.
        dim: The dimension.
        num_microbatches: How many microbatches there are.
        parameters: Arrays that the function captures and that may be differentiated.
        as_written: Whether the function itself is meant, with nothing hoisted.
    """
    leaves, batch_tree = jax.tree.flatten(batch)
    key_leaves, key_tree = jax.tree.flatten(keys)
    shape: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal shape
        own, rest = values[: len(leaves)], values[len(leaves) :]
        shape = call(jax.tree.unflatten(batch_tree, own), jax.tree.unflatten(key_tree, rest))
        return jax.tree.leaves(shape)

    def abstract(leaf: Any, parts: int) -> Any:
        sizes = list(np.shape(leaf))
        sizes[dim] //= parts
        return jax.ShapeDtypeStruct(tuple(sizes), jnp.result_type(leaf))

    rest = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in key_leaves]
    part, whole = (
        jax.make_jaxpr(flat)(*(abstract(leaf, parts) for leaf in leaves), *rest) for parts in (num_microbatches, 1)
    )
    arguments = [*(ArgumentSpec(dim, hoistable=True) for _ in leaves), *(ArgumentSpec() for _ in rest)]
    ids = {id(leaf) for leaf in parameters}
    proof = prove(part, whole, arguments, num_microbatches, as_written=as_written, parameters=ids)
    names = [f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(shape)]
    return ProvedFunction(proof, jax.tree.structure(shape), names, [*leaves, *key_leaves])


def check_reduce(traced: ProvedFunction, kinds: Sequence[str], dim: int, label: str) -> None:
    """Hold the way in which results are put together against the proof of the function as it is written.

    Raises:
        ValueError: If the proof says otherwise.
    """
    whole, _ = _compat.split(traced.proof.whole)
    for verdict, how, name, atom in zip(traced.proof.verdicts, kinds, traced.names, whole.outvars, strict=True):
        rank, is_inexact = len(atom.aval.shape), jnp.issubdtype(atom.aval.dtype, np.inexact)
        if (how == "concat" and not -rank <= dim < rank) or (how == "mean" and not is_inexact):
            # Refused later, for that.
            continue
        problem = contradiction(verdict, how, dim % max(rank, 1), name, label)
        if problem is not None:
            raise ValueError(
                f'microbatch: {problem} Give reduce="exact", or check=False if microbatches are to differ from the '
                "whole batch."
            )
    unknown = [verdict for verdict in traced.proof.verdicts if verdict.kind == "unknown"]
    if unknown:
        warnings.warn(
            f"microbatch: nothing is proved of reduce= for {label}: {because(unknown[0].reason)}",
            NotExactWarning,
            stacklevel=4,
        )


class ExactLoop:
    """A proved function as a loop that adds up: its slices, its body and what follows it.

    The loop of `accumulate_pieces` only adds. What is joined or compared instead is spread over rows, one for each
    microbatch, and what does not depend on the batch is computed before the loop.

    Args:
        traced: The function.
        label: The function's name.

    Raises:
        ValueError: If a result is not proved.
    """

    def __init__(self, traced: ProvedFunction, label: str) -> None:
        if not traced.proof.is_exact:
            raise ValueError(
                f'microbatch: reduce="exact" cannot be kept for {not_exact(label, traced.proof, traced.names)} '
                'If microbatches are to differ from the whole batch, say how with reduce="sum" or "mean", and '
                "check=False."
            )
        if traced.proof.repeated_draws:
            log.warning(
                "microbatch: every microbatch of %s draws the same random numbers at %s, since their key is not named "
                "by rng=. Pass the key as an argument and its position as rng=, which folds the microbatch index in.",
                label,
                ", ".join(traced.proof.repeated_draws),
            )
        self.traced = traced
        self.count = traced.proof.num_microbatches
        self.parts = split(traced.proof)
        before = _compat.as_fun(self.parts.before)(*traced.values)
        self.hoisted, self.same = before[: len(self.parts.hoisted)], before[len(self.parts.hoisted) :]
        self.verdicts = [traced.proof.verdicts[position] for position in self.parts.combined]
        self.body = _compat.as_fun(self.parts.body)

    @property
    def needs_index(self) -> bool:
        """Whether the body writes to rows."""
        return any(verdict.kind != "sum" for verdict in self.verdicts)

    def summary(self) -> tuple[str, ...]:
        """What `explain()` says of the proof."""
        return summary(self.traced.proof, self.traced.names, self.parts.hoisted)

    def slices(self) -> list[Any]:
        """Hoisted values with an entry for each example, with a new leading dimension of microbatches."""
        pairs = zip(self.parts.hoisted, self.hoisted, strict=True)
        return [cut(value, each.value.dim, self.count) for each, value in pairs if each.value.kind is Kind.ROWS]

    def shapes(self) -> list[Any]:
        """What `once` gives."""
        body, _ = _compat.split(self.parts.body)
        return [self._shape(verdict, atom.aval) for verdict, atom in zip(self.verdicts, body.outvars, strict=True)]

    def _shape(self, verdict: Verdict, aval: Any) -> Any:
        if verdict.kind == "sum":
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        dtype = np.uint8 if aval.dtype == np.bool_ else aval.dtype
        return jax.ShapeDtypeStruct((self.count, *aval.shape), dtype)

    def once(self, batch: Sequence[Any], keys: Sequence[Any], slices: Sequence[Any], index: Any) -> list[Any]:
        """What one microbatch adds, given the leaves of its arguments."""
        rows = iter(slices)
        pairs = zip(self.parts.hoisted, self.hoisted, strict=True)
        hoisted = [next(rows) if each.value.kind is Kind.ROWS else value for each, value in pairs]
        found = self.body(*batch, *keys, *hoisted)
        return [self._added(verdict, value, index) for verdict, value in zip(self.verdicts, found, strict=True)]

    def _added(self, verdict: Verdict, value: Any, index: Any) -> Any:
        if verdict.kind == "sum":
            return value
        # Booleans cannot be added.
        value = value.astype(np.uint8) if value.dtype == np.bool_ else value
        return jnp.zeros((self.count, *np.shape(value)), value.dtype).at[index].set(value)

    def result(self, totals: Sequence[Any]) -> Any:
        """The function's result for the whole batch, from the sums of what the microbatches added."""
        values = dict(zip(self.parts.same, self.same, strict=True))
        for position, verdict, total in zip(self.parts.combined, self.verdicts, totals, strict=True):
            values[position] = self._finished(verdict, total)
        whole, _ = _compat.split(self.traced.proof.whole)
        leaves = [_compat.of_type(values[position], atom.aval) for position, atom in enumerate(whole.outvars)]
        return jax.tree.unflatten(self.traced.tree, leaves)

    def _finished(self, verdict: Verdict, total: Any) -> Any:
        if verdict.kind == "concat":
            shape = total.shape[1:]
            pieces = (*shape[: verdict.dim], verdict.outer, shape[verdict.dim] // verdict.outer)
            split_up = jnp.reshape(total, (self.count, *pieces, *shape[verdict.dim + 1 :]))
            moved = jnp.moveaxis(split_up, 0, verdict.dim + 1)
            total = jnp.reshape(
                moved, (*shape[: verdict.dim], shape[verdict.dim] * self.count, *shape[verdict.dim + 1 :])
            )
        elif verdict.kind == "max":
            total = jnp.max(total, axis=0)
        elif verdict.kind == "min":
            total = jnp.min(total, axis=0)
        if not verdict.power:
            return total
        factor = self.count ** abs(verdict.power)
        return total * factor if verdict.power > 0 else total / jnp.asarray(factor, total.dtype)


def cut(leaf: Any, dim: int, count: int) -> Any:
    """An array with a new leading dimension of microbatches, cut along `dim`."""
    axis, shape = dim % np.ndim(leaf), np.shape(leaf)
    pieces = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return jnp.moveaxis(jnp.reshape(leaf, pieces), axis, 0)
