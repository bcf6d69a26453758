"""Throttle: bound how many programs of one submesh are in flight, where more of them may deadlock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmruntime import _compat
from mmruntime._execution.compile import Compiled
from mmruntime._partition.instructions import Program, RunInstruction
from mmruntime._partition.shard import Shardings

# The largest number of programs in flight on one list of devices. XLA's CPU client allows 32 on each device, and a
# device may be in several lists.
LIMIT = 8
# The same for a list of one device, where a program holds no thread while it waits for a place.
_LIMIT_OF_ONE = 16


class Throttle:
    """Counts the programs issued on one list of devices, and waits for earlier ones when there are many.

    A program waits for what was issued before it only, so waiting for it in the order of issue closes no circle.

    Args:
        limit: The largest number of them in flight.
    """

    def __init__(self, limit: int) -> None:
        # Waiting once for several programs is cheaper than once for each.
        self._window = limit // 2
        self._issued = 0
        # A result of the program that ended the window before.
        self._marker: Any = None

    def limited(self, program: Callable[..., Sequence[Any]], probe: int) -> Callable[..., Sequence[Any]]:
        """The program, which waits when it is called too far ahead.

        Args:
            program: The executable.
            probe: Position of the result that shows that it has finished. Best one that is never donated.
        """

        def run(*operands: Any) -> Sequence[Any]:
            values = program(*operands)
            self._issued += 1
            if self._issued >= self._window:
                self._issued = 0
                earlier, self._marker = self._marker, values[probe]
                if earlier is not None:
                    # A donated array can no longer be waited for; the latest program surely was issued after it.
                    (values[probe] if earlier.is_deleted() else earlier).block_until_ready()
            return values

        return run


# Shared by all steps of a process: the limit is one of the devices.
@functools.cache
def throttle_of(devices: tuple[Any, ...]) -> Throttle:
    """The throttle of a list of devices."""
    return Throttle(LIMIT if len(devices) > 1 else _LIMIT_OF_ONE)


def throttled(
    program: Program, compiled: Compiled, shardings: Shardings, *, everything: bool = False
) -> dict[RunInstruction, Callable[..., Any]]:
    """The executables of the instructions that need a throttle.

    Programs of one device have no collectives, so they cannot wait for each other across devices.

    Args:
        program: The instructions.
        compiled: Their executables; those of other processes are left out.
        shardings: The layout of each value.
        everything: Whether all programs on CPUs need one, as where they wait for other processes.
    """
    runs = [
        item
        for item in program.instructions
        if isinstance(item, RunInstruction) and item.results and item.spec in compiled.programs
    ]
    donated = {item.args[position] for item in runs for position in compiled.donated[item.spec]}
    # The next step may donate what this one returns.
    donated.update(slot for slot in program.outputs if slot is not None)

    def cost(slot: int) -> tuple[bool, int]:
        aval = program.keys[slot][0].aval
        return slot in donated, aval.size

    limited: dict[RunInstruction, Callable[..., Any]] = {}
    for item in runs:
        devices = tuple(np.asarray(shardings.replicated(item.spec.submesh).mesh.devices).flat)
        platform = devices[0].platform
        if (everything and platform == "cpu") or (len(devices) > 1 and _compat.deadlocks_far_ahead(platform)):
            probe = min(range(len(item.results)), key=lambda position: cost(item.results[position]))
            limited[item] = throttle_of(devices).limited(compiled.programs[item.spec], probe)
    return limited
