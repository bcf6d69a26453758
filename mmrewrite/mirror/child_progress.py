"""What a child process says that it is doing, line by line, while it runs.

The child is told the number of a pipe's end by `--progress N`, and writes lines there: `mmruntime._core.progress`. What
is made of them is up to whoever asks: the engine prints nothing.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from mmrewrite.tracking import Tell, untold

# More bytes are no line of ours.
_LONGEST = 1 << 16


class ChildProgress:
    """The lines of one child; the last one counts. None on Windows, which hands on no pipes by number.

    Attributes:
        arguments: What the child's command line has for it.
        handed: The file descriptors that the child inherits.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell, self._rest = tell, b""
        self._ends: tuple[int, ...] = os.pipe() if tell is not untold and os.name == "posix" else ()
        self.handed = self._ends[1:]
        self.arguments = tuple(word for end in self.handed for word in ("--progress", str(end)))
        for end in self._ends:
            # The child must not wait for a reader, nor this process for a writer.
            os.set_blocking(end, False)

    def look(self) -> None:
        """Hand on the last whole line that has come since, if there is one."""
        if not self._ends:
            return
        try:
            data = os.read(self._ends[0], _LONGEST)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST:]
        if lines:
            self._tell(lines[-1].decode(errors="replace"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for end in self._ends:
            os.close(end)
