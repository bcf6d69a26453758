"""Program: a step as a flat list of instructions over numbered slots.

Instructions are made symbolically first (which value, on which submesh, of which microbatch), so that the last
use of every slot is known before anything is compiled: that decides what is freed and what is donated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.ir import Region, Step, is_scalar
from mmruntime._partition.pipeline.issue_order import Pipeline, order_loop
from mmruntime._partition.pipeline.loop_schedule import LoopSchedule
from mmruntime._partition.pipeline.pipeline_stages import remade
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.programs.single_program import borders

# What a slot holds: a variable on a submesh, of one microbatch inside of loops.
Key = tuple[Var, int, int | None]


@dataclass(eq=False, slots=True, frozen=True)
class ProgramSpec:
    """A program to compile: a segment, the zeroing of accumulators, or both.

    Attributes:
        kind: "segment", "again" for a forward pass that runs once more, "zeros", or "whole" for a step that is one
            program.
        submesh: Where it runs.
        reads: Variables of its arguments, accumulators first.
        writes: Variables of its results, accumulators first, zeroed ones last.
        sums: Accumulators, each with the variable that is added to it.
        slices: Variables that it cuts out of arguments, each with that argument's variable. The last argument is then
            the microbatch's number.
        zeros: The accumulators that it zeroes.
        segment: The segment, if it is one.
    """

    kind: str
    submesh: int
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    sums: tuple[tuple[Var, Var], ...] = ()
    slices: tuple[tuple[Var, Var], ...] = ()
    zeros: tuple[Var, ...] = ()
    segment: Segment | None = None


@dataclass(eq=False, slots=True, frozen=True)
class RunInstruction:
    """Run a program on the slots `args`, put its results into the slots `results`, then drop the slots `frees`."""

    spec: ProgramSpec
    microbatch: int | None
    args: tuple[int, ...]
    results: tuple[int, ...]
    frees: tuple[int, ...] = ()


@dataclass(eq=False, slots=True, frozen=True)
class TransferInstruction:
    """Send values from one submesh to another."""

    source: int
    target: int
    values: tuple[Var, ...]
    microbatch: int | None
    args: tuple[int, ...]
    results: tuple[int, ...]
    frees: tuple[int, ...] = ()


Instruction = RunInstruction | TransferInstruction


@dataclass(eq=False, slots=True, frozen=True)
class Program:
    """A step's instructions.

    Attributes:
        num_slots: How many slots there are.
        instructions: In order of issue.
        inputs: For each input of the step, the slot and the submesh to load it into; None if no program reads it.
        constants: For each captured array, all slots and submeshes to load it into.
        numbers: For each microbatch number that programs read, its slot, its submesh and the number.
        outputs: For each output, its slot; None where it is an input, a captured array or a literal.
        pipelines: The microbatch loops, in program order.
        keys: What each slot holds.
        scalars: For each scalar input or output, all slots and submeshes that hold it at the border of the step.
    """

    num_slots: int
    instructions: tuple[Instruction, ...]
    inputs: tuple[tuple[int, int] | None, ...]
    constants: Mapping[Var, tuple[tuple[int, int], ...]]
    numbers: tuple[tuple[int, int, int], ...]
    outputs: tuple[int | None, ...]
    pipelines: tuple[Pipeline, ...]
    keys: tuple[Key, ...]
    scalars: Mapping[Var, tuple[tuple[int, int], ...]]

    @property
    def runs(self) -> list[RunInstruction]:
        """The runs of programs, in order."""
        return [item for item in self.instructions if isinstance(item, RunInstruction)]

    @property
    def transfers(self) -> list[TransferInstruction]:
        """The transfers, in order."""
        return [item for item in self.instructions if isinstance(item, TransferInstruction)]

    @property
    def whole(self) -> bool:
        """Whether the step is one program."""
        return any(item.spec.kind == "whole" for item in self.runs)


def build_whole(step: Step) -> Program:
    """The program of a step whose tasks all have one device list: a single run."""
    reads, writes = borders(step)
    slots: dict[Key, int] = {(var, 0, None): number for number, var in enumerate((*reads, *writes))}
    results = tuple(slots[var, 0, None] for var in writes)
    args = tuple(slots[var, 0, None] for var in reads)
    returned_inputs = {atom for atom in step.outvars if is_var(atom)}
    frees = tuple(slots[var, 0, None] for var in reads if var not in returned_inputs)
    run = RunInstruction(ProgramSpec("whole", 0, reads, writes), None, args, results, frees)
    used = set(reads)
    return Program(
        len(slots),
        (run,),
        tuple((slots[var, 0, None], 0) if var in used else None for var in step.invars),
        {var: ((slots[var, 0, None], 0),) for var in step.constants if var in used},
        (),
        tuple(slots.get((atom, 0, None)) if is_var(atom) and atom not in used else None for atom in step.outvars),
        (),
        tuple(slots),
        {var: ((slots[var, 0, None], 0),) for var in (*reads, *writes) if is_scalar(var)},
    )


def build(step: Step, placement: Placement, segments: Segments, loop_schedules: Mapping[int, LoopSchedule]) -> Program:
    """Make the instructions of a segmented step, with a schedule for each of its loops."""
    return _Builder(step, placement, segments, loop_schedules).program()


class _Builder:
    def __init__(
        self, step: Step, placement: Placement, segments: Segments, loop_schedules: Mapping[int, LoopSchedule]
    ) -> None:
        self.step = step
        self.schedules = loop_schedules
        self.placement = placement
        self.segments = segments
        self.slots: dict[Key, int] = {}
        self.instructions: list[Instruction] = []
        self.pipelines: list[Pipeline] = []
        self._specs: dict[tuple[Segment, tuple[Var, ...]], ProgramSpec] = {}
        self._per_microbatch: set[Var] = set()
        # The slice that makes each value, where microbatches are cut into slices.
        self._slice_of: dict[Var, int] = {}
        self._slices: dict[Var, Var] = {}
        self._index = _compat.new_var(jax.typeof(np.uint32(0)))
        self._read = {var for segment in segments for var in segment.reads}
        self.readers = self._readers()
        self.outer = set(step.invars) | set(step.constants)

    def program(self) -> Program:
        self._share_inputs()
        for index, region in enumerate(self.step.regions):
            if region.loop is None:
                for segment in self.segments.by_region[index]:
                    self._run_segment(segment, None, ())
            else:
                self._loop(index, region, self.segments.by_region[index])
        outputs = tuple([self._output(atom) for atom in self.step.outvars])
        inputs: list[tuple[int, int] | None] = []
        for var in self.step.invars:
            home = self._home(var)
            inputs.append(None if home is None else (self._slot(var, home, None), home))
        constants = {
            var: tuple((self._slot(var, where, None), where) for where in self.readers.get(var, ()))
            for var in self.step.constants
        }
        kept = {slot for slot in outputs if slot is not None}
        # An input that is also an output is returned from its home.
        returned = {atom for atom in self.step.outvars if is_var(atom)}
        kept |= {place[0] for var, place in zip(self.step.invars, inputs, strict=True) if place and var in returned}
        scalars = {var: self._places(var) for var in (*self.step.invars, *returned) if is_scalar(var)}
        kept |= {slot for var in returned & scalars.keys() for slot, _ in scalars[var]}
        numbers = tuple(
            (slot, where, k) for (var, where, k), slot in self.slots.items() if var is self._index and k is not None
        )
        return Program(
            len(self.slots),
            self._freed_after_last_use(kept),
            tuple(inputs),
            constants,
            numbers,
            outputs,
            tuple(self.pipelines),
            tuple(self.slots),
            scalars,
        )

    def _readers(self) -> dict[Var, list[int]]:
        """The submeshes that read each variable."""
        readers: dict[Var, dict[int, None]] = defaultdict(dict)
        for segment in self.segments:
            for var in segment.reads:
                readers[var][segment.submesh] = None
        for region in self.step.regions:
            for piece, stacked in region.slices.items():
                for where in readers[piece]:
                    readers[stacked][where] = None
        return {var: sorted(places) for var, places in readers.items()}

    def _places(self, var: Var) -> tuple[tuple[int, int], ...]:
        """All slots and submeshes that hold a value outside of loops: where it is made, and where it is read."""
        made = () if var in self.outer else self.segments.made_on[var]
        places = dict.fromkeys((*made, *self.readers.get(var, ())))
        return tuple([(self._slot(var, where, None), where) for where in places])

    def _home(self, var: Var) -> int | None:
        """The submesh that an input is loaded on: its home, if it is read there."""
        places = self.readers.get(var)
        if not places:
            return None
        home = self.placement.homes[var]
        return home if home in places else places[0]

    def _share_inputs(self) -> None:
        """Send inputs that several submeshes read from their home to the others, once per step."""
        sends: dict[tuple[int, int], list[Var]] = defaultdict(list)
        for var in self.step.invars:
            home = self._home(var)
            # A scalar input is loaded on each submesh: the caller's array has a copy on every device.
            if home is None or is_scalar(var):
                continue
            for target in self.readers[var]:
                if target != home:
                    sends[home, target].append(var)
        for (home, target), sent in sends.items():
            self._transfer(home, target, sent, None)

    def _slot(self, var: Var, where: int, microbatch: int | None) -> int:
        return self.slots.setdefault((var, where, microbatch), len(self.slots))

    def _output(self, atom: Atom) -> int | None:
        if not is_var(atom) or atom in self.outer:
            return None
        return self._slot(atom, self.segments.made_on[atom][0], None)

    def _run_segment(
        self,
        segment: Segment,
        microbatch: int | None,
        sums: Sequence[tuple[Var, Var]],
        dropped: Collection[Var] = (),
    ) -> None:
        """Run a program and send on what others read of it, but for results that are made again later."""
        own = set(segment.writes)
        added = tuple((total, result) for total, result in sums if result in own)
        accumulated = {result for _, result in added}
        kept = [var for var in segment.writes if var not in dropped and (var not in accumulated or var in self._read)]
        totals = [total for total, _ in added]
        spec = self._spec(segment, tuple(totals), tuple(kept), added)
        where = segment.submesh
        args = tuple([self._slot(var, where, self._instance(var, microbatch, segment)) for var in spec.reads])
        results = tuple([self._slot(var, where, microbatch if var in own else None) for var in spec.writes])
        self.instructions.append(RunInstruction(spec, microbatch, args, results))
        self._send(kept, where, microbatch)

    def _run_again(self, segment: Segment, microbatch: int, made: Collection[Var]) -> None:
        """Run a forward pass once more, for what its backward pass alone reads."""
        kept = tuple([var for var in segment.writes if var in made])
        spec = self._spec(segment, (), kept, (), kind="again")
        where = segment.submesh
        args = tuple([self._slot(var, where, self._instance(var, microbatch, segment)) for var in spec.reads])
        results = tuple([self._slot(var, where, microbatch) for var in kept])
        self.instructions.append(RunInstruction(spec, microbatch, args, results))

    def _spec(
        self,
        segment: Segment,
        totals: tuple[Var, ...],
        kept: tuple[Var, ...],
        added: tuple[tuple[Var, Var], ...],
        kind: str = "segment",
    ) -> ProgramSpec:
        if (segment, kept) not in self._specs:
            slices = tuple((var, self._slices[var]) for var in segment.reads if var in self._slices)
            reads = dict.fromkeys(self._slices.get(var, var) for var in segment.reads)
            self._specs[segment, kept] = ProgramSpec(
                kind,
                segment.submesh,
                (*totals, *reads, *([self._index] if slices else [])),
                (*totals, *kept),
                added,
                slices,
                segment=segment,
            )
        return self._specs[segment, kept]

    def _instance(self, var: Var, microbatch: int | None, reader: Segment) -> int | None:
        if microbatch is None or var not in self._per_microbatch:
            return None
        slices = self.step.regions[reader.region].num_slices
        if var is self._index:
            return microbatch // slices
        return microbatch if slices == 1 else microbatch + self._slice_of[var] - reader.variant

    def _send(self, values: Iterable[Var], source: int, microbatch: int | None) -> None:
        """Send values that other submeshes read, right behind their producer: one transfer per target."""
        sends: dict[int, list[Var]] = defaultdict(list)
        for var in values:
            made_on = self.segments.made_on[var]
            if made_on[0] != source:
                continue
            for target in self.readers.get(var, ()):
                if target not in made_on:
                    sends[target].append(var)
        for target, sent in sends.items():
            self._transfer(source, target, sent, microbatch)

    def _transfer(self, source: int, target: int, values: Sequence[Var], microbatch: int | None) -> None:
        args = tuple([self._slot(var, source, microbatch) for var in values])
        results = tuple([self._slot(var, target, microbatch) for var in values])
        self.instructions.append(TransferInstruction(source, target, tuple(values), microbatch, args, results))

    def _loop(self, index: int, region: Region, segments: Sequence[Segment]) -> None:
        assert region.loop is not None
        self._per_microbatch |= {var for segment in segments for op in segment.ops for var in op.writes()}
        self._per_microbatch.add(self._index)
        if region.num_slices > 1:
            self._slice_of.update((var, op.variant) for op in region.ops for var in op.writes())
        self._slices |= region.slices
        totals: dict[int, dict[Var, None]] = defaultdict(dict)
        for total, result in region.sums:
            totals[self.segments.made_on[result][0]][total] = None
        before = self.segments.by_region[index - 1] if index > 0 and self.step.regions[index - 1].loop is None else []
        for where in sorted(totals):
            self._start_sums(where, tuple(totals[where]), before)
        pipeline = order_loop(region, self.schedules[index], segments, self.segments.made_on)
        self.pipelines.append(pipeline)
        by_place = {
            segment: [pair for pair in region.sums if self.segments.made_on[pair[1]][0] == segment.submesh]
            for segment in segments
        }
        made = {
            stage.forward: frozenset(remade(stage, self.step, self.segments))
            for stages in pipeline.variants
            for stage in stages
            if stage.forward in pipeline.again.values()
        }
        repeated = pipeline.repeated
        for segment, microbatch in pipeline.order:
            forward = pipeline.again.get(segment)
            if forward is not None:
                self._run_again(forward, microbatch, made[forward])
            else:
                dropped = made[segment] if (segment, microbatch) in repeated else ()
                self._run_segment(segment, microbatch, by_place[segment], dropped)
        for where, mine in totals.items():
            self._send(mine, where, None)

    def _start_sums(self, where: int, totals: tuple[Var, ...], before: Sequence[Segment]) -> None:
        """Zero the accumulators of a submesh: in the last program there before the loop, else in one of their own."""
        results = tuple([self._slot(total, where, None) for total in totals])
        for position in reversed(range(len(self.instructions))):
            item = self.instructions[position]
            if isinstance(item, RunInstruction) and item.spec.segment in before and item.spec.submesh == where:
                spec = replace(item.spec, writes=(*item.spec.writes, *totals), zeros=totals)
                self.instructions[position] = replace(item, spec=spec, results=(*item.results, *results))
                return
        spec = ProgramSpec("zeros", where, (), totals, zeros=totals)
        self.instructions.append(RunInstruction(spec, None, (), results))

    def _freed_after_last_use(self, kept: set[int]) -> tuple[Instruction, ...]:
        """The instructions, each with the slots that it is the last to use, without those in `kept`."""
        last: dict[int, int] = {}
        for position, item in enumerate(self.instructions):
            for slot in (*item.args, *item.results):
                last[slot] = position
        frees: dict[int, list[int]] = defaultdict(list)
        for slot, position in last.items():
            if slot not in kept:
                frees[position].append(slot)
        return tuple(
            replace(item, frees=tuple(frees[position])) if position in frees else item
            for position, item in enumerate(self.instructions)
        )
