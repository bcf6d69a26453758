"""Run a program of the user within bounds of time, memory and output, and end all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.launch.watchman import Watchman
from mmrewrite.mirror.child_progress import ChildProgress
from mmrewrite.tracking import Tell, untold

_LOOK = 0.05
_LOOK_AT_ALL = 0.5


@dataclass(frozen=True)
class ProgramLimits:
    """Bounds of one program: seconds, bytes of memory of its processes, and bytes of each of its two outputs.

    Memory is looked at where the kernel shows it (Linux), several times a second; None is no bound.
    """

    seconds: float = 1800
    memory: int | None = None
    output: int = 64_000_000


USUAL = ProgramLimits()


def program_limits(seconds: float, gigabytes: float | None, megabytes: float) -> ProgramLimits:
    """The limits as the command line gives them: seconds, GB of memory, and MB of output.

    Without a number of GB it is nine tenths of the machine's memory: beyond, the kernel ends any process, or swaps.
    """
    memory = machine_memory() if gigabytes is None else gigabytes * 1e9
    return ProgramLimits(seconds, None if memory is None else int(memory), int(megabytes * 1e6))


def machine_memory() -> float | None:
    """Nine tenths of the bytes of memory that this machine, or its container, has; None where nothing shows them."""
    try:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        return None
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", "rb") as file:
        # The word `max` is no number.
        sizes.append(int(file.read()))
    return 0.9 * min(sizes)


@dataclass(frozen=True)
class EndedProgram:
    """What a process has left: its exit status, its outputs, and why it was ended, None if it ended by itself."""

    status: int
    stdout: str
    stderr: str
    ended: str | None


def run_within(
    command: Sequence[str], variables: Mapping[str, str], limits: ProgramLimits, tell: Tell = untold
) -> EndedProgram:
    """Run a command in a session of its own, and end the session if it goes beyond its limits, or we end.

    With `tell` the command gets the option `--progress`, and what it says there is handed on.
    """
    with (
        _signals_as_exits(),
        contextlib.closing(Watchman()) as watchman,
        ChildProgress(tell) as progress,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        process = subprocess.Popen(
            [*command, *progress.arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=progress.handed,
        )
        begin, ended, wait = time.monotonic(), None, 0.001
        try:
            watchman.group_started(process.pid)
            while process.poll() is None and ended is None:
                time.sleep(wait)
                wait = min(2 * wait, _LOOK)
                progress.look()
                ended = _beyond(limits, time.monotonic() - begin, process.pid, (stdout.fileno(), stderr.fileno()))
        finally:
            _end(process)
            watchman.group_ended(process.pid)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read(limits.output).decode(errors="replace"))
        return EndedProgram(process.returncode, texts[0], texts[1], ended)


@contextlib.contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise SystemExit, as Ctrl-C raises an error.

    By themselves they would end this process alone. Nobody would be left to end the session of the program, to which a
    closed terminal or a cancelled job does not send them, nor to remove its files.
    """
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Only the main thread may set handlers; those of others, and what `nohup` ignores, stay.
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _beyond(limits: ProgramLimits, seconds: float, process: int, outputs: Sequence[int]) -> str | None:
    if seconds > limits.seconds:
        return f"it ran for more than {limits.seconds:g} s"
    if any(os.fstat(output).st_size > limits.output for output in outputs):
        return f"it wrote more than {limits.output / 1e6:g} MB"
    if limits.memory is not None and _takes_more(process, limits.memory, seconds):
        return f"it took more than {limits.memory / 1e9:g} GB of memory"
    return None


def _takes_more(leader: int, limit: int, seconds: float) -> bool:
    """Whether a program, or what it has started, takes more memory than a limit."""
    if (_resident(leader) or 0) > limit:
        return True
    # All processes of the machine are looked at for that, so not each time.
    if seconds % _LOOK_AT_ALL > 2 * _LOOK:
        return False
    members = [leader, *(process for process in _processes() if process != leader and _is_of_session(process, leader))]
    if sum(_resident(process) or 0 for process in members) <= limit:
        return False
    # Forks share pages, which count as resident in each of them.
    return sum(_proportional(process) for process in members) > limit


def _processes() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _is_of_session(process: int, leader: int) -> bool:
    try:
        return os.getsid(process) == leader
    except OSError:
        return False


def _proportional(process: int) -> int:
    """Bytes of memory of a process, of shared pages its share; nothing where the kernel does not tell."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _resident(process: int) -> int | None:
    """Bytes of memory that a process holds; None where the platform does not show it."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started."""
    if os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    else:
        process.kill()
    process.wait()
