"""Logical axis names and how a task turns them into mesh axes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from mmruntime import _check

# One dimension's logical names: none, or several in the order they were written.
Names = tuple[str, ...]
Pairs = tuple[tuple[str, str | None], ...]


def normalize_pairs(
    pairs: Iterable[Sequence[str | Sequence[str] | None]] | Mapping[str, Any] | None,
    what: str,
    name: str = "logical_axes",
) -> Pairs | None:
    """Logical axes as a tuple of `(logical, device)` pairs.

    Args:
        pairs: Pairs, or a mapping; a device axis may be None (replicated, on purpose) or a sequence of axes.
        what: The object that has them, for messages.
        name: The parameter's name, for messages.

    Raises:
        TypeError: If an entry is not a pair of names.
    """
    if pairs is None:
        return None
    expected = "(logical, device) pairs of names such as ('batch', 'data')"
    result: list[tuple[str, str | None]] = []
    for pair in pairs.items() if isinstance(pairs, Mapping) else _check.items(what, name, pairs, expected):
        both = _check.items(what, name, pair, expected) if not isinstance(pair, str) else []
        if len(both) != 2 or not isinstance(both[0], str) or not both[0]:
            raise _check.wrong(what, name, expected, pair)
        logical, device = both
        axes = [device] if device is None or isinstance(device, str) else _check.items(what, name, device, expected)
        if not all(axis is None or (isinstance(axis, str) and axis) for axis in axes):
            raise _check.wrong(what, name, expected, pair)
        result.extend((logical, axis) for axis in axes)
    return tuple(result)


def entry_names(entry: Any) -> Names:
    """The names in one entry of a spec."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def spec_axes(spec: Iterable[Any]) -> frozenset[str]:
    """All names in a spec."""
    return frozenset(name for entry in spec for name in entry_names(entry))


def spec_names(spec: Any, rank: int, what: str = "with_sharding_constraint") -> tuple[Names, ...]:
    """The logical names of each dimension of a value of the given rank.

    Raises:
        TypeError: If an entry is neither a name nor several names nor None.
        ValueError: If the spec has more entries than the value has dimensions.
    """
    entries = tuple(spec)
    if len(entries) > rank:
        raise ValueError(
            f"{what}: {PartitionSpec(*entries)} names {len(entries)} dimensions, but the value has {rank}. Drop the "
            "surplus names."
        )
    names: list[Names] = []
    for entry in entries:
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            names.append(())
        elif isinstance(entry, str):
            names.append((entry,))
        else:
            carried = tuple(_check.items(what, "an entry of a spec", entry, "a name, several names or None"))
            for name in carried:
                _check.text(what, "a name in a spec", name)
            names.append(carried)
    return (*names, *([()] * (rank - len(entries))))


def mesh_axes(names: Iterable[Any], axes: Container[str]) -> PartitionSpec:
    """The spec of names that are mesh axes themselves; those that are none are logical ones, and cut nothing.

    Args:
        names: A spec, or the names of each dimension.
        axes: The axes of the mesh.
    """

    def over(entry: Any) -> Any:
        if isinstance(entry, str):
            return entry if entry in axes else None
        return tuple([name for name in entry if name in axes]) or None if isinstance(entry, Sequence) else entry

    return PartitionSpec(*map(over, names))


def translate(
    names: Sequence[Names],
    shape: Sequence[int],
    pairs: Pairs,
    mesh_shape: Mapping[str, int],
    task: str,
) -> PartitionSpec:
    """Turn logical names into a spec over mesh axes, by priority.

    MultiMesh's rule: the pairs are walked in order. A pair `(logical, device)` gives `device` to the leftmost
    dimension that carries `logical`, if `device` is still free and the dimension has at least one element for
    each shard that it would then have; otherwise the pair has no effect.

    Args:
        names: Logical names of each dimension.
        shape: Size of each dimension.
        pairs: `(logical, device)` pairs, first pair wins.
        mesh_shape: Size of each mesh axis.
        task: Name of the task, for messages.

    Returns:
        The spec; axes within one dimension are in mesh order.

    Raises:
        ValueError: If a pair names an axis that the mesh does not have, or a dimension is not divisible
            by its number of shards.
    """
    chosen: list[list[str]] = [[] for _ in names]
    used: set[str] = set()
    for logical, device in pairs:
        if device is None:
            continue
        for dim, carried in enumerate(names):
            if logical not in carried:
                continue
            if device not in mesh_shape:
                raise ValueError(
                    f"Task {task!r} maps logical axis {logical!r} to device axis {device!r}, but its mesh has "
                    f"{', '.join(map(repr, mesh_shape)) or 'no axes'}. Correct the pair in logical_axes."
                )
            shards = mesh_shape[device]
            for axis in chosen[dim]:
                shards *= mesh_shape[axis]
            if device not in used and shards <= shape[dim]:
                chosen[dim].append(device)
                used.add(device)
                break
    order = list(mesh_shape)
    entries: list[Any] = []
    for dim, axes in enumerate(chosen):
        axes.sort(key=order.index)
        shards = 1
        for axis in axes:
            shards *= mesh_shape[axis]
        if shape[dim] % shards:
            raise ValueError(
                f"Task {task!r}: dimension {dim} of a value of shape {tuple(shape)} carries {names[dim]} and would be "
                f"cut into {shards} shards (mesh axes {', '.join(axes)}), but {shape[dim]} is not divisible by "
                f"{shards}. Pad the dimension, or map the name to another axis."
            )
        entries.append(None if not axes else axes[0] if len(axes) == 1 else tuple(axes))
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
