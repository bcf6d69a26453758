"""The state of the code that results depend on, with nothing that is slow to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder

from mmrewrite.codemod.products import HINTS, OLD_NAMES


def code_states() -> Iterator[str]:
    """The state of every module of the tool, of its codemods and of LibCST: an edit of one is another tool."""
    for package in ("mmrewrite", HINTS, OLD_NAMES):
        for folder in getattr(sys.modules.get(package) or __import__(package), "__path__", ()):
            yield from folder_states(folder)
    yield from spec_state(PathFinder.find_spec("libcst"))


def spec_state(spec: ModuleSpec | None) -> Iterable[str]:
    """The state of the file of a module."""
    if spec is None or spec.origin is None:
        return ()
    status = os.stat(spec.origin)
    return (f"{spec.origin} {status.st_size} {status.st_mtime_ns}",)


def folder_states(folder: str) -> Iterator[str]:
    """The state of every module below a folder."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from folder_states(entry.path)
            elif entry.name.endswith((".py", ".jsonl")):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"
