"""Flax nnx objects among the arguments of a traced function: find them, and clone them into its trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax


def is_stateful(value: Any) -> bool:
    """Whether a value is an nnx object, which calls may change in place."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def has_stateful(tree: Any) -> bool:
    """Whether a tree holds nnx objects."""
    return "flax.nnx" in sys.modules and any(map(is_stateful, jax.tree.leaves(tree, is_leaf=is_stateful)))


def made_anew(tree: Any, label: str) -> tuple[Any, Callable[[], None]]:
    """The tree with its nnx objects cloned in the current trace.

    nnx refuses to change an object in another trace than it was made in; nnx's own transformations clone likewise.

    Args:
        tree: Arguments of a function, of any kind.
        label: What messages call the function.

    Returns:
        The tree, and a check to call after the traced function. It raises a ValueError if a clone was changed, because
        the change would be lost.
    """
    if not has_stateful(tree):
        return tree, lambda: None
    from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

    leaves, structure = jax.tree.flatten(tree, is_leaf=is_stateful)
    # In one call, because objects may share variables.
    copies = nnx.clone(tuple(leaf for leaf in leaves if is_stateful(leaf)))
    rest = iter(copies)
    copied = jax.tree.unflatten(structure, [next(rest) if is_stateful(leaf) else leaf for leaf in leaves])

    def values() -> dict[str, Any]:
        named = jax.tree_util.tree_leaves_with_path(nnx.state(copies))
        return {jax.tree_util.keystr(path[1:], simple=True, separator="."): leaf for path, leaf in named}

    before = values()

    def check() -> None:
        changed = [name for name, value in values().items() if before.get(name) is not value]
        if changed:
            raise ValueError(
                f"microbatch: {label} changes {', '.join(changed)} of an nnx object among its arguments in every "
                "microbatch, and these changes would be lost. Use a normalisation without running statistics, and "
                "give dropout its key as an argument: microbatch(..., rng=<its position>), and nnx.Rngs(key) inside."
            )

    return copied, check
