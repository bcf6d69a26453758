"""Where earlier runs keep what they found: the platform's cache folder, never the repository."""

from __future__ import annotations

import os

# Another folder; an empty value turns the cache off.
VARIABLE = "MMREWRITE_CACHE_DIR"


def cache_folder(kind: str) -> str | None:
    """The folder for one kind of things, None if there is to be none. It may not exist yet."""
    named = os.environ.get(VARIABLE)
    if named is None:
        from platformdirs import user_cache_dir

        named = user_cache_dir("mmrewrite", appauthor=False)
    return os.path.join(named, kind) if named else None
