"""Trees with `None`, which was a leaf with a meaning in older JAX and is an empty tree today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat


@_compat.api_boundary
def replicate_none(specs: Any, mesh: Mesh | None = None) -> Any:
    """Replace every `None` in a tree of partition specs by `PartitionSpec()`.

    `None` meant "replicated" to `pjit`; to `jax.jit` it means "unspecified".

    Args:
        specs: A spec, `None`, or a tree of them, which may be a prefix of the arguments' tree.
        mesh: If given, every spec becomes a `NamedSharding` of this mesh. Shardings stay as they are.
    """

    def explicit(spec: Any) -> Any:
        spec = PartitionSpec() if spec is None else spec
        return NamedSharding(mesh, spec) if mesh is not None and isinstance(spec, PartitionSpec) else spec

    return jax.tree.map(explicit, specs, is_leaf=lambda spec: spec is None or isinstance(spec, PartitionSpec))


@_compat.api_boundary
def tree_map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.map`, except that a `None` in `tree` matches any subtree in `rest` and stays `None`.

    Args:
        function: Called with each leaf of `tree` and its counterparts in `rest`.
        tree: A pytree.
        *rest: Further pytrees; `tree` is a prefix of each.
        is_leaf: As in `jax.tree.map`. If it is true of `None`, `function` is called with it.

    Raises:
        ValueError: If `tree` is no prefix of one of `rest`.
    """

    def at(node: Any, *others: Any) -> Any:
        return None if node is None and not (is_leaf and is_leaf(None)) else function(node, *others)

    return jax.tree.map(at, tree, *rest, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))
