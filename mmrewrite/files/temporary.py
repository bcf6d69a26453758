"""The temporary files of runs: their names, and which of them a killed run has left behind.

A name holds the process and what the file is for, so that the next run can tell what is safe to remove. `.tmp` is a
file that was being written and holds nothing but our own output. `.new` was complete and about to be exchanged with the
file that it replaces; after the exchange it holds what that file was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator

from mmrewrite.files.walk import load_file

_NAME = re.compile(r"\.mmrewrite-(\d+)-([0-9a-f]{12})-([0-9a-f]{12})-[0-9a-f]{8}\.(tmp|new)")
_NOTHING = "0" * 12


def temporary_name(original: bytes | None, result: bytes) -> str:
    """The name of a new temporary file that will replace `original`, without its ending."""
    parts = (_NOTHING if original is None else _mark(original), _mark(result), secrets.token_hex(4))
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
