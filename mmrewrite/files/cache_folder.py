"""Where earlier runs keep what they found: the platform's cache folder, never the repository."""

from __future__ import annotations

import contextlib
import os

from mmrewrite.files.write import write_new

# Another folder; an empty value turns the cache off.
VARIABLE = "MMREWRITE_CACHE_DIR"

_MOST_FILES, _MOST_BYTES = 200, 100_000_000


def cache_folder(kind: str) -> str | None:
    """The folder for one kind of things, None if there is to be none. It may not exist yet."""
    named = os.environ.get(VARIABLE)
    if named is None:
        from platformdirs import user_cache_dir

        named = user_cache_dir("mmrewrite", appauthor=False)
    return os.path.join(named, kind) if named else None


def prune(folder: str, most: int | None = None) -> None:
    """Remove what was used least lately, if there is too much, and what killed runs left half-written."""
    with os.scandir(folder) as entries:
        found = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries), reverse=True)
    most, size = _MOST_FILES if most is None else most, 0
    for number, (_, length, path) in enumerate(found):
        size += length
        if number >= most or size > _MOST_BYTES:
            with contextlib.suppress(OSError):
                os.unlink(path)


def keep_in(folder: str, name: str, data: bytes, most: int) -> None:
    """Keep a document in a folder, in place of the last one of its name.

    Args:
        folder: The folder.
        name: The name of its file.
        data: Its content.
        most: How many documents may stay.

    Raises:
        OSError: If the folder cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_new(os.path.join(folder, name), data, 0o600)
    prune(folder, most)


def kept_in(folder: str) -> list[str]:
    """The documents of a folder, the newest first.

    Raises:
        OSError: If the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(".json")]
    return [path for _, path in sorted(found, reverse=True)]
