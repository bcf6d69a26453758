"""What is going on, and how far it is: on one line of a terminal, or in a few lines of a log."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from mmrewrite.cli.terminal.style import one_line
from mmrewrite.tracking import Item, Tell

VARIABLE = "MMREWRITE_PROGRESS"
# Seconds before anything is shown, on a terminal and in a log: what is done by then needs no line.
_AFTER, _LOG_AFTER = 1.0, 3.0
# Seconds between two states of the line, and two lines of a log.
_EVERY, _LOG_EVERY = 0.2, 5.0
# Seconds that a timer has at least: zero would stop it.
_SOON = 0.001
_WIDTH = 24
# Of the bar of a phase, which leaves room for what is done; and of the part of it that moves.
_PHASE_WIDTH, _PART = 5, 2
_ERASE = "\r\x1b[K"


class StatusLine:
    """The line on standard error; nothing where the user wants quiet.

    On a terminal it appears once a run has taken a second, and is gone before anything else is printed. Elsewhere, as
    in the log of a CI job, a run of more than three seconds has a line now and then.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._shows = not quiet and os.environ.get(VARIABLE) != "0" and sys.stderr is not None
        self._in_place = self._shows and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._began = clock()
        self._next = self._began + self._after
        self._is_drawn = False
        # What is tracked, how many are done, and of how many.
        self._state: tuple[str, int, int | None] | None = None

    @property
    def _after(self) -> float:
        return _AFTER if self._in_place else _LOG_AFTER

    @property
    def _every(self) -> float:
        return _EVERY if self._in_place else _LOG_EVERY

    def track(self, what: str, items: Iterable[Item], total: int | None, /) -> Iterable[Item]:
        """The items, with a bar of how many are done: see `mmrewrite.tracking.Track`."""
        return self._tracked(what, items, total) if self._shows else items

    def _tracked(self, what: str, items: Iterable[Item], total: int | None) -> Iterator[Item]:
        for done, item in enumerate(items):
            self._state = (what, done, total)
            self._draw_state()
            yield item
        # What follows without a count of its own takes its time as well.
        if total:
            self._state = (what, total, total)

    def _draw_state(self) -> None:
        """Draw how far it is, unless that has just been done."""
        now = self._clock()
        if self._state is not None and now >= self._next:
            what, done, total = self._state
            count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
            bar = "" if total is None or not self._in_place else _bar(done / total)
            self._draw(f"{what} {bar}{count}", now - self._began)
            self._next = now + self._every

    @contextlib.contextmanager
    def phase(self, text: str) -> Iterator[Tell]:
        """Show `text`, the seconds of the phase and in all, and a moving bar until the block ends.

        What the block is given takes what is being done of it, which stands behind the text.
        """
        told = [text]

        def tell(doing: str) -> None:
            told[0] = f"{text}: {doing}"

        if not self._shows:
            yield tell
            return
        ended = threading.Event()
        watch = threading.Thread(target=self._show, args=(told, ended), daemon=True)
        watch.start()
        try:
            yield tell
        finally:
            ended.set()
            watch.join()
            self.erase()

    def _show(self, told: list[str], ended: threading.Event) -> None:
        begin, state = self._clock(), 0
        # Phases follow each other, and a log has a line now and then of all of them.
        wait = self._after if self._in_place else max(self._next - begin, _SOON)
        while not ended.wait(wait):
            bar = _moving_bar(state) if self._in_place else ""
            now = self._clock()
            self._draw(f"{bar}{told[0]}", now - begin, now - self._began)
            wait, state, self._next = self._every, state + 1, now + self._every

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
        # Several times for each line of a log, or one that comes a moment early would be left out.
        signal.setitimer(
            signal.ITIMER_REAL, max(self._after, _SOON), max(self._every / (1 if self._in_place else 5), _SOON)
        )
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

    def _draw(self, text: str, seconds: float, in_all: float | None = None) -> None:
        is_first = in_all is None or in_all - seconds < 1
        took = f"{seconds:.0f} s" if is_first else f"{seconds:.0f} s, {in_all:.0f} s in all"
        if not self._in_place:
            self._write(f"mmrewrite: {one_line(text)} ({took})\n")
            return
        end = f" {took}"
        room = max(8, shutil.get_terminal_size().columns - len(end) - 1)
        text = one_line(text)
        shown = text if len(text) <= room else f"{text[: room - 3]}..."
        self._write(f"\r{shown}{end}\x1b[K")
        self._is_drawn = True

    def _write(self, text: str) -> None:
        # A terminal that is gone is no reason to stop, nor is a signal while it is written to.
        with contextlib.suppress(OSError, RuntimeError):
            stream = sys.stderr
            if not self._in_place:
                # Not where `mmrewrite.cli.replay` keeps what the next run prints again.
                stream.flush()
                stream = getattr(stream, "uncopied", stream)
            stream.write(text)
            stream.flush()


def _bar(share: float) -> str:
    full = int(share * _WIDTH)
    return f"[{'=' * full}{'>' if full < _WIDTH else ''}{' ' * (_WIDTH - full - 1)}] "


def _moving_bar(state: int) -> str:
    """A bar for work of unknown length: a part of it that goes to the right and back."""
    way = _PHASE_WIDTH - _PART
    start = way - abs(state % (2 * way) - way)
    return f"[{' ' * start}{'=' * _PART}{' ' * (way - start)}] "
