"""Trees that hold `None`, which older JAX took for a leaf that means something and today's takes for an empty tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicate_none(specs: Any, mesh: Mesh | None = None) -> Any:
    """The tree of partition specs with `PartitionSpec()` for every `None`.

    `pjit` took `None` for "replicated"; `jax.jit` takes it for "whatever it is".

    Args:
        specs: A spec, `None`, or a tree of them, also a prefix of the tree it is for.
        mesh: If given, every spec becomes a `NamedSharding` of this mesh. Shardings stay as they are.
    """

    def explicit(spec: Any) -> Any:
        spec = PartitionSpec() if spec is None else spec
        return NamedSharding(mesh, spec) if mesh is not None and isinstance(spec, PartitionSpec) else spec

    return jax.tree.map(explicit, specs, is_leaf=lambda spec: spec is None or isinstance(spec, PartitionSpec))


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.map`, save that a `None` in `tree` may stand against anything in `rest`, and stays `None`."""

    def at(node: Any, *others: Any) -> Any:
        return None if node is None and not (is_leaf and is_leaf(None)) else function(node, *others)

    return jax.tree.map(at, tree, *rest, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))
