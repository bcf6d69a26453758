"""Whose fault it is that a file cannot be rewritten, in a sentence; and room for our own recursion.

Where Python's stack is too small for what a program needs, the work is done again on a larger one. Most programs need a
tenth of it, so that a thread for each would cost much for nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from mmrewrite.source.text import TooDeep

_Result = TypeVar("_Result")

_BUG = (
    "this is a bug in mmrewrite ({problem}); nothing was written. Please report it with this file, the command line "
    "and the output of `mmrewrite --version`"
)

# What a call needs of the stack of the machine is less than a kilobyte for our own code, and for Python's parser, which
# goes three times as deep, a few hundred bytes. None of it is memory before it is used.
_CALLS, _BYTES = 50_000, 512 << 20

_is_large = False


class TextDiffers(Exception):
    """The text after some edits is another program than they mean, which is a mistake of ours."""


def has_room() -> bool:
    """Whether the stack is as large as it gets: what is still too deep for it is a mistake of ours."""
    return _is_large


def with_room(work: Callable[[], _Result]) -> _Result:
    """What `work` returns, which is called again on a larger stack if it needs one.

    Raises:
        TooDeep: If a text is nested too deeply for a parser, which no stack changes.
    """
    try:
        return work()
    except TooDeep:
        raise
    except RecursionError:
        if _is_large:
            raise
    return _on_large_stack(work)


def _on_large_stack(work: Callable[[], _Result]) -> _Result:
    global _is_large
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    limit, size = sys.getrecursionlimit(), threading.stack_size(_BYTES)
    _is_large = True
    try:
        sys.setrecursionlimit(_CALLS)
        # So that Ctrl-C, which comes to the thread that waits, ends the run.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
        _is_large = False
    if errors:
        raise errors[0]
    return results[0]


def bug(problem: str) -> str:
    """The message for a mistake of ours."""
    return _BUG.format(problem=problem)


def is_bug(failure: str) -> bool:
    """Whether a failure is a mistake of ours, and not something about the file."""
    return failure.startswith(_BUG.partition("{")[0])


def failure_of(error: Exception) -> str:
    """The message for an exception in a codemod, with the line that raised it.

    Raises:
        RecursionError: If the work needs a larger stack, and there is one: see `with_room`.
    """
    if isinstance(error, TooDeep):
        return "nested too deeply to be rewritten; split its longest expressions"
    if isinstance(error, RecursionError) and not has_room():
        raise error
    if isinstance(error, MemoryError):
        return "there is not enough memory to rewrite it; name fewer files, or run with --jobs 1"
    if isinstance(error, TextDiffers):
        return bug(str(error))
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return bug(f"{type(error).__name__}: {error}, at {os.path.basename(frame.filename)}:{frame.lineno}")
