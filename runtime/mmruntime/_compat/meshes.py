"""Meshes in context, and shardings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
from jax._src import config
from jax._src.interpreters import pxla
from jax.sharding import NamedSharding


def running_linen_module() -> Any:
    """The Flax linen module whose method is running, None outside of any.

    Flax has no public query for it; its own `flax.linen.partitioning` reads the same private stack.
    """
    linen = sys.modules.get("flax.linen.module")
    return None if linen is None else linen._context.module_stack[-1]


def ambient_mesh() -> jax.sharding.Mesh:
    """The mesh of `jax.set_mesh`, or an empty one; works while tracing, too."""
    from jax._src import mesh  # noqa: PLC0415  (private: `jax.sharding.get_mesh` raises while tracing)

    found: jax.sharding.Mesh = mesh.get_concrete_mesh()
    return found


def resource_mesh() -> jax.sharding.Mesh:
    """The mesh of a `with mesh:` block, or an empty one."""
    from jax._src import mesh  # noqa: PLC0415  (private: no public way to ask for it)

    found: jax.sharding.Mesh = mesh.thread_resources.env.physical_mesh
    return found


def mesh_in_context() -> Any:
    """The mesh that a `PartitionSpec` is for, of `jax.set_mesh` or of a `with mesh:` block; or an empty one."""
    abstract = jax.sharding.get_abstract_mesh()
    return resource_mesh() if abstract.empty else abstract


@contextmanager
def as_resource(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """Do what `with mesh:` does in this thread, without its deprecation warning.

    `warnings.catch_warnings` would be no help: it changes the filters of all threads.
    """
    from jax._src.mesh import thread_resources  # noqa: PLC0415  (private: the public `Mesh.__enter__` warns)

    def publish() -> None:
        thread_resources.env = thread_resources.stack[-1]
        meshes = (env.physical_mesh for env in thread_resources.stack)
        config.mesh_context_manager.set_local(tuple(mesh for mesh in meshes if not mesh.empty))

    thread_resources.stack.append(thread_resources.stack[-1].with_mesh(mesh))
    publish()
    try:
        yield
    finally:
        thread_resources.stack.pop()
        publish()


@contextmanager
def compiled_for(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """A context in which `jax.jit` runs on a mesh, whatever devices its arguments are on.

    As `jax.set_mesh`, which raises an error while tracing.
    """
    from jax._src.sharding_impls import _internal_use_concrete_mesh  # noqa: PLC0415  (private: `set_mesh` raises)

    with _internal_use_concrete_mesh(mesh), jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def no_mesh_while_tracing() -> AbstractContextManager[None]:
    """A context without an ambient mesh, as `no_mesh`, whose `jax.set_mesh` raises an error while tracing."""
    from jax._src.mesh import empty_concrete_mesh  # noqa: PLC0415  (private: no public one)

    return compiled_for(empty_concrete_mesh)


def no_mesh() -> AbstractContextManager[Any]:
    """A context without an ambient mesh: under one, JAX refuses to compile for devices outside of it."""
    return jax.set_mesh(None)


class ShardingByRank(NamedSharding):
    """A `NamedSharding` that stands for another one on arrays of some ranks, given by `for_rank`.

    In JAX only shardings that are no `NamedSharding` may depend on the rank. Results of computations on arrays with
    such a sharding have one of the same class, which `like` makes.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        as_named = pxla._orig_out_sharding_handlers[NamedSharding]

        def recover(found: Any, aval: Any, given: ShardingByRank) -> NamedSharding:
            tiles = found._to_xla_hlo_sharding(aval.ndim if aval is not None else 0)
            rank = None
            if not tiles.is_replicated():
                rank = len(tiles.tile_assignment_dimensions()) - tiles.replicate_on_last_tile_dim()
            return given.like(as_named(found, aval, given), rank)

        # JAX looks handlers of result shardings up by the exact class, so that subclasses need an entry of their own.
        pxla._orig_out_sharding_handlers[cls] = recover

    def like(self, found: NamedSharding, rank: int | None) -> NamedSharding:
        """The sharding of this class that lays arrays of `rank` dimensions out as `found`; `None` if it replicates."""
        raise NotImplementedError

    def for_rank(self, rank: int) -> NamedSharding | None:
        """The sharding of arrays of `rank` dimensions; None where it is this one."""
        raise NotImplementedError

    def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
        other = self.for_rank(num_dimensions)
        if other is None:
            return super()._to_xla_hlo_sharding(num_dimensions)
        return other._to_xla_hlo_sharding(num_dimensions)

    def _to_sdy_sharding(self, num_dimensions: int, *args: Any, **kwargs: Any) -> Any:
        other = self.for_rank(num_dimensions)
        if other is None:
            return super()._to_sdy_sharding(num_dimensions, *args, **kwargs)
        return other._to_sdy_sharding(num_dimensions, *args, **kwargs)
