"""Have what this process starts and makes go with it, also if it is killed, which no handler and no `finally` sees."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from mmrewrite.launch import guard


class Watchman:
    """A process that ends groups of processes, and removes folders, if this one ends before it calls `close`."""

    def __init__(self) -> None:
        # In a session of its own, which signals to ours do not reach. Unbuffered, so that each message is one write.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard.__file__)], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
        )

    def group_started(self, leader: int) -> None:
        """End the group of this process."""
        self._tell(b"+group %d" % leader)

    def group_ended(self, leader: int) -> None:
        """Forget the group: its number may go to another one."""
        self._tell(b"-group %d" % leader)

    def folder_made(self, path: str) -> None:
        """Remove this folder."""
        self._tell(b"+folder " + os.fsencode(path))

    def close(self) -> None:
        """Have it end, and leave all as it is."""
        self._tell(b"over")
        self._process.communicate()

    def _tell(self, message: bytes) -> None:
        assert self._process.stdin is not None
        # A run whose watchman somebody has killed goes on without.
        with contextlib.suppress(OSError):
            self._process.stdin.write(message + b"\0")


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A new folder that is removed after the `with` block, also if this process is killed within it."""
    with contextlib.closing(Watchman()) as watchman, tempfile.TemporaryDirectory(prefix=prefix) as folder:
        watchman.folder_made(folder)
        yield folder
