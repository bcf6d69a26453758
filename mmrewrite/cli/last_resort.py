"""The end of a run that no command foresees: closed streams, a full disk, a folder that is gone, mistakes of ours."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator

# What shells report for a process that nobody reads any more.
UNREAD = 128 + getattr(signal, "SIGPIPE", 13)
ERROR = 2


class PipeBroken(Exception):
    """A BrokenPipeError, which click would take for the end of the run, with the status of findings."""


def prepare_streams() -> None:
    """Have the standard streams take whatever is printed, and lead somewhere.

    Some cron jobs and daemons start programs with closed ones. The next file that is opened would get the number of
    one, and with it what the programs print that we start. `sys.stdin` stays None then, so that whoever wants to read
    it can say so.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
    # Python keeps the first streams under these names as well, however `sys.stdout` is replaced.
    if sys.stdout is None:
        sys.stdout = sys.__stdout__ = open(os.devnull, "w", encoding="utf-8")  # type: ignore[misc]  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = sys.__stderr__ = open(os.devnull, "w", encoding="utf-8")  # type: ignore[misc]  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # What the encoding of a terminal lacks becomes escapes; names of files may be in none.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def report(error: Exception) -> int:
    """Say why the run ends, and give its exit status; say nothing if nobody reads what it prints."""
    if isinstance(error, PipeBroken) and isinstance(error.__cause__, BrokenPipeError):
        error = error.__cause__
    if isinstance(error, BrokenPipeError) and any(map(_is_unread, _numbers())):
        _discard()
        return UNREAD
    try:
        from mmrewrite.cli.terminal.style import visible

        sys.stderr.write(visible(_said(error)))
        sys.stderr.flush()
    except OSError:
        # The disk is full, and the messages go there as well. The status still says that something is wrong.
        pass
    _discard()
    return ERROR


def _said(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        return "Error: the current folder is gone; change to one that is there, and run again\n"
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"Error: {where}{error.strerror or error}; the run is not complete\n"
    if isinstance(error, MemoryError):
        return "Error: there is not enough memory; name fewer files, or run with --jobs 1\n"
    import traceback

    trace = "".join(traceback.format_exception(error))
    return (
        f"{trace}Error: this is a bug in mmrewrite. Please report it with the lines above, the command line and the "
        "output of `mmrewrite --version`\n"
    )


def _is_folder_gone() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _numbers() -> Iterator[int]:
    """The numbers of the streams that are printed to, as far as they have one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            yield stream.fileno()


def _is_unread(number: int) -> bool:
    """Whether a stream is a pipe that nobody reads any more: the pipe that is broken may also be one of our own."""
    import select

    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


def _discard() -> None:
    """Have what is still to be printed go nowhere, so that Python does not complain about it at the exit."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in _numbers():
            os.dup2(nowhere, number)
