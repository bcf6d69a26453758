"""Logical sharding constraints: an identity that carries axis names until the step is placed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._axes import Names, spec_names
from mmruntime._contexts import autoshard_enabled, transforms_ignored

T = TypeVar("T")


def _bind(x: Any, *, names: tuple[Names, ...]) -> Any:
    return constraint_p.bind(x, names=names)


def _bind_batched(x: Any, dimension: int, *, names: tuple[Names, ...]) -> Any:
    return constraint_p.bind(x, names=(*names[:dimension], (), *names[dimension:]))


# The cotangent of a constrained value gets the same constraint.
constraint_p = _compat.define_identity("mm_constraint", transpose=_bind, batch=_bind_batched)

LayOut = Callable[[Any, tuple[Names, ...]], Any]
_LAY_OUT: ContextVar[LayOut | None] = ContextVar("lay_out", default=None)


@contextlib.contextmanager
def eager_layout(lay_out: LayOut) -> Iterator[None]:
    """Within the context, a constraint outside of any trace moves its value by `lay_out(value, names)`."""
    token = _LAY_OUT.set(lay_out)
    try:
        yield
    finally:
        _LAY_OUT.reset(token)


def _apply_now(x: Any, *, names: tuple[Names, ...]) -> Any:
    lay_out = _LAY_OUT.get()
    return x if lay_out is None else lay_out(x, names)


constraint_p.def_impl(_apply_now)


def with_sharding_constraint(x: T, axis_resources: Any) -> T:
    """Say how a value is laid out, by logical axis names.

    The names belong to the value. Each task that touches it translates them with its own
    `logical_axes`; without a task or a mesh (plain `jax.jit`, one device) they have no effect.

    Args:
        x: A pytree of arrays.
        axis_resources: A `PartitionSpec` (or tuple) of logical names, one entry per dimension and fewer are
            allowed; a tuple inside is several names on one dimension. Or a pytree of them that is a prefix
            of `x`. A `NamedSharding` counts as its spec.

    Returns:
        `x`, with the same values.

    Raises:
        ValueError: If a spec has more entries than its array has dimensions, or the pytree is no prefix of `x`.
        TypeError: If a leaf is not a spec.
    """

    def is_spec(node: Any) -> bool:
        return node is None or isinstance(node, PartitionSpec | NamedSharding) or _is_plain_spec(node)

    def constrain(spec: Any, subtree: Any) -> Any:
        if spec is None:
            return subtree
        if isinstance(spec, NamedSharding):
            spec = spec.spec
        if not isinstance(spec, PartitionSpec) and not _is_plain_spec(spec):
            raise TypeError(
                f"with_sharding_constraint: expected a PartitionSpec of logical axis names, got {spec!r}. "
                'Write for example P("batch", None).'
            )
        return jax.tree.map(lambda leaf: _bind(jnp.asarray(leaf), names=spec_names(spec, jnp.ndim(leaf))), subtree)

    if transforms_ignored() or not autoshard_enabled():
        return x
    try:
        result: T = jax.tree.map(constrain, axis_resources, x, is_leaf=is_spec)
    except ValueError as error:
        if str(error).startswith("with_sharding_constraint"):
            raise
        raise ValueError(
            f"with_sharding_constraint: the specs {axis_resources!r} are not a prefix of the value's tree "
            f"{jax.tree.structure(x)}. Give one spec, or one per branch."
        ) from error
    return result


def _is_plain_spec(node: Any) -> bool:
    return type(node) is tuple and all(
        entry is None
        or isinstance(entry, str)
        or (type(entry) is tuple and entry and all(isinstance(name, str) for name in entry))
        for entry in node
    )
