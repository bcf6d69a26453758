"""Replace the content of a file: whole or not at all, and never what another program wrote meanwhile.

The new content goes into a temporary file of the same folder, which is flushed and then exchanged with the old one in
one step. The old file is looked at once more after the exchange: if it is not what was read, it goes back. So an update
of another program before that moment is kept. Where the platform has no exchange (Windows, some network file systems)
the file is compared right before a plain rename, and an update in the microseconds between the two is lost. On every
platform a program that keeps the old file open writes into what is no longer there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence

from mmrewrite.files.walk import load_file, read_file

# The name of a temporary file holds the process and what the file is for, so that the next run can tell what is safe to
# remove. `.tmp` is a file that was being written and holds nothing but our own output. `.new` was complete and about to
# be exchanged with the file that it replaces; after the exchange it holds what that file was.
_NAME = re.compile(r"\.mmrewrite-(\d+)-([0-9a-f]{12})-([0-9a-f]{12})-[0-9a-f]{8}\.(tmp|new)")
_NOTHING = "0" * 12
_CHANGED = "it changed while mmrewrite was reading; run again"


class NotWritten(Exception):
    """Why a file was not written, as a sentence."""


def replace_file(path: str, original: bytes, result: bytes, roots: Sequence[str]) -> None:
    """Replace the content `original` of a file by `result`, and keep its mode, owner and extended attributes.

    Raises:
        NotWritten: If the file is outside `roots` once links are followed, is read-only, has other hard links, has
            changed since it was read, has an owner or attributes that the new file cannot get, or cannot be written.
    """
    real = os.path.realpath(path)
    if not any(_is_inside(real, root) for root in roots):
        raise NotWritten(f"it leads to {real}, outside the folders given; name that file itself")
    try:
        status = os.stat(real)
        if not status.st_mode & 0o222:
            raise NotWritten("it is read-only; make it writable first")
        if status.st_nlink > 1:
            raise NotWritten(
                f"it has {status.st_nlink} hard links, which would be split; replace it by a copy of its own first"
            )
        if read_file(real) != original:
            raise NotWritten(_CHANGED)
        _replace(real, original, result, status)
    except OSError as error:
        raise NotWritten(error.strerror or str(error)) from None


def write_new(path: str, data: bytes, mode: int | None = None, *, lasting: bool = True) -> None:
    """Write a file atomically: a temporary file in the same folder is flushed, then renamed.

    Args:
        path: The file; its folder must exist.
        data: The content.
        mode: Its permissions; None for those that a new file gets.
        lasting: Whether to wait for the disk, so that it is there after a loss of power as well.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f"{temporary_name(None, data)}.tmp")
    try:
        _write(temporary, data, mode, lasting=lasting)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    if lasting:
        _flush(folder)


def _replace(real: str, original: bytes, result: bytes, status: os.stat_result) -> None:
    # Only runs that write pay for `ctypes`.
    from mmrewrite.files.exchange import exchange

    folder = os.path.dirname(real)
    name = os.path.join(folder, temporary_name(original, result))
    temporary, complete = f"{name}.tmp", f"{name}.new"
    kept = False
    try:
        _write(temporary, result, stat.S_IMODE(status.st_mode))
        _take_over(real, temporary, status)
        os.rename(temporary, complete)
        if exchange(complete, real):
            if read_file(complete) != original:
                # Another program was faster: its file goes back.
                exchange(complete, real)
                kept = read_file(complete) != result
                if kept:
                    # It has written once more since. That stays, and what it wrote before is set aside.
                    exchange(complete, real)
                raise NotWritten(_CHANGED)
        elif read_file(real) == original:
            os.replace(complete, real)
        else:
            raise NotWritten(_CHANGED)
    finally:
        _remove(temporary)
        if not kept:
            _remove(complete)
    _flush(folder)


def _take_over(real: str, new: str, status: os.stat_result) -> None:
    """Give a new file the owner and the extended attributes of the one that it replaces."""
    if os.name == "posix":
        made = os.stat(new)
        if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
            try:
                os.chown(new, status.st_uid, status.st_gid)
            except OSError:
                raise NotWritten(
                    f"it belongs to user {status.st_uid} and group {status.st_gid}, which the new file cannot be given"
                    "; run as that user"
                ) from None
            # Changing the owner takes the bits for set-user-id away.
            os.chmod(new, stat.S_IMODE(status.st_mode))
    if not hasattr(os, "listxattr"):
        return
    for name in os.listxattr(real):
        value = os.getxattr(real, name)
        try:
            if name not in os.listxattr(new) or os.getxattr(new, name) != value:
                os.setxattr(new, name, value)
        except OSError:
            raise NotWritten(f"it has the extended attribute {name}, which the new file cannot be given") from None


def _write(path: str, data: bytes, mode: int | None, *, lasting: bool = True) -> None:
    handle = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666 if mode is None else mode
    )
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        if mode is not None and hasattr(os, "fchmod"):
            # The mask has taken bits from what `open` was asked for.
            os.fchmod(file.fileno(), mode)
        if lasting:
            os.fsync(file.fileno())


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _flush(folder: str) -> None:
    """Make a rename last."""
    if os.name == "posix":
        descriptor = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_inside(path: str, root: str) -> bool:
    real_root = os.path.realpath(root)
    return path == real_root or path.startswith(os.path.join(real_root, ""))


def temporary_name(original: bytes | None, result: bytes) -> str:
    """The name of a new temporary file that will replace `original`, without its ending."""
    parts = (_NOTHING if original is None else _mark(original), _mark(result), os.urandom(4).hex())
    return f".mmrewrite-{os.getpid()}-{'-'.join(parts)}"


def remove_left_behind(folder: str) -> Iterator[str]:
    """Remove the temporary files of killed runs from a folder.

    Yields:
        A sentence for each that stays, since it may hold what another program wrote.
    """
    try:
        with os.scandir(folder) as entries:
            # Ours are no links.
            ours = (each for each in entries if each.name.startswith(".mmrewrite-"))
            found = sorted(each.name for each in ours if each.is_file(follow_symlinks=False))
    except OSError:
        return
    for name in found:
        match = _NAME.fullmatch(name)
        if match is None or _is_alive(int(match[1])):
            continue
        path = os.path.join(folder, name)
        if match[4] == "new":
            data = load_file(path)
            if data is None:
                continue
            if _mark(data) not in (match[2], match[3]):
                yield f"{path}: a run that was killed has set aside what another program wrote; compare, then remove it"
                continue
        # It may be gone by now, or belong to somebody else; then it stays.
        with contextlib.suppress(OSError):
            os.unlink(path)


def _mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return True
    if os.name != "posix":
        # On Windows `os.kill` would end the process. What killed runs leave stays there.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
