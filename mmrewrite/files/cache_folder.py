"""Where earlier runs keep what they found: the platform's cache folder, never the repository."""

from __future__ import annotations

import contextlib
import os

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


def prune(folder: str) -> None:
    """Remove what was used least lately, if there is too much, and what killed runs left half-written."""
    with os.scandir(folder) as entries:
        found = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries), reverse=True)
    size = 0
    for number, (_, length, path) in enumerate(found):
        size += length
        if number >= _MOST_FILES or size > _MOST_BYTES:
            with contextlib.suppress(OSError):
                os.unlink(path)
