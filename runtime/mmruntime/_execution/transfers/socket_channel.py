"""The channel over plain TCP connections, through hosts: for a platform without `jax.experimental.transfer`.

A thread for each receiver waits for values and sends them. The receiving call waits for the message, as JAX has no
array whose value comes from Python later.
"""

from __future__ import annotations

import atexit
import functools
import hmac
import json
import math
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from mmruntime import _compat
from mmruntime._execution.transfers.channel import RECEIVER_BITS, Carry, outgoing
from mmruntime._execution.transfers.parcels import Message, Parcel
from mmruntime._processes.exchange import Exchange, own_host
from mmruntime._processes.progress import progress
from mmruntime._processes.watch import seconds_to_end

_CONNECT_S = 300.0
# How long the end of the program waits for what is still to be sent.
_FINISH_S = 60.0
# Number and length of a message; before the first one, the key of the receiver and the index of the sender.
_HEADER, _GREETING = struct.Struct(">QQ"), struct.Struct(">32sI")
# In the place of a length: what follows is a text that says why there is no value.
_FAILED = (1 << 64) - 1


class SocketChannel:
    """Carries messages through sockets of our own.

    A receiver takes messages of senders that know its key, which is in the exchange; nothing that is sent is ever run
    or unpickled.
    """

    name = "sockets"
    rendezvous = False
    waits = True
    takes_arrays = False

    def __init__(self) -> None:
        self._me = jax.process_index()
        self._exchange = Exchange()
        self._key = secrets.token_hex(16).encode()
        self._inbox = _Inbox()
        self._outboxes: dict[int, queue.SimpleQueue[Any]] = {}
        host = own_host()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        address = [host, self._listener.getsockname()[1], self._key.decode()]
        self._exchange.put(f"sockets/{self._me}", json.dumps(address))
        threading.Thread(target=self._accept, name="mmruntime-accept", daemon=True).start()

    def connect(self, processes: Sequence[int], /) -> None:
        """See `Channel.connect`."""
        for process in processes:
            if process in self._outboxes:
                continue
            with progress.waiting(f"the address of process {process}", (process,)):
                host, port, key = json.loads(self._exchange.get(f"sockets/{process}", _CONNECT_S))
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_GREETING.pack(key.encode(), self._me))
            outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._outboxes[process] = outbox
            name = f"mmruntime-send-{process}"
            sender = threading.Thread(target=_send, args=(connection, outbox), name=name, daemon=True)
            sender.start()
            # A process may end its program before the last values are sent.
            atexit.register(_finish, outbox, sender)

    def bind(self, messages: Sequence[Message], /) -> Carry:
        """See `Channel.bind`."""
        return _Letters(messages, self._outboxes, self._inbox, self._me)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._receive, args=(connection,), name="mmruntime-receive", daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        source = None
        try:
            key, claimed = _GREETING.unpack(_read(connection, _GREETING.size))
            if not hmac.compare_digest(key, self._key):
                return
            source = claimed
            while True:
                number, length = _HEADER.unpack(_read(connection, _HEADER.size))
                if length == _FAILED:
                    (size,) = struct.unpack(">Q", _read(connection, 8))
                    self._inbox.fail(source, bytes(_read(connection, size)).decode(errors="replace"))
                    return
                self._inbox.put(source, number, _read(connection, length))
        except (OSError, EOFError) as error:
            if source is not None:
                self._inbox.fail(source, f"the connection has ended: {error}")
        finally:
            connection.close()


class _Letters:
    """Messages that are put into outboxes and taken from the inbox. See `Carry`."""

    def __init__(
        self, messages: Sequence[Message], outboxes: dict[int, queue.SimpleQueue[Any]], inbox: _Inbox, me: int
    ) -> None:
        self._outboxes, self._inbox, self._me = outboxes, inbox, me
        self._sent = outgoing(messages, me)
        # Those that come here, with what lays out each of their parcels.
        self._expected = [
            (message, [_placer(parcel) for parcel in message.parcels]) for message in messages if message.target == me
        ]

    def __call__(self, number: int, parcels: Sequence[Any], /) -> list[Any]:
        for target, start, end in self._sent:
            self._outboxes[target].put((number << RECEIVER_BITS | target, parcels[start:end]))
        received: list[Any] = []
        for message, places in self._expected:
            data = self._inbox.take(number << RECEIVER_BITS | self._me, message.source)
            values = _unpacked(data, message.parcels)
            received += [place(value) for place, value in zip(places, values, strict=True)]
        return received

    def ask(self, number: int, /) -> None:
        """See `Carry.ask`. Senders send without being asked."""


class _Inbox:
    """Messages that came, until they are taken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # By sender and number: several may send something for one transfer.
        self._messages: dict[tuple[int, int], bytearray] = {}
        self._failures: dict[int, str] = {}

    def put(self, source: int, number: int, data: bytearray) -> None:
        with self._changed:
            self._messages[source, number] = data
            self._changed.notify_all()

    def fail(self, source: int, why: str) -> None:
        with self._changed:
            self._failures[source] = why
            self._changed.notify_all()

    def take(self, number: int, source: int) -> bytearray:
        """The message of a sender and number; waits for it.

        If its sender cannot send it any more, the watch knows why, or will: it ends this process with the same words
        as with other channels.

        Raises:
            RuntimeError: If that does not happen, as where nothing watches.
        """
        with self._changed:
            key = source, number
            if key not in self._messages:
                with progress.waiting(f"a message of process {source}", (source,)):
                    # In turns, so that Ctrl-C gets through.
                    failed = math.inf
                    while key not in self._messages and time.monotonic() < failed:
                        if source in self._failures and failed == math.inf:
                            failed = time.monotonic() + seconds_to_end()
                        else:
                            self._changed.wait(1.0)
            if key in self._messages:
                return self._messages.pop(key)
            raise RuntimeError(f"mjit: nothing comes from process {source} any more: {self._failures[source]}")


def _finish(outbox: queue.SimpleQueue[Any], sender: threading.Thread) -> None:
    outbox.put(None)
    sender.join(_FINISH_S)


def _send(connection: socket.socket, outbox: queue.SimpleQueue[Any]) -> None:
    """Send what is put into the outbox, each when its values are there."""
    with suppress(OSError), connection:
        while True:
            letter = outbox.get()
            if letter is None:
                return
            number, arrays = letter
            try:
                data = [np.ascontiguousarray(np.asarray(array)) for array in arrays]
            except Exception as error:
                # Whatever went wrong in a program, the receiver must hear of it.
                text = str(error).encode()
                connection.sendall(_HEADER.pack(number, _FAILED) + struct.pack(">Q", len(text)) + text)
                return
            connection.sendall(_HEADER.pack(number, sum(each.nbytes for each in data)))
            for each in data:
                connection.sendall(each.reshape(-1).view(np.uint8).data)


def _placer(parcel: Parcel) -> Callable[[np.ndarray], Any]:
    """Puts a value of the host on the device that a parcel goes to."""
    place = _compat.host_placer(parcel.shape, parcel.dtype, SingleDeviceSharding(parcel.target))
    return functools.partial(jax.device_put, device=parcel.target) if place is None else place


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if count == 0:
            raise EOFError("closed by the other side")
        at += count
    return data


def _unpacked(data: bytearray, parcels: Sequence[Parcel]) -> list[np.ndarray]:
    """The arrays of a message.

    Raises:
        RuntimeError: If it has another size than they have.
    """
    sizes = [int(np.prod(parcel.shape, dtype=np.int64)) * parcel.dtype.itemsize for parcel in parcels]
    if sum(sizes) != len(data):
        raise RuntimeError(f"mjit: a message from another process has {len(data)} bytes instead of {sum(sizes)}.")
    flat = np.frombuffer(data, np.uint8)
    arrays, at = [], 0
    for parcel, size in zip(parcels, sizes, strict=True):
        arrays.append(flat[at : at + size].view(parcel.dtype).reshape(parcel.shape))
        at += size
    return arrays
