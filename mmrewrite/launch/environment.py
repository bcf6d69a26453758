"""The environment variables by which the processes of a job find each other and their devices."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

# Read by `mm.init`; see mmruntime/_processes/launchers.py. Other programs may read the first three.
ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"
JOB = frozenset((ADDRESS, NUM_PROCESSES, PROCESS_ID))
NUM_DEVICES = "MMREWRITE_DEVICES_PER_PROCESS"
RESTART = "MMREWRITE_RESTART"

_ACCELERATORS = ("cuda", "rocm", "gpu")


def free_port() -> int:
    """A port that nothing on this machine listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def on_gpus(environment: Mapping[str, str]) -> bool:
    """Whether devices are GPUs, because `JAX_PLATFORMS` says so, and not virtual ones of the CPU."""
    return environment.get("JAX_PLATFORMS", "").split(",")[0] in _ACCELERATORS


def environments(
    base: Mapping[str, str], num_processes: int, num_devices: int | None, port: int, restart: int
) -> list[dict[str, str]]:
    """The environment variables of each process.

    Args:
        base: Those of the launcher.
        num_processes: How many processes there are.
        num_devices: Devices for each; None if JAX shall decide.
        port: A free port for process 0.
        restart: How often the job was started before.
    """
    result = []
    for index in range(num_processes):
        environment = {
            **base,
            ADDRESS: f"127.0.0.1:{port}",
            NUM_PROCESSES: str(num_processes),
            PROCESS_ID: str(index),
            RESTART: str(restart),
            # Else lines would come when some thousands of bytes are full, and the last ones never.
            "PYTHONUNBUFFERED": "1",
        }
        if num_devices is not None and on_gpus(base):
            first = index * num_devices
            environment["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(first, first + num_devices)))
        elif num_devices is not None:
            # JAX accepts one of the two; `mm.init` reads the third, in programs that set their own number.
            environment["XLA_FLAGS"] = re.sub(
                r"--xla_force_host_platform_device_count=\S*", "", base.get("XLA_FLAGS", "")
            ).strip()
            environment["JAX_NUM_CPU_DEVICES"] = str(num_devices)
            environment[NUM_DEVICES] = str(num_devices)
            environment.setdefault("JAX_PLATFORMS", "cpu")
        result.append(environment)
    return result
