"""Submeshes, and which `MultiMesh` is in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from mmruntime import _check
from mmruntime._core.layer_trial import LAYER_TRIAL
from mmruntime._core.switches import MESH_IN_USE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mmruntime._core.multimesh import MultiMesh


def current_mesh() -> MultiMesh | None:
    """The `MultiMesh` in use: the one being compiled for, else the one in context."""
    mesh: MultiMesh | None = MESH_IN_USE.value
    return mesh


def using(mesh: MultiMesh) -> AbstractContextManager[None]:
    """A context in which `mesh` is the one in use."""
    context: AbstractContextManager[None] = MESH_IN_USE(mesh)
    return context


def current_platform() -> str:
    """The platform of the devices of the mesh in use, or JAX's default one; in a trial, the one that it is for."""
    if (trial := LAYER_TRIAL.get()) is not None:
        return trial.platform
    mesh = current_mesh()
    platform: str = jax.default_backend() if mesh is None else mesh.mesh.devices.flat[0].platform
    return platform


def outside_of_meshes() -> AbstractContextManager[None]:
    """A context in which no `MultiMesh` is in use, so that tasks run where their arguments are."""
    context: AbstractContextManager[None] = MESH_IN_USE(None)
    return context


def auto_mesh(devices: Any, axis_names: Sequence[str]) -> Mesh:
    """A mesh with Auto axes, whatever JAX's default: our programs let the compiler propagate shardings."""
    return Mesh(devices, tuple(axis_names), axis_types=(AxisType.Auto,) * len(tuple(axis_names)))


class TaskMesh:
    """A submesh by device ids, which are relative to the mesh that the program runs on.

    Args:
        devices: Ids 0, 1, ... into the devices of the mesh in use (of `jax.devices()` without one).
        axis_sizes: Size of each axis.
        axis_names: Name of each axis.
        abstract: An `AbstractMesh` to take sizes and names from instead.

    Raises:
        TypeError: If neither `abstract` nor both sizes and names are given, or something is of another type.
        ValueError: If the number of devices is not the product of the sizes, or an id is given twice or negative.
    """

    def __init__(
        self,
        *,
        devices: Iterable[int] | np.ndarray,
        axis_sizes: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        abstract: AbstractMesh | None = None,
    ) -> None:
        if abstract is not None:
            if not isinstance(abstract, AbstractMesh | Mesh):
                raise _check.wrong("TaskMesh", "abstract", "a jax.sharding.AbstractMesh", abstract)
            axis_sizes, axis_names = abstract.axis_sizes, abstract.axis_names
        if axis_sizes is None or axis_names is None:
            raise TypeError("TaskMesh: give axis_sizes= and axis_names=, or abstract=.")
        sizes, names = _check.axes("TaskMesh", axis_sizes, axis_names)
        ids = _device_ids(devices)
        if ids.size != int(np.prod(sizes)):
            raise ValueError(
                f"TaskMesh: {ids.size} devices {ids.ravel().tolist()} do not fill axes "
                f"{dict(zip(names, sizes, strict=True))}, which need {int(np.prod(sizes))}."
            )
        if len(set(ids.ravel().tolist())) != ids.size:
            raise ValueError(f"TaskMesh: a device is given twice in {ids.ravel().tolist()}.")
        self.devices = ids.reshape(sizes)
        self.mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """Sizes and names of the axes, without devices."""
        return self.mesh

    def place(self, devices: Iterable[int] | np.ndarray) -> TaskMesh:
        """These axes on other devices.

        Raises:
            TypeError: If the ids are no integers.
            ValueError: If there are more or fewer devices than this mesh has.
        """
        return TaskMesh(devices=devices, abstract=self.mesh)

    def on(self, devices: Sequence[Any]) -> Mesh:
        """The mesh over real devices.

        Raises:
            ValueError: If an id is out of range.
        """
        largest = int(self.devices.max())
        if largest >= len(devices) or int(self.devices.min()) < 0:
            raise ValueError(
                f"TaskMesh: device id {largest} is out of range, the mesh in use has {len(devices)} devices "
                f"(0..{len(devices) - 1})."
            )
        picked = np.empty(self.devices.shape, dtype=object)
        for position in np.ndindex(*self.devices.shape):
            picked[position] = devices[int(self.devices[position])]
        return auto_mesh(picked, self.mesh.axis_names)

    def _key(self) -> tuple[Any, ...]:
        return (tuple(self.devices.ravel().tolist()), self.mesh.axis_sizes, self.mesh.axis_names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return f"TaskMesh({axes}; devices {self.devices.ravel().tolist()})"


def _device_ids(devices: Any) -> np.ndarray:
    """Device ids as an array of the same shape.

    Raises:
        TypeError: If they are no integers.
        ValueError: If one is negative.
    """
    expected = "integers, the positions of devices in the mesh in use"
    if not isinstance(devices, np.ndarray):
        devices = np.asarray(_check.items("TaskMesh", "devices", devices, expected), dtype=object)
    flat = list(devices.flat)
    if any(hasattr(device, "device_kind") for device in flat):
        raise _check.wrong("TaskMesh", "devices", f"{expected} (for devices of JAX there is jax.sharding.Mesh)", flat)
    try:
        ids = [_check.integer("TaskMesh", "devices", device) for device in flat]
    except TypeError:
        raise _check.wrong("TaskMesh", "devices", expected, devices) from None
    if any(number < 0 for number in ids):
        raise ValueError(f"TaskMesh: device ids count from 0, got {ids}.")
    return np.asarray(ids, np.int64).reshape(devices.shape)
