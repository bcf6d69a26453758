"""Exchange two files in one step, where the platform can.

After an exchange the old file is still there, under the other name, so that one can look whether it is what it was
taken for. A plain rename loses what another program wrote in the moment before it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable

# linux/fs.h and sys/stdio.h.
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2
_AT_FDCWD = -100

# The kernel, the C library or the file system has no exchange.
_UNABLE = frozenset((errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP))


def exchange(first: str, second: str) -> bool:
    """Exchange two files of one folder; False if this platform or file system cannot.

    Raises:
        OSError: If it can, and one of them is gone or may not be moved.
    """
    call = _call()
    if call is None:
        return False
    if call(os.fsencode(first), os.fsencode(second)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNABLE:
        return False
    raise OSError(number, os.strerror(number), second)


@functools.cache
def _call() -> Callable[[bytes, bytes], int] | None:
    """The function of the C library, None where there is none."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            rename = library.renameat2
            rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
            return lambda first, second: int(rename(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE))
        if sys.platform == "darwin":
            swap = library.renamex_np
            swap.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
            return lambda first, second: int(swap(first, second, _RENAME_SWAP))
    except (OSError, AttributeError, TypeError):
        pass
    return None
