"""A call as a function of some of its leaves; all others reach the callee as they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

R = TypeVar("R")


def by_operands(
    fun: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[Any]
) -> tuple[Callable[..., R], list[Any]]:
    """Write `fun(*args, **kwargs)` as `inner(*operands)`.

    The leaves that are no operands (flags, strings, numpy arrays) stay what they are, so `fun` may branch on them.

    Args:
        fun: What is called.
        args: Its arguments, pytrees.
        kwargs: Its keyword arguments, pytrees.
        kind: The leaves of this type become operands: `jax.core.Tracer`, or `jax.Array`.

    Returns:
        `inner`, and its operands in the order of the leaves.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    chosen = [position for position, leaf in enumerate(leaves) if isinstance(leaf, kind)]
    operands = [leaves[position] for position in chosen]
    # The closure keeps no operand alive.
    for position in chosen:
        leaves[position] = None

    def inner(*operands: Any) -> R:
        given = list(leaves)
        for position, operand in zip(chosen, operands, strict=True):
            given[position] = operand
        call_args, call_kwargs = jax.tree.unflatten(tree, given)
        return fun(*call_args, **call_kwargs)

    return inner, operands
