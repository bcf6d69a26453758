"""Start the processes: with the addresses given, with a launcher's, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import sys
import threading
from collections.abc import MutableMapping, Sequence
from typing import Any

import jax

from mmruntime import _check, _compat
from mmruntime._processes.exchange import own_host
from mmruntime._processes.launchers import NUM_DEVICES, Environment, Launched, find_launched
from mmruntime._processes.scheduling import schedule_as_batch
from mmruntime._processes.watch import start_watch

FAULT_TIMEOUT = "MMRUNTIME_FAULT_TIMEOUT"
DEFAULT_FAULT_TIMEOUT = 15.0


class _Said:
    """What the program said about other processes. `alone` is whether it is to be by itself."""

    alone = False


said = _Said()


@dataclasses.dataclass(frozen=True)
class ProcessArguments:
    """What `mm.init` was told about processes; see there."""

    distributed: bool | None = None
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: int | Sequence[int] | None = None
    cluster_detection_method: str | None = None
    initialization_timeout: int = 300
    coordinator_bind_address: str | None = None
    fault_timeout: float | None = None

    def checked(self) -> ProcessArguments:
        """The options with plain numbers.

        Raises:
            TypeError: If something is of another type.
            ValueError: If a number is too small or an address has no port.
        """
        if self.distributed is not None:
            _check.flag("init", "distributed", self.distributed)
        for name in ("coordinator_address", "coordinator_bind_address"):
            address = getattr(self, name)
            if address is not None:
                _check.text("init", name, address)
                if not re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+):\d+", address):
                    raise ValueError(f"init: {name} must be host:port, such as node1:12345, got {address!r}.")
        timeout = self.fault_timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise _check.wrong("init", "fault_timeout", "a number of seconds", timeout)
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ValueError(f"init: fault_timeout must be a number of seconds, 0 or more, got {timeout}.")
        processes = _check.optional_integer("init", "num_processes", self.num_processes, 1)
        process = _check.optional_integer("init", "process_id", self.process_id, 0)
        if processes is not None and process is not None and process >= processes:
            raise ValueError(
                f"init: process_id={process}, but with num_processes={processes} they go from 0 to {processes - 1}."
            )
        return dataclasses.replace(
            self,
            num_processes=processes,
            process_id=process,
            initialization_timeout=_check.integer("init", "initialization_timeout", self.initialization_timeout, 1),
        )


def start_processes(
    arguments: ProcessArguments,
    environment: MutableMapping[str, str],
    *,
    cpus: int | None = None,
    gpus: int | None = None,
    batch: bool = True,
) -> None:
    """Set up this process, start `jax.distributed` if the arguments or a launcher ask for it, and watch its processes.

    Where somebody has started it already, they are watched over all the same.

    Args:
        arguments: What the user said, checked.
        environment: The environment variables. `PJRT_NPROC` is added to them.
        cpus: Virtual CPU devices of this process, if `mmrewrite run` has not said how many.
        gpus: 0 for the CPU only.
        batch: Whether threads get the policy SCHED_BATCH where JAX uses the CPU only.

    Raises:
        RuntimeError: If JAX was used before.
        ValueError: If not enough is known, or what the launcher has set is malformed.
    """
    timeout = fault_timeout(arguments.fault_timeout, environment)
    given = environment.get(NUM_DEVICES)
    set_devices(int(given) if given else cpus, gpus)
    # Before the threads of JAX and of XLA are made, which inherit it.
    if batch and uses_cpu_only():
        schedule_as_batch()
    said.alone = arguments.distributed is False
    if arguments.distributed is not False and not jax.distributed.is_initialized():
        _initialize(arguments, environment, timeout)
    if jax.distributed.is_initialized():
        # Without a way to the coordinator nothing will work, and what says so comes later.
        with contextlib.suppress(OSError):
            if not _compat.backends_started():
                _compat.let_gloo_listen_on(own_host())
        start_watch(timeout)


def _initialize(arguments: ProcessArguments, environment: MutableMapping[str, str], timeout: float) -> None:
    try:
        found = find_launched(environment)
    except ValueError as problem:
        raise ValueError(f"init: {problem}") from None
    if arguments.distributed is None and arguments.coordinator_address is None and found is None:
        return
    job = _joined(arguments, found)
    detects = _jax_detects(arguments, found, job)
    if job.missing() and not detects:
        raise ValueError(f"init: {_what_is_missing(job)}")
    prepare_cpu(environment, job.num_processes)
    # When the time is over, JAX aborts the process and names nobody.
    notice = threading.Timer(min(30.0, 0.7 * arguments.initialization_timeout), _say_who_waits, [job])
    notice.daemon = True
    notice.start()
    try:
        jax.distributed.initialize(
            coordinator_address=job.coordinator_address,
            num_processes=job.num_processes,
            process_id=job.process_id,
            local_device_ids=job.local_device_ids,
            cluster_detection_method=arguments.cluster_detection_method if detects else "deactivate",
            initialization_timeout=arguments.initialization_timeout,
            coordinator_bind_address=arguments.coordinator_bind_address,
            # A second net, so with wider meshes than our own.
            heartbeat_timeout_seconds=max(10, math.ceil(2 * (timeout or DEFAULT_FAULT_TIMEOUT))),
            shutdown_timeout_seconds=max(5, math.ceil(timeout or DEFAULT_FAULT_TIMEOUT)),
        )
    finally:
        notice.cancel()


def fault_timeout(given: float | None, environment: Environment) -> float:
    """The seconds of `fault_timeout`: the argument, else the variable, else the default.

    Raises:
        ValueError: If the variable is not a number of seconds.
    """
    if given is not None:
        return float(given)
    text = environment.get(FAULT_TIMEOUT, "").strip()
    if not text:
        return DEFAULT_FAULT_TIMEOUT
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"init: {FAULT_TIMEOUT} must be a number of seconds, 0 or more, got {text!r}.")
    return float(text)


def prepare_cpu(environment: MutableMapping[str, str], num_processes: int | None) -> None:
    """What the CPU needs for several processes, where it is not set: collectives between them, and enough threads.

    A program of several devices takes a thread for each of them, and holds it while it waits for other processes. As
    many again are left for the rest. More would only look for work in each other's queues.
    """
    config: Any = jax.config
    if num_processes == 1 or "cpu" not in (config.jax_platforms or "cpu"):
        return
    if config.jax_cpu_collectives_implementation in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", environment.get("XLA_FLAGS", ""))
    devices = max(config.jax_num_cpu_devices, int(flag[1]) if flag else 1)
    environment.setdefault("PJRT_NPROC", str(max(os.cpu_count() or 1, 2 * devices)))


def _say_who_waits(job: Launched) -> None:
    print(
        f"init: process {job.process_id} of {job.num_processes} ({job.launcher}) still waits for all processes to "
        f"reach {job.coordinator_address}. Do all of them run, with this address, and is its port open?",
        file=sys.stderr,
        flush=True,
    )


def _joined(arguments: ProcessArguments, found: Launched | None) -> Launched:
    """What the user gave, and for what is missing, what the launcher set."""
    devices = arguments.local_device_ids
    given = Launched(
        "mm.init",
        arguments.coordinator_address,
        arguments.num_processes,
        arguments.process_id,
        None if devices is None else (devices,) if isinstance(devices, int) else tuple(devices),
        advice="Give them to mm.init, or start the program by a launcher.",
    )
    return given if found is None or not given.missing() else given.completed(found)


def _jax_detects(arguments: ProcessArguments, found: Launched | None, job: Launched) -> bool:
    """Whether JAX has to find out more: it was told how, or it may know of a cluster that we do not."""
    method = arguments.cluster_detection_method
    if method is not None:
        return method != "deactivate"
    if not job.missing():
        return False
    # The metadata of Cloud TPU machines, for one. A launcher that we know has a message that says more.
    return arguments.distributed is True and found is None


def _what_is_missing(job: Launched) -> str:
    known = [
        f"{name}={getattr(job, name)!r}"
        for name in ("coordinator_address", "num_processes", "process_id")
        if name not in job.missing()
    ]
    return (
        f"started by {job.launcher}: {' and '.join(job.missing())} must be known"
        f"{', besides ' + ', '.join(known) if known else ''}. {job.advice}"
    )


def set_devices(cpus: int | None, gpus: int | None) -> None:
    """Have JAX use so many virtual CPU devices, or the CPU only.

    Args:
        cpus: Virtual CPU devices; without `gpus`, JAX then uses the CPU only. None leaves them as they are.
        gpus: With 0, JAX uses the CPU only.

    Raises:
        RuntimeError: If JAX has started with others.
    """
    cpu_only = gpus == 0 or (gpus is None and bool(cpus))
    if not _compat.backends_started():
        if cpus:
            # JAX raises an error where both this flag and the option are set.
            flags = os.environ.get("XLA_FLAGS", "").split()
            kept = [flag for flag in flags if "xla_force_host_platform_device_count" not in flag]
            os.environ["XLA_FLAGS"] = " ".join(kept)
            jax.config.update("jax_num_cpu_devices", cpus)
        if cpu_only:
            jax.config.update("jax_platforms", "cpu")
        return
    have = len(jax.local_devices(backend="cpu")) if cpus else 0
    if cpus and have != cpus:
        raise RuntimeError(
            f"init: cpus={cpus} comes too late, JAX has started with {have} CPU devices. Call mm.init first, or set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={cpus} in the environment."
        )
    if cpu_only and jax.default_backend() != "cpu":
        raise RuntimeError(
            f"init: the choice of the CPU comes too late, JAX has started on {jax.default_backend()}. Call mm.init "
            "first, or set JAX_PLATFORMS=cpu in the environment."
        )


def uses_cpu_only() -> bool:
    """Whether JAX uses the CPU only, as far as is known without starting it."""
    if _compat.backends_started():
        return jax.default_backend() == "cpu"
    config: Any = jax.config
    return bool(config.jax_platforms == "cpu")
