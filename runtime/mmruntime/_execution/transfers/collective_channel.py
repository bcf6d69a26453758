"""The channel over collectives: a small program on the devices at both ends, whose messages are `ppermute`s.

It is the fast path where collectives have their own network, as NCCL on GPUs. All processes at the ends of a transfer
run its program, so it depends on their one order of instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._execution.throttle import need, throttle_of
from mmruntime._execution.transfers.channel import Carry
from mmruntime._execution.transfers.parcels import Message, Parcel

_AXIS = "devices"


class CollectiveChannel:
    """Carries messages by programs on the devices of senders and receivers."""

    name = "collectives"
    rendezvous = True
    waits = False
    takes_arrays = False

    def __init__(self) -> None:
        self._me = jax.process_index()

    def connect(self, processes: Sequence[int], /) -> None:
        """See `Channel.connect`. JAX connects devices when it first runs a program on them."""

    def bind(self, messages: Sequence[Message], /) -> Carry:
        """See `Channel.bind`."""
        return _Permutes([parcel for message in messages for parcel in message.parcels], self._me)


def in_rounds(parcels: Sequence[Parcel]) -> list[list[int]]:
    """Cut parcels into rounds of one shape and type, in which a device sends at most one and receives at most one.

    Returns:
        The positions of the parcels of each round.
    """
    rounds: list[tuple[Any, set[Any], set[Any], list[int]]] = []
    for position, parcel in enumerate(parcels):
        kind = parcel.shape, parcel.dtype
        for found, sources, targets, members in rounds:  # noqa: B007  (used after the loop)
            if found == kind and parcel.source not in sources and parcel.target not in targets:
                break
        else:
            sources, targets, members = set(), set(), []
            rounds.append((kind, sources, targets, members))
        sources.add(parcel.source)
        targets.add(parcel.target)
        members.append(position)
    return [members for *_, members in rounds]


class _Permutes:
    """One program that carries the parcels of a transfer.

    Each round is an array with a row for every device of the program: a sender's row is its parcel, and what it becomes
    on a receiver is what that gets.
    """

    def __init__(self, parcels: Sequence[Parcel], me: int) -> None:
        every = {device.id: device for parcel in parcels for device in (parcel.source, parcel.target)}
        devices = [every[number] for number in sorted(every)]
        grid = np.empty(len(devices), dtype=object)
        grid[:] = devices
        row = {device: position for position, device in enumerate(devices)}
        self._sharding = NamedSharding(Mesh(grid, (_AXIS,)), PartitionSpec(_AXIS))
        own = [device for device in devices if device.process_index == me]
        rounds = in_rounds(parcels)
        numbers = _positions(parcel.source.process_index == me for parcel in parcels)
        # For each own device: what it sends in each round (None for nothing), as the number among what is sent here.
        self._sends: list[tuple[Any, list[int | None]]] = []
        kinds = [(parcels[members[0]].shape, parcels[members[0]].dtype) for members in rounds]
        self._idle = {
            (device, number): jax.device_put(np.zeros((1, *shape), dtype), device)
            for device in own
            for number, (shape, dtype) in enumerate(kinds)
        }
        for device in own:
            sent = [next((numbers[at] for at in members if parcels[at].source == device), None) for members in rounds]
            self._sends.append((device, sent))
        self._shapes = [(len(devices), *shape) for shape, _ in kinds]
        self._dtypes = [dtype for _, dtype in kinds]
        # Where each parcel that comes here is: the round, and the position among this process's devices.
        place = {at: number for number, members in enumerate(rounds) for at in members}
        self._arrivals = [
            (place[at], own.index(parcel.target))
            for at, parcel in enumerate(parcels)
            if parcel.target.process_index == me
        ]
        pairs = [[(row[parcels[at].source], row[parcels[at].target]) for at in members] for members in rounds]
        program = self._compile(pairs)
        self._run = program
        if devices[0].platform == "cpu":
            need(tuple(devices))
            self._run = throttle_of(tuple(devices)).limited(program, 0)

    def _compile(self, pairs: Sequence[Sequence[tuple[int, int]]]) -> Callable[..., Sequence[Any]]:
        def permute(*arrays: Any) -> tuple[Any, ...]:
            return tuple(
                [jax.lax.ppermute(array, _AXIS, list(each)) for array, each in zip(arrays, pairs, strict=True)]
            )

        mesh: Any = self._sharding.mesh
        specs = tuple(PartitionSpec(_AXIS) for _ in pairs)
        structs = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=self._sharding)
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]
        with _compat.no_mesh():
            mapped = jax.jit(jax.shard_map(permute, mesh=mesh, in_specs=specs, out_specs=specs))
            compiled: Callable[..., Sequence[Any]] = _compat.compile_lowered(mapped.lower(*structs)).executable
        return compiled

    def __call__(self, number: int, parcels: Sequence[Any]) -> list[Any]:
        """See `Carry`. The order of the calls tells one message from another, not the number."""
        columns: list[list[Any]] = [[] for _ in self._shapes]
        for device, sent in self._sends:
            numbers = [each for each in sent if each is not None]
            rows = iter(_as_rows([parcels[each] for each in numbers]) if numbers else ())
            for column, each in enumerate(sent):
                columns[column].append(self._idle[device, column] if each is None else next(rows))
        arrays = [
            _compat.global_array(shape, dtype, self._sharding, shards)
            for shape, dtype, shards in zip(self._shapes, self._dtypes, columns, strict=True)
        ]
        results = self._run(*arrays)
        return [_as_parcel(_compat.own_shards(results[column])[position]) for column, position in self._arrivals]

    def ask(self, number: int, /) -> None:
        """See `Carry.ask`. Both ends run the program when they come to it."""


def _positions(flags: Iterable[bool]) -> list[int]:
    """For each item, how many before it are flagged."""
    count, found = 0, []
    for flag in flags:
        found.append(count)
        count += flag
    return found


@jax.jit
def _as_rows(parcels: Sequence[Any]) -> list[Any]:
    return [parcel[None] for parcel in parcels]


@jax.jit
def _as_parcel(row: Any) -> Any:
    return jnp.reshape(row, row.shape[1:])
