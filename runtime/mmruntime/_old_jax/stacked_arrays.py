"""Arrays with one row for each device of a list, as `pmap` takes and gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat


@_compat.api_boundary
def device_put_replicated(x: Any, devices: Sequence[Any]) -> Any:
    """Copy every array of the tree `x` to each device, stacked: shape `(len(devices), ...)`, row i on device i.

    Args:
        x: A pytree of arrays.
        devices: The devices, all of this process.

    Raises:
        ValueError: If there are no devices.
    """
    if not len(devices):
        raise ValueError("device_put_replicated needs at least one device, got none. Try `jax.local_devices()`.")
    return device_put_sharded([x] * len(devices), devices)


@_compat.api_boundary
def device_put_sharded(shards: Sequence[Any], devices: Sequence[Any]) -> Any:
    """Stack the trees `shards` leaf by leaf: shape `(len(devices), ...)`, row i on device i.

    Args:
        shards: One tree for each device, all of one structure and with leaves of equal shapes and types.
        devices: The devices, all of this process.

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


@_compat.api_boundary
def pmap_sharding(
    shape: Sequence[int], sharded_dim: int | None = 0, devices: Sequence[Any] | None = None
) -> NamedSharding:
    """The sharding with one index of dimension `sharded_dim` on each device: what `PmapSharding.default` was.

    Args:
        shape: Shape of the array.
        sharded_dim: The dimension to shard; None replicates the array on `devices`.
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


def _over(devices: Sequence[Any], dimension: int | None) -> NamedSharding:
    mesh = Mesh(np.asarray(devices, dtype=object), ("device",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, "device")
    return NamedSharding(mesh, spec)
