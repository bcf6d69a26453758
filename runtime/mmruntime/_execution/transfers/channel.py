"""Channel: how messages get from process to process. There are several, behind one interface.

A channel carries the parcels of messages; what they are parts of, it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

from mmruntime._execution.transfers.parcels import Message


class Carry(Protocol):
    """Planned messages, to be sent and received."""

    def __call__(self, number: int, parcels: Sequence[Any], /) -> list[Any]:
        """Send this process's parcels and receive those for it.

        Args:
            number: The number of the messages, the same at both ends and used once.
            parcels: Those to send, message by message.

        Returns:
            Those received, message by message, each on its target device.
        """
        ...

    def ask(self, number: int, /) -> None:
        """Ask for what the call with this number will receive, if that can be done long before it without waiting.

        Memory for it may be taken from now on.
        """
        ...


# Bits for the process that receives a message, in the number under which it is sent.
RECEIVER_BITS = 14


def outgoing(messages: Sequence[Message], me: int) -> list[tuple[int, int, int]]:
    """For each message of a process its receiver, and from where to where its parcels are among all that it sends."""
    sent = [message for message in messages if message.source == me]
    ends = accumulate(len(message.parcels) for message in sent)
    return [(message.target, end - len(message.parcels), end) for message, end in zip(sent, ends, strict=True)]


class Channel(Protocol):
    """Carries messages between processes."""

    # As users name it.
    name: str
    # Whether a sender waits for the receiver, so that it cannot get ahead of it.
    rendezvous: bool
    # Whether a receiving call waits for the message, so that it is better made late.
    waits: bool
    # Whether a parcel may be an array on several devices; see `Parcel.layout`.
    takes_arrays: bool

    def bind(self, messages: Sequence[Message], /) -> Carry:
        """Plan messages that this process takes part in.

        Every process that sends or receives one of them calls this with all of them, in the order of its instructions,
        and so it calls what is returned. Parcels to send are arrays that nobody overwrites or deletes; they may not be
        computed yet. The call may wait for other processes, but for nothing that they issue later in that order.
        """
        ...

    def connect(self, processes: Sequence[int], /) -> None:
        """Make sure that processes can be reached, before anything is sent to them or received from them."""
        ...
