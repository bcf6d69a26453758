"""The choice of a channel: by platform, or by the user."""

from __future__ import annotations

import functools

import jax

from mmruntime import _compat
from mmruntime._execution.transfers.channel import Channel
from mmruntime._execution.transfers.collective_channel import CollectiveChannel
from mmruntime._execution.transfers.pull_channel import PullChannel
from mmruntime._execution.transfers.socket_channel import SocketChannel
from mmruntime._processes.transports import forced

_CHANNELS: dict[str, type[PullChannel] | type[SocketChannel] | type[CollectiveChannel]] = {
    each.name: each for each in (PullChannel, SocketChannel, CollectiveChannel)
}


def chosen() -> str:
    """The name of the transport between processes: the one that the user asks for, or the best for the platform.

    Raises:
        ValueError: If the user asks for one that there is not.
    """
    asked = forced()
    if asked is not None:
        return asked
    return preferred(jax.default_backend(), transfer=_compat.has_transfer_server())


def preferred(platform: str, *, transfer: bool) -> str:
    """The best transport for a platform.

    Args:
        platform: What JAX calls it.
        transfer: Whether this JAX has `jax.experimental.transfer`.
    """
    # Collectives of GPUs go by NCCL or RCCL, from memory of one GPU to that of another; the others go through hosts.
    if platform in ("gpu", "cuda", "rocm"):
        return "collectives"
    return "transfer" if transfer else "sockets"


@functools.cache
def channel(name: str) -> Channel:
    """The channel of a name; one for all steps of this process."""
    return _CHANNELS[name]()
