"""What is going on, and how far it is, on one line of a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator

from mmrewrite.cli.reports._style import one_line
from mmrewrite.tracking import Item

# Seconds before anything is shown: what is done by then needs no line.
_AFTER = 1.0
# Seconds between two states of the line.
_EVERY = 0.2
# Seconds that a timer has at least: zero would stop it.
_SOON = 0.001
_WIDTH = 24
_PART = _WIDTH // 4
_ERASE = "\r\x1b[K"


class StatusLine:
    """The line on standard error; nothing where that is no terminal, or the user wants quiet.

    It appears once a run has taken a second, and is gone before anything else is printed.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._shows = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._next = self._began + _AFTER
        self._is_drawn = False
        # What is tracked, how many are done, and of how many.
        self._state: tuple[str, int, int | None] | None = None

    def track(self, what: str, items: Iterable[Item], total: int | None, /) -> Iterable[Item]:
        """The items, with a bar of how many are done: see `mmrewrite.tracking.Track`."""
        return self._tracked(what, items, total) if self._shows else items

    def _tracked(self, what: str, items: Iterable[Item], total: int | None) -> Iterator[Item]:
        for done, item in enumerate(items):
            self._state = (what, done, total)
            self._draw_state()
            yield item
        self._state = None

    def _draw_state(self) -> None:
        """Draw how far it is, unless that has just been done."""
        now = time.monotonic()
        if self._state is not None and now >= self._next:
            what, done, total = self._state
            count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
            bar = "" if total is None else _bar(done / total)
            self._draw(f"{what} {bar}{count}", now - self._began)
            self._next = now + _EVERY

    @contextlib.contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show `text` with the seconds since it began, and a bar that moves, until the block ends."""
        if not self._shows:
            yield
            return
        ended = threading.Event()
        watch = threading.Thread(target=self._show, args=(text, ended), daemon=True)
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()
            self.erase()

    def _show(self, text: str, ended: threading.Event) -> None:
        begin = time.monotonic()
        wait, state = _AFTER, 0
        while not ended.wait(wait):
            self._draw(f"{_moving_bar(state)}{text}", time.monotonic() - begin)
            wait, state = _EVERY, state + 1

    @contextlib.contextmanager
    def erased_at_end(self) -> Iterator[None]:
        """A block in which items are tracked: however it ends, the line is gone."""
        try:
            with self._ticking():
                yield
        finally:
            self.erase()

    @contextlib.contextmanager
    def _ticking(self) -> Iterator[None]:
        """Draw the line now and then in the block, as one item may take long.

        A signal does it, and no thread: workers are forked meanwhile, which would take over its locks, not itself.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if not (self._shows and in_main and hasattr(signal, "setitimer")):
            yield
            return
        before = signal.signal(signal.SIGALRM, lambda *_: self._draw_state())
        signal.setitimer(signal.ITIMER_REAL, max(_AFTER, _SOON), max(_EVERY, _SOON))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # None is a handler that no Python has set, which none can put back.
            signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)

    def erase(self) -> None:
        """Leave the line as it was."""
        if self._is_drawn:
            self._write(_ERASE)
            self._is_drawn = False

    def _draw(self, text: str, seconds: float) -> None:
        end = f" {seconds:.0f} s"
        room = max(8, shutil.get_terminal_size().columns - len(end) - 1)
        text = one_line(text)
        shown = text if len(text) <= room else f"{text[: room - 3]}..."
        self._write(f"\r{shown}{end}\x1b[K")
        self._is_drawn = True

    def _write(self, text: str) -> None:
        # A terminal that is gone is no reason to stop, nor is a signal while it is written to.
        with contextlib.suppress(OSError, RuntimeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _bar(share: float) -> str:
    full = int(share * _WIDTH)
    return f"[{'=' * full}{'>' if full < _WIDTH else ''}{' ' * (_WIDTH - full - 1)}] "


def _moving_bar(state: int) -> str:
    """A bar for work of unknown length: a part of it that goes to the right and back."""
    way = _WIDTH - _PART
    start = way - abs(state % (2 * way) - way)
    return f"[{' ' * start}{'=' * _PART}{' ' * (way - start)}] "
