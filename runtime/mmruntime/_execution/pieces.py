"""Pieces: how arrays of one layout are cut up and put together as arrays of another, which no program computes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

# Bounds in each dimension: the first index, and the one after the last.
Box = tuple[tuple[int, int], ...]


def same_tiling(source: Any, target: Any, shape: tuple[int, ...]) -> bool:
    """Whether two shardings cut an array of this shape alike, device by device in order."""
    return list(source.devices_indices_map(shape).values()) == list(target.devices_indices_map(shape).values())


@dataclass(frozen=True)
class Pieces:
    """How one array is cut at its source and put together at its target.

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


# Cached, as microbatches and values of equal layout have equal pieces.
@functools.cache
def pieces_of(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]) -> Pieces:
    """How an array of this shape gets from one layout to another."""
    owners: dict[Box, list[Any]] = {}
    for device, index in source.devices_indices_map(shape).items():
        owners.setdefault(_bounds(index, shape), []).append(device)
    cuts: dict[tuple[Any, Box | None], int] = {}
    rows = []
    for turn, (device, index) in enumerate(target.devices_indices_map(shape).items()):
        target_box = _bounds(index, shape)
        parts: list[tuple[tuple[int, ...], int]] = []
        for box, devices in owners.items():
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(target_box, box, strict=True))
            if any(low >= high for low, high in common):
                continue
            inner = tuple((low - start, high - start) for (low, high), (start, _) in zip(common, box, strict=True))
            whole = all(part == (0, stop - start) for part, (start, stop) in zip(inner, box, strict=True))
            cut = (_sender(devices, device, turn), None if whole else inner)
            parts.append((tuple(low for low, _ in common), cuts.setdefault(cut, len(cuts))))
        parts.sort()
        grid = tuple(len({start[axis] for start, _ in parts}) for axis in range(len(shape)))
        rows.append((device, tuple(cut for _, cut in parts), grid))
    return Pieces(target, shape, tuple(cuts), tuple(rows))


def _sender(holders: list[Any], target: Any, turn: int) -> Any:
    """The device that sends a piece to a target, of those that hold it.

    One of the target's process if there is one; those take turns, so that no device sends all copies. A piece from
    another process has one sender for all targets of a process, which need it only once.
    """
    near = [each for each in holders if each.process_index == target.process_index]
    return near[turn % len(near)] if near else holders[target.process_index % len(holders)]


@functools.cache
def slicer(box: Box) -> Any:
    """A compiled function that cuts a box out of an array."""
    return jax.jit(lambda shard: jax.lax.slice(shard, [low for low, _ in box], [high for _, high in box]))


@functools.cache
def joiner(grid: tuple[int, ...]) -> Any:
    """A compiled function that joins pieces, in the order of a grid with so many of them along each dimension."""

    def join(*parts: Any) -> Any:
        rest = list(parts)
        for axis in reversed(range(len(grid))):
            if grid[axis] > 1:
                size = grid[axis]
                rest = [jax.lax.concatenate(rest[i : i + size], axis) for i in range(0, len(rest), size)]
        return rest[0]

    return jax.jit(join)
