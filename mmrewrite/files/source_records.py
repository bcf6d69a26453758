"""What earlier runs found of a program: JSON documents in a folder, tied to its "sources" by their hashes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmrewrite.files.cache_folder import hash_of, keep_in, kept, kept_name, names_kept

_MOST = 50


def modules_of(sources: Mapping[str, str]) -> dict[str, str]:
    """The hash of each module among some sources, by its real path."""
    return {os.path.realpath(path): known for path, known in sources.items() if path.endswith(".py")}


def keep_record(folder: str, about: Sequence[str], record: Mapping[str, Any]) -> None:
    """Keep a document in a folder, in place of the last one about the same thing of the same files.

    Raises:
        OSError: If the folder cannot be written.
    """
    name = kept_name(json.dumps([*about, sorted(record["sources"])]).encode())
    keep_in(folder, name, json.dumps(record).encode(), _MOST)


def records_of(folder: str, path: str) -> Iterator[Any]:
    """The documents in a folder about programs that have a file, the newest first; what cannot be read is none."""
    try:
        names = names_kept(folder)
    except OSError:
        return
    for name in names:
        try:
            # The newest is the one that was made last, not the one that was looked at last.
            record = json.loads(kept(folder, name, is_used=False) or b"")
            has_path = path in record["sources"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if has_path:
            yield record


def changed_source(sources: Mapping[str, str], load: Callable[[str], bytes | None]) -> str | None:
    """The first source whose bytes are others now, None if all are the same."""
    return next((path for path, known in sources.items() if hash_of(load(path)) != known), None)
