"""Back pressure: a process that only sends to another one does not get far ahead of it.

What is sent stays in memory until it is received. Where arrays come back, programs wait for them, and the throttle for
those programs. Where nothing does, the receiver acknowledges each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mmruntime._execution.transfers.channel import Carry, Channel
from mmruntime._execution.transfers.parcels import TICKET, Message, Parcel
from mmruntime._processes.progress import progress

# How many calls a sender may be ahead.
_AHEAD = 2


class BackPressure:
    """The acknowledgements of one step.

    Args:
        label: The step's name, for messages.
        targets: The processes that this one sends to.
        senders: The processes that send to this one.
        devices: For each process of the step, one of its devices.
        channel: What carries them.
        me: The index of this process.
    """

    def __init__(
        self,
        label: str,
        targets: Sequence[int],
        senders: Sequence[int],
        devices: Mapping[int, Any],
        channel: Channel,
        me: int,
    ) -> None:
        self._label = label
        awaited = [] if channel.rendezvous else sorted(set(targets) - set(senders))
        told = [] if channel.rendezvous else sorted(set(senders) - set(targets))
        # For each process that acknowledges: what receives that.
        self._awaited = [(process, _bind(channel, devices[process], devices[me])) for process in awaited]
        self._told = [_bind(channel, devices[me], devices[process]) for process in told]
        self._token = jax.device_put(np.uint32(0), devices[me]) if told else None
        # The numbers of the calls that are not known to be acknowledged.
        self._open: deque[int] = deque()

    def __call__(self, number: int) -> None:
        """Acknowledge this call to those that send, and wait for the acknowledgements of an earlier one.

        Args:
            number: The number of this call's acknowledgements.
        """
        for carry in self._told:
            carry(number, [self._token])
        if not self._awaited:
            return
        self._open.append(number)
        if len(self._open) <= _AHEAD:
            return
        earlier = self._open.popleft()
        for process, carry in self._awaited:
            with progress.waiting(f"process {process}, which is calls of {self._label} behind", (process,)):
                jax.block_until_ready(carry(earlier, []))


def _bind(channel: Channel, source: Any, target: Any) -> Carry:
    ticket = Parcel(TICKET, source, None, target, (), np.dtype(np.uint32))
    return channel.bind([Message(source.process_index, target.process_index, (ticket,), 0)])
