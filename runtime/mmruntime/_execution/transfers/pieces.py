"""Pieces: how arrays of one layout are cut up and put together as arrays of another, which no program computes."""

from __future__ import annotations

import bisect
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

# Bounds in each dimension: the first index, and the one after the last.
Box = tuple[tuple[int, int], ...]


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
    """How an array of this shape gets from one layout to another.

    The time is linear in the number of devices and of pieces.
    """
    holders: dict[tuple[int, ...], _Holders] = {}
    intervals: list[dict[int, int]] = [{} for _ in shape]
    for device, index in source.devices_indices_map(shape).items():
        box = _bounds(index, shape)
        start = tuple([low for low, _ in box])
        if start not in holders:
            holders[start] = _Holders(box)
            for ends, (low, high) in zip(intervals, box, strict=True):
                ends[low] = high
        holders[start].add(device)
    # A layout cuts each dimension by itself, so that the shards are the cells of a grid.
    axes = [_Axis(ends) for ends in intervals]
    cuts: dict[tuple[Any, Box | None], int] = {}
    rows = []
    for turn, (device, index) in enumerate(target.devices_indices_map(shape).items()):
        touched = [axis.touched(*bounds) for axis, bounds in zip(axes, _bounds(index, shape), strict=True)]
        numbers = []
        for cell in itertools.product(*touched):
            held = holders[tuple([start for start, _ in cell])]
            inner = tuple([(low - start, high - start) for start, (low, high) in cell])
            cut = held.sender(device, turn), None if inner == held.whole else inner
            numbers.append(cuts.setdefault(cut, len(cuts)))
        rows.append((device, tuple(numbers), tuple([len(found) if numbers else 0 for found in touched])))
    return Pieces(target, shape, tuple(cuts), tuple(rows))


class _Axis:
    """How a layout cuts one dimension.

    Args:
        ends: By the start of each interval, its end.
    """

    def __init__(self, ends: dict[int, int]) -> None:
        self._intervals = sorted(ends.items())
        self._starts = [start for start, _ in self._intervals]

    def touched(self, low: int, high: int) -> list[tuple[int, tuple[int, int]]]:
        """The intervals that have something in common with another one: the start of each, and the common bounds."""
        found = []
        for at in range(max(0, bisect.bisect_right(self._starts, low) - 1), len(self._starts)):
            start, end = self._intervals[at]
            if start >= high:
                break
            common = max(low, start), min(high, end)
            if common[0] < common[1]:
                found.append((start, common))
        return found


class _Holders:
    """The devices that hold one shard."""

    def __init__(self, box: Box) -> None:
        self.whole = tuple([(0, high - low) for low, high in box])
        self._every: list[Any] = []
        self._by_process: dict[int, list[Any]] = {}

    def add(self, device: Any) -> None:
        """Note one of them."""
        self._every.append(device)
        self._by_process.setdefault(device.process_index, []).append(device)

    def sender(self, target: Any, turn: int) -> Any:
        """The one that sends a piece to a target.

        One of the target's process if there is one; those take turns, so that no device sends all copies. A piece from
        another process has one sender for all targets of a process, which need it only once.
        """
        near = self._by_process.get(target.process_index)
        return near[turn % len(near)] if near else self._every[target.process_index % len(self._every)]


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
