"""What a process has of a step that others run with it: its submeshes, its shards of values.

Every process plans the whole step and does its part. What it does not hold is a global array without shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._execution.host_values import is_shared, on_cpu, own


@functools.cache
def processes(mesh: Any) -> tuple[int, ...]:
    """The indices of the processes that the devices of a mesh belong to."""
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))


def is_here(mesh: Any) -> bool:
    """Whether a mesh has devices of this process."""
    return jax.process_index() in processes(mesh)


def devices_of(sharding: NamedSharding) -> list[Any]:
    """The devices of a layout, in its order."""
    devices: Any = sharding.mesh.devices
    return list(devices.flat)


def own_devices(sharding: NamedSharding) -> list[Any]:
    """The devices of a layout that belong to this process, in its order."""
    me = jax.process_index()
    return [device for device in devices_of(sharding) if device.process_index == me]


def first_devices(devices: Sequence[Any]) -> dict[int, Any]:
    """For each process, the first device that it has among some."""
    return {device.process_index: device for device in reversed(devices)}


def in_words(layout: NamedSharding) -> str:
    """A layout, for messages."""
    return f"{dict(layout.mesh.shape)}, {layout.spec}, on devices {[device.id for device in devices_of(layout)]}"


def is_global(value: Any) -> bool:
    """Whether an argument is one array that all processes speak of, and not a value that each has for itself.

    Arrays that `jax.jit`, `jax.device_put` and we lay out by a `NamedSharding` are global, those on one device and
    those of NumPy are not.
    """
    return (
        isinstance(value, jax.Array)
        and isinstance(value.sharding, NamedSharding)
        and (not value.is_fully_addressable or bool(getattr(value, "committed", True)))
    )


def place(value: Any, sharding: NamedSharding, aval: Any) -> Any:
    """Lay out a value that every process has: each puts its own shards there, and none waits for another.

    `jax.device_put` to devices of other processes would compare the value among all processes.

    Args:
        value: An array of this process, or a number.
        sharding: Its layout.
        aval: Its shape and type.
    """
    shape, weak = tuple(aval.shape), bool(getattr(aval, "weak_type", False))
    if not isinstance(value, jax.Array):
        dtype = None if _compat.is_key(aval.dtype) else aval.dtype
        if shape and is_shared(value):
            # The copy has the right type at once.
            value = own(value, sharding, dtype)
        value = np.asarray(value, dtype)
        # An index copies what has no dimensions.
        value = value if shape else value[()]
        if not _compat.is_key(aval.dtype) and is_here(sharding.mesh):
            put = _placer(shape, aval.dtype, sharding, weak and not shape)
            if put is not None:
                return put(value)
    devices = own_devices(sharding)
    indices = sharding.devices_indices_map(shape)
    whole = sharding.is_fully_replicated or not shape
    parts = [value if whole else value[indices[device]] for device in devices]
    shards = jax.device_put(parts, devices) if devices else []
    return _compat.global_array(shape, aval.dtype, sharding, shards, weak=weak and not shape)


def is_cut_by_host(value: Any, layout: NamedSharding) -> bool:
    """Whether an array that is there, on one CPU device, is to be cut over several.

    JAX cuts it by a program of its own for each shape, which takes longer to lower and load than the host to cut. An
    array that is still computed is left to it, as the host would have to wait.
    """
    return (
        isinstance(value, jax.Array)
        and not layout.is_fully_replicated
        and len(value.sharding.device_set) == 1
        and on_cpu(value.sharding)
        and on_cpu(layout)
        and not _compat.is_key(value.dtype)
        and not getattr(value, "weak_type", False)
        and bool(value.is_ready())  # type: ignore[attr-defined]
    )


@functools.cache
def _placer(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding, weak: bool) -> Callable[[Any], Any] | None:
    return _compat.host_placer(shape, dtype, sharding, weak=weak)


def copied(value: Any) -> Any:
    """A copy of an array with memory of its own, shard by shard."""
    shards = list(_compat.own_shards(value))
    copies = jax.device_put(shards, [shard.sharding for shard in shards], may_alias=False) if shards else []
    weak = bool(getattr(value, "weak_type", False))
    return _compat.global_array(value.shape, value.dtype, value.sharding, copies, weak=weak)


def nothing_of(aval: Any, sharding: NamedSharding) -> Any:
    """A global array without any part in this process."""
    shards: Sequence[Any] = ()
    weak = bool(getattr(aval, "weak_type", False))
    return _compat.global_array(tuple(aval.shape), aval.dtype, sharding, shards, weak=weak)
