"""Find files and read them, with nothing that is slow to import."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

MANIFEST = "mmrewrite-manifest.json"
# How names of files end that may have hints or old names.
SUFFIXES = (".py", ".ipynb")
# Where settings stand.
OWN_FILE, PYPROJECT = "mmrewrite.toml", "pyproject.toml"

_PRUNED = frozenset(("__pycache__", "node_modules", "site-packages"))
_HIDING = ("pyvenv.cfg", MANIFEST)

# Whatever a pipe or a device may have become since it was looked at, opening it waits for nobody.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
# A file of a gigabyte is no source, and would take the machine's memory.
_LARGEST, _PART = 1 << 30, 1 << 20


def walk(
    folder: str, unreadable: dict[str, str] | None = None, passed_over: dict[str, str] | None = None
) -> Iterator[str]:
    """Files below a folder, sorted by name in each folder. Links are not followed.

    Virtual environments and mirrors of ours are skipped; both are recognized by a file in them. Whoever names such a
    folder means it, so this one is always walked.

    Args:
        folder: The folder.
        unreadable: Takes the folders that cannot be read, with the reason.
        passed_over: Takes the folders that are skipped, with the file that marks them.
    """
    # What is still to come of each folder on the way down. Folders may lie deeper than calls may.
    rest = [iter(_entries(folder, unreadable))]
    while rest:
        entry = next(rest[-1], None)
        if entry is None:
            rest.pop()
        elif entry.is_file(follow_symlinks=False):
            yield entry.path
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and entry.name not in _PRUNED:
            entries = _entries(entry.path, unreadable)
            names = {each.name for each in entries}
            marker = next((each for each in _HIDING if each in names), None)
            if marker is None:
                rest.append(iter(entries))
            elif passed_over is not None:
                passed_over[shown(entry.path)] = marker


def _entries(folder: str, unreadable: dict[str, str] | None) -> list[os.DirEntry[str]]:
    """What a folder holds, by name; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        if unreadable is not None:
            unreadable[shown(folder)] = error.strerror or str(error)
        return []


def folders_above(folder: str) -> Iterator[str]:
    """A folder, and those that hold it."""
    yield folder
    while (above := os.path.dirname(folder)) != folder:
        yield (folder := above)


def folder_states(folder: str) -> Iterator[str]:
    """Every module and table below a folder of code, with its size and when it was changed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from folder_states(entry.path)
            elif entry.name.endswith((".py", ".jsonl")):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"


def shown(path: str) -> str:
    """A path for messages: relative if it is below the current folder, else absolute."""
    relative = os.path.relpath(path)
    text = os.path.abspath(path) if relative.startswith("..") else relative
    return text.replace(os.sep, "/")


def read_file(path: str) -> bytes:
    """The bytes of a regular file. Everything that others have written is read through this.

    Raises:
        OSError: If it cannot be read, is too large, or is a pipe, a device or a socket, which is not even opened: a
            reader might wait for ever, or for the machine to have no memory left.
    """
    try:
        status = os.stat(path)
    except ValueError:
        # A null byte, from a configuration or a manifest.
        raise OSError(errno.EINVAL, "no name of a file", path) from None
    if not stat.S_ISREG(status.st_mode):
        what = "it is a folder" if stat.S_ISDIR(status.st_mode) else "neither a file nor a folder"
        raise OSError(errno.EINVAL, what, path)
    handle = os.open(path, _READING)
    try:
        parts: list[bytes] = []
        length, size = 0, status.st_size
        # Files of `/proc` are longer than they say, and any may grow.
        while length <= _LARGEST >= size:
            part = os.read(handle, max(size - length, 0) + 1)
            parts.append(part)
            length += len(part)
            if length == size or not part:
                return part if length == len(part) else b"".join(parts)
        raise OSError(errno.EFBIG, "larger than a gigabyte", path)
    except MemoryError:
        raise OSError(errno.ENOMEM, "too large for the memory that is left", path) from None
    finally:
        os.close(handle)


def read_stream(stream: BinaryIO) -> bytes:
    """All bytes of an open stream.

    Raises:
        OSError: If it cannot be read, or there are too many.
    """
    parts, length = list[bytes](), 0
    while part := stream.read(_PART):
        parts.append(part)
        length += len(part)
        if length > _LARGEST:
            raise OSError(errno.EFBIG, "more than a gigabyte")
    return b"".join(parts)


def load_file(path: str) -> bytes | None:
    """The bytes of a file; None if it cannot be read."""
    try:
        return read_file(path)
    except OSError:
        return None


def load_place(place: str) -> bytes | None:
    """What `load_file` gives; of a folder, whose place ends in `/`, what code may import from it, a name a line."""
    if not place.endswith("/"):
        return load_file(place)
    try:
        with os.scandir(place) as entries:
            names = {entry.name.removesuffix(".py") for entry in entries if entry.name not in _PRUNED}
    except (OSError, ValueError):
        return None
    return "\n".join(sorted(filter(str.isidentifier, names))).encode()
