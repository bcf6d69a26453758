"""`mmrewrite run`: a command in several processes on this machine, its output by process, and its restarts."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from mmrewrite.cli.reports import DEFAULT_FORMAT, render
from mmrewrite.cli.reports._messages import RunLine, RunMessage
from mmrewrite.cli.terminal.output import encoded
from mmrewrite.cli.terminal.style import sees_color
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
        output_format: The format of what is printed.
    """

    processes: int
    devices: int | None
    max_restarts: int
    min_processes: int | None
    output_format: str = DEFAULT_FORMAT


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
    printer = _Printer(options.output_format)
    count = options.processes
    for restart in range(options.max_restarts + 1):
        outcome = _run_once(command, count, options.devices, restart, printer)
        left = options.max_restarts - restart
        if outcome.status == 0 or outcome.interrupted is not None or not left:
            printer.end(outcome)
            return outcome.status
        if options.min_processes is not None:
            count = max(options.min_processes, count - outcome.lost)
        remaining = "1 restart" if left == 2 else f"{left - 1} restarts"
        printer.say(f"starting again with {_processes(count)}; {remaining} left after this one.")
    raise AssertionError


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


class _Printer:
    """Prints events in a format: as text, lines go where the process wrote them, else all to standard output."""

    def __init__(self, output_format: str) -> None:
        self._format = output_format
        self._is_text = output_format == DEFAULT_FORMAT
        self._streams = (sys.stdout, sys.stderr)

    def line(self, process: int, is_error: bool, data: bytes, width: int, *, is_last: bool = False) -> None:
        """A line of a process."""
        self._print(RunLine(process, is_error, data, width, is_last), is_error)

    def say(self, text: str) -> None:
        """A sentence of our own."""
        self._print(RunMessage(text), True)

    def end(self, outcome: JobOutcome) -> None:
        """How the job has ended; as text its sentences have said so."""
        if not self._is_text:
            self._print(RunMessage(outcome.reason, outcome.status, outcome.blamed), True)

    def _print(self, event: RunLine | RunMessage, is_error: bool) -> None:
        target = self._streams[is_error and self._is_text]
        output = render("run", self._format, replace(event, color=sees_color(target)))
        stream = target.buffer
        # One write for each event, so that nothing gets between.
        stream.write(output if isinstance(output, bytes) else encoded(output))
        stream.flush()


def _run_once(command: Sequence[str], count: int, devices: int | None, restart: int, printer: _Printer) -> JobOutcome:
    width = len(str(count - 1))

    def write(index: int, is_error: bool, line: bytes) -> None:
        printer.line(index, is_error, line, width)

    if devices is not None and restart == 0:
        kind = "GPUs" if on_gpus(os.environ) else "virtual CPU devices"
        each = " each" if count > 1 else ""
        printer.say(f"{_processes(count)} with {devices} {kind if devices > 1 else kind.removesuffix('s')}{each}.")
    job = Job(command, environments(os.environ, count, devices, free_port(), restart), write)
    try:
        outcome = job.run()
    except BrokenPipeError:
        # Whoever read our output is gone. All have been ended.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        return JobOutcome(128 + signal.SIGPIPE, interrupted=signal.SIGPIPE)
    if outcome.interrupted is not None:
        printer.say(f"ended by {signal.Signals(outcome.interrupted).name}.")
    elif outcome.blamed is not None:
        others = "the others were ended" if count > 1 else "it was the only one"
        if outcome.was_asleep:
            others = "so it was ended too"
        lines = " Its last lines:" if outcome.last_lines else " It wrote nothing."
        printer.say(f"process {outcome.blamed} {outcome.reason}; {others}.{lines}")
        for _, line in outcome.last_lines:
            printer.line(outcome.blamed, True, line, width, is_last=True)
    return outcome
