"""Python's search for cycles among objects, which costs much where many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# After so many objects of blocks that have ended, a search costs less than what they hold: some two hundred megabytes.
_MOST_LEFT = 1_000_000
_left = 0


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no cycles in this block: what is read for one run stays to its end.

    Those of blocks before are looked for where they are many: a server's or a test's process runs many blocks.
    """
    global _left
    if not gc.isenabled():
        yield
        return
    if _left > _MOST_LEFT:
        gc.collect()
        _left = 0
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        # Those that the block made and that are still there.
        _left += max(0, gc.get_count()[0] - before)
        # Both together make all objects old ones, which the next search leaves out. Else it would look at every one.
        gc.freeze()
        gc.unfreeze()
        gc.enable()
