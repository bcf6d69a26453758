"""Arrays of devices: made, copied and taken apart without the checks of public functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax._src import config, literals
from jax.core import ShapedArray


def of_type(value: Any, aval: Any) -> Any:
    """A value as an array of the type of an abstract value, weak or not."""
    from jax._src.lax import lax  # noqa: PLC0415  (private: the public function makes the type a strong one)

    return lax._convert_element_type(value, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def global_array(shape: Sequence[int], dtype: Any, sharding: Any, shards: Sequence[Any], *, weak: bool = False) -> Any:
    """A global array of the shards that this process holds; there may be none.

    Args:
        shape: Its shape.
        dtype: Its type.
        sharding: Its layout.
        shards: One for each device of this process, in the order of the layout's devices.
        weak: Whether the type is a weak one.
    """
    if not weak:
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards), dtype=dtype)
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: the public function makes the type a strong one)

    return ArrayImpl(ShapedArray(tuple(shape), dtype, weak_type=True), sharding, list(shards), committed=True)


def assembler(shape: Sequence[int], dtype: Any, sharding: Any, *, weak: bool = False) -> Callable[[Sequence[Any]], Any]:
    """`global_array` for many arrays of one kind: a function of the shards, which checks those of the first array only.

    Args:
        shape: The shape of the arrays.
        dtype: Their type.
        sharding: Their layout.
        weak: Whether the type is a weak one.
    """
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: the public function checks every array)

    avals: list[Any] = []

    def assemble(shards: Sequence[Any]) -> Any:
        if avals:
            return ArrayImpl(avals[0], sharding, list(shards), committed=True, _skip_checks=True)
        array = global_array(shape, dtype, sharding, shards, weak=weak)
        # Arrays of PRNG keys are of another class.
        if type(array) is ArrayImpl:
            avals.append(array.aval)
        return array

    return assemble


def host_placer(shape: Sequence[int], dtype: Any, sharding: Any, *, weak: bool = False) -> Callable[[Any], Any] | None:
    """A function that lays out values of the host, each process its own shards; it checks and compares nothing.

    `jax.device_put` to devices of other processes compares the value among all processes, and costs several times as
    much on those of this one.

    Args:
        shape: The shape of the values.
        dtype: Their type; none of PRNG keys.
        sharding: Their layout, on some device of this process.
        weak: Whether the type is a weak one.

    Returns:
        The function, of a NumPy array of this shape and type; None if this JAX does not have the parts for it.
    """
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # noqa: PLC0415

        put: Any = xla_client.batched_device_put
        devices = list(sharding._internal_device_list.addressable_device_list)
        explicit: Any = config.explicit_device_put_scope
    except (ImportError, AttributeError):
        return None
    indices = sharding.devices_indices_map(tuple(shape))
    boxes = [indices[device] for device in devices]
    aval = jax.typeof(jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding, weak_type=weak))

    def place(value: Any) -> Any:
        with explicit():
            return put(aval, sharding, [value[box] for box in boxes], devices, True)

    return place


def own_shards(array: Any) -> Sequence[Any]:
    """The shards of an array in this process, in the order of its layout's devices, as arrays of one device each.

    The public `addressable_shards` makes an object for each, with its index in the array, at every access.
    """
    shards: Sequence[Any] | None = getattr(array, "_arrays", None)
    return [shard.data for shard in array.addressable_shards] if shards is None else shards


def copier(
    shardings: Sequence[Any], *, keys: bool = False, twins: bool = False
) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that copies arrays, each shard to the device in its place of another layout. It waits for no value.

    It does what `jax.device_put` does in the end, without the checks before it, which cost several times as much.

    Args:
        shardings: The layout of each copy, which cuts it as that of the array does; all of devices of this process.
        keys: Whether there may be arrays of PRNG keys among them, which `jax.device_put` alone takes.
        twins: Whether a copy is an array of its own also on the device that the array is on. Else that is given back.

    Returns:
        The function. It takes as many arrays.
    """
    layouts = list(shardings)

    def checked(arrays: Sequence[Any]) -> list[Any]:
        return jax.device_put(list(arrays), layouts, may_alias=not twins)  # type: ignore[no-any-return]

    if keys:
        return checked
    try:
        # Private: only `jax.device_put` is public.
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # noqa: PLC0415

        devices = [layout._internal_device_list.addressable_device_list for layout in layouts]
        kinds = xla_client.ArrayCopySemantics
        semantics = [kinds.ALWAYS_COPY if twins else kinds.REUSE_INPUT] * len(layouts)
        copy: Any = xla_client.batched_copy_array_to_devices_with_sharding
        explicit: Any = config.explicit_device_put_scope
    except (ImportError, AttributeError):
        return checked

    def copies(arrays: Sequence[Any]) -> list[Any]:
        for array in arrays:
            # XLA would read freed memory; `jax.device_put` says that the array was deleted.
            if array.is_deleted():
                return checked(arrays)
        # `jax.transfer_guard` lets through what was asked for.
        with explicit():
            return copy(arrays, devices, layouts, semantics)  # type: ignore[no-any-return]

    return copies


def is_key(dtype: Any) -> bool:
    """Whether values of a type are typed PRNG keys, which only programs can send."""
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def key_name(dtype: Any) -> str:
    """What a type of PRNG keys is called in `jax.random.wrap_key_data`."""
    name: str = dtype._impl.name
    return name


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the data of one PRNG key of a type."""
    shape: tuple[int, ...] = dtype._impl.key_shape
    return tuple(shape)


def is_host_array(value: Any) -> bool:
    """Whether a constant of a jaxpr is numbers that lowering writes into the program."""
    return type(value) in (np.ndarray, literals.TypedNdArray) and not value.dtype.hasobject


def widen_attention() -> None:
    """Make `jax.nn.dot_product_attention` compute all of it in float64, for the whole process.

    It names NumPy's float32 for its softmax, whatever its arguments are.
    """
    from jax._src.nn import functions  # noqa: PLC0415  (private: what computes the softmax)

    wide = ModuleType(np.__name__)
    wide.__dict__.update(vars(np), float32=np.float64)
    vars(functions)["np"] = wide
