"""Scalar results on all devices of several processes: each process that has none gets them from one that has.

Processes hand them on as a tree, so that none sends to more than a few, however many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, SingleDeviceSharding

from mmruntime import _compat
from mmruntime._execution.scalars import scalar_assembler
from mmruntime._execution.transfers.channel import Carry, Channel
from mmruntime._execution.transfers.crossing import as_keys, cutter
from mmruntime._execution.transfers.own_parts import devices_of, first_devices, own_devices
from mmruntime._execution.transfers.parcels import Message, Parcel, on_the_wire, ticket_with

# How many processes each hands the results on to.
_ARITY = 4


def tree_levels(holders: Sequence[int], others: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Who hands on to whom, so that everybody gets it: pairs of a sender and a receiver, level by level.

    A process receives once, and sends in the next level only.

    Args:
        holders: Processes that have it.
        others: Processes that shall get it.
    """
    ready, waiting = list(holders), list(others)
    levels = []
    while waiting:
        level = [(ready[at // _ARITY], target) for at, target in enumerate(waiting[: len(ready) * _ARITY])]
        levels.append(level)
        ready = [target for _, target in level]
        waiting = waiting[len(level) :]
    return levels


@dataclass(eq=False, slots=True, frozen=True)
class ScalarResult:
    """A scalar result of a step.

    Attributes:
        index: Its index among the step's outputs.
        aval: Its type.
        places: The slots that hold it, with their layouts.
    """

    index: int
    aval: Any
    places: tuple[tuple[int, NamedSharding], ...]


class SpreadAcross:
    """Puts scalar results on all devices of a mesh: planned once, called every step.

    Args:
        everywhere: The layout of the results: replicated over the mesh.
        results: The results.
        channel: What carries them between processes.
        me: The index of this process.

    Attributes:
        levels: How many messages' numbers a call uses, from the first on.
        peers: The processes that this one sends to or receives from.
        senders: The processes that send something to this one.
        tickets: From the latest call, an array for each sender that is there when all that it sent is.
        offered: From the latest call, arrays that are there when all that is sent is, or have failed.
    """

    def __init__(self, everywhere: NamedSharding, results: Sequence[ScalarResult], channel: Channel, me: int) -> None:
        groups: dict[tuple[Any, ...], list[ScalarResult]] = {}
        for result in results:
            holders = [device for _, sharding in result.places for device in devices_of(sharding)]
            groups.setdefault(tuple(dict.fromkeys(holders)), []).append(result)
        first = first_devices(devices_of(everywhere))
        self._groups: list[_SameHolders] = []
        self.levels = 0
        for held, members in groups.items():
            group = _SameHolders(held, members, first, channel, me, everywhere)
            self._groups.append(group)
            self.levels += len(group.steps)
        self._plain = all(group.plain for group in self._groups)
        steps = [step for group in self._groups for step in group.steps]
        self.senders = tuple(sorted({message.source for step in steps for message in step.received}))
        self.peers = tuple(sorted({*self.senders, *(message.target for step in steps for message in step.sent)}))
        self.tickets: list[Any] = []
        self.offered: list[Any] = []

    def ask(self, number: int) -> None:
        """Ask for what others will send, at the start of the step; a program that reads a loss waits for it then.

        Args:
            number: The number of the first message.
        """
        for group in self._groups:
            for offset, step in enumerate(group.steps):
                if step.received and step.carry is not None:
                    step.carry.ask(number + offset)
            number += len(group.steps)

    def __call__(self, slots: Sequence[Any], give: Callable[[int, Any], None], number: int) -> None:
        """Call `give(index, array)` for each result.

        Args:
            slots: The slots of the step.
            give: Takes the results.
            number: The number of the first message.
        """
        self.tickets, self.offered = [], []
        with contextlib.nullcontext() if self._plain else _compat.no_mesh():
            for group in self._groups:
                group.spread(slots, number, self.tickets, self.offered, give)
                number += len(group.steps)


@dataclass(eq=False, slots=True, frozen=True)
class _Level:
    """One level of the tree, as this process sees it; it carries nothing where the process takes no part."""

    carry: Carry | None
    sent: tuple[Message, ...]
    received: tuple[Message, ...]


class _SameHolders:
    """Results that the same devices hold."""

    def __init__(
        self,
        held: Sequence[Any],
        results: Sequence[ScalarResult],
        first: dict[int, Any],
        channel: Channel,
        me: int,
        everywhere: NamedSharding,
    ) -> None:
        self._results = results
        self._own = own_devices(everywhere)
        self._assemble = [scalar_assembler(result.aval, everywhere) for result in results]
        # For each own device that has them: for each result, the slot, and the position of its shard there.
        self._held: dict[Any, list[tuple[int, int]]] = {}
        for result in results:
            for slot, sharding in result.places:
                own = [device for device in devices_of(sharding) if device.process_index == me]
                for position, device in enumerate(own):
                    found = self._held.setdefault(device, [])
                    if len(found) == results.index(result):
                        found.append((slot, position))
        holder = {device.process_index: device for device in reversed(held)}
        at = {process: holder.get(process, device) for process, device in first.items()}
        self._at = at.get(me)
        # Own devices that get the results from another one.
        self._missing = [device for device in self._own if device not in self._held and device != self._at]
        keys = any(_compat.is_key(result.aval.dtype) for result in results)
        # A single number tells by itself that it has come. What is sent and received of it is a copy that no program
        # donates; of several, and of keys, a program makes the copies, and a ticket.
        self._alone = len(results) == 1 and not keys
        levels = tree_levels(sorted(holder), sorted(set(first) - set(holder)))
        self.steps = [self._level(level, at, channel, me) for level in levels]
        if self._alone and any(step.sent or step.received for step in self.steps):
            self._missing = [self._at, *self._missing]
        targets = [SingleDeviceSharding(device) for device in self._missing for _ in results]
        self._copy = _compat.copier(targets, keys=keys, twins=self._alone)
        # Whether no program of `jax.jit` runs.
        self.plain = self._alone and not channel.rendezvous

    def _level(self, pairs: Sequence[tuple[int, int]], at: dict[int, Any], channel: Channel, me: int) -> _Level:
        messages = []
        for source, target in sorted(pairs):
            ends = at[source], at[target]
            parcels = [
                Parcel(number, ends[0], None, ends[1], *on_the_wire((), result.aval.dtype))
                for number, result in enumerate(self._results)
            ]
            if not self._alone:
                parcels.append(ticket_with(parcels[0]))
            messages.append(Message(source, target, tuple(parcels), len(parcels) - 1))
        sent = tuple(message for message in messages if message.source == me)
        received = tuple(message for message in messages if message.target == me)
        return _Level(channel.bind(messages) if sent or received else None, sent, received)

    def spread(
        self,
        slots: Sequence[Any],
        number: int,
        tickets: list[Any],
        offered: list[Any],
        give: Callable[[int, Any], None],
    ) -> None:
        have = {
            device: [_compat.own_shards(slots[slot])[position] for slot, position in places]
            for device, places in self._held.items()
        }
        if self._alone:
            self._spread_alone(have, number, tickets, offered)
        else:
            self._spread_together(have, number, tickets, offered)
        for position, (result, assemble) in enumerate(zip(self._results, self._assemble, strict=True)):
            give(result.index, assemble([have[device][position] for device in self._own]))

    def _spread_alone(self, have: dict[Any, list[Any]], number: int, tickets: list[Any], offered: list[Any]) -> None:
        """Fill in what each own device has of the one result."""
        sent: list[Any] = []
        held = self._at in have
        if held and self._missing:
            copies = self._copy(have[self._at] * len(self._missing))
            if self._missing[0] is self._at:
                # The copy on this device is sent, as the caller may donate what the step returns.
                sent, copies = copies[:1], copies[1:]
            have.update((device, [copy]) for device, copy in zip(self._missing[len(sent) :], copies, strict=True))
        for offset, step in enumerate(self.steps):
            if step.carry is None:
                continue
            received = step.carry(number + offset, sent * len(step.sent))
            if step.sent:
                offered += sent
            if step.received:
                sent = received
                tickets += received
        if not held and self._missing:
            copies = self._copy(sent * len(self._missing))
            have.update((device, [copy]) for device, copy in zip(self._missing, copies, strict=True))

    def _spread_together(self, have: dict[Any, list[Any]], number: int, tickets: list[Any], offered: list[Any]) -> None:
        """Fill in what each own device has of several results."""
        for offset, step in enumerate(self.steps):
            if step.carry is None:
                continue
            copies = _all_of(len(self._results))(*have[self._at]) if step.sent else []
            offered += copies[-1:]
            received = step.carry(number + offset, [copy for _ in step.sent for copy in copies])
            if step.received:
                *values, ticket = received
                tickets.append(ticket)
                have[self._at] = [
                    as_keys(result.aval.dtype)(value) if _compat.is_key(result.aval.dtype) else value
                    for result, value in zip(self._results, values, strict=True)
                ]
        if self._missing:
            moved = iter(self._copy(have[self._at] * len(self._missing)))
            for device in self._missing:
                have[device] = [next(moved) for _ in self._results]


def _all_of(count: int) -> Callable[..., Sequence[Any]]:
    """A program that copies its arguments and makes a ticket."""
    return cutter((*((index, None) for index in range(count)), None))
