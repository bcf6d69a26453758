"""What a first call is doing, where it takes long: lines on standard error, or to the tool that started the process.

A call says what it is about to do by `tell`. Nothing is shown of one that is done within three seconds.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from mmruntime import _check

VARIABLE = "MMRUNTIME_PROGRESS"
# Seconds before the first line, between two of a log, and between two states of a terminal's.
_AFTER, _EVERY, _REDRAW = 3.0, 5.0, 0.5
_ERASE = "\r\x1b[K"


class _Audience:
    """Whom `mm.init` and the tool asked to tell; None leaves it to the environment variable."""

    shown: bool | None = None
    listener: Callable[[str], None] | None = None


class _Long:
    """A call that may take long: its name, why it is long, if that is a question, and what it is doing now."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why, self.text = name, why, "starting"


_CALL: contextvars.ContextVar[_Long | None] = contextvars.ContextVar("mmruntime_progress", default=None)


def show_progress(shown: bool | None, environment: Mapping[str, str] = os.environ) -> None:
    """Have long calls say what they do, or not; None for what the variable says.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    if shown is None:
        _check.switch("init", VARIABLE, environment)
    _Audience.shown = shown


def write_to(descriptor: int) -> None:
    """Write each `tell` as a line to a file descriptor, for the tool that shows it, and nothing to standard error."""
    os.set_inheritable(descriptor, False)

    def listen(text: str) -> None:
        # Whoever listens may be gone, or slow.
        with contextlib.suppress(OSError):
            os.write(descriptor, f"{' '.join(text.split())}\n".encode(errors="replace"))

    _Audience.listener = listen


def tell(text: str) -> None:
    """Say what the call at hand does from now on, as "tracing"."""
    _teller()(text)


def counted(what: str, total: int, thing: str) -> Callable[[], None]:
    """Say that `what` is done to so many things; what is given says that one more is done, from any thread."""
    things = thing if total == 1 else f"{thing}s"
    said, lock, done = _teller(), threading.Lock(), 0

    def one_more() -> None:
        nonlocal done
        with lock:
            done += 1
            said(f"{what}, {done} of {total} {things} done")

    said(f"{what}, 0 of {total} {things} done")
    return one_more


def _teller() -> Callable[[str], None]:
    if _Audience.listener is not None:
        return _Audience.listener
    call = _CALL.get()

    def keep(text: str) -> None:
        if call is not None:
            call.text = text

    return keep


@contextlib.contextmanager
def long_call(name: str, why: str = "", *, shows: bool = True) -> Iterator[None]:
    """A block that prints what it does, if it takes more than three seconds.

    Args:
        name: The name of what is called.
        why: Why it takes long, where nobody expects that.
        shows: Whether this process is one that shows anything; of several it is the first one.
    """
    asked = os.environ.get(VARIABLE, "").strip() != "0" if _Audience.shown is None else _Audience.shown
    if _Audience.listener is not None or not (shows and asked) or sys.stderr is None or _CALL.get() is not None:
        yield
        return
    call, ended = _Long(name, why), threading.Event()
    token = _CALL.set(call)
    # XLA compiles, and tracing lets other threads run now and then, so a thread sees the time pass.
    watch = threading.Thread(target=_show, args=(call, ended), name="mmruntime-progress", daemon=True)
    watch.start()
    try:
        yield
    finally:
        _CALL.reset(token)
        ended.set()
        watch.join()


def _show(call: _Long, ended: threading.Event) -> None:
    began, wait = time.monotonic(), _AFTER
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError):  # a stream that is gone or closed
        in_place = stream.isatty() and os.environ.get("TERM") != "dumb"
        is_drawn = False
        while not ended.wait(wait):
            seconds = time.monotonic() - began
            line = f"mmruntime: {call.name}: {call.text} ({seconds:.0f} s){call.why}"
            stream.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K" if in_place else f"{line}\n")
            stream.flush()
            is_drawn, wait = True, _REDRAW if in_place else _EVERY
        if is_drawn and in_place:
            stream.write(_ERASE)
            stream.flush()
