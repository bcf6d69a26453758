"""Python's search for cycles among objects, which costs much where many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no cycles in this block: what is read for one run stays to its end."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Both together make all objects old ones, which the next search leaves out. Else it would look at every one.
        gc.freeze()
        gc.unfreeze()
        gc.enable()
