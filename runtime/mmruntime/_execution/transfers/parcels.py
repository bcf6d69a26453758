"""Parcels: what processes send each other, so that arrays get from one submesh to another.

Every process makes the same plan from the layouts alone. A parcel is a part of an array that lies on one device and is
wanted on one of another process, so it does not matter how arrays are tiled at either end. Where each shard goes to a
device of its own, as between stages that are cut alike, the array may be one parcel: it need not be taken apart here
and put together there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._execution.transfers.pieces import Box, Pieces, pieces_of

# In the place of an array's index: a number of no meaning, made by a program that waits for the other parcels.
TICKET = -1
# Of the largest parcel that tells by itself that a message has come, what is on one device: the watch keeps it until it
# has looked at it.
LARGEST_WITNESS = 1 << 16


@dataclass(frozen=True)
class Parcel:
    """An array that is wanted in another process: on one device, or all of one of the arrays to be moved.

    Attributes:
        array: The index of the array that it is a part of; `TICKET` for none.
        source: The device that it is on; the first one, if it is a whole array.
        box: Its bounds in the shard there; None if it is the whole shard.
        target: The device that it goes to, from which it gets to others of the same process; the first one, if it is a
            whole array.
        shape: Its shape. A PRNG key is sent as its data, which has one dimension more.
        dtype: Its type, that of the data for a PRNG key.
        layout: If it is a whole array, its layout where it arrives: each of its devices gets the shard of the device in
            the same place of the source's layout.
    """

    array: int
    source: Any
    box: Box | None
    target: Any
    shape: tuple[int, ...]
    dtype: Any
    layout: NamedSharding | None = None


@dataclass(frozen=True)
class Message:
    """All that one process sends another for one transfer.

    Attributes:
        source: The process that sends.
        target: The process that receives.
        parcels: Its parcels.
        witness: The position of the one that is there when the others are, and stays as it is: the largest, or a ticket
            that leaves with it.
    """

    source: int
    target: int
    parcels: tuple[Parcel, ...]
    witness: int


@dataclass(frozen=True)
class CrossingPlan:
    """A transfer of arrays between submeshes on several processes.

    Attributes:
        layouts: How each array is cut and put together.
        messages: What processes send each other, in the same order everywhere.
    """

    layouts: tuple[Pieces, ...]
    messages: tuple[Message, ...]


def on_the_wire(shape: tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and type as which values are sent."""
    if not _compat.is_key(dtype):
        return shape, np.dtype(dtype)
    return (*shape, *_compat.key_shape(dtype)), np.dtype(np.uint32)


def plan_crossing(
    sources: Sequence[NamedSharding],
    targets: Sequence[NamedSharding],
    avals: Sequence[Any],
    kept: Sequence[bool] = (),
    undivided: Sequence[bool] = (),
) -> CrossingPlan:
    """How arrays get from one submesh to another.

    Args:
        sources: Where each array is.
        targets: Where it shall be.
        avals: Its shape and type.
        kept: Whether it stays as it is once it has arrived; none does if left out.
        undivided: Whether it may be one parcel, where its layouts allow that; none may if left out.
    """
    layouts = []
    parcels: dict[tuple[int, int], dict[tuple[int, Any, Box | None], Parcel]] = {}
    for index, (source, target, aval) in enumerate(zip(sources, targets, avals, strict=True)):
        shape = tuple(aval.shape)
        layout = pieces_of(source, target, shape)
        layouts.append(layout)
        if 0 in shape:
            continue
        if undivided and undivided[index] and _goes_whole(source, layout):
            holder, target_device = layout.cuts[0][0], layout.rows[0][0]
            ends = (holder.process_index, target_device.process_index)
            wire = on_the_wire(shape, aval.dtype)
            parcels.setdefault(ends, {})[index, holder, None] = Parcel(
                index, holder, None, target_device, *wire, layout.target
            )
            continue
        shard = source.shard_shape(shape)
        for device, cuts, _ in layout.rows:
            for number in cuts:
                holder, box = layout.cuts[number]
                if holder.process_index == device.process_index:
                    continue
                size = shard if box is None else tuple(high - low for low, high in box)
                ends = (holder.process_index, device.process_index)
                # Once for each process; the first of its devices that needs it receives it.
                parcels.setdefault(ends, {}).setdefault(
                    (index, holder, box), Parcel(index, holder, box, device, *on_the_wire(size, aval.dtype))
                )
    messages = [
        _with_witness(*ends, tuple(found.values()), avals, kept or [False] * len(layouts))
        for ends, found in sorted(parcels.items())
    ]
    return CrossingPlan(tuple(layouts), tuple(messages))


def _goes_whole(source: NamedSharding, layout: Pieces) -> bool:
    """Whether an array can be one parcel: each shard goes to the device in its place, from one process to another."""
    devices: list[Any] = list(source.devices_indices_map(layout.shape))
    return (
        len({device.process_index for device in devices}) == 1
        and len({device.process_index for device, *_ in layout.rows}) == 1
        and devices[0].process_index != layout.rows[0][0].process_index
        and [(device, None) for device in devices] == list(layout.cuts)
        and [cuts for _, cuts, _ in layout.rows] == [(place,) for place in range(len(devices))]
    )


def _with_witness(
    source: int, target: int, parcels: tuple[Parcel, ...], avals: Sequence[Any], kept: Sequence[bool]
) -> Message:
    largest = max(parcels, key=num_bytes)
    if (
        _bytes_on_a_device(largest) <= LARGEST_WITNESS
        and kept[largest.array]
        and not _compat.is_key(avals[largest.array].dtype)
    ):
        return Message(source, target, parcels, parcels.index(largest))
    return Message(source, target, (*parcels, ticket_with(largest)), len(parcels))


def _bytes_on_a_device(parcel: Parcel) -> int:
    layout = parcel.layout
    return num_bytes(parcel if layout is None else replace(parcel, shape=layout.shard_shape(parcel.shape)))


def ticket_with(parcel: Parcel) -> Parcel:
    """A ticket that leaves with a parcel."""
    return Parcel(TICKET, parcel.source, None, parcel.target, (), np.dtype(np.uint32))


@functools.cache
def _itemsize(dtype: Any) -> float:
    bits = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}.get(dtype.name)
    return float(dtype.itemsize) if bits is None else bits / 8


def num_bytes(parcel: Parcel) -> int:
    """How many bytes a parcel has."""
    return int(np.prod(parcel.shape, dtype=np.int64) * _itemsize(parcel.dtype))
