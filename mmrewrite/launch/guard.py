"""A tiny process that outlives the launcher, and ends what it has started if it is killed.

It runs as a file of its own, in a bare interpreter. It reads the numbers of process groups, a line for each, and `0`
once all is over. Where its input ends without, the launcher is gone, and it kills the groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def guard() -> None:
    """Wait for the end of the launcher."""
    groups: list[int] = []
    for line in sys.stdin:
        group = int(line)
        groups = [*groups, group] if group else []
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    guard()
