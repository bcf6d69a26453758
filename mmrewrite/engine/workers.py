"""Spread work over forked processes if there is enough of it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mmrewrite.source.failure import has_room
from mmrewrite.tracking import Track, untracked

if TYPE_CHECKING:
    from concurrent.futures import Future
    from concurrent.futures.process import ProcessPoolExecutor

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Characters that one process rewrites in about half a second; below that, forking costs more than it saves.
ENOUGH = 1_000_000
# The part of all items for which a process makes what they share: the first item of `modernize` asks the whole project.
_WORTH_HELP = 0.25

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

    Forked processes inherit the items and LibCST, already imported; only results are pickled. Where `is_enough` says
    that none can be forked, as on Windows, one process does all of it. `track` shows how many items are done, as
    `what`.

    Raises:
        WorkerDied: If one of the processes was killed.
    """
    if not is_enough(len(items), work, jobs):
        return [function(item) for item in track(what, items, len(items))]
    with Workers(function, items, min(jobs, len(items))) as workers:
        return list(workers.results(track, what))


def is_enough(items: int, work: int, jobs: int) -> bool:
    """Whether `items` with `work` characters are worth processes of their own, which can be forked here.

    The tool does not import JAX, but a program may that calls the tool. Its threads hold locks, which nobody would ever
    release in a forked process.
    """
    # A thread with a large stack has a run that needs one, and forked processes would not end with it.
    if min(jobs, items) < 2 or work < ENOUGH or "jax" in sys.modules or has_room():
        return False
    # Only runs that may fork pay for this import.
    import multiprocessing

    return "fork" in multiprocessing.get_all_start_methods()


class Workers(Generic[_Item, _Result]):
    """Processes that do `function(item)` for each item, in order, while this process does other things.

    Leaving the block without asking for the results throws away what is not begun.

    Raises:
        WorkerDied: If one of the processes was killed, once results are asked for.
    """

    def __init__(self, function: Callable[[_Item], _Result], items: Sequence[_Item], count: int) -> None:
        self._function, self._items, self._count = function, items, count
        self._pool: ProcessPoolExecutor | None = None
        self._futures: list[Future[_Result]] = []

    def __enter__(self) -> Workers[_Item, _Result]:
        import multiprocessing
        from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

        # What is there stays there: children that look for cycles among it copy every page of it.
        gc.freeze()
        # A closure cannot be pickled, so the children find it in a global that they inherit.
        global _task
        function, items = self._function, self._items
        _task = lambda index: function(items[index])  # noqa: E731
        try:
            self._pool = ProcessPoolExecutor(
                self._count, mp_context=multiprocessing.get_context("fork"), initializer=_begin
            )
            # All processes are forked in here, so that each has `_task`.
            self._futures = [self._pool.submit(_run, index) for index in range(len(items))]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            if isinstance(error, BrokenProcessPool):
                raise WorkerDied from None
            raise
        finally:
            _task = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            # Without `cancel_futures`, this would wait for all that is not begun.
            self._pool.shutdown(cancel_futures=True)
        gc.unfreeze()

    def results(self, track: Track = untracked, what: str = "") -> Iterator[_Result]:
        """The results, in the order of the items, each as soon as it is there."""
        return (self._result(index) for index in track(what, self._indices, len(self._indices)))

    def results_with_help(self, track: Track = untracked, what: str = "") -> Iterator[_Result]:
        """The results. While it waits, this process makes those that no worker has begun, from the end."""
        done: dict[int, _Result] = {}
        for index in track(what, self._indices, len(self._indices)):
            while index not in done and not self._futures[index].done():
                last = len(self._items) - 1 - len(done)
                if not (done or self._leaves_much()) or not self._futures[last].cancel():
                    break
                done[last] = self._function(self._items[last])
            yield done[index] if index in done else self._result(index)

    def _leaves_much(self) -> bool:
        """Whether so many items are not begun that help is worth what a process's first item costs it."""
        first = self._futures[int(len(self._futures) * (1 - _WORTH_HELP))]
        return not (first.running() or first.done())

    @property
    def _indices(self) -> range:
        return range(len(self._items))

    def _result(self, index: int) -> _Result:
        from concurrent.futures.process import BrokenProcessPool

        try:
            return self._futures[index].result()
        except BrokenProcessPool:
            raise WorkerDied from None


def _begin() -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that has the results, and end with that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when the parent is gone, even by `kill -9`.

    A pool's processes would wait for more work for ever, since each holds both ends of the pipe that it comes from, and
    would keep standard output open, whose end its reader waits for.
    """
    from multiprocessing import process

    parent = process.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(index: int) -> Any:
    assert _task is not None
    return _task(index)
