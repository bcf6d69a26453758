"""`shard_map` for code inside of a task, on the task's submesh, and JAX's `custom_partitioning`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.experimental.custom_partitioning import custom_partitioning as custom_partitioning
from jax.sharding import Mesh

from mmruntime import _check, _compat
from mmruntime._core.mesh import TaskMesh, current_mesh
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.registry import registrations
from mmruntime._core.submesh import task_mesh
from mmruntime._core.task import Task
from mmruntime._frontend.task_call import names_keywords, task_in_use

P = ParamSpec("P")
R = TypeVar("R")


_OF_JAX = [each for each in inspect.signature(jax.shard_map).parameters.values() if each.name not in ("f", "mesh")]


@_compat.api_boundary
@names_keywords(_OF_JAX)
def shard_map(
    fun: Callable[P, R], *, mesh: Mesh | MultiMesh | TaskMesh | None = None, **options: Any
) -> Callable[P, R]:
    """`jax.shard_map` over the submesh of the task that it is called in.

    `mm.custom_partitioning` is JAX's own: in a task JAX already passes it the submesh.

    Args:
        fun: A function of shards.
        mesh: The mesh. If left out: in a task, or directly in a scope that is registered as one, the task's submesh (a
            `mesh_slice` keeps all axes of the mesh in use, the sliced ones with size 1); elsewhere the whole mesh in
            use, which fits steps without tasks; without one JAX's own mesh in context.
        **options: `in_specs` and `out_specs` (names of mesh axes, not logical names), `axis_names`, `check_vma`.

    Returns:
        A function of whole arrays. It runs on the devices of its submesh, so under plain `jax.jit` all tasks with such
        functions must share one submesh.

    Raises:
        TypeError: If `fun` is no function, `mesh` no mesh, or an option is unknown.
        ValueError: When called, if there is no mesh to run on.
    """
    _check.function("shard_map", "fun", fun)
    if mesh is not None and not isinstance(mesh, Mesh | TaskMesh):
        raise _check.wrong("shard_map", "mesh", "a mm.MultiMesh, a mm.TaskMesh or a jax.sharding.Mesh", mesh)
    known = [each.name for each in _OF_JAX]
    for name in options:
        if name not in known:
            raise _check.unknown("shard_map", "option", name, known)

    @functools.wraps(fun)
    def mapped(*args: P.args, **kwargs: P.kwargs) -> R:
        found = _mesh_here() if mesh is None else _as_mesh(mesh)
        if found is None and jax.sharding.get_abstract_mesh().empty:
            raise ValueError(
                f"shard_map: no mesh for {getattr(fun, '__name__', fun)}. Call it inside a task that has a submesh, in "
                "a step compiled by mm.mjit(..., mesh=mesh), or pass mesh=."
            )
        result: R = jax.shard_map(fun, mesh=found, **options)(*args, **kwargs)
        return result

    return mapped


def _as_mesh(mesh: Mesh | MultiMesh | TaskMesh) -> Mesh:
    if isinstance(mesh, MultiMesh):
        return mesh.mesh
    if isinstance(mesh, TaskMesh):
        used = current_mesh()
        return mesh.on(jax.devices() if used is None else list(used.devices.flat))
    return mesh


def _mesh_here() -> Mesh | None:
    task, used = task_in_use(), current_mesh()
    if task is None and used is not None:
        task = _registered(used)
    if task is not None:
        if used is not None:
            return task_mesh(task, used)
        if task.mesh is not None:
            return _as_mesh(task.mesh)
    return None if used is None else used.mesh


def _registered(used: MultiMesh) -> Task | None:
    """The task that is registered for the scope that is being traced."""
    stack = _compat.current_scopes()
    path = "/".join(name for name, transform in stack if not transform)
    backward = any(transform and name == "transpose" for name, transform in stack)
    for registration in registrations(used.context):
        group = registration.find(path)
        if group is not None:
            return registration.choose(group, backward)
    return None
