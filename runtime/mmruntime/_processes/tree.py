"""Tree: how the processes tell each other that they live, with a fixed number of messages for each.

Every process has one parent and a few children, so it sends and gets at most `FANOUT + 1` beats a second, however many
processes there are; what concerns all reaches all in a logarithmic number of hops. Waits are told to process 0 only
once they are long. It follows them and, where one cannot end, tells everybody.

A `Node` is one process in that tree. It knows no sockets and no clock: messages come in and go out as JSON objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmruntime._processes.progress import CallRecord
from mmruntime._processes.waits import CallComparison, ProcessStatus, edges_to, look_into

FANOUT = 16
# Of the processes that one waits for, as many are asked at once what they have called.
_MOST_ASKED = 4

Message = dict[str, Any]
Send = Callable[[int, Message], None]


@dataclass(frozen=True)
class Limits:
    """Seconds, as parts of the time within which all must have ended.

    Attributes:
        total: That time.
    """

    total: float

    @property
    def beat(self) -> float:
        """Between two beats."""
        return self.total / 15

    @property
    def report(self) -> float:
        """After which a wait is told to process 0."""
        return self.total / 5

    @property
    def judge(self) -> float:
        """After which process 0 looks who is to blame."""
        return 2 * self.total / 5

    @property
    def silent(self) -> float:
        """After which a process that says nothing counts as lost, and a circle of waits as closed."""
        return 3 * self.total / 5

    @property
    def collect(self) -> float:
        """That a verdict is held back, for what else comes in: who waits for what, and a better reason."""
        return self.total / 15

    @property
    def warn(self) -> float:
        """Between two warnings about a process that is slow."""
        return 4 * self.total


@dataclass(frozen=True)
class StopReason:
    """Why the processes cannot go on.

    Attributes:
        culprits: Those because of which they cannot.
        why: What is the matter with them, in words.
        rank: What kind of cause that is, one of `RANKS`.
        edges: For some processes, because of which other one each waits.
    """

    culprits: tuple[int, ...]
    why: str
    rank: str
    edges: Mapping[int, int] = field(default_factory=dict)


# The most certain cause comes first: what a peer's death makes others raise is no cause.
RANKS = ("lost", "failed", "differ", "stuck", "transport")


class Node:
    """One process in the tree.

    Args:
        process: Its index.
        count: How many there are.
        limits: The time limits.
        send: Sends a message to a neighbour.
        status: What this process says of itself now.
        warn: Says something to the user. Only process 0 does.
    """

    def __init__(
        self,
        process: int,
        count: int,
        limits: Limits,
        send: Send,
        status: Callable[[], ProcessStatus],
        warn: Callable[[str], None],
    ) -> None:
        self.process, self.count, self.limits = process, count, limits
        self.parent = parent_of(process)
        self.children = children_of(process, count)
        self.verdict: StopReason | None = None
        # Whether every process has ended its program, so that connections may end; and whether this one has.
        self.over = False
        self._send, self._status, self._warn = send, status, warn
        # Who has ever been heard; what is not connected yet is not missed.
        self._silent: dict[int, float] = {}
        self._told_wait = ""
        self.has_left = False
        # At the root: what the processes have said.
        self._waiting: dict[int, ProcessStatus] = {}
        self._since: dict[int, float] = {}
        self._known: dict[int, tuple[float, ProcessStatus]] = {}
        self._have_left: set[int] = set()
        self._asked: dict[int, float] = {}
        self._warned: dict[int, float] = {}
        self._comparison = CallComparison()
        # The cause that a verdict will be about, and when.
        self._cause: tuple[int, tuple[int, ...], str] | None = None
        self._due = 0.0

    # What the sockets say.

    def connected(self, peer: int) -> None:
        """A neighbour is there."""
        self._silent[peer] = 0.0

    def disconnected(self, peer: int, now: float) -> None:
        """The connection to a neighbour has ended."""
        if self._silent.pop(peer, None) is not None and not self.over and self.verdict is None:
            self.lost(peer, "has died: its connection was closed", now)

    def lost(self, peer: int, why: str, now: float) -> None:
        """A neighbour is lost, and with it the way to what is behind it."""
        if peer == self.parent:
            # Nobody above can be told. So this process speaks for those below it.
            self.parent = None
        self._accuse("lost", (peer,), why, now)

    def received(self, peer: int, message: Message, now: float) -> None:
        """A neighbour has sent a message."""
        if peer in self._silent:
            self._silent[peer] = 0.0
        kind = message["kind"]
        if kind == "beat":
            return
        if kind in ("report", "left", "accuse", "answer") and self.parent is not None:
            self._send(self.parent, message)
        elif kind == "report":
            self._note_report(ProcessStatus.from_json(message["status"]), now)
        elif kind == "answer":
            self._note_answer(ProcessStatus.from_json(message["status"]), now)
        elif kind == "left":
            self._note_left(ProcessStatus.from_json(message["status"]), now)
        elif kind == "accuse":
            self._accuse(message["rank"], tuple(message["culprits"]), message["why"], now)
        elif kind == "ask":
            self._ask(message["process"], now)
        elif kind == "collect":
            self._to_children(message)
            self._answer(now)
        elif kind == "verdict":
            edges = {int(process): following for process, following in message["edges"].items()}
            self._conclude(StopReason(tuple(message["culprits"]), message["why"], message["rank"], edges))
        elif kind == "over":
            self._end()

    # What this process itself has to say.

    def leave(self, calls: tuple[CallRecord, ...], now: float) -> None:
        """The program of this process has ended well.

        Args:
            calls: Its latest call of each group of processes.
            now: The time.
        """
        if not self.has_left:
            self.has_left = True
            status = ProcessStatus(self.process, left=True, calls=calls)
            if self.parent is None:
                self._note_left(status, now)
            else:
                self._send(self.parent, {"kind": "left", "status": status.as_json()})

    def fail(self, why: str, now: float, *, of_transport: bool) -> None:
        """The program of this process ends with an exception.

        Args:
            why: What is the matter, in words.
            now: The time.
            of_transport: Whether it may only be what another process's end has made of it.
        """
        self._accuse("transport" if of_transport else "failed", (self.process,), why, now)

    def tick(self, elapsed: float, now: float) -> tuple[int, ...]:
        """Send beats, tell of a long wait and, at the root, look into those of others.

        Args:
            elapsed: Seconds since the last tick, in which this process was able to listen.
            now: The time.

        Returns:
            Neighbours that have said nothing for too long. The caller looks whether they live, and calls `lost`.
        """
        for peer in self._silent:
            self._silent[peer] += elapsed
            self._send(peer, {"kind": "beat"})
        self._report(now)
        if self.parent is None:
            if self._cause is not None and now >= self._due:
                rank, culprits, why = self._cause
                self._conclude(StopReason(culprits, why, RANKS[rank], edges_to(culprits, self._waiting)))
            elif self._cause is None:
                self._judge(now)
        return tuple(peer for peer, silent in self._silent.items() if silent > self.limits.silent)

    def heard(self, peer: int) -> None:
        """A neighbour that says nothing lives all the same."""
        self._silent[peer] = 0.0

    # The rest is what they do about it.

    def _report(self, now: float) -> None:
        status = self._status()
        told = ""
        if status.wait and status.age >= self.limits.report:
            told = f"{status.waits_for} {status.wait} {status.idle} {status.stuck} {status.coming}"
        if told != self._told_wait:
            self._told_wait = told
            if self.parent is None:
                self._note_report(status, now)
            else:
                self._send(self.parent, {"kind": "report", "status": status.as_json()})

    def _note_report(self, status: ProcessStatus, now: float) -> None:
        if status.wait:
            self._waiting[status.process] = status
            self._since[status.process] = now - status.age
            self._compare_calls(status, now)
            self._ask_for_calls(status, now)
        else:
            self._waiting.pop(status.process, None)

    def _ask_for_calls(self, status: ProcessStatus, now: float) -> None:
        """Ask some of the awaited processes what they have called: it may be something else."""
        if self._cause is not None:
            return
        for other in status.waits_for[:_MOST_ASKED]:
            known = other in self._waiting or other in self._have_left
            if not known and now - self._asked.get(other, -1e9) >= self.limits.report:
                self._asked[other] = now
                self._ask(other, now)

    def _note_answer(self, status: ProcessStatus, now: float) -> None:
        self._known[status.process] = (now, status)
        if status.wait and self._cause is not None:
            self._note_report(status, now)
        else:
            self._compare_calls(status, now)

    def _compare_calls(self, status: ProcessStatus, now: float) -> None:
        """Whether a process that waits, or for which one waits, has called something else than the others."""
        found = self._comparison.differing(status)
        if found is not None and self._cause is None:
            self._accuse("differ", *found, now)

    def _note_left(self, status: ProcessStatus, now: float) -> None:
        self._have_left.add(status.process)
        self._known[status.process] = (now, status)
        self._compare_calls(status, now)
        if len(self._have_left) == self.count and self._cause is None:
            self._end()

    def _accuse(self, rank: str, culprits: tuple[int, ...], why: str, now: float) -> None:
        if self.verdict is not None or self.over:
            return
        if self.parent is not None:
            self._send(self.parent, {"kind": "accuse", "rank": rank, "culprits": culprits, "why": why})
            return
        first = self._cause is None
        if self._cause is None or RANKS.index(rank) < self._cause[0]:
            self._cause = (RANKS.index(rank), culprits, why)
        if first:
            self._due = now + self.limits.collect
            self._to_children({"kind": "collect"})
            own = self._status()
            if own.wait:
                self._note_report(own, now)

    def _judge(self, now: float) -> None:
        """Look into the oldest waits."""
        aged = {process: _aged(status, now - self._since[process]) for process, status in self._waiting.items()}
        fresh = {
            process: status
            for process, (when, status) in self._known.items()
            if process in self._have_left or now - when < 3 * self.limits.beat
        }
        for process in sorted(aged, key=self._since.__getitem__)[:8]:
            if aged[process].age < self.limits.judge:
                return
            finding = look_into(process, aged, fresh, self.limits.silent)
            if finding.culprits:
                self._accuse("stuck", finding.culprits, finding.why, now)
                return
            for other in finding.ask:
                if now - self._asked.get(other, -1e9) >= 2 * self.limits.beat:
                    self._asked[other] = now
                    self._ask(other, now)
            if finding.slow is not None and not finding.ask:
                self._warn_of(aged[process], fresh.get(finding.slow) or aged[finding.slow], now)

    def _warn_of(self, waiting: ProcessStatus, slow: ProcessStatus, now: float) -> None:
        if waiting.age < self.limits.total or now - self._warned.get(slow.process, -1e9) < self.limits.warn:
            return
        self._warned[slow.process] = now
        self._warn(
            f"process {waiting.process} has waited for {waiting.age:.0f} s, for {waiting.wait}: process {slow.process} "
            f"is {slow.doing or 'busy'}. That may just take its time."
        )

    def _ask(self, process: int, now: float) -> None:
        if process == self.process:
            self._answer(now)
        elif (hop := next_hop(self.process, process)) in self._silent:
            self._send(hop, {"kind": "ask", "process": process})

    def _answer(self, now: float) -> None:
        status = self._status()
        if self.parent is not None:
            self._send(self.parent, {"kind": "answer", "status": status.as_json()})
        else:
            self._note_answer(status, now)

    def _conclude(self, verdict: StopReason) -> None:
        if self.verdict is None:
            self.verdict = verdict
            message = {
                "kind": "verdict",
                "culprits": verdict.culprits,
                "why": verdict.why,
                "rank": verdict.rank,
                "edges": dict(verdict.edges),
            }
            self._to_children(message)

    def _end(self) -> None:
        self.over = True
        self._to_children({"kind": "over"})

    def _to_children(self, message: Message) -> None:
        for child in self.children:
            if child in self._silent:
                self._send(child, message)


def parent_of(process: int) -> int | None:
    """The parent of a process; None for the root, process 0."""
    return (process - 1) // FANOUT if process else None


def children_of(process: int, count: int) -> range:
    """The children of a process, of so many processes."""
    return range(min(count, process * FANOUT + 1), min(count, process * FANOUT + FANOUT + 1))


def next_hop(process: int, target: int) -> int:
    """The child of `process` on the way down to `target`; the target itself, if it is not below."""
    hop = target
    while (above := parent_of(hop)) is not None and above != process:
        hop = above
    return hop if parent_of(hop) == process else target


def _aged(status: ProcessStatus, age: float) -> ProcessStatus:
    return replace(status, age=age)
