"""Memory: what the devices of each submesh hold when they hold most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from mmruntime._compat import Var
from mmruntime._execution.compile import Compiled
from mmruntime._jaxpr.ir import Step, shard_bytes
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import (
    Instruction,
    Program,
    ProgramSpec,
    RunInstruction,
    TransferInstruction,
)
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segments


@dataclass(frozen=True)
class Held:
    """Bytes on each device, by what they are.

    Attributes:
        parameters: Carried state that tasks or microbatch loops read.
        optimizer_state: All other carried state.
        inputs: What else the step is given: the batch and captured arrays.
        gradients: What microbatch loops add up.
        activations: What programs of one microbatch keep for others, residuals above all.
        received: What came from other submeshes and is still needed.
        results: What is made outside of loops: the step's results, and what lies between its programs. The next values
            of state that is not donated are added to what the caller still holds.
        temporary: What a running program needs for itself, by XLA's count for the backend that it is compiled for.
    """

    parameters: int = 0
    optimizer_state: int = 0
    inputs: int = 0
    gradients: int = 0
    activations: int = 0
    received: int = 0
    results: int = 0
    temporary: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True)
class MemoryRow:
    """The memory of devices that belong to the same submeshes, at the instruction of a step that needs most.

    Instructions are taken in order of issue, in which arrays are allocated. Fragmentation and what libraries of the
    backend need for themselves do not count.

    Attributes:
        submeshes: The submeshes that these devices belong to; one, unless submeshes overlap.
        devices: Ids of the devices.
        held: What each device holds.
        running: The program that runs then, or the transfer, in words.
        counted: Whether all its programs are compiled in this process, and their temporary bytes known.
    """

    submeshes: tuple[int, ...]
    devices: tuple[int, ...]
    held: Held
    running: str
    counted: bool


def memory(
    step: Step, placement: Placement, segments: Segments, shardings: Shardings, program: Program, compiled: Compiled
) -> tuple[MemoryRow, ...]:
    """The memory of each submesh at its fullest."""
    owners: dict[int, list[int]] = defaultdict(list)
    for number, mesh in enumerate(placement.submeshes.meshes):
        for device in mesh.devices.flat:
            owners[device.id].append(number)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, numbers in owners.items():
        groups[tuple(numbers)].append(device)
    groups_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for group in groups:
        for number in group:
            groups_of[number].append(group)
    walk = _Walk(step, segments, shardings, program, compiled)
    fullest: dict[tuple[int, ...], tuple[Held, Instruction | None]] = {
        group: (walk.held(group), None) for group in groups
    }
    most = {group: walk.total(group) for group in groups}
    for item, where in walk.allocations():
        for group in groups_of[where]:
            if (total := walk.total(group)) > most[group]:
                most[group] = total
                fullest[group] = (walk.held(group), item)
    elsewhere = {item.spec.submesh for item in program.runs if item.spec not in compiled.programs}
    rows = []
    for group, devices in groups.items():
        held, last = fullest[group]
        running = "nothing" if last is None else _running(last, step)
        rows.append(MemoryRow(group, tuple(devices), held, running, not elsewhere.intersection(group)))
    return tuple(rows)


def _running(item: Instruction, step: Step) -> str:
    """An instruction in words, such as "layer_0, backward of microbatch 2"."""
    if isinstance(item, TransferInstruction):
        what = f"a transfer from submesh {item.source}"
    elif (segment := item.spec.segment) is None:
        what = "the whole step" if item.spec.kind == "whole" else "zeroing gradients"
    else:
        again = " once more" if item.spec.kind == "again" else ""
        passes = segment.passes + again if step.regions[segment.region].loop is not None else ""
        what = ", ".join(filter(None, [" and ".join(segment.tasks), passes])) or "what is outside of tasks"
    return what if item.microbatch is None else f"{what} of microbatch {item.microbatch}"


class _Walk:
    """The instructions of a step, with what each submesh holds at each of them."""

    def __init__(
        self, step: Step, segments: Segments, shardings: Shardings, program: Program, compiled: Compiled
    ) -> None:
        self._program = program
        self._compiled = compiled
        self._kinds = _kinds(step, segments, program)
        sizes: dict[tuple[Var, int], int] = {}
        for var, where, _ in program.keys:
            if (var, where) not in sizes:
                sizes[var, where] = shard_bytes(var, shardings[var, where])
        self._sizes = [sizes[var, where] for var, where, _ in program.keys]
        self._temporary: dict[ProgramSpec, int] = {}
        self._live: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._total: dict[int, int] = defaultdict(int)
        self._running: dict[int, int] = defaultdict(int)
        # What no program overwrites stays with the caller, or with the step for its next call.
        self._kept = {place[0] for place in program.inputs if place is not None}
        self._kept |= {slot for places in program.constants.values() for slot, _ in places}
        self._kept |= {slot for slot, _, _ in program.numbers}
        self._kept |= {slot for var in step.invars for slot, _ in program.scalars.get(var, ())}
        self._held: set[int] = set()
        for slot in self._kept:
            self._hold(slot)

    def allocations(self) -> Iterable[tuple[Instruction, int]]:
        """Each instruction with the submesh that it allocates on, at the moment before it frees."""
        for item in self._program.instructions:
            where = item.target if isinstance(item, TransferInstruction) else item.spec.submesh
            if isinstance(item, RunInstruction):
                for position in self._compiled.donated.get(item.spec, ()):
                    self._drop(item.args[position])
                if item.spec not in self._temporary:
                    self._temporary[item.spec] = _temporary(self._compiled, item.spec)
                self._running[where] = self._temporary[item.spec]
            for slot in item.results:
                self._hold(slot)
            yield item, where
            self._running[where] = 0
            for slot in item.frees:
                if slot not in self._kept:
                    self._drop(slot)

    def total(self, submeshes: Sequence[int]) -> int:
        """Bytes of what a device of all these submeshes holds now."""
        return sum(self._total[number] + self._running[number] for number in submeshes)

    def held(self, submeshes: Sequence[int]) -> Held:
        """What a device of all these submeshes holds now."""
        held: dict[str, int] = defaultdict(int)
        for number in submeshes:
            held["temporary"] += self._running[number]
            for kind, size in self._live[number].items():
                held[kind] += size
        return Held(**held)

    def _hold(self, slot: int) -> None:
        if slot not in self._held:
            self._held.add(slot)
            self._add(slot, self._sizes[slot])

    def _drop(self, slot: int) -> None:
        if slot in self._held:
            self._held.remove(slot)
            self._add(slot, -self._sizes[slot])

    def _add(self, slot: int, size: int) -> None:
        where = self._program.keys[slot][1]
        self._live[where][self._kinds[slot]] += size
        self._total[where] += size


def _kinds(step: Step, segments: Segments, program: Program) -> list[str]:
    """The attribute of `Held` that each slot counts for."""
    read = segments.read_by_model(step)
    carried = {var for position, var in enumerate(step.invars) if position in step.carried}
    given = {*step.invars, *step.constants}
    totals = {total for region in step.regions for total, _ in region.sums}
    sent = {slot for item in program.transfers for slot in item.results}
    numbers = {slot for slot, _, _ in program.numbers}
    kinds = []
    for slot, (var, _, microbatch) in enumerate(program.keys):
        if slot in sent:
            kind = "received"
        elif var in carried:
            kind = "parameters" if var in read else "optimizer_state"
        elif var in given or slot in numbers:
            kind = "inputs"
        elif var in totals:
            kind = "gradients"
        else:
            kind = "results" if microbatch is None else "activations"
        kinds.append(kind)
    return kinds


def _temporary(compiled: Compiled, spec: ProgramSpec) -> int:
    """XLA's temporary bytes of a program, 0 where this process does not compile it."""
    executable = compiled.programs.get(spec)
    analysis = None if executable is None else executable.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)
