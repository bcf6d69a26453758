"""The channel over `jax.experimental.transfer`: receivers pull what senders offer, by number, and nobody waits.

Offers and pulls meet in any order, and both may be made before the values are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from mmruntime import _compat
from mmruntime._execution.transfers.channel import RECEIVER_BITS, Carry, outgoing
from mmruntime._execution.transfers.parcels import Message
from mmruntime._processes.exchange import Exchange, own_host
from mmruntime._processes.progress import progress

# Every process starts its server at its first step, so that only a crashed one is waited for as long as this.
_CONNECT_S = 300.0


class PullChannel:
    """Carries messages through the transfer server that JAX has in each process."""

    name = "transfer"
    rendezvous = False
    waits = False
    takes_arrays = True

    def __init__(self) -> None:
        from jax.experimental import transfer  # noqa: PLC0415  (starts threads; not every platform has it)

        host = own_host()
        shown = f"[{host}]" if ":" in host else host
        device = jax.local_devices()[0]
        # On CPUs the server may read arrays where they are, which halves its CPU time for a small one. Without that it
        # copies them first, and notices when one has been donated; parcels never are (see `Crossing`).
        self._server = transfer.start_transfer_server(
            device.client, f"{shown}:0", [f"{shown}:0"], use_raw_buffers=device.platform == "cpu"
        )
        self._exchange = Exchange()
        self._me = jax.process_index()
        # The server names the address that it listens on, which may be any ("[::]"): others need this host's.
        port = self._server.address().rpartition(":")[2]
        self._exchange.put(f"transfer/{self._me}", f"{shown}:{port}")
        self._connections: dict[int, Any] = {}

    def connect(self, processes: Sequence[int], /) -> None:
        """See `Channel.connect`."""
        for process in processes:
            if process not in self._connections:
                with progress.waiting(f"the address of process {process}", (process,)):
                    address = self._exchange.get(f"transfer/{process}", _CONNECT_S)
                self._connections[process] = self._server.connect(address)

    def bind(self, messages: Sequence[Message], /) -> Carry:
        """See `Channel.bind`."""
        return _Pulls(_compat.offerer(self._server), self._connections, messages, self._me)


class _Pulls:
    """Messages that are offered and pulled. See `Carry`."""

    def __init__(
        self,
        offer: Callable[[int, Sequence[Any]], Any],
        connections: dict[int, Any],
        messages: Sequence[Message],
        me: int,
    ) -> None:
        self._offer, self._connections, self._me = offer, connections, me
        self._offers = outgoing(messages, me)
        self._received = [message for message in messages if message.target == me]
        # What pulls the messages for this process; made when the first is pulled, as connections are made after plans.
        self._pulls: list[Callable[[int], list[Any]]] = []
        # What was asked for and not yet taken, by its number.
        self._asked: dict[int, list[Any]] = {}

    def __call__(self, number: int, parcels: Sequence[Any], /) -> list[Any]:
        for target, start, end in self._offers:
            self._offer(number << RECEIVER_BITS | target, parcels[start:end])
        asked = self._asked.pop(number, None)
        return self._pulled(number) if asked is None else asked

    def ask(self, number: int, /) -> None:
        """See `Carry.ask`."""
        self._asked[number] = self._pulled(number)

    def _pulled(self, number: int) -> list[Any]:
        if not self._pulls:
            self._pulls = [self._puller(message) for message in self._received]
        received: list[Any] = []
        for pull in self._pulls:
            received += pull(number << RECEIVER_BITS | self._me)
        return received

    def _puller(self, message: Message) -> Callable[[int], list[Any]]:
        structs = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=each.layout or SingleDeviceSharding(each.target))
            for each in message.parcels
        ]
        return _compat.puller(self._connections[message.source], structs, message.parcels[0].target.client)
