"""Turn a call into a function of its array leaves; other leaves pass through unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from mmruntime._frontend.labels import leaf_names, name_trace

_PLAIN = (bool, int, float, complex, str, bytes)

R = TypeVar("R")


def by_operands(
    fun: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[Any], what: str
) -> tuple[Callable[..., R], list[Any]]:
    """Write `fun(*args, **kwargs)` as `inner(*operands)`.

    All other leaves (flags, strings, NumPy arrays) stay Python objects, so `fun` may branch on them.

    Args:
        fun: The callee.
        args: Its arguments, pytrees.
        kwargs: Its keyword arguments, pytrees.
        kind: The leaves of this type become operands: `jax.core.Tracer`, or `jax.Array`.
        what: The function of ours that traces it, for messages.

    Returns:
        `inner`, and its operands in the order of the leaves.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    chosen = [position for position, leaf in enumerate(leaves) if isinstance(leaf, kind)]
    operands = [leaves[position] for position in chosen]
    # Else the closure would keep the operands alive, in a jit cache for good.
    for position in chosen:
        leaves[position] = None

    def inner(*operands: Any) -> R:
        filled = list(leaves)
        for position, operand in zip(chosen, operands, strict=True):
            filled[position] = operand
        call_args, call_kwargs = jax.tree.unflatten(tree, filled)
        return fun(*call_args, **call_kwargs)

    names = leaf_names(fun, [*enumerate(args), *sorted(kwargs.items())])
    name_trace(inner, what, fun, [names[position] for position in chosen])
    return inner, operands


def by_results(inner: Callable[..., R]) -> tuple[Callable[..., list[Any]], Callable[[list[Any]], R]]:
    """Split `inner` into a function that returns only its array leaves, to be traced once, and the rest.

    Python numbers and strings in the result stay Python objects, so the caller may branch on them as without the trace.

    Returns:
        The function, and a second one that makes the result of `inner` from the array leaves.
    """
    kept: list[tuple[list[Any], Any]] = []

    # With what JAX calls it and its operands.
    @functools.wraps(inner)
    def traced(*operands: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(inner(*operands))
        kept[:] = [([leaf if isinstance(leaf, _PLAIN) else _Traced for leaf in leaves], tree)]
        return [leaf for leaf in leaves if not isinstance(leaf, _PLAIN)]

    def whole(results: list[Any]) -> R:
        ((leaves, tree),) = kept
        rest = iter(results)
        result: R = jax.tree.unflatten(tree, [next(rest) if leaf is _Traced else leaf for leaf in leaves])
        return result

    return traced, whole


class _Traced:
    """Placeholder of an array leaf."""
