"""What JAX says to code outside of steps that computes with arrays of several submeshes: what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jax.sharding import Mesh

from mmruntime import _compat

# The devices of each submesh that results of a step may be on, by their ids.
_submeshes: set[frozenset[int]] = set()


def explain_errors_about(meshes: Iterable[Mesh]) -> None:
    """Have errors about arrays that lie on one of these submeshes and elsewhere say what to do."""
    if not _submeshes:
        _compat.reword_mixed_devices(_reworded)
    _submeshes.update(frozenset(device.id for device in mesh.devices.flat) for mesh in meshes)


def _reworded(message: str, function: str, devices: Collection[frozenset[int]]) -> str:
    if _submeshes.isdisjoint(devices):
        return message
    return (
        f"{function} got arrays of several stages, where steps that `mm.mjit` compiled have put them, and code outside "
        "of such a step runs in one place. Give it a copy of its arguments: `mm.gather(model)`, which takes Flax nnx "
        "objects and any pytree, such as parameters or a TrainState. Or compile the code for the mesh, which takes the "
        "arrays where they are: `mm.mjit(..., mesh=mesh)` in place of `jax.jit`. In a program with hints these are "
        f"`# mm: gather(model)` and `# mm: mjit`. JAX: {message}"
    )
