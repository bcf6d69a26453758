"""A tiny process that outlives another one, and ends and removes what that leaves behind if it is killed.

It runs as a file of its own, in a bare interpreter. Each message to it ends with a null byte: `+group NUMBER` and
`-group NUMBER` for the groups of processes that run, `+folder PATH` for temporary folders, and `over` once all is over.
Where its input ends without, the other process is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

# How long what was killed may still write into a folder, and how often to look, in seconds.
_PATIENCE = 10
_LOOK = 0.05


def guard() -> None:
    """Wait for the end of the other process."""
    *messages, _ = sys.stdin.buffer.read().split(b"\0")
    if b"over" in messages:
        return
    groups: list[int] = []
    folders: list[bytes] = []
    for kind, _, value in (message.partition(b" ") for message in messages):
        if kind == b"+group":
            groups.append(int(value))
        elif kind == b"-group":
            groups.remove(int(value))
        else:
            folders.append(value)
    for group in groups:
        with contextlib.suppress(OSError):
            if os.name == "posix":
                os.killpg(group, signal.SIGKILL)
            else:
                os.kill(group, signal.SIGTERM)
    for folder in folders:
        _remove(folder)


def _remove(folder: bytes) -> None:
    # Hardly ever needed, and slow to import.
    import shutil

    end = time.monotonic() + _PATIENCE
    while os.path.lexists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_LOOK)


if __name__ == "__main__":
    guard()
