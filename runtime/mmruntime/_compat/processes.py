"""Backends, and what JAX knows of the processes of a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

log = logging.getLogger("mmruntime")

_DEVICE_FUNCTIONS = ("devices", "local_devices", "device_count", "local_device_count")


def backends_started() -> bool:
    """Whether JAX has initialised its backends, after which the number of devices is fixed."""
    from jax._src import xla_bridge  # noqa: PLC0415  (private: asking a public function would start them)

    return bool(xla_bridge.backends_are_initialized())


def hide_devices_behind(count: int) -> Callable[[], None]:
    """Have the program see so many devices, however many there are; what is returned shows all of them again."""
    from jax._src import xla_bridge  # noqa: PLC0415  (it may not be imported before the backends' settings are made)

    known = [(module, name, getattr(module, name)) for module in (jax, xla_bridge) for name in _DEVICE_FUNCTIONS]
    for module, name, original in known:

        def shown(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            found = _original(*args, **kwargs)
            return min(found, count) if isinstance(found, int) else found[:count]

        setattr(module, name, shown)

    def show() -> None:
        for module, name, original in known:
            setattr(module, name, original)

    return show


def platform_started() -> str | None:
    """The platform that JAX runs on by default; None if it has not started.

    It does not wait, as the public functions do, for a thread that is starting it, which may wait for other processes.
    """
    from jax._src import xla_bridge  # noqa: PLC0415  (private: the public functions take a lock)

    backend = getattr(xla_bridge, "_default_backend", None)
    return None if backend is None else str(backend.platform)


class KeyValueClient(Protocol):
    """The part of JAX's distributed client that keeps texts for all processes. Its errors are `JaxRuntimeError`s."""

    def key_value_set(self, key: str, value: str) -> None:
        """Set a text; an error ("ALREADY_EXISTS") if there is one and it may not be overwritten."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait for a text; an error ("DEADLINE_EXCEEDED") if it does not come in time."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """A text; an error ("NOT_FOUND") if there is none."""
        ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All keys that begin with `key`, and their texts."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Forget a key, and all that begin with it and a slash."""

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int, process_ids: Sequence[int] | None = None) -> None:
        """Wait until all processes have called it with this name."""


def key_value_client() -> KeyValueClient | None:
    """The client of `jax.distributed`; None if it was not initialised."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: there is no public way to the store)

    client: KeyValueClient | None = global_state.client
    return client


def process_index_and_count() -> tuple[int, int]:
    """The index of this process and how many there are, without starting the backends as `jax.process_index` does."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: see above)

    return (global_state.process_id, global_state.num_processes) if global_state.client is not None else (0, 1)


def coordinator_address() -> str | None:
    """The `host:port` of the coordinator; None if `jax.distributed` was not initialised."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: it has no public name)

    address: str | None = global_state.coordinator_address
    return address


def let_gloo_listen_on(host: str) -> None:
    """Have gloo, JAX's collectives between CPUs of several processes, listen on an address of this host.

    By itself it takes the address that the host's name stands for, which on Debian is one of the loopback device. JAX
    has no setting for it. To be called before the backends are started; a JAX without these parts keeps its own choice.
    """
    try:
        # Private: `jax.extend.backend` has no public way to give arguments to a backend.
        from jax._src import distributed, xla_bridge  # noqa: PLC0415
        from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415

        make_collectives: Callable[..., Any] = _jax.make_gloo_tcp_collectives
        make_client: Callable[..., Any] = xla_bridge.make_cpu_client
        register: Callable[..., None] = xla_bridge.register_backend_factory
    except (ImportError, AttributeError) as error:
        log.debug("gloo listens where the host's name says: %s", error)
        return

    def client() -> Any:
        chosen: Any = jax.config
        joined = distributed.global_state.client
        if joined is None or chosen.jax_cpu_collectives_implementation != "gloo":
            return make_client()
        return make_client(make_collectives(distributed_client=joined, hostname=host))

    register("cpu", client, priority=0, fail_quietly=False)


def has_transfer_server() -> bool:
    """Whether `jax.experimental.transfer` has its server, which not every platform does where JAX has the module."""
    from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415  (private: the module fails on import)

    return hasattr(_jax, "start_transfer_server")


def offerer(server: Any) -> Callable[[int, Sequence[Any]], Any]:
    """`await_pull` of a transfer server for lists of arrays, which need not be flattened as trees."""
    offer: Callable[[int, Sequence[Any]], Any] = getattr(server, "_await_pull_flat", server.await_pull)
    return offer


def puller(connection: Any, structs: list[Any], client: Any) -> Callable[[int], list[Any]]:
    """`pull` of a connection to a transfer server for one list of structs, which need not be flattened for each call.

    Args:
        connection: The connection.
        structs: Shape, type and layout of each array.
        client: The client of the devices in the layouts.

    Returns:
        The function, of the number of the message.
    """
    pull = getattr(connection, "_pull_flat", None)
    if pull is None:
        return lambda number: connection.pull(number, structs)
    return lambda number: pull(number, client, structs)
