"""Sharding constraints: an identity primitive that carries axis names until the step is placed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime import _check, _compat
from mmruntime._core.logical_axes import Names, mesh_axes, spec_axes, spec_names
from mmruntime._core.mesh import current_mesh
from mmruntime._core.switches import PLACED_LATER, autoshard_enabled, transforms_ignored

T = TypeVar("T")


# `logical` says what the names are: logical ones, mesh axes, or None for mesh axes where the mesh has them and logical
# names elsewhere. `mapped` are dimensions that `jax.vmap` has put in, of which the constraint says nothing.
def _bind(x: Any, *, names: tuple[Names, ...], logical: bool | None, mapped: tuple[int, ...] = ()) -> Any:
    return constraint_p.bind(x, names=names, logical=logical, **({"mapped": mapped} if mapped else {}))


def _bind_batched(
    x: Any, dimension: int, *, names: tuple[Names, ...], logical: bool | None, mapped: tuple[int, ...] = ()
) -> Any:
    global _is_mapped
    _is_mapped = True
    before = (*names[:dimension], (), *names[dimension:])
    shifted = (each + (each >= dimension) for each in mapped)
    return _bind(x, names=before, logical=logical, mapped=(dimension, *shifted))


# Whether `jax.vmap` has mapped a constraint in this process.
_is_mapped = False


def may_be_mapped() -> bool:
    """Whether there may be a constraint inside of a `jax.vmap`: seldom, and looking for it takes a while."""
    return _is_mapped


# The cotangent of a constrained value gets the same constraint, as under `jax.lax.with_sharding_constraint`.
constraint_p = _compat.define_identity("mm_constraint", transpose=_bind, batch=_bind_batched)

LayOut = Callable[..., Any]
_LAY_OUT: ContextVar[LayOut | None] = ContextVar("lay_out", default=None)


def placed_later() -> AbstractContextManager[None]:
    """A context for traces that get their submesh afterwards: names of mesh axes are looked up then."""
    context: AbstractContextManager[None] = PLACED_LATER(True)
    return context


def is_placed_later() -> bool:
    """Whether the trace at hand is one of these."""
    return bool(PLACED_LATER.value)


@contextlib.contextmanager
def eager_layout(lay_out: LayOut) -> Iterator[None]:
    """A context in which a constraint outside of any trace calls `lay_out(value, names, logical=...)` on its value."""
    token = _LAY_OUT.set(lay_out)
    try:
        yield
    finally:
        _LAY_OUT.reset(token)


def _apply_now(x: Any, *, names: tuple[Names, ...], logical: bool | None, mapped: tuple[int, ...] = ()) -> Any:
    del mapped
    lay_out = _LAY_OUT.get()
    return x if lay_out is None else lay_out(x, names, logical=logical)


constraint_p.def_impl(_apply_now)


@_compat.api_boundary
def with_sharding_constraint(x: T, axis_resources: Any) -> T:
    """Constrain the layout of a value by logical axis names.

    The names belong to the value. Each task that touches it translates them with its own
    `logical_axes`; without a task or a mesh (plain `jax.jit`, one device) they have no effect.

    Under `ignore_transforms()` or `autoshard(False)` this is `jax.lax.with_sharding_constraint`: the names are mesh
    axes, of the task's submesh in a step that `mjit` or `parallelize` compiles, else of the mesh in context. Names that
    are no axes of it are logical ones, and have no effect then.

    Args:
        x: A pytree of arrays.
        axis_resources: A `PartitionSpec` (or tuple) of logical names, with at most one entry per dimension; a tuple as
            an entry is several names on one dimension. Or a pytree of them that is a prefix of `x`. A `NamedSharding`
            counts as its spec.

    Returns:
        `x`, with the same values.

    Raises:
        ValueError: If a spec has more entries than its array has dimensions, or the pytree is no prefix of `x`.
        TypeError: If a leaf of `axis_resources` is no spec, or `x` holds something else than arrays.
    """
    return constrain(x, axis_resources, "with_sharding_constraint")


def constrain(x: T, axis_resources: Any, what: str, *, as_types: bool = False) -> T:
    """`with_sharding_constraint` on behalf of the function `what`, whose name messages show.

    With `as_types` names are mesh axes where the mesh has them, else logical ones, as in the types of arrays.
    """
    check_specs(axis_resources, what)
    logical = None if as_types else autoshard_enabled() and not transforms_ignored()

    def over(spec: Any, subtree: Any) -> Any:
        if spec is None:
            return subtree
        if isinstance(spec, NamedSharding):
            if not logical and not is_placed_later():
                return jax.lax.with_sharding_constraint(subtree, spec)
            spec = spec.spec
        if not logical and not is_placed_later():
            mesh = current_mesh()
            known = mesh.mesh if mesh is not None else _compat.mesh_in_context()
            axes = mesh_axes(spec, known.shape)
            if not known.empty and (spec_axes(axes) or not spec_axes(spec)):
                axes_of_mesh = axes if mesh is None else NamedSharding(mesh.mesh, axes)
                return jax.lax.with_sharding_constraint(subtree, axes_of_mesh)
        return jax.tree.map(lambda leaf: name_axes(leaf, spec), subtree)

    def name_axes(leaf: Any, spec: Any) -> Any:
        try:
            array = None if isinstance(leaf, str | bytes) else jnp.asarray(leaf)
        except TypeError:
            array = None
        if array is None:
            raise _check.wrong(what, "what is constrained", "an array, or a pytree of arrays", leaf)
        return _bind(array, names=spec_names(spec, array.ndim, what), logical=logical)

    try:
        jax.tree.map(lambda spec, subtree: None, axis_resources, x, is_leaf=_is_spec)
    except ValueError as error:
        raise ValueError(
            f"{what}: the specs {axis_resources!r} are not a prefix of the value's tree {jax.tree.structure(x)}. Give "
            "one spec, or one per branch."
        ) from error
    result: T = jax.tree.map(over, axis_resources, x, is_leaf=_is_spec)
    return result


@_compat.api_boundary
def reshard(xs: T, out_shardings: Any) -> T:
    """`jax.sharding.reshard`, which in a step fixes a layout as a constraint does.

    Arrays of a mesh with explicit axes have layouts in their types. In a step that `mjit` compiles each task has a mesh
    of its own, whose axes are automatic, so types have none there. A sharding without a mesh, such as what `jax.typeof`
    says of a traced array, asks for nothing then. The names of a spec are axes of the task's submesh if that has them,
    else logical axes.

    Args:
        xs: A pytree of arrays.
        out_shardings: A `PartitionSpec` or `NamedSharding`, or a pytree of them that is a prefix of `xs`.

    Returns:
        `xs`, with the same values.

    Raises:
        ValueError: If a spec has more entries than its array has dimensions, or the pytree is no prefix of `xs`.
            Outside of steps what `jax.sharding.reshard` raises.
        TypeError: In a step if a leaf of `out_shardings` is no spec, or `xs` holds something else than arrays.
    """
    if not is_placed_later():
        out: T = jax.sharding.reshard(xs, out_shardings)
        return out
    specs = jax.tree.map(lambda spec: None if _asks_nothing(spec) else spec, out_shardings, is_leaf=_is_spec)
    return constrain(xs, specs, "reshard", as_types=True)


def out_sharding(sharding: T) -> T | None:
    """What a call is to be given as `out_sharding=`: `sharding`, and in a step None.

    With it a call gives its result a layout in the type, and types have none in a step; see `reshard`. Results are laid
    out as XLA sees fit there, and numbers are the same.

    Args:
        sharding: A `PartitionSpec`, a `NamedSharding` or None.
    """
    return None if is_placed_later() else sharding


def _asks_nothing(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.mesh.empty


def check_specs(specs: Any, what: str) -> None:
    """Check that all leaves of a pytree are specs.

    Raises:
        TypeError: If one is not.
    """
    for leaf in jax.tree.leaves(specs, is_leaf=_is_spec):
        if not _is_spec(leaf):
            raise TypeError(
                f"{what}: expected a PartitionSpec of logical axis names, got {_check.shown(leaf)}. Write for example "
                'P("batch", None).'
            )


def _is_spec(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec | NamedSharding) or _is_plain_spec(node)


def _is_plain_spec(node: Any) -> bool:
    return type(node) is tuple and all(
        entry is None
        or isinstance(entry, str)
        or (type(entry) is tuple and entry and all(isinstance(name, str) for name in entry))
        for entry in node
    )
