"""Start several processes of one program on this machine, and end all of them in any case."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Ended:
    """How a process of a job has ended; its output has both streams."""

    status: int
    output: str


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_job(
    check: str,
    processes: int,
    devices: int,
    *arguments: str,
    timeout: float = 120,
    variables: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Run a check in several processes and wait for all.

    Args:
        check: `module:function`; the module is in this folder.
        processes: How many processes.
        devices: CPU devices of each.
        *arguments: Passed on to the function.
        timeout: Seconds until all are killed.
        variables: Variables of the environment that are set.

    Returns:
        How each has ended. The status of one that was killed at the end of the time is negative.
    """
    drop = ("XLA_FLAGS", "JAX_PLATFORMS", "PYTEST_CURRENT_TEST")
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    environment |= {"XLA_FLAGS": " ".join(flags), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= dict(variables or {})
    address = f"127.0.0.1:{free_port()}"
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(processes)]
        try:
            for rank, path in enumerate(outputs):
                command = [sys.executable, str(CHILD), check, str(rank), str(processes), str(devices), address]
                with path.open("wb") as output:
                    running.append(
                        subprocess.Popen(
                            [*command, *arguments],
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            env=environment,
                            start_new_session=True,
                        )
                    )
            _wait(running, timeout)
        finally:
            for process in running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return [
            Ended(process.returncode, path.read_text(errors="replace"))
            for process, path in zip(running, outputs, strict=True)
        ]


def _wait(running: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    """Wait for all; a few seconds at most once one has ended badly, as the others may then wait for it for ever."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and any(process.poll() is None for process in running):
        if any(process.poll() for process in running):
            end = min(end, time.monotonic() + 20)
        time.sleep(0.05)


def run_all(check: str, processes: int, devices: int, *arguments: str, **options: float) -> list[str]:
    """As `run_job`, for a check that must end well in all processes; their outputs."""
    ended = run_job(check, processes, devices, *arguments, **options)  # type: ignore[arg-type]
    statuses = [each.status for each in ended]
    assert not any(statuses), f"{check} ended with {statuses}\n" + "\n".join(
        f"[{rank}] {line}" for rank, each in enumerate(ended) for line in each.output.splitlines()[-40:]
    )
    return [each.output for each in ended]
