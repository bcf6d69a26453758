"""A job: one command in several processes, started together and ended together.

Each process leads a group (a session, in fact), so that what it starts can be ended with it, and Ctrl-C reaches it
only through the job. A process that has ended stays a zombie until the job is over: its number, which is that of its
group, cannot go to a stranger meanwhile. What a process has put into a session of its own, as daemons do, is not ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from mmrewrite.launch.lines import Lines, WithoutInterrupts
from mmrewrite.launch.watchman import Watchman

# How a process of `mmruntime` ends whose peers have failed (EX_TEMPFAIL): it is not the one to blame.
PEER_FAILED = 75
# How a job ends of which only stopped processes are left: as a shell says it.
_ASLEEP = 128 + signal.SIGSTOP
LAST_LINES = 20

# (Process, whether it is its standard error, line without its end.)
Write = Callable[[int, bool, bytes], None]


@dataclass(frozen=True)
class Patience:
    """Seconds that the processes of a job get to end.

    Attributes:
        to_notice: After one has failed, until the others get a SIGTERM: they may find out themselves, and say more.
        to_end: After a signal, until the next one, which is stronger.
        to_drain: After all have ended, for what they have started and not ended.
        to_wake: Until those that are left are ended, if all of them are stopped and others have ended.
    """

    to_notice: float = 5.0
    to_end: float = 5.0
    to_drain: float = 1.0
    to_wake: float = 15.0


@dataclass(frozen=True)
class JobOutcome:
    """How a job has ended.

    Attributes:
        status: The exit status that stands for it: 0, that of the process to blame, or 128 and the number of a signal.
        blamed: The process that failed first; None if none did, or a signal to the launcher ended the job.
        reason: How that process ended, in words.
        last_lines: The last lines that it wrote: whether on its standard error, and the line.
        interrupted: The signal to the launcher that ended the job.
        lost: How many processes were killed by a signal that the job did not send.
        was_asleep: Whether the process to blame was stopped and did not go on.
    """

    status: int
    blamed: int | None = None
    reason: str = ""
    last_lines: tuple[tuple[bool, bytes], ...] = ()
    interrupted: int | None = None
    lost: int = 0
    was_asleep: bool = False


@dataclass
class _Process:
    index: int
    popen: subprocess.Popen[bytes]
    last_lines: deque[tuple[bool, bytes]]
    status: int | None = None
    ended_by_job: bool = False
    # Since when it is stopped, by SIGSTOP or a terminal.
    stopped: float | None = None
    shown: WithoutInterrupts = field(default_factory=WithoutInterrupts)


class Job:
    """A job, from its start to its end.

    Args:
        command: The program and its arguments.
        environments: The environment variables of each process.
        write: Called for each line that a process writes.
        patience: How long processes may take to end.

    Raises:
        OSError: From `run`, if the program cannot be started, or a line cannot be written.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        write: Write,
        patience: Patience | None = None,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._write = write
        self._patience = patience or Patience()
        self._processes: list[_Process] = []
        # Pipes, and the socket that wakes the loop at signals.
        self._selector = selectors.DefaultSelector()
        self._received: deque[int] = deque()
        self._interrupted: int | None = None
        self._bad: list[_Process] = []
        # The first one that stayed stopped when others had ended.
        self._asleep: _Process | None = None
        # The signals that are still to be sent, and when.
        self._planned: deque[tuple[float, int]] = deque()

    def run(self) -> JobOutcome:
        """Start the processes and wait until all have ended. Call it from the main thread."""
        waker, wakes = socket.socketpair()
        for end in (waker, wakes):
            end.setblocking(False)
        before = {each: signal.signal(each, self._note) for each in _handled()}
        wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(wakes, selectors.EVENT_READ)
        watchman = Watchman()
        try:
            self._start(watchman)
            while any(process.status is None for process in self._processes):
                self._turn()
            # What the processes have left behind may still write to their pipes.
            self._signal_groups(signal.SIGTERM)
            drained = time.monotonic() + self._patience.to_drain
            while len(self._selector.get_map()) > 1 and time.monotonic() < drained:
                self._turn()
        finally:
            self._signal_groups(signal.SIGKILL)
            for process in self._processes:
                process.popen.wait()
                for pipe in (process.popen.stdout, process.popen.stderr):
                    if pipe is not None:
                        pipe.close()
            watchman.close()
            signal.set_wakeup_fd(wakeup)
            for each, handler in before.items():
                signal.signal(each, handler)
            self._selector.close()
            waker.close()
            wakes.close()
        self._end_lines()
        return self._outcome()

    def _note(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    def _start(self, watchman: Watchman) -> None:
        self._streams: list[tuple[_Process, bool, Lines]] = []
        for index, environment in enumerate(self._environments):
            popen = subprocess.Popen(
                self._command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            process = _Process(index, popen, deque(maxlen=LAST_LINES))
            self._processes.append(process)
            watchman.group_started(popen.pid)
            for is_error, pipe in ((False, popen.stdout), (True, popen.stderr)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                stream = (process, is_error, Lines())
                self._streams.append(stream)
                self._selector.register(pipe, selectors.EVENT_READ, stream)

    def _turn(self) -> None:
        """Wait for something to happen, and deal with it."""
        for key, _ in self._selector.select(self._patience_left()):
            self._read(key)
        now = time.monotonic()
        for process, is_error, lines in self._streams:
            self._show(process, is_error, lines.progress(now))
        while self._received:
            number = self._received.popleft()
            if number != signal.SIGCHLD:
                self._interrupt(number)
        self._look_for_ends()
        self._look_for_sleepers(time.monotonic())
        while self._planned and self._planned[0][0] <= time.monotonic():
            self._send(self._planned.popleft()[1])

    def _patience_left(self) -> float:
        """Seconds until there is something to do without an event."""
        # An end that was not signalled is seen within a second.
        limits = [1.0]
        if self._planned:
            limits.append(max(0.0, self._planned[0][0] - time.monotonic()))
        if any(lines.shows_progress for _, _, lines in self._streams):
            limits.append(0.2)
        return min(limits)

    def _read(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            wakes: Any = key.fileobj
            with contextlib.suppress(BlockingIOError):
                wakes.recv(4096)
            return
        process, is_error, lines = key.data
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(key.fileobj)
        self._show(process, is_error, lines.feed(data, time.monotonic()) if data else lines.end())

    def _show(self, process: _Process, is_error: bool, lines: Sequence[bytes]) -> None:
        if is_error and self._interrupted == signal.SIGINT:
            lines = process.shown.feed(lines)
        for line in lines:
            process.last_lines.append((is_error, line))
            self._write(process.index, is_error, line)

    def _end_lines(self) -> None:
        for process, is_error, lines in self._streams:
            self._show(process, is_error, lines.end())
        for process in self._processes:
            for line in process.shown.end():
                self._write(process.index, True, line)

    def _interrupt(self, number: int) -> None:
        """A signal to the launcher goes on to all; a second one leaves them no time."""
        if self._interrupted is not None:
            self._send(signal.SIGKILL)
            return
        self._interrupted = number
        self._plan([number, *([signal.SIGTERM] if number == signal.SIGINT else []), signal.SIGKILL], 0.0)

    def _plan(self, numbers: Sequence[int], first: float) -> None:
        now = time.monotonic()
        self._planned = deque(
            (now + first + position * self._patience.to_end, number) for position, number in enumerate(numbers)
        )

    def _look_for_ends(self) -> None:
        for process in self._processes:
            if process.status is not None:
                continue
            # Without reaping it; see the top of this file.
            found = os.waitid(os.P_PID, process.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            process.status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if process.status != 0 and not process.ended_by_job:
                self._bad.append(process)
                if not self._planned and self._interrupted is None:
                    self._plan([signal.SIGTERM, signal.SIGKILL], self._patience.to_notice)

    def _look_for_sleepers(self, now: float) -> None:
        """End processes that are stopped for good, once no process is left that would see it."""
        alive = [process for process in self._processes if process.status is None]
        for process in alive:
            try:
                found = os.waitid(os.P_PID, process.popen.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # It has ended since `_look_for_ends`, whose next turn sees its status; what has ended cannot stop.
                found = None
            process.stopped = None if found is None else process.stopped or now
        if self._planned or self._interrupted is not None or not 0 < len(alive) < len(self._processes):
            return
        if all(process.stopped is not None and now - process.stopped >= self._patience.to_wake for process in alive):
            self._asleep = alive[0]
            self._plan([signal.SIGTERM, signal.SIGKILL], 0.0)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.status is None:
                process.ended_by_job = True
                _signal_group(process.popen.pid, number)

    def _signal_groups(self, number: int) -> None:
        """Send a signal to every process and what it has started."""
        for process in self._processes:
            if process.popen.returncode is None:
                _signal_group(process.popen.pid, number)

    def _outcome(self) -> JobOutcome:
        if self._interrupted is not None:
            return JobOutcome(128 + self._interrupted, interrupted=self._interrupted)
        if not self._bad:
            if self._asleep is not None:
                return JobOutcome(
                    _ASLEEP,
                    self._asleep.index,
                    f"was stopped for {self._patience.to_wake:.0f} s when others had ended",
                    tuple(self._asleep.last_lines),
                    was_asleep=True,
                )
            return JobOutcome(0)
        blamed = next((process for process in self._bad if process.status != PEER_FAILED), self._bad[0])
        assert blamed.status is not None
        lost = sum(process.status is not None and process.status < 0 for process in self._bad)
        return JobOutcome(
            blamed.status if blamed.status > 0 else 128 - blamed.status,
            blamed.index,
            _in_words(blamed.status),
            tuple(blamed.last_lines),
            lost=lost,
        )


def _handled() -> tuple[int, ...]:
    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        # One that is stopped would act on nothing else.
        if number != signal.SIGKILL:
            os.killpg(group, signal.SIGCONT)


def _in_words(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
