"""Spread work over forked processes if there is enough of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Characters that one process rewrites in about half a second; below that, forking costs more than it saves.
ENOUGH = 1_000_000

_task: Callable[[int], Any] | None = None


class WorkerDied(Exception):
    """A worker process ended before its work was done: killed by somebody, or for want of memory."""

    def __init__(self) -> None:
        super().__init__(
            "a worker process was killed, perhaps for want of memory; nothing was written. Run again, with --jobs 1 if "
            "it happens again"
        )


def in_workers(function: Callable[[_Item], _Result], items: Sequence[_Item], work: int, jobs: int) -> Sequence[_Result]:
    """`[function(item) for item in items]`, in up to `jobs` processes when `work` characters are worth it.

    Forked processes inherit the items and LibCST, already imported; only results are pickled. Windows cannot fork, and
    one process does all of it there.

    Raises:
        WorkerDied: If one of the processes was killed.
    """
    count = min(jobs, len(items))
    if count < 2 or work < ENOUGH:
        return [function(item) for item in items]
    # Only runs that fork pay for these imports.
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    if "fork" not in multiprocessing.get_all_start_methods():
        return [function(item) for item in items]

    # A closure cannot be pickled, so the children find it in a global that they inherit.
    global _task
    _task = lambda index: function(items[index])  # noqa: E731
    try:
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
            return list(pool.map(_run, range(len(items))))
    except BrokenProcessPool:
        raise WorkerDied from None
    finally:
        _task = None


def _run(index: int) -> Any:
    assert _task is not None
    return _task(index)
