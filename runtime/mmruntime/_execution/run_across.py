"""Run a step over several processes: of one list of instructions, each issues those that its devices take part in.

That all processes issue parts of one list, in its order, is what keeps them from waiting for each other in a circle: of
all instructions that are not done, the earliest has all that it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._execution.back_pressure import BackPressure
from mmruntime._execution.compile import Compiled
from mmruntime._execution.host_values import is_shared
from mmruntime._execution.run import Watch, copied_outputs, deletable, delete_moved, outputs_of
from mmruntime._execution.scalars import ScalarPart
from mmruntime._execution.shares import Share, receive_late, shares
from mmruntime._execution.step_agreement import StepAgreement
from mmruntime._execution.throttle import throttled
from mmruntime._execution.transfers.across import AcrossTransport
from mmruntime._execution.transfers.channel import Channel
from mmruntime._execution.transfers.crossing import Crossing
from mmruntime._execution.transfers.own_parts import (
    copied,
    devices_of,
    first_devices,
    is_global,
    is_here,
    nothing_of,
    place,
    processes,
)
from mmruntime._execution.transfers.spread_across import ScalarResult, SpreadAcross
from mmruntime._jaxpr.ir import Step, is_scalar
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._processes.agreement import meet
from mmruntime._processes.group import MESSAGE_BITS, Group, group_of
from mmruntime._processes.progress import Awaited, CallRecord, Itinerary, Wait, progress

_RUN, _MOVE, _CROSS = int(Share.RUN), int(Share.MOVE), int(Share.CROSS)
# Bytes that a step may ask other processes for when it begins. What comes then has its memory from then on.
_LARGEST_ASKED = 1 << 20
# The watch keeps a result of a program that runs on several processes until it has looked at it.
_LARGEST_PROBE = 1 << 20


class AcrossRunner:
    """A compiled step with parts in other processes. Called as a `Runner`.

    Args:
        label: The step's name.
        names: The user's names for the inputs.
        agreement: That all processes run the same step.
        step: The step.
        program: Its instructions.
        compiled: Executables and transfers of this process.
        shardings: The layout of each value.
        donated: Positions of the inputs that the caller donates.

    Attributes:
        misplaced: How many inputs the latest call had to move.
        group: The processes that run the step.
        calls_wait: Whether the call of a transfer waits for what another process sends.
    """

    def __init__(
        self,
        label: str,
        names: Sequence[str],
        agreement: StepAgreement,
        step: Step,
        program: Program,
        compiled: Compiled,
        shardings: Shardings,
        donated: Collection[int] = (),
    ) -> None:
        assert isinstance(compiled.transport, AcrossTransport)
        transport = compiled.transport
        self.misplaced = 0
        self._label, self._names = label, names
        self._me = jax.process_index()
        self._everywhere = shardings.everywhere
        self.group: Group | None = group_of(processes(shardings.everywhere.mesh))
        self._group = self.group
        self._channel: Channel = transport.channel
        self.calls_wait = transport.channel.waits
        self._agreement = agreement
        self._met = self._loaded = False
        self._moved: list[int] = []
        self._num_slots = program.num_slots
        self._num_instructions = len(program.instructions)
        self._code, self._itinerary = _plan_code(label, program, compiled, shardings, late=transport.channel.waits)
        self._asked = _asked(self._code)
        self._inputs = [
            _Input(position, place[0], shardings[var, place[1]], var.aval, is_here(shardings[var, place[1]].mesh))
            for position, (var, place) in enumerate(zip(step.invars, program.inputs, strict=True))
            if place is not None and not is_scalar(var)
        ]
        self._scalars = [
            (
                position,
                var.aval,
                [
                    (slot, ScalarPart(var.aval, shardings.everywhere, sharding))
                    for slot, sharding in _places_here(var, program, shardings)
                ],
            )
            for position, var in enumerate(step.invars)
            if program.scalars.get(var)
        ]
        self._crossings: dict[Any, Crossing] = {}
        # What `_move` awaits and offers, by the name of the array and its number.
        self._moves: dict[Any, Itinerary] = {}
        # Captured arrays may have to come from other processes, so that they are laid out at the first call.
        self._captured = _captured(step, program, shardings)
        self._constants: list[tuple[int, Any]] = []
        outputs = _Outputs(step, program, shardings, donated, transport.channel, self._me)
        self._outputs = outputs
        self._deletable = deletable(step, program, donated)
        first = first_devices(devices_of(self._everywhere))
        self._back_pressure = BackPressure(
            label, transport.targets, transport.senders, first, transport.channel, self._me
        )
        # The last number is that of acknowledgements.
        used = self._num_instructions + len(step.invars) + len(self._captured) + outputs.numbers + 1
        self._acknowledged = used - 1
        self._first_output = used - 1 - outputs.numbers
        if used >= 1 << MESSAGE_BITS:
            raise NotImplementedError(
                f"mjit: {label} has {used} instructions, arguments and results; over several processes there may be at "
                f"most {(1 << MESSAGE_BITS) - 1}. Use fewer microbatches."
            )
        self._peers = tuple(sorted({*transport.peers, *outputs.peers}))
        if outputs.spread is not None and outputs.spread.senders:
            results = Awaited("scalar results", outputs.spread.senders)
            self._itinerary = replace(
                self._itinerary, awaited={**self._itinerary.awaited, self._num_instructions: results}
            )

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Issue this process's part of the step; returns as soon as that is done."""
        return self.run_watched(inputs, None)

    def run_watched(self, inputs: Sequence[Any], watch: Watch | None) -> list[Any]:
        """As a call; `watch` is called after each instruction issued here.

        It is the hot path, and long on purpose: a Python call would cost more than the lines that it replaces.
        """
        number = self._begin(inputs)
        waits, offers, itinerary = progress.waits, progress.offers, self._itinerary
        call_number, issued = progress.call, 0.0
        try:
            slots = self._load(inputs, number)
            for crossing, index in self._asked:
                crossing.ask(number + index)
            self._outputs.ask(number + self._first_output)
            for kind, call, args, results, frees, index in self._code:
                progress.index = index
                operands = [slots[slot] for slot in args]
                if watch is not None:
                    issued = time.perf_counter()
                if kind == _RUN:
                    values = call(*operands)
                elif kind == _MOVE:
                    values = call(operands)
                elif kind == _CROSS:
                    values = call(operands, number + index)
                    for ticket in call.tickets:
                        waits.append(Wait(time.monotonic(), call_number, itinerary, index, ticket))
                    for offered in call.offered:
                        offers.append(Wait(0.0, call_number, itinerary, index, offered))
                else:
                    run, probe = call
                    values = run(*operands)
                    if probe is not None:
                        waits.append(Wait(time.monotonic(), call_number, itinerary, index, values[probe]))
                        offers.append(waits[-1])
                if watch is not None:
                    watch(index, operands, values, issued)
                # An array is freed with its last reference, which `operands` would hold until the next instruction.
                del operands
                for slot, value in zip(results, values, strict=True):
                    slots[slot] = value
                for slot in frees:
                    slots[slot] = None
            outputs = self._collect(slots, inputs, number)
        except BaseException as error:
            progress.fail(error)
            raise
        progress.end()
        return outputs

    def _begin(self, inputs: Sequence[Any]) -> int:
        """Count a call that all processes have agreed on; the number that its messages start at."""
        group = self._group
        if self._me not in group.members:
            return 0
        mark, arguments = self._agreement.reach(inputs)
        if not self._met:
            meet(f"compile {self._label}", group)
            self._channel.connect(self._peers)
            self._met = True
        number = group.called(mark)
        record = CallRecord(group.key, group.calls, self._label, group.token, arguments, group.agreements)
        progress.begin(self._itinerary, record)
        return number

    def _load(self, inputs: Sequence[Any], number: int) -> list[Any]:
        """The slots at the start of a step: inputs and captured arrays, each where this process's programs read it."""
        slots: list[Any] = [None] * self._num_slots
        moved: list[int] = []
        for position, slot, sharding, aval, here in self._inputs:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if placed is sharding or placed == sharding:
                slots[slot] = value
                continue
            moved.append(position)
            if is_global(value):
                slots[slot] = self._move(
                    self._names[position], value, sharding, number, self._num_instructions + position
                )
            elif here:
                slots[slot] = place(value, sharding, aval)
        misplaced = len(moved)
        everywhere = self._everywhere
        for position, aval, places in self._scalars:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if placed is not everywhere and placed != everywhere:
                misplaced += 1
                if not is_global(value):
                    for slot, part in places:
                        slots[slot] = place(value, part.sharding, aval)
                    continue
                value = self._move(self._names[position], value, everywhere, number, self._num_instructions + position)
            for slot, part in places:
                slots[slot] = part(value)
        self.misplaced = misplaced
        self._moved = moved
        if not self._loaded:
            self._load_captured(number, self._num_instructions + len(inputs))
        for slot, value in self._constants:
            slots[slot] = value
        return slots

    def _move(self, name: str, value: Any, sharding: NamedSharding, number: int, offset: int) -> Any:
        """Bring a global array to where it is wanted; None if this process then holds nothing of it.

        Args:
            name: The user's name for it.
            value: The array.
            sharding: Where it is wanted.
            number: The number that the call's messages start at.
            offset: That of this message among them.
        """
        key = (value.sharding, sharding, value.aval)
        crossing = self._crossings.get(key)
        if crossing is None:
            outside = set(processes(value.sharding.mesh)) - set(self._group.members)
            if outside:
                raise ValueError(
                    f"mjit: {name} of {self._label} lies on devices of process {min(outside)}, and only processes "
                    f"{', '.join(map(str, self._group.members))} run this step. Give an array on its mesh, or one that "
                    "each of them has."
                )
            crossing = Crossing([value.sharding], [sharding], [value.aval], self._channel, self._me)
            self._channel.connect(crossing.peers)
            self._crossings[key] = crossing
        # Arguments come before all instructions, and captured arrays that are results after them.
        index = offset if offset >= self._first_output else offset - self._first_output
        itinerary = self._moves.get((offset, key))
        if itinerary is None:
            what = f"{name} of {self._label}, {value.aval.str_short()}"
            awaited = {index: Awaited(what, crossing.senders)}
            itinerary = Itinerary(self._label, awaited, {index: what})
            self._moves[offset, key] = itinerary
        before, progress.itinerary, progress.index = progress.index, itinerary, index
        (moved,) = crossing([value], number + offset)
        for ticket in crossing.tickets:
            progress.waits.append(Wait(time.monotonic(), progress.call, itinerary, index, ticket))
        for offered in crossing.offered:
            progress.offers.append(Wait(0.0, progress.call, itinerary, index, offered))
        progress.itinerary, progress.index = self._itinerary, before
        return moved

    def _load_captured(self, number: int, first: int) -> None:
        """Lay out captured arrays and microbatch numbers, at the first call: they may come from other processes."""
        for offset, (slot, value, aval, sharding, here) in enumerate(self._captured, first):
            if not is_global(value):
                if here:
                    self._constants.append((slot, place(value, sharding, aval)))
            elif value.sharding == sharding:
                self._constants.append((slot, value))
            else:
                self._constants.append((slot, self._move("a captured array", value, sharding, number, offset)))
        self._loaded = True

    def _collect(self, slots: Sequence[Any], inputs: Sequence[Any], number: int) -> list[Any]:
        """The step's results, once all instructions are issued."""
        outputs = self._outputs
        progress.index = self._num_instructions
        results = outputs.collect(slots, inputs, number, self._first_output, self._move)
        if outputs.spread is not None:
            for ticket in outputs.spread.tickets:
                progress.waits.append(
                    Wait(time.monotonic(), progress.call, self._itinerary, self._num_instructions, ticket)
                )
            for offered in outputs.spread.offered:
                progress.offers.append(Wait(0.0, progress.call, self._itinerary, self._num_instructions, offered))
        progress.index = self._num_instructions + 1
        self._back_pressure(number + self._acknowledged)
        delete_moved(inputs, self._deletable.intersection(self._moved))
        return results


class _Captured(NamedTuple):
    """A captured array or the number of a microbatch: where, and whether this process has devices there."""

    slot: int
    value: Any
    aval: Any
    sharding: NamedSharding
    here: bool


class _Input(NamedTuple):
    """An input array that programs read: where, and whether this process has devices there."""

    position: int
    slot: int
    sharding: NamedSharding
    aval: Any
    here: bool


def _places_here(var: Var, program: Program, shardings: Shardings) -> list[tuple[int, NamedSharding]]:
    """The slots of a scalar on submeshes that have devices of this process."""
    places = [(slot, shardings[var, where]) for slot, where in program.scalars[var]]
    return [(slot, sharding) for slot, sharding in places if is_here(sharding.mesh)]


def _captured(step: Step, program: Program, shardings: Shardings) -> list[_Captured]:
    """Slots that are filled once; the same list in all processes, as the numbers of messages follow from it."""
    captured = [
        _Captured(
            slot, _as_now(step.constants[var]), var.aval, shardings[var, where], is_here(shardings[var, where].mesh)
        )
        for var, places in program.constants.items()
        for slot, where in places
    ]
    aval = jax.typeof(np.uint32(0))
    for slot, where, number in program.numbers:
        sharding = shardings.replicated(where)
        captured.append(_Captured(slot, np.uint32(number), aval, sharding, is_here(sharding.mesh)))
    return captured


def _as_now(value: Any) -> Any:
    """A captured value as it is when the step is planned: the program may write into it before a call lays it out."""
    return np.array(value) if is_shared(value) else value


def _plan_code(
    label: str, program: Program, compiled: Compiled, shardings: Shardings, *, late: bool
) -> tuple[list[tuple[int, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]], Itinerary]:
    """The instructions of this process, with their kinds and indices; and what they need of others.

    With `late`, what it receives comes when it is needed; see `receive_late`.
    """
    me = jax.process_index()
    code: list[tuple[int, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = []
    awaited: dict[int, Awaited] = {}
    tasks: dict[int, str] = {}
    limited = throttled(program, compiled, shardings, everything=True)
    submeshes = dict.fromkeys(where for _, where, _ in program.keys)
    owners = {where: processes(shardings.replicated(where).mesh) for where in submeshes}
    own = shares(program.instructions, owners, me)
    for index, kind in receive_late(own, program.instructions, owners, me) if late else own:
        item = program.instructions[index]
        microbatch = "" if item.microbatch is None else f", microbatch {item.microbatch}"
        call: Any
        if isinstance(item, RunInstruction):
            where = item.spec.submesh
            names = item.spec.segment.tasks if item.spec.segment is not None else ()
            tasks[index] = f"{' + '.join(names) or item.spec.kind} on submesh {where}{microbatch}"
            call = limited.get(item) or compiled.programs[item.spec]
            if kind == Share.RUN_TOGETHER:
                call = call, _probe(item, program, shardings)
                others = tuple(process for process in owners[where] if process != me)
                awaited[index] = Awaited(f"the run of {tasks[index]}", others)
        else:
            what = ", ".join(var.aval.str_short() for var in item.values[:3])
            more = f" and {len(item.values) - 3} more" if len(item.values) > 3 else ""
            tasks[index] = f"{what}{more} from submesh {item.source} to submesh {item.target}{microbatch}"
            call = compiled.sends[item]
            if kind == Share.CROSS and call.senders:
                awaited[index] = Awaited(tasks[index], call.senders)
        code.append((int(kind), call, item.args, item.results, item.frees, index))
    return code, Itinerary(label, awaited, tasks)


def _asked(code: Sequence[tuple[int, Any, Any, Any, Any, int]]) -> list[tuple[Crossing, int]]:
    """The transfers from other processes that are asked for when a step begins, with their indices: small ones.

    Many at once wake fewer threads than one by one, and their senders need not wait until they are asked.
    """
    found, total = [], 0
    for kind, call, *_, index in code:
        if kind == _CROSS and call.num_bytes:
            total += call.num_bytes
            if total > _LARGEST_ASKED:
                break
            found.append((call, index))
    return found


def _probe(item: RunInstruction, program: Program, shardings: Shardings) -> int | None:
    """The position of a result that tells that a program has ended, and is small enough to be kept for that."""

    def size(position: int) -> int:
        var, where, _ = program.keys[item.results[position]]
        shard = shardings[var, where].shard_shape(tuple(var.aval.shape))
        return int(np.prod(shard, dtype=np.int64)) * 8

    plain = [at for at, slot in enumerate(item.results) if not _compat.is_key(program.keys[slot][0].aval.dtype)]
    best = min(plain, key=size, default=None)
    return None if best is None or size(best) > _LARGEST_PROBE else best


class _Outputs:
    """How the outputs of a step are put together after its last instruction."""

    def __init__(
        self,
        step: Step,
        program: Program,
        shardings: Shardings,
        donated: Collection[int],
        channel: Channel,
        me: int,
    ) -> None:
        scattered: list[ScalarResult] = []
        self._sources = outputs_of(step, program, shardings)
        for index, each in enumerate(self._sources):
            if each.kind == "spread":
                scattered.append(ScalarResult(index, each.aval, each.source))
            elif each.kind == "known":
                self._sources[index] = replace(each, source=_as_now(each.source))
        self._copied = copied_outputs(step, donated)
        self.spread = SpreadAcross(shardings.everywhere, scattered, channel, me) if scattered else None
        self.numbers = len(self._sources) + (0 if self.spread is None else self.spread.levels)
        self.peers = () if self.spread is None else self.spread.peers
        self._nothing: dict[int, Any] = {}

    def ask(self, number: int) -> None:
        """Ask other processes for scalar results; see `SpreadAcross.ask`.

        Args:
            number: The number of the first message of outputs.
        """
        if self.spread is not None:
            self.spread.ask(number + len(self._sources))

    def collect(
        self,
        slots: Sequence[Any],
        inputs: Sequence[Any],
        number: int,
        first: int,
        move: Callable[[str, Any, NamedSharding, int, int], Any],
    ) -> list[Any]:
        """The outputs.

        Args:
            slots: The slots after the last instruction.
            inputs: The step's inputs.
            number: The number that the call's messages start at.
            first: That of the first message of outputs among them.
            move: Brings a global array to where it is wanted; see `AcrossRunner`.
        """
        outputs: list[Any] = []
        for index, each in enumerate(self._sources):
            value: Any = None
            if each.kind == "slot":
                value = slots[each.source]
            elif each.kind == "input":
                value = inputs[each.source]
                value = value if is_global(value) else place(value, each.sharding, each.aval)
            elif each.kind == "known":
                value = each.source
                if not is_global(value):
                    value = place(value, each.sharding, each.aval)
                elif value.sharding != each.sharding:
                    value = move("a captured array", value, each.sharding, number, first + index)
                self._sources[index] = replace(each, source=value)
            is_elsewhere = value is None and each.kind != "spread"
            outputs.append(self._empty(index, each.aval, each.sharding) if is_elsewhere else value)
        if self.spread is not None:
            self.spread(slots, outputs.__setitem__, number + first + len(self._sources))
        for index in self._copied:
            outputs[index] = copied(outputs[index])
        return outputs

    def _empty(self, index: int, aval: Any, sharding: NamedSharding) -> Any:
        """An output that other processes hold. There is one array for all calls, as it cannot be written to."""
        array = self._nothing.get(index)
        if array is None or array.is_deleted():
            array = self._nothing[index] = nothing_of(aval, sharding)
        return array
