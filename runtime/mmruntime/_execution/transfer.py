"""Moving arrays between submeshes without waiting for them to be computed.

`jax.device_put` is asynchronous only where source and target cut the array alike; otherwise it blocks until
the producer is done. Those arrays are moved by pieces: sliced where they are, copied device to device, and
put together where they go.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

from mmruntime import _compat

Box = tuple[tuple[int, int], ...]


def same_tiling(source: Any, target: Any, shape: tuple[int, ...]) -> bool:
    """Whether two shardings cut an array of this shape alike, device by device in order."""
    return list(source.devices_indices_map(shape).values()) == list(target.devices_indices_map(shape).values())


class Mover:
    """A transfer of several arrays from one submesh to another, planned once and run every step.

    Args:
        sources: Sharding of each array.
        targets: Sharding that each shall have.
        shapes: Shape of each array.
    """

    def __init__(
        self,
        sources: Sequence[NamedSharding],
        targets: Sequence[NamedSharding],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        plain = [same_tiling(s, t, shape) for s, t, shape in zip(sources, targets, shapes, strict=True)]
        self._plain = [i for i, is_plain in enumerate(plain) if is_plain]
        self._pieces = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._targets = list(targets)
        self._plain_targets = [targets[i] for i in self._plain]
        self._plans = [_plan(sources[i], targets[i], tuple(shapes[i])) for i in self._pieces]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Issue the transfer; returns at once."""
        if not self._pieces:
            return jax.device_put(list(arrays), self._targets)  # type: ignore[no-any-return]
        moved: list[Any] = [None] * len(arrays)
        if self._plain:
            plain = jax.device_put([arrays[i] for i in self._plain], self._plain_targets)
            for i, array in zip(self._plain, plain, strict=True):
                moved[i] = array
        # The small programs that cut and join pieces must not see a mesh that the caller is in.
        with _compat.no_mesh():
            by_pieces = _put_pieces([arrays[i] for i in self._pieces], self._plans)
        for i, array in zip(self._pieces, by_pieces, strict=True):
            moved[i] = array
        return moved


@dataclass(frozen=True)
class _Plan:
    """How one array is put together.

    Attributes:
        target: The sharding that it shall have.
        shape: Its shape.
        cuts: The distinct pieces: source device, and bounds within its shard (None: all of it).
        rows: Per target device: the device, the cuts that it needs, and how many of them along each dimension.
    """

    target: NamedSharding
    shape: tuple[int, ...]
    cuts: tuple[tuple[Any, Box | None], ...]
    rows: tuple[tuple[Any, tuple[int, ...], tuple[int, ...]], ...]


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple((s.start or 0, size if s.stop is None else s.stop) for s, size in zip(index, shape, strict=True))


@functools.cache
def _plan(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]) -> _Plan:
    owners: dict[Box, list[Any]] = {}
    for device, index in source.devices_indices_map(shape).items():
        owners.setdefault(_bounds(index, shape), []).append(device)
    cuts: dict[tuple[Any, Box | None], int] = {}
    rows = []
    for turn, (device, index) in enumerate(target.devices_indices_map(shape).items()):
        wanted = _bounds(index, shape)
        parts: list[tuple[tuple[int, ...], int]] = []
        for box, devices in owners.items():
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, box, strict=True))
            if any(low >= high for low, high in common):
                continue
            inner = tuple((low - start, high - start) for (low, high), (start, _) in zip(common, box, strict=True))
            whole = all(part == (0, stop - start) for part, (start, stop) in zip(inner, box, strict=True))
            # Replicas of a shard take turns as senders.
            cut = (devices[turn % len(devices)], None if whole else inner)
            parts.append((tuple(low for low, _ in common), cuts.setdefault(cut, len(cuts))))
        parts.sort()
        grid = tuple(len({start[axis] for start, _ in parts}) for axis in range(len(shape)))
        rows.append((device, tuple(cut for _, cut in parts), grid))
    return _Plan(target, shape, tuple(cuts), tuple(rows))


@functools.cache
def _slicer(box: Box) -> Any:
    return jax.jit(lambda shard: jax.lax.slice(shard, [low for low, _ in box], [high for _, high in box]))


@functools.cache
def _joiner(grid: tuple[int, ...]) -> Any:
    def join(*parts: Any) -> Any:
        rest = list(parts)
        for axis in reversed(range(len(grid))):
            if grid[axis] > 1:
                size = grid[axis]
                rest = [jax.lax.concatenate(rest[i : i + size], axis) for i in range(0, len(rest), size)]
        return rest[0]

    return jax.jit(join)


def _put_pieces(arrays: Sequence[Any], plans: Sequence[_Plan]) -> list[Any]:
    pieces: list[Any] = []
    targets: list[Any] = []
    for array, plan in zip(arrays, plans, strict=True):
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        cuts = [shards[device] if box is None else _slicer(box)(shards[device]) for device, box in plan.cuts]
        for device, wanted, _ in plan.rows:
            pieces.extend(cuts[cut] for cut in wanted)
            targets.extend([SingleDeviceSharding(device)] * len(wanted))
    # One batched call for everything is two to three times cheaper than a call per piece.
    moved = iter(jax.device_put(pieces, targets))
    result = []
    for plan in plans:
        assembled = []
        for _, wanted, grid in plan.rows:
            parts = [next(moved) for _ in wanted]
            assembled.append(parts[0] if len(parts) == 1 else _joiner(grid)(*parts))
        result.append(jax.make_array_from_single_device_arrays(plan.shape, plan.target, assembled))
    return result
