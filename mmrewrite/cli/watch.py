"""`--watch`: run a command again whenever a file changes that it may read."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable

import click

from mmrewrite.cli.config import Config, read_config
from mmrewrite.files.walk import OWN_FILE, PYPROJECT, SUFFIXES, walk

# Seconds between two looks at the files. Asking the system to report changes would need a package more, and asking for
# a thousand files takes 10 ms.
_EVERY = 0.5
_SETTINGS = (PYPROJECT, OWN_FILE, ".gitignore")

State = dict[str, tuple[int, int]]


def watch(run: Callable[[], None], paths: tuple[str, ...], config: str | None) -> None:
    """Run once, and again after each change, until Ctrl-C.

    Args:
        run: Runs the command, which ends by `SystemExit`.
        paths: The files and folders that the command reads; none for those of the configuration.
        config: The configuration that the user named.
    """
    while True:
        before = _state(paths, config)
        try:
            run()
            status: object = 0
        except SystemExit as end:
            status = end.code
        except click.ClickException as problem:
            problem.show()
            status = problem.exit_code
        # The syntax trees of this run; `__main__` has such garbage collected rarely.
        gc.collect()
        click.echo(f"Status {status}. Watching for changes; Ctrl-C ends.", err=True)
        while (now := _state(paths, config)) == before:
            time.sleep(_EVERY)
        # An editor, or git, writes several files one after the other.
        while (later := _state(paths, config)) != now:
            now = later
            time.sleep(_EVERY / 5)


def _state(paths: tuple[str, ...], config: str | None) -> State:
    """The size and the time of every file that may matter."""
    from pathlib import Path

    try:
        settings = read_config(Path.cwd(), Path(config) if config else None)
    except ValueError:
        # The command says what is wrong with it; meanwhile its own file is watched.
        settings = Config(Path.cwd())
    included = tuple(str(settings.folder / path) for path in settings.include)
    found: State = {}
    above = (str(folder / name) for folder in (Path.cwd(), *Path.cwd().parents) for name in _SETTINGS)
    for path in (*_files(paths or included or (".",)), *above, *filter(None, [config])):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = (status.st_size, status.st_mtime_ns)
    return found


def _files(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        if os.path.isdir(path):
            yield from (file for file in walk(path) if file.endswith((*SUFFIXES, *_SETTINGS)))
        else:
            yield path
