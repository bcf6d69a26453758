"""Switches that hold for a while, decided when a step is called and part of every cache key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mmruntime import _compat

_IGNORED = _compat.user_context(False)


def transforms_ignored() -> bool:
    """Whether `ignore_transforms` is in force."""
    return bool(_IGNORED.value)


@contextlib.contextmanager
def ignore_transforms(ignore: bool = True) -> Iterator[None]:
    """Within the context, tasks and microbatch loops do nothing: the program is the one-device program.

    Args:
        ignore: False switches them on again inside an outer `ignore_transforms()`.
    """
    with _IGNORED(bool(ignore)):
        yield
