"""The choice of a channel: by platform, or by name."""

from __future__ import annotations

import functools
import importlib.util

import jax

from mmruntime._execution.channel import Channel
from mmruntime._execution.pull_channel import PullChannel
from mmruntime._processes.transports import forced


def chosen() -> str:
    """The name of the transport between processes: the one that the user asked for, or the best for the platform."""
    asked = forced()
    if asked is not None:
        return asked
    return "transfer" if importlib.util.find_spec("jax.experimental.transfer") else "sockets"


@functools.cache
def channel(name: str) -> Channel:
    """The channel of a name; one for all steps of this process."""
    assert name == "transfer", name
    return PullChannel()


def platform() -> str:
    """The platform that JAX uses."""
    return str(jax.default_backend())
