"""`mmrewrite run`: a command in several processes on this machine, its output by process, and its restarts."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from mmrewrite.launch.environment import environments, free_port, on_gpus
from mmrewrite.launch.job import Job, JobOutcome


@dataclass(frozen=True)
class RunOptions:
    """What `mmrewrite run` was told.

    Attributes:
        processes: How many processes to start.
        devices: Devices for each; None if JAX shall decide.
        max_restarts: How often to start again.
        min_processes: With how few, if some are lost; None for always the same number.
    """

    processes: int
    devices: int | None
    max_restarts: int
    min_processes: int | None


def run_job(command: Sequence[str], options: RunOptions) -> int:
    """Run the command until it ends well or has no restarts left.

    Returns:
        The exit status.

    Raises:
        click.UsageError: If there is no such command, or options contradict each other.
    """
    if os.name != "posix":
        raise click.UsageError("`mmrewrite run` needs process groups, which this system does not have.")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"There is no command {command[0]!r}. For a Python program, write python {command[0]}.")
    if options.min_processes is not None and options.min_processes > options.processes:
        raise click.UsageError(f"--min-processes {options.min_processes} is more than --processes {options.processes}.")
    if options.min_processes is not None and not options.max_restarts:
        raise click.UsageError("--min-processes is about restarts; give --max-restarts as well.")
    count = options.processes
    for restart in range(options.max_restarts + 1):
        outcome = _run_once(command, count, options.devices, restart)
        left = options.max_restarts - restart
        if outcome.status == 0 or outcome.interrupted is not None or not left:
            return outcome.status
        if options.min_processes is not None:
            count = max(options.min_processes, count - outcome.lost)
        _say(
            f"starting again with {count} process{'es' if count > 1 else ''}; {left - 1} restarts left after this one."
        )
    raise AssertionError


def _run_once(command: Sequence[str], count: int, devices: int | None, restart: int) -> JobOutcome:
    width = len(str(count - 1))
    streams = (sys.stdout.buffer, sys.stderr.buffer)

    def write(index: int, is_error: bool, line: bytes) -> None:
        stream = streams[is_error]
        # One write for each line, so that nothing gets between.
        stream.write(b"[%*d] %s\n" % (width, index, line))
        stream.flush()

    if devices is not None and restart == 0:
        kind = "GPUs" if on_gpus(os.environ) else "virtual CPU devices"
        _say(f"{count} processes with {devices} {kind if devices > 1 else kind.removesuffix('s')} each.")
    job = Job(command, environments(os.environ, count, devices, free_port(), restart), write)
    try:
        outcome = job.run()
    except BrokenPipeError:
        # Whoever read our output is gone. All have been ended.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        return JobOutcome(128 + signal.SIGPIPE, interrupted=signal.SIGPIPE)
    if outcome.interrupted is not None:
        _say(f"ended by {signal.Signals(outcome.interrupted).name}.")
    elif outcome.blamed is not None:
        others = "the others were ended" if count > 1 else "it was the only one"
        lines = " Its last lines:" if outcome.last_lines else " It wrote nothing."
        _say(f"process {outcome.blamed} {outcome.reason}; {others}.{lines}")
        for _, line in outcome.last_lines:
            write(outcome.blamed, True, line)
    return outcome


def _say(sentence: str) -> None:
    click.echo(f"mmrewrite run: {sentence}", err=True)
