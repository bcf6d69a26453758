"""Spread work over forked processes if there is enough of it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mmrewrite.tracking import Track, untracked

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


def in_workers(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    work: int,
    jobs: int,
    track: Track = untracked,
    what: str = "",
) -> Sequence[_Result]:
    """`[function(item) for item in items]`, in up to `jobs` processes when `work` characters are worth it.

    Forked processes inherit the items and LibCST, already imported; only results are pickled. Windows cannot fork, and
    one process does all of it there. `track` shows how many items are done, as `what`.

    Raises:
        WorkerDied: If one of the processes was killed.
    """
    count = min(jobs, len(items))

    def in_this_process() -> Sequence[_Result]:
        return [function(item) for item in track(what, items, len(items))]

    if count < 2 or work < ENOUGH:
        return in_this_process()
    # Only runs that fork pay for these imports.
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    if "fork" not in multiprocessing.get_all_start_methods():
        return in_this_process()

    # What is there stays there: children that look for cycles among it copy every page of it.
    gc.freeze()
    # A closure cannot be pickled, so the children find it in a global that they inherit.
    global _task
    _task = lambda index: function(items[index])  # noqa: E731
    try:
        with ProcessPoolExecutor(
            count, mp_context=multiprocessing.get_context("fork"), initializer=_leave_interrupts
        ) as pool:
            try:
                return list(track(what, pool.map(_run, range(len(items))), len(items)))
            except KeyboardInterrupt:
                # Without this, the end of the block would wait for all that is not begun.
                pool.shutdown(cancel_futures=True)
                raise
    except BrokenProcessPool:
        raise WorkerDied from None
    finally:
        _task = None
        gc.unfreeze()


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that has the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(index: int) -> Any:
    assert _task is not None
    return _task(index)
