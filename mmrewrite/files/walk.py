"""Find files and read them, with nothing that is slow to import."""

from __future__ import annotations

import os
from collections.abc import Iterator

MANIFEST = "mmrewrite-manifest.json"
# Where settings stand.
OWN_FILE, PYPROJECT = "mmrewrite.toml", "pyproject.toml"

_PRUNED = frozenset(("__pycache__", "node_modules", "site-packages"))
_HIDING = ("pyvenv.cfg", MANIFEST)


def walk(
    folder: str,
    unreadable: dict[str, str] | None = None,
    passed_over: dict[str, str] | None = None,
    below: bool = False,
) -> Iterator[str]:
    """Files below a folder, sorted by name in each folder. Links are not followed.

    Virtual environments and mirrors of ours are skipped; both are recognized by a file in them. Whoever names such a
    folder means it, so this one is always walked.

    Args:
        folder: The folder.
        unreadable: Takes the folders that cannot be read, with the reason.
        passed_over: Takes the folders that are skipped, with the file that marks them.
        below: Whether the folder was come upon, and not named.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        if unreadable is not None:
            unreadable[shown(folder)] = error.strerror or str(error)
        return
    if below:
        names = {entry.name for entry in entries}
        for marker in _HIDING:
            if marker in names:
                if passed_over is not None:
                    passed_over[shown(folder)] = marker
                return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and entry.name not in _PRUNED:
                yield from walk(entry.path, unreadable, passed_over, True)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path


def shown(path: str) -> str:
    """A path for messages: relative if it is below the current folder, else absolute."""
    relative = os.path.relpath(path)
    text = os.path.abspath(path) if relative.startswith("..") else relative
    return text.replace(os.sep, "/")


def load_file(path: str) -> bytes | None:
    """The bytes of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):
        # A name with a null byte, from a configuration or a manifest, is a ValueError.
        return None
