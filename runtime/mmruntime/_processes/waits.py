"""Who waits for whom, and what follows from it. Plain data, so that it is tested without processes.

What a process says of itself is a `ProcessStatus`; those of the processes that wait are the edges of a graph. A process
that waits can go on if one of those at the ends of its ways can: one that computes, compiles, or writes a checkpoint is
slow, and not dead.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime._processes.progress import CallRecord

# As many edges go with a verdict; enough for the chains of a pipeline.
_MOST_EDGES = 64
# Of a circle of waits, as many are told in words.
_MOST_SHOWN = 4


@dataclass(frozen=True)
class ProcessStatus:
    """What a process says of itself.

    Attributes:
        process: Its index.
        waits_for: The processes that it waits for; empty if it waits for none, or does not know for which.
        wait: What it waits for, in words; empty if it does not wait.
        age: For how many seconds it has waited.
        doing: What its main thread does, in words, with a line of the user's program.
        stuck: Why it will not go on by itself, in words; empty if it may.
        idle: Whether it has used next to no CPU while it waited. Only told where the devices are CPUs.
        left: Whether its program has ended.
        calls: The latest steps that it has called, oldest first; once it has left, the last of each group of processes.
        coming: The call before which it waits for the others, to compare it with theirs; None if it does not.
    """

    process: int
    waits_for: tuple[int, ...] = ()
    wait: str = ""
    age: float = 0.0
    doing: str = ""
    stuck: str = ""
    idle: bool = False
    left: bool = False
    calls: tuple[CallRecord, ...] = ()
    coming: CallRecord | None = None

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ProcessStatus:
        """Back from a JSON object."""
        calls = tuple([CallRecord(*call) for call in found["calls"]])
        coming = None if found["coming"] is None else CallRecord(*found["coming"])
        return cls(**{**found, "waits_for": tuple(found["waits_for"]), "calls": calls, "coming": coming})


@dataclass(frozen=True)
class WaitFinding:
    """What can be said of a process that waits.

    Attributes:
        culprits: The processes because of which it cannot go on; empty if it may.
        why: In words, what is the matter with the first of them, or with all of them.
        slow: A process that is merely slow, and because of which it waits.
        ask: Processes of which more has to be known first.
    """

    culprits: tuple[int, ...] = ()
    why: str = ""
    slow: int | None = None
    ask: tuple[int, ...] = ()


def look_into(
    start: int, waiting: Mapping[int, ProcessStatus], known: Mapping[int, ProcessStatus], least_age: float
) -> WaitFinding:
    """Follow who waits for whom from one process on.

    Args:
        start: The process that waits.
        waiting: What the processes that wait have said.
        known: What those say that were asked lately.
        least_age: Seconds that every process of a circle must have waited.
    """
    todo, seen, ask = deque([start]), {start}, []
    slow: int | None = None
    while todo:
        process = todo.popleft()
        status = known.get(process, waiting.get(process))
        if status is None:
            ask.append(process)
            continue
        if status.left and process != start:
            return WaitFinding((process,), f"has ended its program{_too_early(status, waiting[start])}")
        if status.stuck:
            return WaitFinding((process,), status.stuck)
        if process in waiting and (status.wait or process == start):
            peers = waiting[process].waits_for
            todo += [peer for peer in peers if peer not in seen]
            seen.update(peers)
            if not peers:
                # It does not know for whom; so whoever has left is to blame, if anybody.
                left = [each for each in known.values() if each.left and each.process != process]
                if left:
                    return WaitFinding((left[0].process,), f"has ended its program{_too_early(left[0], status)}")
                slow = process if slow is None else slow
        elif slow is None:
            slow = process
    if ask:
        return WaitFinding(ask=tuple(ask), slow=slow)
    if slow is not None:
        return WaitFinding(slow=slow)
    circle = tuple(sorted(seen))
    if all(waiting[process].idle and waiting[process].age >= least_age for process in circle):
        shown = "; ".join([f"process {process} for {waiting[process].wait}" for process in circle[:_MOST_SHOWN]])
        more = f"; {len(circle) - _MOST_SHOWN} more" if len(circle) > _MOST_SHOWN else ""
        return WaitFinding(circle, f"wait for each other, and none of them computes: {shown}{more}")
    return WaitFinding()


def _too_early(left: ProcessStatus, waits: ProcessStatus) -> str:
    """After how many calls a process has ended, in words, if another one that waits has made more or fewer."""
    made = {call.group: call.number for call in left.calls}
    last = max((call for call in waits.calls if call.group in made), key=lambda call: call.number, default=None)
    if last is None or last.number == made[last.group]:
        return ""
    calls = "1 call" if made[last.group] == 1 else f"{made[last.group]} calls"
    return f" after {calls} of steps that they run together, and process {waits.process} has made {last.number}"


def edges_to(culprits: Collection[int], waiting: Mapping[int, ProcessStatus]) -> dict[int, int]:
    """For the processes nearest to the culprits, the next process on a shortest path to one of them."""
    backward: dict[int, list[int]] = {}
    for status in waiting.values():
        for peer in status.waits_for:
            backward.setdefault(peer, []).append(status.process)
    found: dict[int, int] = {}
    todo = deque(culprits)
    while todo and len(found) < _MOST_EDGES:
        process = todo.popleft()
        for waiter in sorted(backward.get(process, [])):
            if waiter not in found and waiter not in culprits:
                found[waiter] = process
                todo.append(waiter)
    return found


def chain(process: int, waits_for: Sequence[int], edges: Mapping[int, int], culprits: Sequence[int]) -> list[int]:
    """The way from a process to a culprit, as far as it is known: itself, whom it waits for, whom that waits for."""
    way = [process]
    if process not in edges and process not in culprits:
        following = next((peer for peer in waits_for if peer in culprits or peer in edges), None)
        if following is None:
            return [*way, *waits_for[:1]]
        way.append(following)
    while way[-1] in edges and edges[way[-1]] not in way:
        way.append(edges[way[-1]])
    return way


# Calls that are kept to compare those of other processes with them.
_MOST_COMPARED = 4096


class CallComparison:
    """The calls that processes say they have made: those of one group and number must be equal, and so must be the
    numbers at the ends of their programs.

    A call that they compare beforehand is made by none of them before all have come to do so.
    """

    def __init__(self) -> None:
        # By group and number, the first that was heard, and from whom.
        self._heard: dict[tuple[str, int], tuple[int, CallRecord]] = {}
        # By group, the last call of the process that was the first to end.
        self._last: dict[str, tuple[int, CallRecord]] = {}
        # By group and number, a call before which a process waits for the others, after most agreements.
        self._coming: dict[tuple[str, int], tuple[int, CallRecord]] = {}

    def differing(self, status: ProcessStatus) -> tuple[tuple[int, int], str] | None:
        """Two processes that have made different calls, and how they differ in words; None if none are known.

        Args:
            status: What one of them says of itself.
        """
        for call in status.calls:
            other, first = self._heard.setdefault((call.group, call.number), (status.process, call))
            if first.token != call.token:
                one, two = sorted([(other, first), (status.process, call)])
                return (one[0], two[0]), _difference(*one, *two)
            if found := self._uncompared(call.group, call.number):
                return found
            if status.left:
                other, last = self._last.setdefault(call.group, (status.process, call))
                if last.number != call.number:
                    one, two = sorted([(other, last), (status.process, call)])
                    return (one[0], two[0]), _unequal_numbers(*one, *two)
        if (coming := status.coming) is not None:
            key = coming.group, coming.number
            if key not in self._coming or self._coming[key][1].agreements < coming.agreements:
                self._coming[key] = status.process, coming
            if found := self._uncompared(*key):
                return found
        for known in (self._heard, self._coming):
            while len(known) > _MOST_COMPARED:
                del known[next(iter(known))]
        return None

    def _uncompared(self, group: str, number: int) -> tuple[tuple[int, int], str] | None:
        """A process that has made a call before which another one waits for it, to compare it; as for `differing`."""
        heard, coming = self._heard.get((group, number)), self._coming.get((group, number))
        if heard is None or coming is None or heard[1].agreements >= coming[1].agreements:
            return None
        how = f"{heard[1].label} in process {heard[0]}, and {coming[1].label} in process {coming[0]}"
        why = (
            f"have made different calls: call {number} of steps that they run together is {how}, which waits for the "
            "others to come to it. Each must make the same calls in the same order, with arguments of the same shapes "
            "and types, and with the same static arguments and settings"
        )
        return (min(heard[0], coming[0]), max(heard[0], coming[0])), why


def _difference(process: int, call: CallRecord, other: int, its: CallRecord) -> str:
    which = f"have made different calls: call {call.number} of steps that they run together is"
    if call.label != its.label:
        how = f"{call.label} in process {process}, and {its.label} in process {other}"
    elif call.arguments != its.arguments:
        given = [each.arguments or "all as the step wants them" for each in (call, its)]
        how = f"{call.label} in both, with arguments given in process {process}: {given[0]}; in {other}: {given[1]}"
    else:
        how = f"{call.label} in both, with other values in its arguments, or after other calls"
    return f"{which} {how}. Each must make the same calls in the same order, and one has left one out or made one more"


def _unequal_numbers(process: int, call: CallRecord, other: int, its: CallRecord) -> str:
    return (
        f"have made different numbers of calls of steps that they run together: process {process} made {call.number}, "
        f"the last of {call.label}, and process {other} made {its.number}, the last of {its.label}. One has left one "
        "out or made one more; nothing told it before, as their arguments were equal"
    )
