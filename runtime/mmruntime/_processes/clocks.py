"""Clocks: the time of one process in that of another, by messages to and fro (Cristian's algorithm).

Processes of one Linux kernel have one clock, and need no messages: those take longer than a small transfer between the
processes, so that what they leave in doubt would make it seem quick in one direction and slow in the other.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import jax

from mmruntime._processes.exchange import Exchange, own_host
from mmruntime._processes.group import Group
from mmruntime._processes.progress import progress

# Of several rounds the shortest counts, as it leaves the least doubt.
_ROUNDS = 6
_TIMEOUT_S = 600.0


class ClockOffset(NamedTuple):
    """How clocks of processes relate.

    Attributes:
        seconds: What to add to `time.perf_counter()` of this process to get that of the group's first one.
        error: By how much that may be wrong.
    """

    seconds: float
    error: float


def compare_clocks(group: Group, name: str) -> ClockOffset:
    """Compare the clocks of all processes of a group with that of its first one. All of them call it.

    Args:
        group: The processes.
        name: Used once for this group, the same in all processes.
    """
    me, first = jax.process_index(), group.members[0]
    exchange, clock = Exchange(), _own_clock()
    key = f"clock/{group.key}/{name}"
    with progress.waiting("the other processes to compare clocks", group.members):
        if me == first:
            exchange.put(f"{key}/{me}/clock", clock)
        else:
            offset = min(
                (_round_trip(exchange, f"{key}/{me}/{number}") for number in range(_ROUNDS)),
                key=lambda found: found.error,
            )
            same = bool(clock) and exchange.get(f"{key}/{first}/clock", _TIMEOUT_S) == clock
            # One clock gives each answer between its question and its arrival, so that no offset exceeds the error.
            return ClockOffset(0.0, 0.0) if same and abs(offset.seconds) <= offset.error else offset
        for other in group.members[1:]:
            for number in range(_ROUNDS):
                exchange.get(f"{key}/{other}/{number}/ask", _TIMEOUT_S)
                exchange.put(f"{key}/{other}/{number}/answer", repr(time.perf_counter()))
    return ClockOffset(0.0, 0.0)


def _own_clock() -> str:
    """What names the clock that `time.perf_counter` of this process reads; empty if nothing does.

    On Linux it counts from the start of the kernel, but for an offset of the process's time name space. Copies of one
    virtual machine may have one name, so that the answers must bear it out.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/time")
    except OSError:
        return ""
    kind = time.get_clock_info("perf_counter").implementation
    return " ".join((boot, space, own_host())) if boot and kind == "clock_gettime(CLOCK_MONOTONIC)" else ""


def _round_trip(exchange: Exchange, key: str) -> ClockOffset:
    asked = time.perf_counter()
    exchange.put(f"{key}/ask", "")
    answer = float(exchange.get(f"{key}/answer", _TIMEOUT_S))
    answered = time.perf_counter()
    return ClockOffset(answer - (asked + answered) / 2, (answered - asked) / 2)
