"""Which steps run where the devices of a mesh belong to several processes.

A step that is one program on all devices of its mesh does, as under `jax.jit`. One that is cut into programs does not
yet: what one process's submesh sends to another's would be put there by one side alone, which fails or waits forever.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh

from mmruntime._partition.place import Placement


def processes(mesh: Mesh) -> tuple[int, ...]:
    """The indices of the processes that the devices of a mesh belong to."""
    devices: Any = mesh.devices
    return tuple(sorted({device.process_index for device in devices.flat}))


def runs_here(mesh: Mesh, placement: Placement, *, whole: bool) -> bool:
    """Whether a step can be called in this process.

    Args:
        mesh: All devices of the step.
        placement: Where its equations run.
        whole: Whether the step is one program.
    """
    if processes(mesh) == (jax.process_index(),):
        return True
    everywhere: Any = mesh.devices
    used = {device for submesh in placement.submeshes.meshes for device in submesh.devices.flat}
    return whole and used == set(everywhere.flat)


def check_runs_here(label: str, mesh: Mesh, placement: Placement, *, whole: bool) -> None:
    """Refuse to call a step that `runs_here` says no to.

    Args:
        label: The name of the step, for the message.
        mesh: All devices of the step.
        placement: Where its equations run.
        whole: Whether the step is one program.

    Raises:
        NotImplementedError: Saying which devices the step could use.
    """
    if runs_here(mesh, placement, whole=whole):
        return
    raise NotImplementedError(
        f"mjit: {label} is cut into programs for submeshes, which run in one process at present, but the devices of "
        f"its mesh belong to processes {', '.join(map(str, processes(mesh)))}, and this is process "
        f"{jax.process_index()}. Use devices of one process, as in mm.MultiMesh(..., devices=jax.local_devices()), or "
        f"let every task run on the whole mesh. {label}.plan(*args) and initialisers with out_like= work as it is."
    )
