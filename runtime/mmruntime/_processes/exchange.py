"""Exchange: the key-value store of `jax.distributed`, in which the processes of a program leave short texts.

It is a service of the coordinator, so every call is a message to one process. What all processes do, each does with a
fixed number of calls, whatever their number.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

import jax

from mmruntime import _compat

# Keys of other libraries are in the same store.
_ROOT = "mmruntime"
# A blocking call is cut into turns of this length, so that Ctrl-C and exceptions set from other threads get through.
_TURN_S = 5.0
_NOT_INITIALISED = (
    "exchange: jax.distributed is not initialised in this process. Call mm.init(...) or "
    "jax.distributed.initialize(...) in every process before JAX is used."
)


class Exchange:
    """The store, with the names of this package in front of every key.

    Args:
        client: The client of `jax.distributed`; that of this process if left out.

    Raises:
        RuntimeError: If this process has none: `jax.distributed` was not initialised.
    """

    def __init__(self, client: _compat.KeyValueClient | None = None) -> None:
        found = _compat.key_value_client() if client is None else client
        if found is None:
            raise RuntimeError(_NOT_INITIALISED)
        self._client = found

    def put(self, key: str, value: str) -> None:
        """Leave a text under a key.

        Args:
            key: Parts of it are separated by slashes.
            value: The text.

        Raises:
            jax.errors.JaxRuntimeError: If the coordinator cannot be reached, or the key is taken.
        """
        self._client.key_value_set(f"{_ROOT}/{key}", value)

    def get(self, key: str, timeout: float) -> str:
        """The text under a key; waits until there is one.

        Raises:
            TimeoutError: If there is none by then.
            jax.errors.JaxRuntimeError: If the coordinator cannot be reached.
        """
        left = timeout
        while True:
            turn = min(left, _TURN_S)
            try:
                return self._client.blocking_key_value_get(f"{_ROOT}/{key}", max(1, int(turn * 1000)))
            except jax.errors.JaxRuntimeError as error:
                left -= turn
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if left <= 0:
                    raise TimeoutError(f"exchange: nothing under {key!r} after {timeout:g} s") from error

    def look(self, key: str) -> str | None:
        """The text under a key now; None if there is none.

        Raises:
            jax.errors.JaxRuntimeError: If the coordinator cannot be reached.
        """
        try:
            return self._client.key_value_try_get(f"{_ROOT}/{key}")
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def folder(self, key: str) -> dict[str, str]:
        """All texts whose keys begin with `key` and a slash, by the rest of their keys.

        Raises:
            jax.errors.JaxRuntimeError: If the coordinator cannot be reached.
        """
        prefix = f"{_ROOT}/{key}/"
        return {found.removeprefix(prefix): value for found, value in self._client.key_value_dir_get(prefix)}

    def drop(self, key: str) -> None:
        """Forget the text under a key, and all under keys that begin with it and a slash."""
        self._client.key_value_delete(f"{_ROOT}/{key}")

    def meet(self, name: str, timeout: float, processes: Sequence[int] | None = None) -> None:
        """Wait until all processes have come here.

        Args:
            name: The same in all of them, and used once.
            timeout: Seconds to wait.
            processes: Those that meet; all if left out.

        Raises:
            jax.errors.JaxRuntimeError: If one has not come by then ("DEADLINE_EXCEEDED"), or the coordinator cannot be
                reached.
        """
        members = None if processes is None else list(processes)
        self._client.wait_at_barrier(f"{_ROOT}/{name}", int(timeout * 1000), members)


def own_host() -> str:
    """The address of this host that the other processes reach: that of the interface towards the coordinator.

    Raises:
        RuntimeError: If `jax.distributed` was not initialised.
    """
    address = _compat.coordinator_address()
    if address is None:
        raise RuntimeError(_NOT_INITIALISED)
    host = address.rpartition(":")[0].strip("[]")
    found = _interface_towards(host)
    if found.startswith("127.") and host != "localhost" and not host.startswith("127."):
        # Process 0, on a host that gives its own name an address that nobody else reaches, as Debian does. The way out
        # is one that others may come in by; this address is reserved for documentation.
        with contextlib.suppress(OSError):
            return _interface_towards("192.0.2.1")
    return found


def _interface_towards(host: str) -> str:
    # Connecting a datagram socket sends nothing; it only chooses the interface.
    family, kind, protocol, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
