"""The transport of a step that several processes run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from mmruntime._execution.transfers.channel import Channel
from mmruntime._execution.transfers.crossing import Crossing
from mmruntime._execution.transfers.own_parts import copied, is_here, place, processes
from mmruntime._execution.transfers.transfer import DevicePutTransport, Send, TransferSpec


class AcrossTransport:
    """Moves arrays of one compiled step between submeshes, some with devices of other processes.

    Transfers within this process are those of `DevicePutTransport`.

    Args:
        channel: What carries arrays between processes.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._me = jax.process_index()
        self._within = DevicePutTransport()
        self._crossings: dict[TransferSpec, Crossing] = {}

    def takes_part(self, mesh: Any, /) -> bool:
        """See `Transport.takes_part`."""
        return is_here(mesh)

    def bind(self, transfer: TransferSpec, /) -> Send:
        """See `Transport.bind`. A `Crossing` takes the number of its messages besides."""
        meshes = [sharding.mesh for sharding in (*transfer.sources, *transfer.targets)]
        if all(processes(mesh) == (self._me,) for mesh in meshes):
            return self._within.bind(transfer)
        if transfer not in self._crossings:
            self._crossings[transfer] = Crossing(
                transfer.sources,
                transfer.targets,
                transfer.avals,
                self.channel,
                self._me,
                intact=transfer.intact,
                kept=transfer.kept,
            )
        return self._crossings[transfer]

    def put(self, values: Sequence[Any], shardings: Sequence[Sharding], /) -> list[Any]:
        """See `Transport.put`, for values that every process has."""
        layouts: Sequence[Any] = shardings
        return [place(value, layout, jax.typeof(value)) for value, layout in zip(values, layouts, strict=True)]

    def copy(self, arrays: Sequence[Any], shardings: Sequence[Sharding], /) -> list[Any]:
        """See `Transport.copy`, for arrays that are where they shall be."""
        return [copied(array) for array in arrays]

    @property
    def peers(self) -> tuple[int, ...]:
        """The processes that the transfers bound so far exchange messages with."""
        return tuple(sorted({*self.targets, *self.senders}))

    @property
    def targets(self) -> tuple[int, ...]:
        """The processes that they send something to."""
        return tuple(sorted({peer for crossing in self._crossings.values() for peer in crossing.targets}))

    @property
    def senders(self) -> tuple[int, ...]:
        """The processes that they receive something from."""
        return tuple(sorted({peer for crossing in self._crossings.values() for peer in crossing.senders}))
