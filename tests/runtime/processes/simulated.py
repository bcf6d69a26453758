"""Processes that run a step on a simulated network, which delays and reorders whatever it carries.

The instructions that each process issues, the messages and their numbers come from the runtime; programs, devices and
the network are simulated. Programs do not compute: the value of a slot is the name of all that it was made from, so
that a value in the wrong place is seen.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from mmruntime import schedules
from mmruntime._execution.shares import Share, receive_late, shares
from mmruntime._execution.throttle import LIMIT
from mmruntime._execution.transfers.channel import RECEIVER_BITS
from mmruntime._execution.transfers.parcels import plan_crossing
from mmruntime._partition.pipeline.instructions import Instruction, ProgramSpec, RunInstruction, TransferInstruction
from mmruntime._processes.group import Group

SHAPE = (24, 2)
AVAL = jax.ShapeDtypeStruct(SHAPE, np.float32)


@dataclass(frozen=True)
class Device:
    """A device as plans see it."""

    id: int
    process_index: int


@dataclass(frozen=True)
class Layout:
    """A layout that cuts the first dimension over devices, or replicates."""

    devices: tuple[Device, ...]
    cut: bool

    def shard_shape(self, shape):
        return (shape[0] // len(self.devices), *shape[1:]) if self.cut else shape

    def devices_indices_map(self, shape):
        size = self.shard_shape(shape)[0]
        rest = (slice(None),) * (len(shape) - 1)
        return {
            device: (slice(at * size, (at + 1) * size), *rest) if self.cut else (slice(None), *rest)
            for at, device in enumerate(self.devices)
        }


@dataclass
class Case:
    """A step: its instructions, its submeshes, and how their arrays are laid out."""

    instructions: list[Instruction]
    layouts: list[Layout]
    num_processes: int
    text: str

    @property
    def owners(self) -> dict[int, tuple[int, ...]]:
        return {
            where: tuple(sorted({device.process_index for device in layout.devices}))
            for where, layout in enumerate(self.layouts)
        }


def random_case(rng: random.Random) -> Case:
    """A random schedule of a random pipeline on submeshes of random devices of random processes."""
    count = rng.randrange(1, 5)
    chunks = rng.choice([1, 1, 2])
    microbatches = rng.randrange(1, 7)
    num_processes = rng.randrange(1, 6)
    devices = [Device(number, rng.randrange(num_processes)) for number in range(12)]
    layouts = []
    for _ in range(count):
        size = rng.choice([1, 1, 2, 3, 4])
        layouts.append(Layout(tuple(rng.sample(devices, size)), rng.random() < 0.5))
    names = [name for name in schedules.names() if name != "auto"]
    while True:
        name = rng.choice(names)
        try:
            schedule = schedules.make(name, count, microbatches, chunks)
        except ValueError:
            chunks = 1
            microbatches = count * rng.randrange(1, 3)
        else:
            break
    instructions = _instructions(schedule, rng)
    text = f"{name} {count}x{chunks} {microbatches} on " + " ".join(
        f"{[device.process_index for device in layout.devices]}" for layout in layouts
    )
    return Case(instructions, layouts, num_processes, text)


def _instructions(schedule: schedules.Schedule, rng: random.Random) -> list[Instruction]:
    """Instructions in a random order that keeps that of each submesh and that of dependencies."""
    slots: dict[Any, int] = {}
    found: list[Instruction] = []

    def slot(*key: Any) -> int:
        return slots.setdefault(key, len(slots))

    def run(where: int, args: Sequence[int], results: Sequence[int]) -> None:
        found.append(RunInstruction(ProgramSpec("segment", where, (), ()), None, tuple(args), tuple(results)))

    def send(source: int, target: int, value: Any, microbatch: int) -> int:
        arrived = slot(value, target, microbatch)
        if source != target:
            held = slot(value, source, microbatch)
            found.append(TransferInstruction(source, target, (value,), microbatch, (held,), (arrived,)))
        return arrived

    last = schedule.num_stages - 1
    rows = [deque(row) for row in schedule.rows]
    done: set[Any] = set()

    def needs(action: Any) -> list[Any]:
        stage, m = action.stage, action.microbatch
        if action.kind == "F":
            return [("F", stage - 1, m)] if stage else []
        before = [("F", stage, m)] + ([("I", stage + 1, m)] if stage < last else [])
        return [("I", stage, m)] if action.kind == "W" else before

    while any(rows):
        able = [at for at, row in enumerate(rows) if row and all(each in done for each in needs(row[0]))]
        at = rng.choice(able)
        action = rows[at].popleft()
        stage, m = action.stage, action.microbatch
        done.add(("I" if action.kind in "BI" else action.kind, stage, m))
        home = schedule.homes[stage * schedule.num_microbatches + m]
        neighbour = {
            step: schedule.homes[(stage + step) * schedule.num_microbatches + m]
            for step in (-1, 1)
            if 0 <= stage + step <= last
        }
        if action.kind == "F":
            args = [slot(f"activation {stage - 1}", home, m)] if stage else []
            run(home, [*args, slot(f"weight {stage}", home, None)], [slot(f"activation {stage}", home, m)])
            if stage < last:
                send(home, neighbour[1], f"activation {stage}", m)
        elif action.kind == "W":
            run(home, [slot(f"cotangent {stage}", home, m)], [slot(f"gradient {stage}", home, m)])
        else:
            args = [slot(f"activation {stage}", home, m)]
            args += [slot(f"cotangent {stage + 1}", home, m)] if stage < last else []
            results = [slot(f"cotangent {stage}", home, m)]
            results += [slot(f"gradient {stage}", home, m)] if action.kind == "B" else []
            run(home, args, results)
            if stage:
                send(home, neighbour[-1], f"cotangent {stage}", m)
    for where in range(len(schedule.rows)):
        run(where, [number for key, number in slots.items() if key[1] == where], [slot("state", where, None)])
        other = rng.randrange(len(schedule.rows))
        if other != where:
            send(where, other, f"tied {where}", 0)
    # Sent values that nothing has made are inputs of the step.
    return found


@dataclass(eq=False)
class Op:
    """Something that a process has issued; it is done some time after its operands are there and its turn has come.

    Attributes:
        process: The process.
        operands: The slots that it reads.
        queues: Queues of which it has to be the first.
        finish: What then happens.
        arrivals: Messages that it waits for.
        key: What it is called in the other processes that run it; None if it runs alone.
        partners: Those processes.
    """

    process: Process
    operands: list[Any]
    queues: list[deque[Op]]
    finish: Callable[[], None]
    arrivals: tuple[Any, ...] = ()
    key: Any = None
    partners: tuple[int, ...] = ()
    done: bool = False


@dataclass(eq=False)
class Process:
    """One process: what it still has to issue, and the values that it holds."""

    me: int
    code: list[tuple[int, Share]]
    group: Group
    call: int = 0
    at: int = 0
    base: int = 0
    values: dict[Any, Any] = field(default_factory=dict)
    in_flight: dict[int, list[Op]] = field(default_factory=lambda: defaultdict(list))
    queues: dict[Any, deque[Op]] = field(default_factory=lambda: defaultdict(deque))
    waits_for: Op | None = None


class World:
    """All processes and the network.

    Args:
        case: The step.
        rng: Decides what happens next.
        transport: "transfer" (nobody waits), "sockets" (the receiver waits as it issues) or "collectives" (both ends
            run a program together).
        calls: How often the step is called.
        one_at_a_time: Whether a process launches its programs of several devices one after the other, as XLA on CPUs.
        skips: A process that leaves out the first call, if any.
    """

    def __init__(
        self,
        case: Case,
        rng: random.Random,
        transport: str,
        *,
        calls: int = 2,
        one_at_a_time: bool = False,
        skips: int | None = None,
    ) -> None:
        self.case, self.rng, self.transport, self.calls = case, rng, transport, calls
        self.one_at_a_time, self.skips = one_at_a_time, skips
        members = tuple(range(case.num_processes))
        self.processes = [Process(me, self._code(me), Group(members)) for me in members]
        self.network: dict[tuple[int, int], Any] = {}
        self.ops: list[Op] = []
        self.together: dict[Any, dict[int, Op]] = defaultdict(dict)
        self.filled: set[Any] = set()
        self.made = {slot for item in case.instructions for slot in item.results}
        self.plans: dict[Any, Any] = {}

    def _code(self, me: int) -> list[tuple[int, Share]]:
        instructions, owners = self.case.instructions, self.case.owners
        own = shares(instructions, owners, me)
        return receive_late(own, instructions, owners, me) if self.transport == "sockets" else own

    def run(self) -> None:
        """Let things happen in a random order until nothing can."""
        while True:
            able: list[Any] = [process for process in self.processes if self._can_issue(process)]
            able += [op for op in self.ops if self._can_finish(op)]
            if not able:
                return
            chosen = self.rng.choice(able)
            if isinstance(chosen, Process):
                self._issue(chosen)
            else:
                self._finish(chosen)

    @property
    def ended(self) -> bool:
        """Whether every process has issued all, all of it is done, and nothing is on its way."""
        return not self.ops and not self.network and all(each.call > self.calls for each in self.processes)

    def expected(self) -> dict[Any, Any]:
        """The value of every slot that is written, by running the instructions one after the other."""
        values: dict[Any, Any] = {}
        for call in range(1, self.calls + 1):
            for index, item in enumerate(self.case.instructions):
                args = [values.get((call, slot), ("input", slot)) for slot in item.args]
                for slot in item.results:
                    is_run = isinstance(item, RunInstruction)
                    values[call, slot] = (call, index, slot, hash(tuple(args))) if is_run else args[0]
        return values

    def _can_issue(self, process: Process) -> bool:
        if process.call > self.calls or (process.waits_for is not None and not process.waits_for.done):
            return False
        if process.call and process.at < len(process.code):
            item = self.case.instructions[process.code[process.at][0]]
            if isinstance(item, RunInstruction):
                mine = process.in_flight[item.spec.submesh]
                mine[:] = [op for op in mine if not op.done]
                return len(mine) < LIMIT
        return True

    def _can_finish(self, op: Op) -> bool:
        ends = [op]
        if op.key is not None:
            found = self.together[op.key]
            if set(found) != set(op.partners):
                return False
            ends = list(found.values())
        return all(
            all(slot in end.process.values for slot in end.operands)
            and all(queue[0] is end for queue in end.queues)
            and all(key in self.network for key in end.arrivals)
            for end in ends
        )

    def _finish(self, op: Op) -> None:
        for end in [op] if op.key is None else list(self.together.pop(op.key).values()):
            end.done = True
            for queue in end.queues:
                queue.popleft()
            end.finish()
            self.ops.remove(end)

    def _start(self, op: Op) -> None:
        for queue in op.queues:
            queue.append(op)
        if op.key is not None:
            self.together[op.key][op.process.me] = op
        self.ops.append(op)

    def _issue(self, process: Process) -> None:
        if process.call == 0 or process.at == len(process.code):
            process.call, process.at = process.call + 1, 0
            if process.call <= self.calls:
                batch = process.call + (process.me == self.skips)
                process.base = process.group.called(f"step on batch {batch}".encode())
            return
        index, share = process.code[process.at]
        process.at += 1
        item = self.case.instructions[index]
        if isinstance(item, RunInstruction):
            self._run(process, item, index, share)
        else:
            self._transfer(process, item, index, share)

    def _read(self, process: Process, slot: int) -> Any:
        if slot not in self.made:
            process.values.setdefault((process.call, slot), ("input", slot))
        return process.call, slot

    def _fill(self, process: Process, slot: Any, value: Any) -> None:
        assert (process.me, slot) not in self.filled, "a value came twice"
        self.filled.add((process.me, slot))
        process.values[slot] = value

    def _run(self, process: Process, item: RunInstruction, index: int, share: Share) -> None:
        where, call = item.spec.submesh, process.call
        operands = [self._read(process, slot) for slot in item.args]
        devices = self.case.layouts[where].devices
        queues = [process.queues[device] for device in devices if device.process_index == process.me]
        if self.one_at_a_time and len(devices) > 1:
            queues.append(process.queues["launch"])

        def finish() -> None:
            args = hash(tuple(process.values[operand] for operand in operands))
            for slot in item.results:
                self._fill(process, (call, slot), (call, index, slot, args))

        together = share == Share.RUN_TOGETHER
        key = (index, call) if together else None
        op = Op(process, operands, queues, finish, (), key, self.case.owners[where] if together else ())
        process.in_flight[where].append(op)
        self._start(op)

    def _transfer(self, process: Process, item: TransferInstruction, index: int, share: Share) -> None:
        me, owners = process.me, self.case.owners
        source, target = self._read(process, item.args[0]), (process.call, item.results[0])
        has, wants = me in owners[item.source], me in owners[item.target]
        own = [source] if has else []
        if share == Share.MOVE:
            self._start(Op(process, own, [], lambda: self._fill(process, target, process.values[source])))
            return
        if (item.source, item.target) not in self.plans:
            layouts: list[Any] = [self.case.layouts[item.source], self.case.layouts[item.target]]
            self.plans[item.source, item.target] = plan_crossing(layouts[:1], layouts[1:], [AVAL]).messages
        messages = self.plans[item.source, item.target]
        if self.transport == "collectives":
            self._permute(process, messages, own, wants, source, target, (index, process.call))
            return
        for message in messages:
            if message.source == me:
                self._offer(process, source, (process.base + index) << RECEIVER_BITS | message.target)
        if wants:
            number = (process.base + index) << RECEIVER_BITS | me
            keys = tuple((message.source, number) for message in messages if message.target == me)

            def arrive() -> None:
                found = {self.network.pop(key) for key in keys} | {process.values[slot] for slot in own}
                assert len(found) == 1, f"parts of different values: {found}"
                self._fill(process, target, found.pop())

            op = Op(process, own, [], arrive, keys)
            self._start(op)
            if self.transport == "sockets":
                process.waits_for = op

    def _offer(self, process: Process, source: Any, number: int) -> None:
        assert number < 1 << 64

        def post() -> None:
            assert (process.me, number) not in self.network, "a number was used twice"
            self.network[process.me, number] = process.values[source]

        self._start(Op(process, [source], [], post))

    def _permute(
        self, process: Process, messages: Any, own: list[Any], wants: bool, source: Any, target: Any, key: Any
    ) -> None:
        """Both ends run one program on the devices that send or receive."""
        parcels = [parcel for message in messages for parcel in message.parcels]
        devices = {device for parcel in parcels for device in (parcel.source, parcel.target)}
        partners = tuple(sorted({device.process_index for device in devices}))
        givers = [message.source for message in messages if message.target == process.me]

        def finish() -> None:
            if wants:
                values = {self.processes[giver].values[source] for giver in givers}
                values |= {process.values[slot] for slot in own}
                assert len(values) == 1
                self._fill(process, target, values.pop())

        if process.me not in partners:
            self._start(Op(process, own, [], finish))
            return
        queues = [process.queues[device] for device in devices if device.process_index == process.me]
        if self.one_at_a_time:
            queues.append(process.queues["launch"])
        self._start(Op(process, own, queues, finish, (), ("permute", *key), partners))
