"""Gather: when instructions ran in each process of a step, in the time of one of them, and what else each knows."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

import jax

from mmruntime._processes.clocks import ClockOffset, compare_clocks
from mmruntime._processes.exchange import Exchange
from mmruntime._processes.group import Group
from mmruntime._processes.progress import progress

# When an instruction was issued and when its results were there, by its index.
Times = Mapping[int, tuple[float, float]]

_TIMEOUT_S = 600.0
# Longest text that is left under one key.
_CHUNK = 1 << 20


def gather(times: Times, group: Group, name: str, *, everybody: bool) -> tuple[list[Times] | None, ClockOffset]:
    """The times of all processes. All of them call it.

    Args:
        times: Those of this process, by its own clock.
        group: The processes.
        name: Used once for this group, the same in all processes.
        everybody: Whether every process shall have them, or the first one of the group alone.

    Returns:
        For each process its times, by the clock of the first; None where the others' are not wanted. And how the clock
        of this process compares; in the first one, the largest error of all.
    """
    offset = compare_clocks(group, name)
    own = {index: (start + offset.seconds, end + offset.seconds) for index, (start, end) in times.items()}
    me, first = jax.process_index(), group.members[0]
    key = f"times/{group.key}/{name}"
    exchange = Exchange()
    _leave(exchange, f"{key}/{me}", json.dumps([offset.error, list(own.items())]))
    if me != first and not everybody:
        return None, offset
    found: list[Times] = []
    error = 0.0
    for text in _texts(exchange, key, group, "the times of"):
        theirs, items = json.loads(text)
        found.append({index: (start, end) for index, (start, end) in items})
        error = max(error, theirs)
    return found, ClockOffset(offset.seconds, error)


def joined(found: Sequence[Times]) -> Times:
    """The times of instructions, from those of all processes that take part in them.

    An instruction has begun when the last of them has issued it.
    """
    latest: dict[int, tuple[float, float]] = {}
    for times in found:
        for index, (start, end) in times.items():
            before = latest.get(index, (start, end))
            latest[index] = max(before[0], start), max(before[1], end)
    return latest


def share(text: str, group: Group, name: str) -> list[str]:
    """A text of each process, in all of them. All of them call it.

    Args:
        text: That of this process.
        group: The processes.
        name: Used once for this group, the same in all processes.
    """
    key = f"shared/{group.key}/{name}"
    exchange = Exchange()
    _leave(exchange, f"{key}/{jax.process_index()}", text)
    return _texts(exchange, key, group, "what was measured by")


def _texts(exchange: Exchange, key: str, group: Group, what: str) -> list[str]:
    """What each process has left under a key.

    Args:
        exchange: Where it is left.
        key: The part of the key that all have in common.
        group: The processes.
        what: What is waited for, in words that end before the process.
    """
    found = []
    for process in group.members:
        with progress.waiting(f"{what} process {process}", (process,)):
            found.append(_take(exchange, f"{key}/{process}"))
    return found


def _leave(exchange: Exchange, key: str, text: str) -> None:
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    chunks = [packed[at : at + _CHUNK] for at in range(0, len(packed), _CHUNK)]
    for number, chunk in enumerate(chunks):
        exchange.put(f"{key}/{number}", chunk)
    exchange.put(f"{key}/count", str(len(chunks)))


def _take(exchange: Exchange, key: str) -> str:
    count = int(exchange.get(f"{key}/count", _TIMEOUT_S))
    packed = "".join(exchange.get(f"{key}/{number}", _TIMEOUT_S) for number in range(count))
    return zlib.decompress(base64.b64decode(packed)).decode()
