"""What JAX says to code outside of steps that uses arrays of several submeshes or processes: what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import jax
from jax.sharding import AbstractMesh, Mesh

from mmruntime import _compat

# The devices of each submesh that results of a step may be on, and of each whole mesh, by their ids.
_submeshes: set[frozenset[int]] = set()
_meshes: set[frozenset[int]] = set()
_abstract: set[AbstractMesh] = set()

_SET_MESH = (
    "Set the mesh of the steps in its place, `jax.set_mesh(mesh)` with the mesh that `mm.mjit` was given; it needs the "
    "axes that the program names there. Or enter the other one, `with jax.set_mesh(...):`, only around code that does "
    "not compute with what steps return."
)


def explain_errors_about(mesh: Mesh, submeshes: Iterable[Mesh]) -> None:
    """Have errors about arrays that lie on this mesh, or one of these submeshes, say what to do.

    Args:
        mesh: The whole mesh of a step.
        submeshes: Its submeshes, if there are several.
    """
    if not _meshes:
        _compat.reword_mixed_devices(_on_several_devices)
        _compat.reword_mixed_meshes(_of_another_mesh)
        if jax.process_count() > 1:
            _compat.reword_fetches(_in_another_process)
    parts = list(submeshes)
    _submeshes.update(_ids(each) for each in parts if len(parts) > 1)
    _meshes.add(_ids(mesh))
    _abstract.update(each.abstract_mesh for each in (mesh, *parts))


def _ids(mesh: Mesh) -> frozenset[int]:
    return frozenset(device.id for device in mesh.devices.flat)


def _on_several_devices(message: str, function: str, devices: Collection[frozenset[int]], in_context: bool) -> str:
    # A whole mesh may also be a stage of another one.
    if in_context and not _meshes.isdisjoint(devices):
        return f"{_other_mesh(function)} JAX: {message}"
    if _submeshes.isdisjoint(devices):
        return message
    return (
        f"{function} got arrays of several stages, where steps that `mm.mjit` compiled have put them, and code outside "
        "of such a step runs in one place. Give it a copy of its arguments: `mm.gather(model)`, which takes Flax nnx "
        "objects and any pytree, such as parameters or a TrainState. Or compile the code for the mesh, which takes the "
        "arrays where they are: `mm.mjit(..., mesh=mesh)` in place of `jax.jit`. In a program with hints these are "
        f"`# mm: gather(model)` and `# mm: mjit`. JAX: {message}"
    )


def _of_another_mesh(message: str, primitive: str, meshes: Collection[AbstractMesh]) -> str:
    if _abstract.isdisjoint(meshes):
        return message
    return f"{_other_mesh(primitive)} JAX: {message}"


def _other_mesh(function: str) -> str:
    return (
        f"{function} got an array that a step which `mm.mjit` compiled has returned, on the mesh of the step, and "
        f"`jax.set_mesh` has code outside of steps run on another one. {_SET_MESH}"
    )


def _in_another_process(message: str, devices: frozenset[int]) -> str:
    if not any(devices <= mesh for mesh in _meshes):
        return message
    return (
        "this process has asked for values that other processes have, as steps that `mm.mjit` compiled put arrays on "
        "the devices of their stages. `mm.gather(tree)`, which all processes have to call, gives each of them a copy "
        "of any pytree or Flax nnx object; in a program with hints, write `# mm: gather(tree)` on the statement. "
        f"Checkpoints need no copy with Orbax, after `mmruntime.orbax.register()`. JAX: {message}"
    )
