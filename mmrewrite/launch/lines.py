"""Cut what a process writes into whole lines, progress bars included."""

from __future__ import annotations

from collections.abc import Iterable

# A line that grows longer than this is cut, so that memory stays bounded.
LONGEST = 64 * 1024
# Seconds between two states of a progress bar that are shown.
_PROGRESS_S = 1.0


class Lines:
    """The lines of one stream, without their ends.

    A progress bar writes its states over each other, after a carriage return. Each would be a line in a log, so they
    are shown once a second at most, and the last one always.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._shown = b""
        self._shown_at = 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that are complete with some more bytes.

        Args:
            data: The bytes.
            now: The time, in seconds.
        """
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        lines = []
        for line in whole:
            final = _latest(line) if b"\r" in line else line
            if not self._shown or final != self._shown:
                lines.append(final)
            self._shown = b""
        while len(self._rest) > LONGEST and b"\r" not in self._rest:
            lines.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        if b"\r" in self._rest:
            # What matters is the latest state, and the next, which may not be complete yet.
            before, _, current = self._rest.rpartition(b"\r")
            self._rest = b"\r%s\r%s" % (_latest(before)[:LONGEST], current[:LONGEST])
        return [*lines, *self.progress(now)]

    def progress(self, now: float) -> list[bytes]:
        """The state of a progress bar, if it is time to show it."""
        if not self.shows_progress or now - self._shown_at < _PROGRESS_S:
            return []
        state = _latest(self._rest)
        if state == self._shown:
            return []
        self._shown, self._shown_at = state, now
        return [state]

    @property
    def shows_progress(self) -> bool:
        """Whether there is a state of a progress bar that is not followed by a line yet."""
        return b"\r" in self._rest

    def end(self) -> list[bytes]:
        """What was written without a newline at the end."""
        rest = _latest(self._rest) if b"\r" in self._rest else self._rest
        shown, self._rest, self._shown = self._shown, b"", b""
        return [rest] if rest and rest != shown else []


def _latest(text: bytes) -> bytes:
    """The last state that is not empty; bars are cleared by spaces."""
    states = [state for state in text.split(b"\r") if state.strip()]
    return states[-1] if states else b""


_BEGIN = b"Traceback (most recent call last):"
_BETWEEN = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
    b"Exception ignored in",
)


class WithoutInterrupts:
    """Leaves the tracebacks of Ctrl-C out of what a Python program writes: whoever pressed it knows where it ended."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, lines: Iterable[bytes]) -> list[bytes]:
        """The lines to show after some more have come. A traceback waits for its last line."""
        shown: list[bytes] = []
        for line in lines:
            if line.startswith((_BEGIN, *_BETWEEN)) or (self._held and (not line.strip() or line[:1].isspace())):
                self._held.append(line)
                continue
            if not (self._held and line.startswith(b"KeyboardInterrupt")):
                shown += [*self._held, line]
            self._held = []
        return shown

    def end(self) -> list[bytes]:
        """What waits for a last line that does not come."""
        held, self._held = self._held, []
        return held
