"""What is going on, and for how long, on one line of a terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator

import click

_EVERY = 0.5


class StatusLine:
    """The line on standard error; nothing where that is no terminal, or the user wants quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    @contextlib.contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show `text` with the seconds since it began, until the block ends."""
        if not self._shown:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=self._show, args=(text, done), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()
            click.echo("\r\x1b[K", err=True, nl=False)

    def _show(self, text: str, done: threading.Event) -> None:
        begin = time.monotonic()
        while True:
            seconds = f" {time.monotonic() - begin:.0f} s"
            room = max(8, shutil.get_terminal_size().columns - len(seconds) - 1)
            shown = text if len(text) <= room else f"{text[: room - 3]}..."
            click.echo(f"\r{shown}{seconds}\x1b[K", err=True, nl=False)
            if done.wait(_EVERY):
                return
