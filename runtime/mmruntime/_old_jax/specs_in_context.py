"""Partition specs over the axes of the mesh in context."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._old_jax.mesh_context import current_mesh
from mmruntime._old_jax.renamed_arguments import OMITTED, choose


class NoMeshError(RuntimeError, ValueError):
    """A partition spec without a mesh in context.

    JAX raised `ValueError` for this up to 2021 and `RuntimeError` since; programs catch either.
    """


def resolve(specs: Any, mesh: Mesh | AbstractMesh, where: str) -> Any:
    """Turn a tree of specs into shardings of a mesh, by the rules of `pjit`.

    Args:
        specs: A spec, a sharding, `None`, or a tree of them, which may be a prefix of the arguments' tree. `None` is
            replicated on the mesh, and stays `None` where the mesh is empty. Shardings stay as they are.
        mesh: The mesh in context, which may be empty.
        where: Function and argument, for the message.

    Raises:
        RuntimeError: If there is a spec, and the mesh is empty. It is a `ValueError` as well.
    """

    def place(spec: Any) -> Any:
        if spec is not None and not isinstance(spec, PartitionSpec):
            return spec
        if not mesh.empty:
            return NamedSharding(mesh, PartitionSpec() if spec is None else spec)
        if spec is None:
            return None
        raise NoMeshError(
            f"{where} has {spec}, and no mesh is in context to say what its axes are. Call this in a "
            "`with mesh_context(mesh):` block, or give `NamedSharding(mesh, spec)`."
        )

    return jax.tree.map(place, specs, is_leaf=lambda spec: spec is None or isinstance(spec, PartitionSpec))


@_compat.api_boundary
def with_sharding_constraint(x: Any, shardings: Any = OMITTED, *, axis_resources: Any = OMITTED) -> Any:
    """`jax.lax.with_sharding_constraint` with specs for the mesh in context at the time of the trace or call.

    Args:
        x: A tree of arrays.
        shardings: Specs or shardings: a tree that is a prefix of `x`. `None` is replicated.
        axis_resources: The older name of `shardings`.

    Raises:
        RuntimeError: If there is a spec, and no mesh is in context. It is a `ValueError` as well.
        TypeError: If no shardings are given.
        ValueError: If both `shardings` and `axis_resources` are given.
    """
    specs = choose(shardings, axis_resources, ("shardings", "axis_resources"))
    if specs is OMITTED:
        raise TypeError("with_sharding_constraint: no `shardings` given; give a spec, such as `P('data')`.")
    return jax.lax.with_sharding_constraint(x, resolve(specs, current_mesh(), "with_sharding_constraint: `shardings`"))
