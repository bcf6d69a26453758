"""The global mesh that a program is written for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from mmruntime import _check, _compat
from mmruntime._core.logical_axes import Pairs, normalize_pairs
from mmruntime._core.mesh import TaskMesh, auto_mesh, current_mesh, using
from mmruntime._core.one_device import ADVICE, falls_back
from mmruntime._core.registry import Context, Registration, TaskCallback
from mmruntime._core.task import Task
from mmruntime._processes.lone_process import check_others

P = ParamSpec("P")
R = TypeVar("R")


class MultiMesh(Mesh):
    """All devices of a program, by axis, and the tasks that are registered on them.

    It is a `jax.sharding.Mesh` of Auto axes and stands wherever JAX wants one. `with mesh:` makes it the
    mesh in use for this package only; JAX's own context is `with jax.set_mesh(mesh):`.

    With `mm.init(one_device_fallback=True)` a mesh that needs more devices than there are has the first of them, and
    all axes have size 1: the program is the one-device program, in which tasks and microbatches do nothing.

    Args:
        axis_sizes: Size of each axis. With fewer devices in the product than there are, the first are taken. If left
            out, the shape of `devices`.
        axis_names: Name of each axis.
        devices: The devices, in the mesh's order, in a sequence or an array; `jax.devices()` if left out. An array of
            several dimensions has the shape `axis_sizes`.
        global_mesh: A `jax.sharding.Mesh` to wrap; the three above are then ignored.
        logical_axes: `(logical, device)` pairs for the tasks that have none of their own; a device axis of
            None means "replicated, on purpose".

    Raises:
        TypeError: If sizes and devices, or names are missing, or something is of another type.
        ValueError: If the axes need more devices than there are, an array of devices has another shape than these, or a
            pair names an unknown axis.
        RuntimeError: If `JAX_NUM_PROCESSES` names several processes, as under `mmrewrite run`, and `mm.init` was not
            called.

    Warns:
        UserWarning: If another launcher has started several processes, and `mm.init` was not called.
    """

    # Annotations only: `__new__` sets them past JAX's class, which refuses assignments.
    devices: np.ndarray
    axis_names: tuple[str, ...]
    mesh: Mesh
    logical_axes: Pairs | None
    context: Context
    _entered: list[Any]
    # The sizes of the axes that were asked for.
    _asked: Mapping[str, int]

    # JAX's own class is made in `__new__` too, which gives equal meshes one object; registrations are not shared.
    @_compat.api_boundary
    def __new__(
        cls,
        *,
        axis_sizes: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        devices: Sequence[Any] | np.ndarray | None = None,
        global_mesh: Mesh | None = None,
        logical_axes: Iterable[Sequence[str | Sequence[str] | None]] | Mapping[str, Any] | None = None,
    ) -> Self:
        """A new object each time."""
        check_others("MultiMesh", 3)
        asked: Mapping[str, int] | None = None
        if global_mesh is None:
            global_mesh, asked = _lay_out(axis_sizes, axis_names, devices)
        elif not isinstance(global_mesh, Mesh):
            raise _check.wrong("MultiMesh", "global_mesh", "a jax.sharding.Mesh", global_mesh)
        mesh = auto_mesh(global_mesh.devices, global_mesh.axis_names)
        self = object.__new__(cls)
        vars(self).update(
            vars(mesh),
            mesh=mesh,
            logical_axes=normalize_pairs(logical_axes, "MultiMesh"),
            context=Context(),
            _entered=[],
            _asked=mesh.shape if asked is None else asked,
        )
        for logical, device in self.logical_axes or ():
            if device is not None and device not in self.shape:
                raise ValueError(
                    f"MultiMesh: logical_axes maps {logical!r} to device axis {device!r}, but the mesh has "
                    f"{', '.join(map(repr, self.axis_names))}."
                )
        return self

    def __reduce__(self) -> Any:
        return _rebuild, (self.mesh, self.logical_axes, self.context, dict(self._asked))

    @property
    def global_mesh(self) -> Mesh:
        """All devices as a plain `jax.sharding.Mesh`."""
        return self.mesh

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """The tasks registered on this mesh, in order."""
        return tuple(self.context.registrations)

    def slice(self, **indices: int) -> Mesh:
        """The submesh at the given indices; every axis stays, the sliced ones with size 1.

        Raises:
            TypeError: If an index is no integer.
            ValueError: If an axis is unknown or an index is out of range.
        """
        picked: list[Any] = [slice(None)] * len(self.axis_names)
        for axis, value in indices.items():
            if axis not in self.shape:
                raise ValueError(
                    f"MultiMesh.slice: no axis {axis!r}; the axes are {', '.join(map(repr, self.axis_names))}."
                )
            index = _check.integer("MultiMesh.slice", axis, value)
            if not 0 <= index < self._asked[axis]:
                raise ValueError(f"MultiMesh.slice: {axis}={index} is out of range 0..{self._asked[axis] - 1}.")
            # On one device, in place of many, each slice is that.
            index = min(index, self.shape[axis] - 1)
            picked[self.axis_names.index(axis)] = slice(index, index + 1)
        return auto_mesh(self.devices[tuple(picked)], self.axis_names)

    def single_slice_devices(self, **indices: int) -> np.ndarray:
        """The devices of a slice, in an array with all axes, the sliced ones of size 1."""
        devices: np.ndarray = self.slice(**indices).devices
        return devices

    def single_slice_ids(self, **indices: int) -> list[int]:
        """The ids of a slice's devices, flat."""
        return [device.id for device in self.single_slice_devices(**indices).flat]

    @_compat.api_boundary
    def register_task(self, matcher: str, *, callback: TaskCallback | None = None, task: Task | None = None) -> None:
        """Make every scope whose name matches a task of this mesh; see `Context.register_task`."""
        self.context.register_task(matcher, callback=callback, task=task)

    def clear(self) -> None:
        """Forget the tasks registered on this mesh."""
        self.context.clear()

    def __enter__(self) -> Self:
        entered = using(self)
        entered.__enter__()
        self.context.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        self.context.__exit__(kind, error, traceback)
        self._entered.pop().__exit__(kind, error, traceback)
        return False

    def __call__(self, fun: Callable[P, R]) -> Callable[P, R]:  # type: ignore[override]
        """Decorate a function so that it runs inside `with mesh:`."""

        @functools.wraps(fun)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return fun(*args, **kwargs)

        return inside

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"MultiMesh({axes})"

    __str__ = __repr__


def _rebuild(mesh: Mesh, logical_axes: Pairs | None, context: Context, asked: Mapping[str, int]) -> MultiMesh:
    copied = MultiMesh(global_mesh=mesh, logical_axes=logical_axes)
    copied.context.registrations = list(context.registrations)
    vars(copied)["_asked"] = asked
    return copied


def _lay_out(sizes: Any, names: Any, devices: Any) -> tuple[Mesh, Mapping[str, int]]:
    """The mesh, and the sizes that were asked for."""
    shape = np.shape(devices) if isinstance(devices, np.ndarray) else None
    available = device_list("MultiMesh", jax.devices() if devices is None else devices)
    if sizes is None and devices is not None:
        sizes = shape or (len(available),)
    if sizes is None or names is None:
        raise TypeError(
            "MultiMesh: give axis_names= with axis_sizes= or with devices= in an array of the mesh's shape, or give "
            "global_mesh=."
        )
    sizes, names = _check.axes("MultiMesh", sizes, names)
    if shape is not None and len(shape) > 1 and shape != sizes:
        raise ValueError(
            f"MultiMesh: devices= is an array of shape {shape}, and axis_sizes= is {sizes}. Leave axis_sizes= out, or "
            "give devices= in that shape."
        )
    need, asked = int(np.prod(sizes)), dict(zip(names, sizes, strict=True))
    if need > len(available):
        axes = " x ".join(f"{name}={size}" for name, size in asked.items())
        if falls_back(f"MultiMesh: {axes}", need, len(available)):
            need, sizes = 1, (1,) * len(sizes)
        else:
            raise ValueError(
                f"MultiMesh: {axes} needs {need} devices, and has {len(available)}. Use smaller axes; for virtual "
                f"devices on a CPU {_virtual(need)}{f'; {ADVICE}' if jax.process_count() == 1 else ''}."
            )
    picked = np.empty(need, dtype=object)
    for position, device in enumerate(available[:need]):
        picked[position] = device
    return auto_mesh(picked.reshape(sizes), names), asked


def _virtual(need: int) -> str:
    """How to have virtual devices, so many in all."""
    count = jax.process_count()
    flag = "XLA_FLAGS=--xla_force_host_platform_device_count="
    if count == 1:
        return f"set {flag}{need} before JAX is imported"
    each = -(-need // count)
    return (
        f"give each of the {count} processes {each}, by {flag}{each} or `mmrewrite run --processes {count} "
        f"--devices-per-process {each}`"
    )


def device_list(what: str, devices: Any) -> list[Any]:
    """Devices, flat.

    Args:
        what: The calling function, for messages.
        devices: A sequence of devices, or an array of them of any shape.

    Raises:
        TypeError: If they are no devices.
    """
    expected = "a sequence of devices, such as jax.devices()"
    if not isinstance(devices, np.ndarray):
        devices = np.asarray(_check.items(what, "devices", devices, expected), dtype=object)
    flat = list(devices.flat)
    if not all(isinstance(device, jax.Device) for device in flat):
        raise _check.wrong(what, "devices", expected, flat)
    return flat


@_compat.api_boundary
def slice_global_mesh(**indices: int) -> TaskMesh:
    """The submesh of the `MultiMesh` in use at the given indices, with ids relative to it.

    Raises:
        TypeError: If an index is no integer.
        ValueError: If no mesh is in use, an axis is unknown or an index out of range.
    """
    mesh = current_mesh()
    if mesh is None:
        raise ValueError(
            f"slice_global_mesh({', '.join(f'{k}={v}' for k, v in indices.items())}): no MultiMesh is in use. "
            "Call it inside `with mesh:`, or in a step that is compiled by mm.mjit(..., mesh=mesh)."
        )
    indices = {axis: _check.integer("slice_global_mesh", axis, index) for axis, index in indices.items()}
    submesh = mesh.slice(**indices)
    position = {device: position for position, device in enumerate(mesh.devices.flat)}
    return TaskMesh(
        devices=[position[device] for device in submesh.devices.flat],
        axis_sizes=submesh.axis_sizes,
        axis_names=submesh.axis_names,
    )
