"""`gather`: parameters and other results of steps in one place, for code that knows no submeshes."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax.sharding import Sharding

from mmruntime import _check, _compat
from mmruntime._frontend.nnx_objects import is_stateful, with_other_arrays

T = TypeVar("T")


def gather(tree: T, device: Any = None) -> T:
    """Copy arrays that lie on several submeshes to one place, so that JAX's own functions take them together.

        print(optax.global_norm(mm.gather(state.params)))

    Args:
        tree: A pytree of arrays and other leaves, or Flax nnx objects, alone or in containers; they stay as they are.
        device: Where to. If left out, JAX's default device; the arrays are then not committed to it, as those of
            `jnp.asarray`, and pass through the host.

    Returns:
        The same tree with copies of its arrays. Other leaves are the same.

    Raises:
        TypeError: If `device` is neither a device nor a sharding.
        ValueError: If an array lies on devices of other processes, whose values this one cannot have. Compute what is
            needed of them in a step.
    """
    if not isinstance(device, jax.Device | Sharding | None):
        raise _check.wrong("gather", "device", "a device or a sharding", device)
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_stateful)
    if any(map(is_stateful, leaves)):
        own = tuple(leaf for leaf in leaves if is_stateful(leaf))
        objects = iter(with_other_arrays(own, lambda array: _copied(array, device)))
        leaves = [next(objects) if is_stateful(leaf) else leaf for leaf in leaves]
    copies = [leaf if is_stateful(leaf) else _copied(leaf, device) for leaf in leaves]
    gathered: T = jax.tree.unflatten(structure, copies)
    return gathered


def _copied(leaf: Any, device: Any) -> Any:
    if not isinstance(leaf, jax.Array) or _compat.is_tracer(leaf):
        return leaf
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        raise ValueError(
            f"gather: an array of shape {leaf.shape} lies on devices of other processes, and this process cannot have "
            "its values. Compute what you need of it in a step that mm.mjit compiles, or save it with Orbax."
        )
    if device is not None:
        return jax.device_put(leaf, device)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.numpy.asarray(jax.device_get(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jax.numpy.asarray(jax.device_get(leaf))
