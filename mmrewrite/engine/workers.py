"""Spread work over forked processes if there is enough of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Characters that one process rewrites in about half a second; below that, forking costs more than it saves.
ENOUGH = 1_000_000

_task: Callable[[int], Any] | None = None


def in_workers(function: Callable[[_Item], _Result], items: Sequence[_Item], work: int, jobs: int) -> Sequence[_Result]:
    """`[function(item) for item in items]`, in up to `jobs` processes when `work` characters are worth it.

    Forked processes inherit the items and LibCST, already imported; only results are pickled.
    """
    count = min(jobs, len(items))
    if count < 2 or work < ENOUGH or "fork" not in multiprocessing.get_all_start_methods():
        return [function(item) for item in items]
    # A closure cannot be pickled, so the children find it in a global that they inherit.
    global _task
    _task = lambda index: function(items[index])  # noqa: E731
    try:
        with multiprocessing.get_context("fork").Pool(count) as pool:
            return pool.map(_run, range(len(items)), chunksize=1)
    finally:
        _task = None


def _run(index: int) -> Any:
    assert _task is not None
    return _task(index)
