"""Replace the content of a file atomically."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence


class NotWritten(Exception):
    """Why a file was not written, as a sentence."""


def replace_file(path: str, original: bytes, result: bytes, roots: Sequence[str]) -> None:
    """Replace the content `original` of a file by `result`.

    Raises:
        NotWritten: If the file is outside `roots` once links are followed, has changed since it was read, or cannot be
            written.
    """
    real = os.path.realpath(path)
    if not any(_is_inside(real, root) for root in roots):
        raise NotWritten(f"it leads to {real}, outside the folders given; name that file itself")
    try:
        with open(real, "rb") as file:
            if file.read() != original:
                raise NotWritten("it changed while mmrewrite was reading; run again")
        mode = stat.S_IMODE(os.stat(real).st_mode)
        write_new(real, result, mode)
    except OSError as error:
        raise NotWritten(error.strerror or str(error)) from None


def write_new(path: str, data: bytes, mode: int | None = None) -> None:
    """Write a file atomically: a temporary file in the same folder is flushed, then renamed.

    Args:
        path: The file; its folder must exist.
        data: The content.
        mode: Its permissions; None for those that a new file gets.
    """
    folder = os.path.dirname(path)
    handle, temporary = tempfile.mkstemp(prefix=".mmrewrite-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if mode is None:
                # The mask can only be read by setting it. `mkstemp` makes files that only the owner may read.
                mask = os.umask(0)
                os.umask(mask)
                mode = 0o666 & ~mask
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if os.name == "posix":
        # The rename itself lasts once the folder is flushed.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_inside(path: str, root: str) -> bool:
    real_root = os.path.realpath(root)
    return path == real_root or path.startswith(os.path.join(real_root, ""))
