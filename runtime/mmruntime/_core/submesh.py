"""The submesh of a task on the mesh in use, and the meaning of its logical axes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from jax.sharding import Mesh

from mmruntime._core.logical_axes import Pairs
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.task import StageSlice, Task

# Cost of each layer of a loop, by the loop's number of layers and its axis.
LayerCosts = Mapping[tuple[int, str], Sequence[float]]


def task_mesh(task: Task, multimesh: MultiMesh, layer_costs: LayerCosts | None = None) -> Mesh | None:
    """The submesh of a task as a JAX mesh; None for a task without one.

    Args:
        task: The task.
        multimesh: The mesh in use.
        layer_costs: Costs for `stage(weights="flops")`.

    Raises:
        ValueError: If the slice or the device ids do not fit the mesh in use; the task is named.
    """
    try:
        if isinstance(task.mesh, Mesh):
            return task.mesh
        if task.mesh is not None:
            return task.mesh.on(list(multimesh.devices.flat))
        if task.mesh_slice is None:
            return None
        piece = task.mesh_slice
        if isinstance(piece, StageSlice):
            piece = piece.resolve(multimesh, (layer_costs or {}).get((piece.count, piece.axis)))
        return multimesh.slice(**{_axis(task, multimesh, name): index for name, index in piece.items()})
    except ValueError as error:
        raise ValueError(f"Task {task.name!r}: {error}") from error


def _axis(task: Task, multimesh: MultiMesh, name: str) -> str:
    """The axis of the mesh in use that a slice names: that of the name, else the first that the task maps it to."""
    if name in multimesh.shape:
        return name
    # `Task` has made pairs of what it was given.
    pairs = multimesh.logical_axes if task.logical_axes is None else cast("Pairs", task.logical_axes)
    mapped = [device for logical, device in pairs or () if logical == name and device is not None]
    return next((device for device in mapped if device in multimesh.shape), name)


def axis_pairs(task: Task | None, mesh: Mesh, multimesh: MultiMesh | None) -> Pairs:
    """The `(logical, device)` pairs that hold in a task, in priority order."""
    own = None if task is None else task.logical_axes
    pairs = own if own is not None or multimesh is None else multimesh.logical_axes
    if pairs is None:
        pairs = tuple((name, name) for name in mesh.axis_names)
    extra = () if task is None or task.extra_axes is None else task.extra_axes
    return (*pairs, *extra)  # type: ignore[arg-type]
