"""Advice in JAX's errors about code outside of steps that uses arrays of several submeshes or processes."""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterable

import jax
from jax.sharding import AbstractMesh, Mesh

from mmruntime import _compat
from mmruntime._frontend.python_state import is_library

# The devices of each submesh that results of a step may be on, and of each whole mesh, by their ids.
_submeshes: set[frozenset[int]] = set()
_meshes: set[frozenset[int]] = set()
_abstract: set[AbstractMesh] = set()

_MOST_LINES = 4
# Their code that is called with gradients changes what training keeps.
_OPTIMIZERS = ("optax", "flax.nnx.training.optimizer", "flax.training")
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
    lines, is_optimizer = _callers()
    cause = (
        f"{function} got arrays of several stages, where steps that `mm.mjit` compiled have put them, and code outside "
        f"of such a step runs in one place{lines}."
    )
    if is_optimizer:
        return (
            f"{cause} An optimizer calls it, which must not work on a copy: make that call in a function that "
            "`mm.mjit` compiles, such as `update = mm.mjit(optimizer.update, mesh=mesh)`, which runs on each stage. In "
            "a program with hints that is `update = jax.jit(optimizer.update)  # mm: mjit`; for an optimizer of nnx, "
            f"a function that `nnx.jit` compiles, with `# mm: mjit`. JAX: {message}"
        )
    return (
        f"{cause} Give it a copy of its arguments: `mm.gather(model)`, which takes Flax nnx objects and any pytree, "
        "such as parameters or a TrainState. Or compile the code for the mesh, which takes the arrays where they are: "
        "`mm.mjit(..., mesh=mesh)` in place of `jax.jit`. In a program with hints these are `# mm: gather(model)` on "
        f"the statement that reads the model there, and `# mm: mjit` where the function is compiled. JAX: {message}"
    )


def _callers() -> tuple[str, bool]:
    """The lines of the program that have called JAX, innermost first, and whether an optimizer has in between."""
    frame: types.FrameType | None = sys._getframe(1)
    lines: dict[str, None] = {}
    is_optimizer = False
    while frame is not None and len(lines) < _MOST_LINES:
        name = str(frame.f_globals.get("__name__"))
        if not is_library(name.partition(".")[0]):
            lines[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None
        is_optimizer = is_optimizer or (not lines and name.startswith(_OPTIMIZERS))
        frame = frame.f_back
    first, *others = lines or ("",)
    called = f", called at {' and '.join(others)}" if others else ""
    return f", at {first}{called}" if first else "", is_optimizer


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
