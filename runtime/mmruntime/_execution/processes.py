"""Which steps can run on a mesh whose devices belong to several processes.

A step that is one program on all devices can: every process issues it, as under `jax.jit`. A step that is cut into
programs cannot yet: `DevicePutTransport` would send to devices of another process, and the other side would not
receive.
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
    """Raise an error if this process cannot call a step; see `runs_here`.

    Args:
        label: The name of the step, for the message.
        mesh: All devices of the step.
        placement: Where its equations run.
        whole: Whether the step is one program.

    Raises:
        NotImplementedError: If it cannot. The message says which devices the step could use.
    """
    if runs_here(mesh, placement, whole=whole):
        return
    raise NotImplementedError(
        f"mjit: {label} is cut into programs for submeshes, which run in one process at present, but the devices of "
        f"its mesh belong to processes {', '.join(map(str, processes(mesh)))}, and this is process "
        f"{jax.process_index()}. Use devices of one process, as in mm.MultiMesh(..., devices=jax.local_devices()), or "
        f"let every task run on the whole mesh. {label}.plan(*args) and initialisers with out_like= work as it is."
    )
