"""`shard_map` with the arguments and gradients of `jax.experimental.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax

from mmruntime import _compat


@_compat.api_boundary
def shard_map(
    f: Callable[..., Any],
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_rep: bool = True,
    auto: Collection[Any] = frozenset(),
) -> Callable[..., Any]:
    """`jax.shard_map` with the arguments, and the gradients, of `jax.experimental.shard_map.shard_map` before JAX 0.6.

    Differentiating a shard's own loss inside of `f` gives the gradient of that loss. Under today's `check_vma` it would
    give the sum over all shards, because the transpose of an implicit broadcast is a `psum`
    (https://docs.jax.dev/en/latest/notebooks/shard_map.html). So `check_vma` is off, and mistakes in `out_specs` that
    the old check found are not found.

    Args:
        f: The function, of one shard of each argument.
        mesh: The mesh, concrete or abstract.
        in_specs: Specs of the arguments: a tree that is a prefix of theirs.
        out_specs: The same for the results. Along mesh axes that a spec does not name, results must be equal.
        check_rep: No effect. The old function checked that equality.
        auto: Axes of the mesh over which `f` is not mapped.

    Returns:
        A function of whole arrays.

    Raises:
        ValueError: If `auto` names axes that the mesh lacks, or all of its axes.
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
