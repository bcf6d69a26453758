"""What programs that `mmrewrite modernize` rewrote need where no text is exact.

Each name does what an older JAX did, from what is only known when the program runs. Write new code without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mmruntime._old_jax.mesh_context import (
    OMITTED,
    assign_mesh,
    choose,
    current_mesh,
    mesh_context,
    with_sharding_constraint,
)
from mmruntime._old_jax.pjit import pjit
from mmruntime._old_jax.pmap import pmap
from mmruntime._old_jax.positional_sharding import PositionalSharding

__all__ = [
    "PositionalSharding",
    "assign_mesh",
    "current_mesh",
    "device_put_replicated",
    "device_put_sharded",
    "make_mesh",
    "mesh_context",
    "pjit",
    "pmap",
    "pmap_sharding",
    "replicate_none",
    "shard_map",
    "tree_map",
    "with_sharding_constraint",
]


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


def device_put_replicated(x: Any, devices: Sequence[Any]) -> Any:
    """One copy of every array in the tree `x` for each device, stacked: shape `(len(devices), ...)`, row i on device i.

    Raises:
        ValueError: If there are no devices.
    """
    if not len(devices):
        raise ValueError("device_put_replicated needs at least one device, got none. Try `jax.local_devices()`.")
    return device_put_sharded([x] * len(devices), devices)


def device_put_sharded(shards: Sequence[Any], devices: Sequence[Any]) -> Any:
    """The trees `shards` stacked leaf by leaf, shape `(len(devices), ...)`, with row i on device i.

    Args:
        shards: One tree for each device, all of one structure and with leaves of equal shapes and types.
        devices: The devices, of which this process must own all.

    Raises:
        ValueError: If there are not as many shards as devices, or their leaves differ in shape or type.
    """
    if not isinstance(shards, Sequence):
        raise ValueError(f"device_put_sharded takes a sequence of shards, one per device, got {type(shards)}.")
    if len(shards) != len(devices):
        raise ValueError(f"device_put_sharded: {len(shards)} shards for {len(devices)} devices; give one per device.")
    sharding = _over(devices, 0)

    def put(*rows: Any) -> jax.Array:
        kinds = {(np.shape(row), jax.dtypes.result_type(row)) for row in rows}
        if len(kinds) > 1:
            listed = " and ".join(sorted(f"{dtype}{list(shape)}" for shape, dtype in kinds))
            raise ValueError(f"device_put_sharded: shards must agree in shape and type, got {listed}.")
        shape, _ = kinds.pop()
        placed = [
            jax.device_put(jax.numpy.expand_dims(row, 0), device) for row, device in zip(rows, devices, strict=True)
        ]
        return jax.make_array_from_single_device_arrays((len(devices), *shape), sharding, placed)

    return jax.tree.map(put, *shards)


def pmap_sharding(
    shape: Sequence[int], sharded_dim: int | None = 0, devices: Sequence[Any] | None = None
) -> NamedSharding:
    """One index of dimension `sharded_dim` on each device: what `PmapSharding.default` was.

    Args:
        shape: Shape of the array.
        sharded_dim: The dimension that is dealt out; None replicates the array on `devices`.
        devices: As many as `shape[sharded_dim]`; the first of `jax.local_devices()` if left out.

    Raises:
        ValueError: If neither `sharded_dim` nor `devices` is given, or they do not agree.
    """
    if sharded_dim is None:
        if devices is None:
            raise ValueError("pmap_sharding: give `sharded_dim`, or the `devices` to replicate on.")
        return _over(devices, None)
    count = shape[sharded_dim]
    devices = jax.local_devices()[:count] if devices is None else devices
    if len(devices) != count:
        raise ValueError(
            f"pmap_sharding: {count} indices in dimension {sharded_dim} of {tuple(shape)} need as many "
            f"devices, got {len(devices)}."
        )
    return _over(devices, sharded_dim % len(shape))


def make_mesh(
    axis_shapes: Any = OMITTED,
    axis_names: Any = OMITTED,
    axis_types: Any = None,
    *,
    axis_sizes: Any = OMITTED,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """`jax.make_mesh` whose axes are Auto where nothing else is said, as they were before JAX 0.9.

    Args:
        axis_shapes: The sizes of the axes. `axis_sizes` is its newer name.
        axis_names: As many names; a string is one.
        axis_types: The types of the axes; all Auto if left out.
        axis_sizes: What JAX 0.12 calls `axis_shapes`.
        devices: The devices, or more than are needed; all if left out.

    Raises:
        TypeError: If sizes or names are not given.
        ValueError: If the sizes are given under both of their names, or do not agree with the names or the devices.
    """
    given = choose(axis_shapes, axis_sizes, ("axis_shapes", "axis_sizes"))
    if given is OMITTED or axis_names is OMITTED:
        missing = "sizes of the axes" if given is OMITTED else "names of the axes"
        raise TypeError(f"make_mesh: no {missing} given; write `make_mesh((4, 2), ('data', 'model'))`.")
    sizes = tuple(given)
    types = (AxisType.Auto,) * len(sizes) if axis_types is None else axis_types
    return jax.make_mesh(sizes, axis_names, axis_types=types, devices=devices)


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


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.map`, save that a `None` in `tree` may stand against anything in `rest`, and stays `None`."""

    def at(node: Any, *others: Any) -> Any:
        return None if node is None and not (is_leaf and is_leaf(None)) else function(node, *others)

    return jax.tree.map(at, tree, *rest, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))


def _over(devices: Sequence[Any], dimension: int | None) -> NamedSharding:
    mesh = Mesh(np.asarray(devices, dtype=object), ("device",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, "device")
    return NamedSharding(mesh, spec)
