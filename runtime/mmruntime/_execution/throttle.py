"""Throttle: bound how many programs of one submesh are in flight, where more of them may deadlock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmruntime import _compat
from mmruntime._execution.compile import Compiled
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, ProgramSpec, RunInstruction

# The largest number of programs in flight on one list of devices. XLA's CPU client allows 32 on each device, and a
# device may be in several lists.
LIMIT = 8


class Throttle:
    """Counts the programs issued on one list of devices, and waits for earlier ones when there are many.

    A program waits for what was issued before it only, so waiting for it in the order of issue closes no circle.

    Nothing waits before `needed` is set. What is in flight then waits for no other device, so it ends by itself.

    Args:
        limit: The largest number of them in flight.
        windows: In so many windows they are cut. Waiting once for all of a window is cheaper than once for each. More
            windows wait for what was issued longer ago, and keep a result of each.
        delay: A window ends so many programs later at most if its last one has no lasting result. The limit grows by
            that for each window.

    Attributes:
        needed: Whether more of them in flight may deadlock.
    """

    def __init__(self, limit: int, windows: int = 2, delay: int = 0) -> None:
        self.needed = False
        self._window, self._delay = limit // windows, delay
        self._issued = 0
        # A result of the last program of each of the windows before.
        self._markers: deque[Any] = deque([None] * (windows - 1))

    def limited(
        self, program: Callable[..., Sequence[Any]], probe: int, *, lasting: bool = True
    ) -> Callable[..., Sequence[Any]]:
        """The program, which waits when it is called too far ahead.

        Args:
            program: The executable.
            probe: Position of the result that shows that it has finished.
            lasting: Whether that is never donated. One that was cannot be waited for any more.
        """
        due = self._window + (0 if lasting else self._delay)
        markers = self._markers

        def run(*operands: Any) -> Sequence[Any]:
            values = program(*operands)
            if not self.needed:
                return values
            self._issued += 1
            if self._issued >= due:
                self._issued = 0
                earlier = markers.popleft()
                markers.append(values[probe])
                if earlier is not None:
                    if earlier.is_deleted():
                        # The next one that can be waited for was surely issued after it.
                        earlier = next(marker for marker in markers if not marker.is_deleted())
                    earlier.block_until_ready()
            return values

        return run


# Shared by all steps of a process: the limit is one of the devices.
_throttles: dict[tuple[Any, ...], Throttle] = {}
# Devices on which programs run that may wait for each other.
_waiting: set[Any] = set()
# Threads may compile steps at the same time. What one of them notes must reach the throttle that another one makes.
_lock = threading.Lock()


def throttle_of(devices: tuple[Any, ...]) -> Throttle:
    """The throttle of a list of devices."""
    with _lock:
        if devices not in _throttles:
            # A program of one device holds no thread while it waits for a place, so that 32 may be in flight; a step
            # that has fewer of them does not wait.
            throttle = Throttle(LIMIT) if len(devices) > 1 else Throttle(24, windows=4, delay=2)
            throttle.needed = not _waiting.isdisjoint(devices)
            _throttles[devices] = throttle
        return _throttles[devices]


def need(devices: tuple[Any, ...]) -> None:
    """Note that programs on these devices may wait for each other, and so for whatever else runs there."""
    with _lock:
        _waiting.update(devices)
        for others, throttle in _throttles.items():
            throttle.needed = throttle.needed or not _waiting.isdisjoint(others)


def throttled(
    program: Program, compiled: Compiled, shardings: Shardings, *, everything: bool = False
) -> dict[RunInstruction, Callable[..., Any]]:
    """The executables of the instructions that need a throttle.

    Programs of one device have no collectives, so they cannot wait for each other across devices. Those of several
    devices without collectives cannot either; theirs count from the first program on with collectives on one of these
    devices, of whichever step.

    Args:
        program: The instructions.
        compiled: Their executables; those of other processes are left out.
        shardings: The layout of each value.
        everything: Whether all programs on CPUs need one, as where they wait for other processes.
    """
    runs = [item for item in program.runs if item.results and item.spec in compiled.programs]
    donated = {item.args[position] for item in runs for position in compiled.donated[item.spec]}
    # The next step may donate what this one returns.
    donated.update(slot for slot in program.outputs if slot is not None)

    def cost(slot: int) -> tuple[bool, int]:
        aval = program.keys[slot][0].aval
        return slot in donated, aval.size

    limited: dict[RunInstruction, Callable[..., Any]] = {}
    asked: set[ProgramSpec] = set()
    for item in runs:
        devices = tuple(np.asarray(shardings.replicated(item.spec.submesh).mesh.devices).flat)
        platform = devices[0].platform
        if (everything and platform == "cpu") or (len(devices) > 1 and _compat.deadlocks_far_ahead(platform)):
            if program.whole:
                # One program for the whole step needs no limit, and may have collectives that others then wait for.
                need(devices)
                continue
            probe = min(range(len(item.results)), key=lambda position: cost(item.results[position]))
            lasting = item.results[probe] not in donated
            if item.spec not in asked and not _waiting.issuperset(devices):
                asked.add(item.spec)
                if everything or _compat.may_wait(compiled.programs[item.spec]):
                    need(devices)
            limited[item] = throttle_of(devices).limited(compiled.programs[item.spec], probe, lasting=lasting)
    return limited
