"""`shard_map` with the arguments and gradients of `jax.experimental.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax


def shard_map(
    f: Callable[..., Any],
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_rep: bool = True,
    auto: Collection[Any] = frozenset(),
) -> Callable[..., Any]:
    """`jax.shard_map` with the arguments, and the gradients, of `jax.experimental.shard_map.shard_map` before JAX 0.6.

    The gradient of each shard's own loss is that shard's, whatever `check_rep` says: today's check makes it the sum
    over the shards. So nothing is checked, and what the old check found in `out_specs` is not found.

    Args:
        f: The function, of one shard of each argument.
        mesh: The mesh, concrete or abstract.
        in_specs: Specs of the arguments: a tree that is a prefix of theirs.
        out_specs: The same for the results. What they leave out must be equal on the devices that it is on.
        check_rep: Whether the old one checked that.
        auto: Axes of the mesh over which `f` is not mapped.

    Raises:
        ValueError: If `auto` has axes that the mesh lacks, or leaves none.
    """
    del check_rep
    axes, left_out = frozenset(mesh.axis_names), frozenset(auto)
    if not left_out <= axes or left_out == axes:
        raise ValueError(
            f"shard_map: auto={sorted(left_out)} of a mesh with the axes {tuple(mesh.axis_names)}; give some of these, "
            "not all."
        )
    return jax.shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axes - left_out, check_vma=False
    )
