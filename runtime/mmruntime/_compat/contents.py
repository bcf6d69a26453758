"""What a value, a primitive, settings and devices are, in words that mean the same in any process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src import mesh as mesh_lib
from jax.core import ShapedArray
from jax.experimental import layout
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime._compat.jaxprs import UNSPECIFIED, Primitive


def content(value: Any) -> tuple[Any, ...] | None:
    """All that a value of JAX's is, as values that name it in any process; None for a type that is not known here."""
    known = _content_attributes().get(type(value))
    if known is not None:
        return tuple((name, getattr(value, name, "unset")) for name in known)
    if any(value is single for single in _singletons()):
        return (type(value).__name__,)
    if isinstance(value, jax.Array):
        # Those of keys have an implementation, and numbers besides.
        return None
    # Implementations of random keys, and their types. Nobody can register another one under these names.
    impl = getattr(value, "_impl", value)
    name = getattr(impl, "name", None)
    if type(name) is str and name in ("threefry2x32", "rbg", "unsafe_rbg"):
        registered = getattr(sys.modules.get(type(value).__module__), "prngs", {})
        if registered.get(name) is impl:
            return ("keys", name)
    return None


@functools.cache
def _content_attributes() -> dict[type, tuple[str, ...]]:
    """The attributes that say all of a value, by its exact type; the slots where a type has nothing else."""
    found: dict[type, tuple[str, ...]] = {
        jax.sharding.AbstractMesh: ("axis_names", "axis_sizes", "axis_types", "abstract_device"),
        NamedSharding: ("mesh", "spec", "memory_kind", "_logical_device_ids"),
        mesh_lib.AbstractDevice: ("device_kind", "num_cores", "platform"),
        layout.Layout: ("major_to_minor", "tiling", "sub_byte_element_size_in_bits"),
        core.NamedAxisEffect: ("name",),
        jax.lax.RaggedDotDimensionNumbers: (
            "dot_dimension_numbers",
            "lhs_ragged_dimensions",
            "rhs_group_dimensions",
        ),
    }
    # The second is what a weak type is without its weakness, once somebody has asked. The third has, in JAX 0.10.1, the
    # values of the others once more, beside the settings that they are of.
    unread = ("__weakref__", "_stripped_weak_type", "configs")
    for kind in (ShapedArray, PartitionSpec, core.JaxprEqnContext, core.ManualAxisType):
        found[kind] = tuple(name for name in kind.__slots__ if name not in unread)
    return found


@functools.cache
def _singletons() -> tuple[Any, ...]:
    automatic = getattr(jax.typeof(np.float32(0)), "layout", None)
    return (UNSPECIFIED, PartitionSpec.UNCONSTRAINED, *([] if automatic is None else [automatic]))


# Modules whose primitives reach code that no jaxpr shows: functions of the host, of libraries, of other compilers.
_FOREIGN = ("callback", "ffi", "debugging", "custom_partitioning", "pallas", "mosaic", "triton", "tpu_custom_call")


def primitive_content(primitive: Any, platform: str) -> tuple[str, ...] | None:
    """Where a primitive is defined; None if that, or a rule by which it is lowered, is neither JAX's nor ours."""
    home = _homes().get(primitive)
    if home is None:
        return None
    platforms = ("cuda", "rocm") if platform == "gpu" else (platform,)
    tables = [mlir._lowerings, *[mlir._platform_specific_lowerings.get(each, {}) for each in platforms]]
    rules = [table[primitive].rule for table in tables if primitive in table]
    return (primitive.name, home) if rules and all(_is_known_code(rule, set()) for rule in rules) else None


@functools.cache
def _homes() -> dict[Any, str]:
    """The module that defines each primitive."""
    modules = [
        (name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in ("jax", "mmruntime")
    ]
    found: dict[Any, str] = {}
    for name, module in sorted(modules):
        for value in list(vars(module).values()):
            if isinstance(value, Primitive):
                found.setdefault(value, name)
    return found


def _is_known_code(rule: Any, seen: set[int]) -> bool:
    """Whether a rule is JAX's or ours, with all functions that it holds; `lower_fun` wraps those of anybody."""
    if id(rule) in seen:
        return True
    seen.add(id(rule))
    if isinstance(rule, functools.partial):
        return all(_is_known_code(each, seen) for each in (rule.func, *rule.args, *rule.keywords.values()))
    if not callable(rule):
        return True
    module = getattr(rule, "__module__", None) or ""
    names = module.split(".")
    if names[0] not in ("builtins", "jax", "jaxlib", "mmruntime") or any(
        name.lstrip("_") in _FOREIGN for name in names
    ):
        return False
    held: list[Any] = [getattr(rule, "__wrapped__", None), *(getattr(rule, "__defaults__", None) or ())]
    for cell in getattr(rule, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            held.append(cell.cell_contents)
    return all(_is_known_code(each, seen) for each in held)


# Of JAX's settings, those that say what is kept, logged and shown, and not what is compiled.
_NOT_OF_PROGRAMS = ("jax_compilation_cache_", "jax_persistent_cache_", "jax_log", "jax_traceback_filtering")


def compilation_settings() -> tuple[Any, ...]:
    """All that decides, beside a program, how JAX lowers it: settings, this thread's included, and its context."""
    values: Mapping[str, Any] = jax.config.values
    read = [(name, value) for name, value in sorted(values.items()) if not name.startswith(_NOT_OF_PROGRAMS)]
    return (*read, core.JaxprEqnContext())


def device_content(devices: Sequence[Any]) -> str:
    """A digest of the devices that a program is compiled for, their platform, and all that XLA knows of both."""
    from jax._src import cache_key  # noqa: PLC0415  (private: what JAX's own cache distinguishes has no public name)

    client = devices[0].client
    found = hashlib.sha256()
    cache_key._hash_accelerator_config(found, np.array(devices))
    cache_key._hash_platform(found, client)
    found.update(repr(cache_key.custom_hook()).encode())
    places = [(device.id, device.process_index, device.device_kind) for device in devices]
    found.update(repr((places, client.process_index(), [device.id for device in client.devices()])).encode())
    return found.hexdigest()
