"""`gather`: parameters and other results of steps in one place, for code that knows no submeshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import Sharding

from mmruntime import _check, _compat
from mmruntime._execution.whole import is_spread, whole_values
from mmruntime._frontend.nnx_objects import is_stateful, with_other_arrays

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
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.numpy.asarray(jax.device_get(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jax.numpy.asarray(jax.device_get(leaf))
