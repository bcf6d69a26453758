"""Crossing: one transfer between submeshes, at least one with devices of another process.

A buffer that is donated while it is on offer would reach the receiver as an error, or with the values that overwrote
it. So what may be, and what is a part of a buffer, is copied first, by one small program for each device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from mmruntime import _compat
from mmruntime._execution.transfers.channel import Channel
from mmruntime._execution.transfers.parcels import (
    TICKET,
    Message,
    Parcel,
    num_bytes,
    on_the_wire,
    plan_crossing,
)
from mmruntime._execution.transfers.pieces import Box, Pieces, joiner, pieces_of, slicer

# A part of an array of this process: the index of the array, the position of the shard among this process's own, and
# the bounds in the shard.
_Part = tuple[int, int, Box | None]


class Crossing:
    """A planned transfer of several arrays.

    Args:
        sources: Where each array is.
        targets: Where it shall be.
        avals: Its shape and type.
        channel: What carries the messages.
        me: The index of this process.
        intact: Whether each array stays as it is until it has arrived; see `TransferSpec`.
        kept: Whether it stays as it is then.

    Attributes:
        senders: The processes that send something to this one.
        targets: The processes that this one sends something to.
        peers: Both.
        num_bytes: How many bytes come to this one.
        tickets: From the latest call, an array for each sender that is there when all that it sent is.
        offered: From the latest call, an array for each receiver that is there when all that is sent to it is, or has
            failed.
    """

    def __init__(
        self,
        sources: Sequence[NamedSharding],
        targets: Sequence[NamedSharding],
        avals: Sequence[Any],
        channel: Channel,
        me: int,
        *,
        intact: Sequence[bool] = (),
        kept: Sequence[bool] = (),
    ) -> None:
        direct = [stays and not _compat.is_key(aval.dtype) for stays, aval in zip(intact, avals, strict=bool(intact))]
        plan = plan_crossing(sources, targets, avals, kept, direct if channel.takes_arrays else ())
        sent = [message for message in plan.messages if message.source == me]
        received = [message for message in plan.messages if message.target == me]
        self.senders = tuple(message.source for message in received)
        self.targets = tuple(message.target for message in sent)
        self.peers = tuple(sorted({*self.senders, *self.targets}))
        self.num_bytes = sum(num_bytes(parcel) for message in received for parcel in message.parcels)
        self.tickets: list[Any] = []
        self.offered: list[Any] = []
        shard_of = [_positions(source, me) for source in sources]
        self._cuts = _plan_cuts(sent, shard_of, direct)
        # What is sent as it is: the place among what is sent, the array, and the position of its shard; None for all.
        self._whole = [
            (place, parcel.array, shard_of[parcel.array][parcel.source] if parcel.layout is None else None)
            for place, parcel in enumerate(parcel for message in sent for parcel in message.parcels)
            if _is_whole(parcel, direct)
        ]
        self._num_sent = sum(len(message.parcels) for message in sent)
        self._carry = channel.bind(plan.messages) if sent or received else None
        parcels = [parcel for message in received for parcel in message.parcels]
        self._rebuild = _Rebuild(plan.layouts, parcels, shard_of, avals, me)
        # Whether no program of `jax.jit` runs.
        self._plain = not (self._cuts or self._rebuild.runs_programs or channel.rendezvous)
        self._witnesses, self._offers = witnesses(received), witnesses(sent)

    def __call__(self, arrays: Sequence[Any], number: int) -> list[Any]:
        """Issue this process's part of the transfer.

        Args:
            arrays: The arrays; what no device of this process holds may be None.
            number: The number of the messages; see `Carry`.

        Returns:
            The arrays on their targets; None for those of which this process holds nothing.
        """
        if self._plain:
            return self._issue(arrays, number)
        # `jax.jit` refuses arrays on devices outside of the caller's ambient mesh, and these programs run anywhere.
        with _compat.no_mesh():
            return self._issue(arrays, number)

    def ask(self, number: int) -> None:
        """Ask for what the call with this number will receive; see `Carry`."""
        if self._carry is not None:
            self._carry.ask(number)

    def _issue(self, arrays: Sequence[Any], number: int) -> list[Any]:
        sent = [
            arrays[index] if position is None else _compat.own_shards(arrays[index])[position]
            for _, index, position in self._whole
        ]
        if self._cuts:
            sent = self._with_copies(arrays, sent)
        received = [] if self._carry is None else self._carry(number, sent)
        self.tickets = [received[index] for index in self._witnesses]
        self.offered = [sent[index] for index in self._offers]
        return self._rebuild(arrays, received)

    def _with_copies(self, arrays: Sequence[Any], whole: Sequence[Any]) -> list[Any]:
        """All that is sent: what is sent as it is, and copies, each in its place."""
        sent: list[Any] = [None] * self._num_sent
        for (place, _, _), value in zip(self._whole, whole, strict=True):
            sent[place] = value
        for program, operands, places in self._cuts:
            shards = [_compat.own_shards(arrays[index])[position] for index, position in operands]
            for place, copy in zip(places, program(*shards), strict=True):
                sent[place] = copy
        return sent


def witnesses(messages: Sequence[Message]) -> list[int]:
    """The positions of the messages' witnesses among their parcels."""
    ends = accumulate(len(message.parcels) for message in messages)
    return [end - len(message.parcels) + message.witness for message, end in zip(messages, ends, strict=True)]


def _positions(source: NamedSharding, me: int) -> dict[Any, int]:
    """The position of each device of this process among its own, in the order of a layout's devices."""
    devices: Any = source.mesh.devices
    own = [device for device in devices.flat if device.process_index == me]
    return {device: position for position, device in enumerate(own)}


def _is_whole(parcel: Parcel, direct: Sequence[bool]) -> bool:
    """Whether a parcel is sent as it is: a whole shard, or all, of an array that may be."""
    return parcel.array != TICKET and parcel.box is None and bool(direct) and direct[parcel.array]


def _plan_cuts(
    sent: Sequence[Message], shard_of: Sequence[dict[Any, int]], direct: Sequence[bool]
) -> list[tuple[Callable[..., Sequence[Any]], list[tuple[int, int]], list[int]]]:
    """For each device that sends: the program, the shards that it reads, and where its results stand in what is sent.

    One program for each device, however much it sends: XLA's CPU client takes only so many.
    """
    by_device: dict[Any, list[tuple[int, Parcel]]] = {}
    # Tickets wait for these.
    awaited: dict[Any, list[tuple[int, int]]] = {}
    places = count()
    for message in sent:
        for parcel in message.parcels:
            place = next(places)
            if not _is_whole(parcel, direct):
                by_device.setdefault(parcel.source, []).append((place, parcel))
            elif message.parcels[message.witness].array == TICKET:
                shard = parcel.array, shard_of[parcel.array][parcel.source]
                awaited.setdefault(parcel.source, []).append(shard)
    cuts = []
    for device, found in by_device.items():
        operands: dict[tuple[int, int], int] = {}
        parts: list[tuple[int, Box | None] | None] = []
        for _, parcel in found:
            if parcel.array == TICKET:
                parts.append(None)
            else:
                shard = parcel.array, shard_of[parcel.array][device]
                parts.append((operands.setdefault(shard, len(operands)), parcel.box))
        if None in parts:
            for shard in awaited.get(device, ()):
                operands.setdefault(shard, len(operands))
        cuts.append((cutter(tuple(parts)), list(operands), [place for place, _ in found]))
    return cuts


@functools.cache
def cutter(parts: tuple[tuple[int, Box | None] | None, ...]) -> Callable[..., Sequence[Any]]:
    """A program that copies parts of its arguments: for each the argument and its bounds, or None for a ticket.

    It runs when all of its arguments are computed, those too that it has no part of.
    """

    def cut(*shards: Any) -> list[Any]:
        results = []
        for part in parts:
            if part is None:
                results.append(jnp.zeros((), jnp.uint32))
                continue
            value = shards[part[0]]
            if part[1] is not None:
                value = jax.lax.slice(value, [low for low, _ in part[1]], [high for _, high in part[1]])
            results.append(jnp.copy(jax.random.key_data(value) if _compat.is_key(value.dtype) else value))
        return results

    return jax.jit(cut, keep_unused=True)


@functools.cache
def as_keys(dtype: Any) -> Callable[[Any], Any]:
    """A program that makes PRNG keys of a type from their data."""
    name = _compat.key_name(dtype)
    return jax.jit(lambda data: jax.random.wrap_key_data(data, impl=name))


@dataclass(eq=False, slots=True, frozen=True)
class _Shard:
    """A shard of a target: its parts by their places in the pool, and how many of them along each dimension.

    One without elements has no parts, and is made where it is: its device, and shape and type as sent.
    """

    parts: tuple[int, ...]
    grid: tuple[int, ...]
    empty: tuple[Any, tuple[int, ...], Any] | None


class _Assembly(NamedTuple):
    """How an array is put together: its type, what makes it of its shards, and these."""

    dtype: Any
    assemble: Callable[[Sequence[Any]], Any]
    shards: list[_Shard]


class _Rebuild:
    """Puts arrays together from what was received and from what this process has.

    The pool holds the parcels received, then parts of this process's own arrays, then copies of both on the devices
    that need them.

    Attributes:
        runs_programs: Whether it runs programs of `jax.jit`.
    """

    def __init__(
        self,
        layouts: Sequence[Pieces],
        parcels: Sequence[Parcel],
        shard_of: Sequence[dict[Any, int]],
        avals: Sequence[Any],
        me: int,
    ) -> None:
        self._keys = [
            (index, as_keys(avals[parcel.array].dtype))
            for index, parcel in enumerate(parcels)
            if parcel.array != TICKET and _compat.is_key(avals[parcel.array].dtype)
        ]
        # Where the pool has each piece, and on which device.
        had: dict[tuple[int, Any, Box | None], tuple[int, Any]] = {
            (parcel.array, parcel.source, parcel.box): (index, parcel.target)
            for index, parcel in enumerate(parcels)
            if parcel.array != TICKET
        }
        self._own: list[_Part] = []
        for index, layout in enumerate(layouts):
            for device, cuts, _ in layout.rows:
                for number in cuts if device.process_index == me else ():
                    holder, box = layout.cuts[number]
                    if holder.process_index == me and (index, holder, box) not in had:
                        had[index, holder, box] = len(parcels) + len(self._own), holder
                        self._own.append((index, shard_of[index][holder], box))
        moved: dict[tuple[int, Any], int] = {}
        start = len(parcels) + len(self._own)
        # For each array its place in the pool if it came in one; None if nothing of it is here.
        self._arrays: list[_Assembly | int | None] = []
        arrived = {parcel.array: place for place, parcel in enumerate(parcels) if parcel.layout is not None}
        for index, (layout, aval) in enumerate(zip(layouts, avals, strict=True)):
            if index in arrived:
                self._arrays.append(arrived[index])
                continue
            shards = []
            for device, cuts, grid in layout.rows:
                if device.process_index != me:
                    continue
                parts = []
                for number in cuts:
                    place, at = had[index, *layout.cuts[number]]
                    parts.append(place if at == device else moved.setdefault((place, device), start + len(moved)))
                shape = layout.target.shard_shape(layout.shape)
                empty = None if parts else (device, *on_the_wire(shape, aval.dtype))
                shards.append(_Shard(tuple(parts), grid, empty))
            assemble = _compat.assembler(aval.shape, aval.dtype, layout.target)
            self._arrays.append(_Assembly(aval.dtype, assemble, shards) if shards else None)
        self.runs_programs = bool(
            self._keys
            or any(box is not None for _, _, box in self._own)
            or any(
                len(shard.parts) != 1
                for found in self._arrays
                if isinstance(found, _Assembly)
                for shard in found.shards
            )
        )
        self._moves = [place for place, _ in moved]
        devices = [SingleDeviceSharding(device) for _, device in moved]
        keys = any(_compat.is_key(aval.dtype) for aval in avals)
        self._copy = _compat.copier(devices, keys=keys)
        self._count = len(avals)
        # Whether the results are what comes first among the parcels, or there are none.
        self._as_received = self._arrays == list(range(len(avals)))
        self._nothing = all(found is None for found in self._arrays)

    def __call__(self, arrays: Sequence[Any], received: list[Any]) -> list[Any]:
        if self._as_received:
            return received[: self._count]
        if self._nothing:
            return [None] * self._count
        pool = list(received)
        for place, wrap in self._keys:
            pool[place] = wrap(pool[place])
        for index, position, box in self._own:
            shard = _compat.own_shards(arrays[index])[position]
            pool.append(shard if box is None else slicer(box)(shard))
        if self._moves:
            # One batched call for everything is two to three times cheaper than a call per piece.
            pool += self._copy([pool[place] for place in self._moves])
        results: list[Any] = []
        for found in self._arrays:
            if found is None:
                results.append(None)
            elif isinstance(found, int):
                results.append(pool[found])
            else:
                dtype, assemble, shards = found
                parts = [_join([pool[place] for place in shard.parts], shard, dtype) for shard in shards]
                results.append(assemble(parts))
        return results


def rebuilding(
    layouts: Sequence[tuple[NamedSharding, NamedSharding, tuple[int, ...]]], avals: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """What moves arrays within this process whose layouts cut them differently.

    Args:
        layouts: For each array where it is, where it shall be, and its shape; none is without elements.
        avals: Its shape and type.
    """
    me = jax.process_index()
    shard_of = [_positions(source, me) for source, _, _ in layouts]
    rebuild = _Rebuild([pieces_of(*layout) for layout in layouts], [], shard_of, avals, me)
    return lambda arrays: rebuild(arrays, [])


def _join(parts: list[Any], shard: _Shard, dtype: Any) -> Any:
    if shard.empty is not None:
        device, shape, sent_as = shard.empty
        made = jax.device_put(np.zeros(shape, sent_as), device)
        return as_keys(dtype)(made) if _compat.is_key(dtype) else made
    return parts[0] if len(parts) == 1 else joiner(shard.grid)(*parts)
