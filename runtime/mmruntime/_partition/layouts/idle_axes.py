"""Mesh axes over which a step cuts no value, so that their devices all compute the same."""

from __future__ import annotations

from collections.abc import Mapping

from jax.sharding import AbstractMesh, Mesh

from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.place import Placement


def idle_axes(step: Step, placement: Placement, shardings: Shardings) -> Mapping[str, int]:
    """The axes of the mesh over which a step of tasks or microbatches cuts nothing, and how many devices they have.

    A step of neither follows its arguments.
    """
    whole = shardings.everywhere.mesh
    meshes: list[Mesh | AbstractMesh] = list(placement.task_meshes.values())
    if not meshes and any(region.loop is not None for region in step.regions):
        meshes = [whole]
    # Tasks on devices of their own may call the axes otherwise.
    if not meshes or any(mesh.axis_names != whole.axis_names for mesh in meshes):
        return {}
    sizes = {axis: min(mesh.shape[axis] for mesh in meshes) for axis in whole.axis_names}
    used = shardings.axes()
    return {axis: size for axis, size in sizes.items() if size > 1 and axis not in used}


def warn_of_idle_axes(name: str, step: Step, placement: Placement, shardings: Shardings, multimesh: MultiMesh) -> None:
    """Warn of idle axes that logical names stand for: they say what is to be cut, and no value has them.

    Steps without a gradient are let be: what they cost is seldom what somebody waits for.

    Args:
        name: The step.
        step: Its equations.
        placement: Where they run.
        shardings: The layout of every value.
        multimesh: The mesh that it is compiled for.
    """
    if not any(op.backward for op in step.ops()):
        return
    for axis, size in idle_axes(step, placement, shardings).items():
        names = [logical for logical, device in multimesh.logical_axes or () if device == axis]
        if names and not any(name in names for _, name, _, _ in shardings.unused_axis_names):
            warn(
                f"mjit: {name} cuts no value over the mesh axis {axis!r}, so its {size} devices compute the same. Give "
                f"a dimension of a value in the model the name {' or '.join(map(repr, names))}, by the hint "
                f"shard({names[0]!r}, ...) or by mm.with_sharding_constraint, or leave the axis out of the mesh."
            )
