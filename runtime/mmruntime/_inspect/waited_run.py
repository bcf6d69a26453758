"""Run a step once, and time its instructions: each alone, waiting for its results, or the calls without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from mmruntime._execution.run import StepRunner
from mmruntime._execution.transfers.own_parts import copied

# What comes before the first instruction of a step and after the last one, in the place of an instruction's index.
BEGIN, RESULTS = -2, -1


class Timed(NamedTuple):
    """What one instruction took in one process, in seconds.

    Attributes:
        issued: When its call began.
        ended: When its results were there; where they are not waited for, when the call returned.
        calling: CPU time that the calling thread needed for it.
        computing: CPU time of all threads of the process until the next call, the calling one included.
        called: When the call returned.
    """

    issued: float
    ended: float
    calling: float
    computing: float
    called: float


def timed(
    runner: StepRunner, inputs: Sequence[Any], rest: Callable[[int], float] | None = None, *, wait: bool = True
) -> dict[int, Timed]:
    """The times of the instructions that this process issues, in order, and of what came before and after them.

    Args:
        runner: The compiled step.
        inputs: Its flat inputs, which it may donate.
        rest: For how many seconds the process waits after it has sent something to others, as nothing tells when it has
            been sent; None if it goes on.
        wait: Whether each instruction's results are waited for. A thread that has waited calls more slowly: what it
            needs is no longer in the caches of its core.
    """
    found: dict[int, Timed] = {}
    thread, process, began = time.thread_time(), time.process_time(), time.perf_counter()
    setting_up = 0.0

    def notes(index: int, _: Sequence[Any], values: Sequence[Any], issued: float) -> None:
        nonlocal thread, process, setting_up
        called, calling = time.perf_counter(), time.thread_time() - thread
        if not found:
            setting_up = min(issued - began, calling)
            calling -= setting_up
        if wait:
            jax.block_until_ready([value for value in values if value is not None and value.addressable_shards])
        ended = time.perf_counter()
        if rest is not None:
            time.sleep(rest(index))
        computing = time.process_time() - process
        found[index] = Timed(issued, ended, calling, computing - (setting_up if not found else 0.0), called)
        process, thread = time.process_time(), time.thread_time()

    results = runner.run_watched(inputs, notes)
    calling, returned = time.thread_time() - thread, time.perf_counter()
    jax.block_until_ready(results)
    ended, computing = time.perf_counter(), time.process_time() - process
    found[BEGIN] = Timed(began, began + setting_up, setting_up, setting_up, began)
    found[RESULTS] = Timed(returned - calling, ended, calling, computing, returned)
    return found


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Inputs that a step may donate: copies of all arrays."""
    return [_copy(value) if isinstance(value, jax.Array) else value for value in inputs]


def _copy(array: Any) -> Any:
    # What other processes have a part of, only a program of all of them could copy as a whole.
    return array.copy() if array.is_fully_addressable else copied(array)
