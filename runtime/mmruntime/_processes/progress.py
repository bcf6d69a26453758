"""Progress: where this process is in its steps, and what it waits for.

The thread that runs steps writes it, for every instruction, so a write is a store or an `append` and takes no lock. The
thread that watches over faults reads it whenever it likes; it may see a state that is a moment old.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Waits that nobody looks at are forgotten from the oldest on, so that a process without a watch keeps few arrays.
_MOST_WAITS = 256
# Calls that are remembered, to compare them with those of other processes.
_MOST_CALLS = 32


class Awaited(NamedTuple):
    """What an instruction needs of other processes.

    Attributes:
        what: In words for a message: "float32[16,16] from submesh 1 to submesh 0, microbatch 3".
        processes: The processes that it comes from, or that run the instruction together with this one.
    """

    what: str
    processes: tuple[int, ...]


@dataclass(eq=False, slots=True, frozen=True)
class Itinerary:
    """What is constant in the progress of one compiled step.

    Attributes:
        label: The step's name.
        awaited: By the index of the instruction, what it needs of other processes; no entry if nothing.
        tasks: By the index of the instruction, its tasks and microbatch in words.
    """

    label: str
    awaited: Mapping[int, Awaited]
    tasks: Mapping[int, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Wait:
    """An array that comes from other processes, or that is computed together with them.

    Attributes:
        since: When it was issued, by `time.monotonic()`.
        call: The number of the call that issued it.
        itinerary: The step.
        index: The instruction.
        array: A small array of this process; once it is ready, the wait is over.
    """

    since: float
    call: int
    itinerary: Itinerary
    index: int
    array: Any

    @property
    def awaited(self) -> Awaited:
        """What is awaited, and from whom."""
        return self.itinerary.awaited[self.index]

    def over(self) -> bool:
        """Whether the array has come, or came so early that a later program has taken its memory.

        One that has failed, as when its sender has died, is awaited in vain.
        """
        if self.array.is_deleted():
            return True
        try:
            if not self.array.is_ready():
                return False
            self.array.block_until_ready()
        except Exception:  # a failure of XLA, which may be of any class, or the array was donated just now
            return bool(self.array.is_deleted())
        return True


class Blocked(NamedTuple):
    """That the thread itself waits for other processes, before or between the instructions of a step.

    Attributes:
        since: From when on, by `time.monotonic()`.
        what: What it waits for, in words for a message: "the other processes to compile train_step".
        processes: Those that it may be waiting for; empty if they are not known.
        coming: The call that it will make once they have come, with `CallRecord.agreements` as they are by then; None
            if it waits for something else.
    """

    since: float
    what: str
    processes: tuple[int, ...]
    coming: CallRecord | None = None


class CallRecord(NamedTuple):
    """A call of a step, as every process that runs the step must have made it.

    Attributes:
        group: The name of the processes that run the step; see `Group`.
        number: Counts the calls of steps that these processes run, from 1.
        label: The step's name.
        token: Depends on this call and on all before it: two processes whose tokens for the same group and number
            differ have made different calls.
        arguments: How the arguments were given that are not where the step wants them; empty if all are.
        agreements: How often these processes had waited for each other and compared what they were about to do.
    """

    group: str
    number: int
    label: str
    token: str
    arguments: str = ""
    agreements: int = 0


class Progress:
    """Where a process is.

    Attributes:
        call: How many calls of steps over several processes it has begun.
        thread: The thread that began the last one; None before the first.
        inside: Whether it is inside of one now; else user code runs, or `blocked` says for what it waits.
        itinerary: The step that was called last; None before the first.
        index: The instruction that is issued now, or was issued last. What is moved before the first one has negative
            indices, and scalar results come after the last one.
        waits: What was issued and may not have come yet, oldest first. The reader takes off the left what is over.
        offers: What was issued for other processes, oldest first, as arrays that fail if it does: the same as a `Wait`.
            The reader takes them off the left.
        blocked: What the thread waits for outside of instructions; None if it does not.
        calls: The latest calls, oldest first.
        last: The latest call of each group of processes, by the name of the group.
        failure: What ended the latest step in this process; empty if nothing has.
    """

    def __init__(self) -> None:
        self.call = 0
        self.thread: int | None = None
        self.inside = False
        self.itinerary: Itinerary | None = None
        self.index = 0
        self.waits: deque[Wait] = deque(maxlen=_MOST_WAITS)
        self.offers: deque[Wait] = deque(maxlen=_MOST_WAITS)
        self._offered: list[Wait] = []
        # The first offer that failed and may have its cause in another process: when that was seen, and why it failed.
        self._doubtful: tuple[float, Wait, BaseException] | None = None
        self.blocked: Blocked | None = None
        self.calls: deque[CallRecord] = deque(maxlen=_MOST_CALLS)
        self.last: dict[str, CallRecord] = {}
        self.failure = ""

    # For the thread that runs steps. What it does for every instruction, it does without a call: `progress.index = i`,
    # `progress.waits.append(Wait(...))`.

    def begin(self, itinerary: Itinerary, record: CallRecord) -> None:
        """Note that a step is called."""
        self.index = -1
        self.itinerary = itinerary
        self.thread = threading.get_ident()
        self.call += 1
        self.calls.append(record)
        self.last[record.group] = record
        self.inside = True

    def end(self) -> None:
        """Note that all of the call's instructions are issued; `waits` may still hold some of them."""
        self.inside = False

    def fail(self, error: BaseException) -> None:
        """Note that the call ended with an exception."""
        self.inside = False
        self.failure = f"{type(error).__name__}: {error}"

    @contextmanager
    def waiting(self, what: str, processes: Sequence[int] = (), coming: CallRecord | None = None) -> Iterator[None]:
        """While the thread waits for other processes outside of instructions; see `Blocked`."""
        before, self.blocked = self.blocked, Blocked(time.monotonic(), what, tuple(processes), coming)
        try:
            yield
        finally:
            self.blocked = before

    # For the thread that watches.

    def latest_calls(self) -> tuple[CallRecord, ...]:
        """The latest calls, oldest first; one or two may be missing while the other thread makes one."""
        found: list[CallRecord] = []
        for position in range(1, _MOST_CALLS + 1):
            try:
                record = self.calls[-position]
            except IndexError:
                break
            if not found or record.number < found[-1].number or record.group != found[-1].group:
                found.append(record)
        return tuple(reversed(found))

    def failed_offer(self, patience: float) -> tuple[Wait, BaseException] | None:
        """What other processes wait for in vain, as a program of this one has failed; and why. For one reading thread.

        Nobody else may notice: the main thread may wait for them in turn, and they are not told.

        Args:
            patience: Seconds for which it is left to another process to say so, where that may have the cause. It says
                nothing if what failed is what lies between the two.
        """
        now = time.monotonic()
        with suppress(IndexError):
            while True:
                self._offered.append(self.offers.popleft())
        offered, self._offered = self._offered[-_MOST_WAITS:], []
        for offer in offered:
            if offer.array.is_deleted():
                continue
            try:
                if offer.array.is_ready():
                    offer.array.block_until_ready()
                else:
                    self._offered.append(offer)
            except Exception as error:  # a failure of XLA, which may be of any class, or the array was donated just now
                if offer.array.is_deleted():
                    continue
                if not self._may_follow(offer):
                    return offer, error
                self._doubtful = self._doubtful or (now, offer, error)
        if self._doubtful is not None:
            since, doubtful, why = self._doubtful
            if now - since >= patience or not self._may_follow(doubtful):
                self._doubtful = None
                return doubtful, why
        return None

    def _may_follow(self, offer: Wait) -> bool:
        """Whether something before it has not come from another process: if that has failed, the cause is there.

        What comes with it may have failed a moment before it.
        """
        # A copy, as the runner appends meanwhile. What is received late is not in the order of the instructions.
        earlier = [wait for wait in tuple(self.waits) if (wait.call, wait.index) < (offer.call, offer.index)]
        return not all(wait.over() for wait in earlier)

    def oldest(self) -> Wait | None:
        """The oldest wait that is not over; forgets those before it. For one reading thread."""
        waits = self.waits
        while waits:
            try:
                wait = waits[0]
                if not wait.over():
                    return wait
                # The runner may have pushed it out meanwhile; then the next one is looked at in the next round.
                if waits[0] is wait:
                    waits.popleft()
            except IndexError:
                return None
        return None


# A process has one thread that runs steps over several processes, and so one progress.
progress = Progress()
