"""Ctrl-C while files are written: it waits for the file at hand, so that what is said to be written is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Put Ctrl-C off until the end of the block; what is given says whether it came.

    Only the main thread gets it, so elsewhere there is nothing to put off.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return
    before = signal.signal(signal.SIGINT, lambda *_: came.set())
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)
