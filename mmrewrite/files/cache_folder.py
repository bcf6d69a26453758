"""Where earlier runs keep what they found: the platform's cache folder, never the repository.

The user may name any folder for it, where other things lie as well. So each file of ours has a name that no other
program gives and begins with our mark, and a hash of the rest. What has not both is neither read nor removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator

from mmrewrite.files.walk import load_file
from mmrewrite.files.write import remove_left_behind, write_new

# Another folder; an empty value turns the cache off.
VARIABLE = "MMREWRITE_CACHE_DIR"

_MOST_FILES, _MOST_BYTES = 200, 100_000_000
_MARK = b"mmrewrite cache "
_NAME = re.compile(r"mmrewrite-[0-9a-f]{64}")


def cache_folder(kind: str) -> str | None:
    """The folder for one kind of entries, None if caching is off. It may not exist yet."""
    named = os.environ.get(VARIABLE)
    if named is None:
        from platformdirs import user_cache_dir

        named = user_cache_dir("mmrewrite", appauthor=False)
    return os.path.join(named, kind) if named else None


def hash_of(data: bytes | None) -> str:
    """The hash of what a file holds, "none" if there is none."""
    return "none" if data is None else hashlib.sha256(data).hexdigest()


def kept_name(about: bytes) -> str:
    """The name of the file about something in a cache folder."""
    return f"mmrewrite-{hashlib.sha256(about).hexdigest()}"


def keep_in(folder: str, name: str, data: bytes, most: int | None = None) -> None:
    """Keep a document in a folder, in place of the last one of its name.

    What was used least lately goes if there is too much, and what killed runs left half-written.

    Args:
        folder: The folder.
        name: The name of its file, by `kept_name`.
        data: Its content.
        most: How many documents may stay.

    Raises:
        OSError: If the folder cannot be written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_new(os.path.join(folder, name), _head(data) + data, 0o600, lasting=False)
    # Of files that were exchanged, which may stay; here none is.
    list(remove_left_behind(folder))
    most, size = _MOST_FILES if most is None else most, 0
    for number, (_, length, path) in enumerate(_found(folder)):
        size += length
        if (number >= most or size > _MOST_BYTES) and _is_ours(path):
            with contextlib.suppress(OSError):
                os.unlink(path)


def kept(folder: str, name: str, *, is_used: bool = True) -> bytes | None:
    """A document that was kept in a folder; None if there is none, or it is damaged or another user's.

    `is_used` has it stay longer than others.
    """
    path = os.path.join(folder, name)
    data = load_file(path)
    if data is None:
        return None
    head, newline, rest = data.partition(b"\n")
    if head + newline != _head(rest):
        return None
    try:
        # Another user's file would be believed otherwise.
        if os.name == "posix" and os.stat(path).st_uid != os.geteuid():
            return None
        if is_used:
            os.utime(path)
    except OSError:
        return None
    return rest


def names_kept(folder: str) -> list[str]:
    """The names of the documents in a folder, the newest first.

    Raises:
        OSError: If the folder cannot be read.
    """
    return [os.path.basename(path) for _, _, path in _found(folder)]


def _found(folder: str) -> list[tuple[int, int, str]]:
    """Time, size and path of each file with a name of ours, the newest first."""
    return sorted(_named(folder), reverse=True)


def _named(folder: str) -> Iterator[tuple[int, int, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime_ns, status.st_size, entry.path


def _is_ours(path: str) -> bool:
    return (load_file(path) or b"").startswith(_MARK)


def _head(data: bytes) -> bytes:
    return b"%s%s\n" % (_MARK, hashlib.sha256(data).hexdigest().encode())
