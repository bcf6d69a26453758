"""`gather`: parameters and other results of steps in one place, for code that knows no submeshes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from mmruntime import _check, _compat
from mmruntime._execution.transfers.channels import channel, chosen
from mmruntime._execution.transfers.crossing import Crossing
from mmruntime._execution.transfers.own_parts import first_devices, in_words, is_global, processes
from mmruntime._frontend.nnx_objects import is_stateful, with_other_arrays
from mmruntime._processes.agreement import agree
from mmruntime._processes.group import MESSAGE_BITS, group_of
from mmruntime._processes.progress import progress

T = TypeVar("T")


@_compat.api_boundary
def gather(tree: T, device: Any = None) -> T:
    """Copy arrays that lie on several submeshes to one place, so that JAX's own functions take them together.

        print(optax.global_norm(mm.gather(state.params)))

    In a program of several processes each of them calls this, with the same tree, and gets all values: of an array with
    a `NamedSharding`, the whole of it, which passes through one device of every process, one array after another. So it
    costs as many copies of the tree in the network as there are processes, and room for its largest array on a device.

    Args:
        tree: A pytree of arrays and other leaves, or Flax nnx objects, alone or in containers; they stay as they are.
        device: Where to. If left out, JAX's default device; the arrays are then not committed to it, as those of
            `jnp.asarray`, and pass through the host.

    Returns:
        The same tree with copies of its arrays. Other leaves are the same.

    Raises:
        TypeError: If `device` is neither a device nor a sharding.
        ValueError: If `device` has devices of other processes, or an array on such devices has no `NamedSharding`.
        RuntimeError: If the processes do not call it with equal arrays.
    """
    if not isinstance(device, jax.Device | Sharding | None):
        raise _check.wrong("gather", "device", "a device or a sharding", device)
    if isinstance(device, Sharding) and not device.is_fully_addressable:
        raise ValueError(
            f"gather: device must be of this process, got {device}. Leave it out, or give jax.local_devices()[0]; for "
            "arrays on devices of several processes, return them from a step that mm.mjit compiles."
        )
    spread: list[jax.Array] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not _compat.is_tracer(leaf) and is_spread(leaf):
            spread.append(leaf)
        return leaf

    _map_arrays(tree, note)
    whole = whole_values("mm.gather", spread) if spread else iter(())

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or _compat.is_tracer(leaf):
            return leaf
        return _copied(next(whole) if is_spread(leaf) else leaf, device)

    return _map_arrays(tree, copy)


def _map_arrays(tree: T, function: Callable[[Any], Any]) -> T:
    """A tree with other leaves, and with other arrays in its nnx objects."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_stateful)
    if any(map(is_stateful, leaves)):
        own = tuple(leaf for leaf in leaves if is_stateful(leaf))
        objects = iter(with_other_arrays(own, function))
        leaves = [next(objects) if is_stateful(leaf) else leaf for leaf in leaves]
    mapped: T = jax.tree.unflatten(structure, [leaf if is_stateful(leaf) else function(leaf) for leaf in leaves])
    return mapped


def _copied(leaf: jax.Array, device: Any) -> Any:
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        raise ValueError(
            f"gather: an array of shape {leaf.shape} lies on devices of other processes, with a layout that is no "
            f"NamedSharding: {leaf.sharding}. Lay it out by jax.jit(lambda x: x, out_shardings=...) first."
        )
    if device is not None:
        return jax.device_put(leaf, device)
    if _compat.is_key(leaf.dtype):
        data = jax.numpy.asarray(jax.device_get(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jax.numpy.asarray(jax.device_get(leaf))


_ADVICE = (
    "Every process gathers the same arrays, in the same order. Of arrays on devices of one process alone, that process "
    "has the values: use jax.device_get."
)


def is_spread(array: Any) -> bool:
    """Whether an array is one that all processes speak of, and some may hold a part of it only, or nothing."""
    everywhere = tuple(range(jax.process_count()))
    return (
        len(everywhere) > 1
        and is_global(array)
        and not (array.is_fully_replicated and processes(array.sharding.mesh) == everywhere)
    )


def whole_values(label: str, arrays: Sequence[jax.Array]) -> Iterator[jax.Array]:
    """The arrays, each whole on one device of this process. Every process calls this, and takes all of them.

    They come one after another, so that no device holds more than one of them for this.

    Args:
        label: What the caller calls this, for messages.
        arrays: Arrays for which `is_spread` holds.

    Raises:
        RuntimeError: If the processes do not speak of equal arrays.
    """
    group, me = group_of(tuple(range(jax.process_count()))), jax.process_index()
    layouts: list[Any] = [array.sharding for array in arrays]
    listed = [
        f"{jax.typeof(array).str_short()}: {in_words(layout)}" for array, layout in zip(arrays, layouts, strict=True)
    ]
    agree(label, {"the arrays": "\n".join(listed)}, group, _ADVICE)
    carrier = channel(chosen())
    first = first_devices(jax.devices())
    number = 0
    for index, (array, layout) in enumerate(zip(arrays, layouts, strict=True)):
        if index % (1 << MESSAGE_BITS) == 0:
            number = group.called(label.encode())
        holders = processes(layout.mesh)
        # A process with all of it on its own devices puts it together there.
        targets = [first[process] for process in group.members]
        everywhere = NamedSharding(Mesh(np.array(targets), ("process",)), PartitionSpec())
        crossing = Crossing([layout], [everywhere], [jax.typeof(array)], carrier, me)
        carrier.connect(crossing.peers)
        (copy,) = crossing([array], number + index % (1 << MESSAGE_BITS))
        (own,) = _compat.own_shards(copy)
        with progress.waiting(f"{label} of {listed[index]}", [process for process in holders if process != me]):
            yield own.block_until_ready()
