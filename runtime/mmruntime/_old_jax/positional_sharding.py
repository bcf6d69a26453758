"""`PositionalSharding` as a `NamedSharding`: a grid of device sets that is reshaped like an array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mmruntime._compat import ShardingByRank

# A run of `size` positions in the flat device list, `stride` apart: one axis of a mesh.
_Run = tuple[int, int]


class PositionalSharding(ShardingByRank):
    """Devices in a grid with one axis for each axis of the array, as in JAX until 0.7.

    It is a `jax.sharding.NamedSharding` and can be used wherever that can. `reshape`, `transpose` (`T`) and `replicate`
    return new ones:

        PositionalSharding(devices).reshape(4, 2)                    # 2-D arrays in 4 x 2 blocks
        PositionalSharding(devices).reshape(4, 2).replicate(0)       # 2 column blocks, each on 4 devices

    All of them keep the order of the device list, so `jax.jit` takes arrays of different ones together. (The exception:
    a transposed grid reshaped across its old boundaries, such as `(2, 3).T` to `(2, 3)`. No mesh in the old order lays
    that out.)

    Args:
        devices: Sequence of devices, or an array of them, whose shape becomes the shape of the grid.
        memory_kind: The kind of memory, such as `"device"` or `"pinned_host"`.

    Raises:
        ValueError: If there are no devices.
    """

    def __init__(self, devices: Sequence[Any] | np.ndarray, *, memory_kind: str | None = None) -> None:
        grid = np.asarray(devices, dtype=object)
        if not grid.size:
            raise ValueError(f"PositionalSharding needs at least one device, got {devices!r}. Try `jax.devices()`.")
        self._lay_out(tuple(grid.flat), _contiguous(grid.shape), memory_kind)

    def _lay_out(self, devices: tuple[Any, ...], grid: tuple[tuple[_Run, ...], ...], memory_kind: str | None) -> None:
        self._devices = devices
        self._grid = grid
        sizes, axes = _mesh_axes(len(devices), [run for runs in grid for run in runs])
        mesh = Mesh(
            np.asarray(devices, dtype=object).reshape(sizes),
            tuple(f"axis_{index}" for index in range(len(sizes))),
            axis_types=(AxisType.Auto,) * len(sizes),
        )
        entries = [tuple(f"axis_{axes[run]}" for run in runs) or None for runs in grid]
        spec = PartitionSpec(*entries) if any(entries) else PartitionSpec()
        super().__init__(mesh, spec, memory_kind=memory_kind)

    def _remake(self, grid: Iterable[tuple[_Run, ...]], devices: tuple[Any, ...] | None = None) -> PositionalSharding:
        return _restore(type(self), devices or self._devices, tuple(grid), self.memory_kind)

    def __reduce__(self) -> Any:
        return _restore, (type(self), self._devices, self._grid, self.memory_kind)

    def with_memory_kind(self, kind: str) -> PositionalSharding:
        """This grid in another kind of memory."""
        return _restore(type(self), self._devices, self._grid, kind)

    def like(self, found: NamedSharding, rank: int | None) -> PositionalSharding:
        """The grid that lays arrays of `rank` dimensions out as a `NamedSharding`; `None` if that replicates them."""
        devices = np.asarray(found.mesh.devices)
        sizes = devices.shape
        strides = {name: math.prod(sizes[index + 1 :]) for index, name in enumerate(found.mesh.axis_names)}
        grid: list[tuple[_Run, ...]] = []
        for index in range(1 if rank is None else rank):
            entry = found.spec[index] if rank is not None and index < len(found.spec) else None
            names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            grid.append(_joined((found.mesh.shape[name], strides[name]) for name in names))
        return _restore(type(self), tuple(devices.flat), tuple(grid), found.memory_kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of blocks that each axis of an array is cut into."""
        return tuple(math.prod(size for size, _ in runs) for runs in self._grid)

    @property
    def ndim(self) -> int:
        """The rank of arrays that it applies to.

        It also applies to arrays of lower rank if the leading axes of the grid have size 1 (not in `jax.vmap`: reshape
        it to their rank there), and to any rank if it cuts nothing.
        """
        return len(self._grid)

    def for_rank(self, rank: int) -> PositionalSharding | None:
        """The sharding of arrays of lower rank: the last `rank` axes of the grid. None where that is this one."""
        return None if rank >= self.ndim or self._fits_any_rank else self._remake(self._grid[self.ndim - rank :])

    @property
    def _fits_any_rank(self) -> bool:
        return not any(self._grid)

    def check_compatible_aval(self, aval_shape: tuple[int, ...]) -> None:
        """Raise `ValueError` for arrays of another rank. `jax.device_put` and `jax.jit` call this."""
        missing = self.ndim - len(aval_shape)
        if not self._fits_any_rank and (missing < 0 or any(self._grid[:missing])):
            raise ValueError(
                f"A PositionalSharding of shape {self.shape} is for arrays of rank {self.ndim}, or of lower rank where "
                f"the axes in front have size 1, and this one has shape {aval_shape}. Give it one axis for each of the "
                "array's with `reshape`."
            )
        trailing = self.for_rank(len(aval_shape))
        super().check_compatible_aval(aval_shape) if trailing is None else trailing.check_compatible_aval(aval_shape)

    def reshape(self, *shape: Any) -> PositionalSharding:
        """These devices, in row-major order, in a grid of another shape; one entry may be -1, as in NumPy.

        Raises:
            ValueError: If the shapes differ in size.
        """
        sizes = np.empty(self.shape).reshape(*shape).shape
        grid = _regroup([run for runs in self._grid for run in runs], sizes)
        if grid is not None:
            return self._remake(grid)
        # The replicas of a block go last, so that the blocks are contiguous.
        runs = [run for dims in self._grid for run in dims]
        found, axes = _mesh_axes(len(self._devices), runs)
        chosen = [axes[run] for run in runs]
        rest = [axis for axis in range(len(found)) if axis not in chosen]
        order = np.arange(len(self._devices)).reshape(found).transpose(chosen + rest).ravel()
        replicas = math.prod(found[axis] for axis in rest)
        return self._remake(
            [tuple((size, stride * replicas) for size, stride in runs) for runs in _contiguous(sizes)],
            tuple(self._devices[index] for index in order),
        )

    def transpose(self, *axes: Any) -> PositionalSharding:
        """The grid with its axes in another order, reversed by default, as in NumPy.

        Raises:
            ValueError: If `axes` is no permutation of the grid's axes.
        """
        order = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], Sequence)) else axes
        if not order:
            return self._remake(reversed(self._grid))
        permuted = [int(axis) % max(self.ndim, 1) for axis in order]
        if sorted(permuted) != list(range(self.ndim)):
            raise ValueError(f"transpose({', '.join(map(str, axes))}): expected each of the {self.ndim} axes once.")
        return self._remake(self._grid[axis] for axis in permuted)

    T = property(transpose)

    def replicate(self, axis: int | Sequence[int] | None = None, keepdims: bool = True) -> PositionalSharding:
        """The grid with the devices along `axis` (all axes if None) united into one set, which holds replicas.

        The axis keeps size 1, or is dropped if `keepdims` is false.

        Raises:
            ValueError: If there is no such axis.
        """
        axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        for item in axes:
            if not -self.ndim <= item < self.ndim:
                raise ValueError(f"replicate(axis={axis}): the grid of shape {self.shape} has no axis {item}.")
        united = {item % self.ndim for item in axes}
        return self._remake(
            () if index in united else runs for index, runs in enumerate(self._grid) if keepdims or index not in united
        )


def _joined(runs: Iterable[_Run]) -> tuple[_Run, ...]:
    """The runs longer than one position, with those that continue each other joined."""
    joined: list[_Run] = []
    for size, stride in runs:
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            size *= joined.pop()[0]
        joined.append((size, stride))
    return tuple(joined)


def _restore(
    cls: type[PositionalSharding],
    devices: tuple[Any, ...],
    grid: tuple[tuple[_Run, ...], ...],
    memory_kind: str | None,
) -> PositionalSharding:
    made = cls.__new__(cls)
    made._lay_out(devices, grid, memory_kind)
    return made


def _contiguous(shape: Sequence[int]) -> tuple[tuple[_Run, ...], ...]:
    """The runs of a row-major grid, one for each axis that is not of size 1."""
    grid: list[tuple[_Run, ...]] = []
    stride = math.prod(shape)
    for size in shape:
        stride //= size
        grid.append(((size, stride),) if size > 1 else ())
    return tuple(grid)


def _regroup(runs: Sequence[_Run], shape: Sequence[int]) -> list[tuple[_Run, ...]] | None:
    """The runs distributed over axes of the given sizes; None where a boundary would fall inside a run."""
    waiting = list(_joined(runs))
    grid: list[tuple[_Run, ...]] = []
    for total in shape:
        taken: list[_Run] = []
        missing = total
        while missing > 1:
            size, stride = waiting.pop(0)
            if missing % size == 0:
                taken.append((size, stride))
                missing //= size
            elif size % missing == 0:
                inner = size // missing
                taken.append((missing, stride * inner))
                waiting.insert(0, (inner, stride))
                missing = 1
            else:
                return None
        grid.append(tuple(taken))
    return grid


def _mesh_axes(count: int, runs: Sequence[_Run]) -> tuple[tuple[int, ...], dict[_Run, int]]:
    """Axis sizes of a row-major mesh of `count` devices in which every run is an axis, and the axis of each run."""
    sizes: list[int] = []
    axes: dict[_Run, int] = {}
    left = count
    for size, stride in sorted(runs, key=lambda run: -run[1]):
        if left > size * stride:
            sizes.append(left // (size * stride))
        axes[size, stride] = len(sizes)
        sizes.append(size)
        left = stride
    if left > 1 or not sizes:
        sizes.append(left)
    return tuple(sizes), axes
