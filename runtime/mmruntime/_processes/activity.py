"""Activity: what the main thread of this process does, as far as another thread can see it.

A process for which others wait may be slow or may be caught. Two ways of being caught can be seen from outside: a loop
of Python that calls nothing and has no way out, and output that nobody reads.
"""

from __future__ import annotations

import dis
import os
import select
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType

# Where frames are not the user's own.
_LIBRARIES = (
    *(os.path.join(os.path.realpath(path), "") for path in sysconfig.get_paths().values() if path),
    os.path.join(os.path.realpath(os.path.join(os.path.dirname(__file__), "..")), ""),
    "<frozen",
)
_KNOWN = (
    (f"{os.sep}orbax{os.sep}", "busy with a checkpoint"),
    (f"{os.sep}jax{os.sep}_src{os.sep}compiler.py", "compiling"),
    (f"{os.sep}jax{os.sep}_src{os.sep}interpreters{os.sep}partial_eval.py", "tracing"),
)
# Beginnings of the names of instructions that can neither raise, but for numbers out of range, nor run other code.
_PLAIN_NAMES = """
    NOP RESUME CACHE EXTENDED_ARG NOT_TAKEN JUMP POP_JUMP POP_TOP COPY SWAP TO_BOOL UNARY BINARY_OP COMPARE_OP IS_OP
    LOAD_CONST LOAD_SMALL_INT LOAD_FAST LOAD_GLOBAL LOAD_NAME LOAD_DEREF STORE_FAST STORE_GLOBAL STORE_NAME STORE_DEREF
"""
_PLAIN = tuple(_PLAIN_NAMES.split())
# Less is what a thread uses that sleeps and wakes, as a share of the time.
_BUSY = 0.05


class Activity:
    """Looks at the main thread now and then.

    Args:
        loop: Seconds after which a loop that calls nothing and has no way out is said to be endless.
        output: Seconds after which output that cannot be written counts as blocked.
    """

    def __init__(self, loop: float, output: float) -> None:
        self._limits = loop, output
        thread = threading.main_thread()
        self._thread = thread.ident or 0
        self._clock = time.pthread_getcpuclockid(self._thread) if hasattr(time, "pthread_getcpuclockid") else None
        self._at: tuple[int, int] | None = None
        self._loop_since = self._writable_at = self._busy_at = self._looked = time.monotonic()
        self._used = self._thread_time()
        self._process_used = time.process_time()
        self._stuck = ""

    def look(self) -> None:
        """Take a sample. Often enough, it costs some tens of microseconds."""
        now = time.monotonic()
        elapsed, self._looked = now - self._looked, now
        used, process_used = self._thread_time(), time.process_time()
        busy = used - self._used > _BUSY * elapsed
        if process_used - self._process_used > _BUSY * elapsed:
            self._busy_at = now
        self._used, self._process_used = used, process_used
        frame = sys._current_frames().get(self._thread)
        # Numbers and not the frame, which would keep the user's arrays alive.
        at = (id(frame), id(frame.f_code)) if frame is not None and busy and _jumps_back(frame) else None
        if at is None or at != self._at:
            self._loop_since = now
        self._at = at
        if busy or _can_write():
            self._writable_at = now
        self._stuck = ""
        if frame is not None and now - self._loop_since >= self._limits[0] and _is_endless(frame):
            self._stuck = f"has been in a loop {_line(frame)} for {now - self._loop_since:.0f} s"
        elif frame is not None and now - self._writable_at >= self._limits[1]:
            self._stuck = f"cannot write its output, which nobody reads{_comma(_user_line(frame))}"

    @property
    def stuck(self) -> str:
        """Why the main thread will not go on by itself, in words; empty if it may."""
        return self._stuck

    def idle(self, seconds: float) -> bool:
        """Whether the whole process has used next to no CPU for so long."""
        return self._looked - self._busy_at >= seconds

    def words(self, where: str) -> str:
        """What the main thread does, for a message.

        Args:
            where: Where it is in its steps.
        """
        frame = sys._current_frames().get(self._thread)
        return where if frame is None else _known(frame) + where + _comma(_user_line(frame))

    def _thread_time(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def _jumps_back(frame: FrameType) -> bool:
    """Whether a frame is at the end of a loop's body. A thread lets others run there, or after a call."""
    return _opcode(frame.f_code, frame.f_lasti).startswith("JUMP_BACKWARD")


def _is_endless(frame: FrameType) -> bool:
    """Whether the loop at whose end a frame is has no way out: nothing leaves it, and nothing in it may raise."""
    instructions = list(dis.get_instructions(frame.f_code))
    end = next(each for each in instructions if each.offset == frame.f_lasti)
    body = [each for each in instructions if end.argval <= each.offset <= end.offset]
    jumps = [each.argval for each in body if each.opcode in (*dis.hasjrel, *dis.hasjabs)]
    return all(end.argval <= target <= end.offset for target in jumps) and all(
        each.opname.startswith(_PLAIN) and each.argrepr != "[]" for each in body
    )


def _opcode(code: CodeType, position: int) -> str:
    return dis.opname[code.co_code[position]] if 0 <= position < len(code.co_code) else ""


def _can_write() -> bool:
    """Whether the standard output and error can take more."""
    poll = select.poll()
    watched = 0
    for descriptor in (1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        poll.register(descriptor, select.POLLOUT)
        watched += 1
    return len(poll.poll(0)) == watched


def _known(frame: FrameType) -> str:
    """What a library is doing there, if it is one that takes long."""
    innermost: FrameType | None = frame
    while innermost is not None:
        name = innermost.f_code.co_filename
        for part, words in _KNOWN:
            if part in name:
                return f"{words}, "
        innermost = innermost.f_back
    return ""


def _user_line(frame: FrameType) -> str:
    """The innermost line of the user's program."""
    found: FrameType | None = frame
    while found is not None:
        if not os.path.realpath(found.f_code.co_filename).startswith(_LIBRARIES):
            return _line(found)
        found = found.f_back
    return ""


def _line(frame: FrameType) -> str:
    number = frame.f_lineno
    if number is None:
        # The jump at the end of a loop may belong to no line.
        before = [line for start, _, line in frame.f_code.co_lines() if start <= frame.f_lasti and line is not None]
        number = before[-1] if before else frame.f_code.co_firstlineno
    return f"at {frame.f_code.co_filename}:{number} in {frame.f_code.co_name}"


def _comma(text: str) -> str:
    return f", {text}" if text else ""
