"""What a compiled step runs where, as values."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import jax

from mmruntime import _compat, schedules
from mmruntime._execution.compile import Compiled
from mmruntime._execution.transfers.own_parts import processes
from mmruntime._inspect import report_text as _tables
from mmruntime._inspect.collectives import Collective, MadeEquation, collectives, made_equations
from mmruntime._inspect.input_reasons import InputReason, input_reasons
from mmruntime._inspect.memory import MemoryRow, memory
from mmruntime._inspect.report_text import ReportTable
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Step, is_scalar, num_bytes, shard_bytes
from mmruntime._partition.layouts.idle_axes import idle_axes
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, ProgramSpec
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.placement.pulled_state import PulledState, pulled_state
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.sums.delay_sums import DelayedSums

# Operations and bytes of a program by XLA's count; it counts those that this process compiles.
_Cost = tuple[float | None, float | None]
_NOT_HERE: _Cost = (None, None)


@dataclass(frozen=True)
class SubmeshRow:
    """A submesh.

    Attributes:
        number: Its number in this report.
        axes: Its axes and their sizes.
        devices: Ids of its devices.
        state_elements: Numbers of carried state (parameters and optimizer state) on each device.
        state_bytes: Bytes of carried state on each device.
        activation_bytes: The most bytes of live activations of microbatch loops on each device.
        processes: The processes that its devices belong to.
    """

    number: int
    axes: str
    devices: tuple[int, ...]
    state_elements: int
    state_bytes: int
    activation_bytes: int
    processes: tuple[int, ...]


@dataclass(frozen=True)
class NameRow:
    """A logical name that did not shard a dimension of a value in a task.

    Attributes:
        task: The task.
        name: The logical name.
        dimension: The dimension that carries it.
        shape: The value's shape.
        outcome: Why the dimension is not sharded.
    """

    task: str
    name: str
    dimension: int
    shape: tuple[int, ...]
    outcome: str


@dataclass(frozen=True)
class ProgramRow:
    """A compiled program.

    Attributes:
        submesh: The submesh that it runs on.
        tasks: The tasks in it; none for equations outside of tasks.
        kind: "forward", "backward" (or a half of it), "forward+backward", "once" outside of loops, or "whole step".
        equations: How many traced equations it has.
        flops: Floating-point operations of one run, on the whole submesh, counted from the trace.
        runs: How often it runs per step.
        device_flops: Floating-point operations of one run on each device, by XLA's cost analysis; None for a program
            that this process does not compile, as none of its devices runs it.
        device_bytes: Bytes that one run reads and writes on each device, by the same analysis; or None.
    """

    submesh: int
    tasks: tuple[str, ...]
    kind: str
    equations: int
    flops: float
    runs: int
    device_flops: float | None
    device_bytes: float | None


@dataclass(frozen=True)
class InputRow:
    """An input of the step: where it lives and how it is laid out.

    Attributes:
        name: The argument, and the path within it.
        submesh: The submesh that holds it; None if no program reads it.
        shape: Its shape.
        dtype: Its type.
        spec: Its layout on the submesh.
        device_bytes: Its bytes on each device there.
        carried: Whether it is state: its next value is an output of the step.
        everywhere: Whether it is a scalar, which is replicated over the whole mesh.
        reason: What decided where it lives and how it is laid out.
    """

    name: str
    submesh: int | None
    shape: tuple[int, ...]
    dtype: str
    spec: str
    device_bytes: int
    carried: bool
    everywhere: bool
    reason: InputReason


@dataclass(frozen=True)
class TaskRow:
    """The floating-point operations of a task in one step, forward and backward, on all devices of its submesh.

    Tasks that share a program share a row.
    """

    tasks: tuple[str, ...]
    submesh: int
    flops: float


@dataclass(frozen=True)
class TransferRow:
    """A transfer between two submeshes.

    Attributes:
        source: The submesh that sends.
        target: The submesh that receives.
        arrays: How many arrays one run moves.
        size: How many bytes one run moves.
        runs: How often it runs per step.
    """

    source: int
    target: int
    arrays: int
    size: int
    runs: int


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of a program, between the devices of its submesh.

    Attributes:
        submesh: The submesh.
        tasks: The tasks of the program.
        found: Which collectives, of what size, from which line, and why.
        runs: How often the program runs per step.
    """

    submesh: int
    tasks: tuple[str, ...]
    found: Collective
    runs: int


@dataclass(frozen=True)
class LoopRow:
    """A microbatch loop.

    Attributes:
        schedule: Its name.
        num_microbatches: How many microbatches a batch is cut into.
        slices: Into how many slices of its sequence each of them is cut.
        stages: The submesh of each stage.
        live: The most microbatches, or slices of them, that each submesh holds activations of at once.
        order: The schedule itself; its submesh k is the k-th different one of `stages`.
        choice: For a schedule that was searched for, the named ones it was compared with and why it won; else None.
    """

    schedule: str
    num_microbatches: int
    stages: tuple[int, ...]
    live: tuple[int, ...]
    order: schedules.Schedule
    choice: schedules.Choice | None
    slices: int = 1


@dataclass(frozen=True)
class LoopSumsRow:
    """What a microbatch loop adds up over devices that share parameters.

    Attributes:
        axes: The mesh axes that cut its examples.
        accumulators: How many sums are added up over them behind the loop, once per step.
        device_bytes: The bytes of these on each device.
        num_microbatches: How often they would be added up otherwise.
        kept: What is added up over devices for each microbatch all the same, and why.
    """

    axes: tuple[str, ...]
    accumulators: int
    device_bytes: int
    num_microbatches: int
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What runs where. `print(report)` shows it as tables.

    Attributes:
        name: The step's name.
        submeshes: The submeshes of its tasks.
        programs: The compiled programs.
        inputs: The inputs and their layouts.
        transfers: The transfers between submeshes.
        loops: The microbatch loops.
        names: Logical names that did not shard a dimension that carries them.
        runs_per_step: How many program runs a step issues, small ones such as zeroing accumulators included.
        pulled: Carried state that lives away from its stage, and the line that pulled it there.
        collectives: The collectives in the programs that this process compiles.
        sums: What microbatch loops add up over devices, and when.
        memory: What the devices of each submesh hold when they hold most.
        proofs: How the results of microbatches make up those of the whole batch, in lines.
        process: The process that this report is of.
        transport: What carries arrays between processes; None if the step runs in one.
        idle_axes: Mesh axes over which nothing is cut, and how many devices compute the same for that.
    """

    name: str
    submeshes: tuple[SubmeshRow, ...]
    programs: tuple[ProgramRow, ...]
    inputs: tuple[InputRow, ...]
    transfers: tuple[TransferRow, ...]
    loops: tuple[LoopRow, ...]
    names: tuple[NameRow, ...]
    runs_per_step: int
    pulled: tuple[PulledState, ...] = ()
    proofs: tuple[str, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    sums: tuple[LoopSumsRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    process: int = 0
    transport: str | None = None
    idle_axes: tuple[tuple[str, int], ...] = ()

    @property
    def tasks(self) -> tuple[TaskRow, ...]:
        """The floating-point operations of each task in one step."""
        work: dict[tuple[tuple[str, ...], int], float] = defaultdict(float)
        for row in self.programs:
            if row.tasks:
                work[row.tasks, row.submesh] += row.flops * row.runs
        return tuple(TaskRow(tasks, submesh, flops) for (tasks, submesh), flops in work.items())

    @property
    def headlines(self) -> tuple[str, ...]:
        """The step, its transfers and its loops, in a sentence each."""
        return _tables.headlines(self)

    @property
    def tables(self) -> tuple[ReportTable, ...]:
        """The rows of the report, as text in tables."""
        return _tables.tables(self)

    def __str__(self) -> str:
        return "\n\n".join([*self.headlines, *map(str, self.tables)])


def report(
    name: str,
    step: Step,
    placement: Placement,
    segments: Segments,
    shardings: Shardings,
    program: Program,
    compiled: Compiled,
    names: Sequence[str],
    delayed: Sequence[DelayedSums],
) -> Report:
    """The report about a step, from what the passes decided and XLA compiled."""
    inputs = []
    state: dict[int, int] = defaultdict(int)
    values: dict[int, int] = defaultdict(int)
    reasons = input_reasons(step, placement, shardings, names)
    for position, (var, place) in enumerate(zip(step.invars, program.inputs, strict=True)):
        shape = tuple(var.aval.shape)
        where = None if place is None else place[1]
        size, spec = num_bytes(var), "-"
        if where is not None:
            sharding = shardings[var, where]
            size = shard_bytes(var, sharding)
            spec = str(sharding.spec).replace("PartitionSpec", "P")
            if position in step.carried:
                state[where] += size
                values[where] += math.prod(sharding.shard_shape(shape))
        carried, dtype = position in step.carried, str(var.aval.dtype)
        inputs.append(
            InputRow(names[position], where, shape, dtype, spec, size, carried, is_scalar(var), reasons[position])
        )
    live = _live_bytes(program, step, shardings)
    costs = _compiled_costs(program, compiled)
    submeshes = [
        SubmeshRow(
            number,
            " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
            tuple(device.id for device in mesh.devices.flat),
            values[number],
            state[number],
            live[number],
            processes(mesh),
        )
        for number, mesh in enumerate(placement.submeshes.meshes)
    ]
    if program.whole:
        programs = [_whole_row(segments, step, costs.get(None, _NOT_HERE))]
    else:
        programs = [_program_row(each, step, costs.get(each, _NOT_HERE)) for each in segments]
        programs += _again_rows(program, step, compiled)
    return Report(
        name,
        tuple(submeshes),
        tuple(programs),
        tuple(inputs),
        tuple(_transfer_rows(program)),
        tuple(_loop_rows(program)),
        tuple(NameRow(*key, outcome) for key, outcome in shardings.unused_axis_names.items()),
        len(program.runs),
        pulled_state(step, placement, names),
        tuple(line for region in step.regions if region.loop is not None for line in region.loop.proof),
        tuple(_collective_rows(step, placement, shardings, program, compiled, programs)),
        tuple(LoopSumsRow(row.axes, row.count, row.size, row.num_microbatches, row.kept) for row in delayed),
        memory(step, placement, segments, shardings, program, compiled),
        jax.process_index(),
        channel.name if (channel := getattr(compiled.transport, "channel", None)) is not None else None,
        tuple(idle_axes(step, placement, shardings).items()),
    )


def _program_row(segment: Segment, step: Step, cost: _Cost) -> ProgramRow:
    region = step.regions[segment.region]
    return ProgramRow(
        segment.submesh,
        segment.tasks,
        "once" if region.loop is None else segment.passes,
        len(segment.ops),
        sum(_cost.flops(op.eqn) for op in segment.ops),
        len(region.microbatches(segment.variant)),
        *cost,
    )


def _whole_row(segments: Segments, step: Step, cost: _Cost) -> ProgramRow:
    tasks = tuple(dict.fromkeys(task for each in segments for task in each.tasks))
    equations = sum(len(region.ops) for region in step.regions)
    work = sum(
        _cost.flops(op.eqn) * len(region.microbatches(op.variant)) for region in step.regions for op in region.ops
    )
    return ProgramRow(0, tasks, "whole step", equations, work, 1, *cost)


def _compiled_costs(program: Program, compiled: Compiled) -> dict[Segment | None, tuple[float, float]]:
    """Operations and bytes of each segment's program, by XLA's own count; under None those of a whole step."""
    costs: dict[Segment | None, tuple[float, float]] = {}
    for spec in _computing(program, compiled):
        if spec.kind != "again" and spec.segment not in costs:
            costs[spec.segment] = _compiled_cost(spec, compiled)
    return costs


def _computing(program: Program, compiled: Compiled) -> Counter[ProgramSpec]:
    """The programs that this process compiles, and how often each runs. Programs that only make zeros are left out."""
    specs = Counter(item.spec for item in program.runs)
    return Counter({spec: n for spec, n in specs.items() if spec.kind != "zeros" and spec in compiled.programs})


def _compiled_cost(spec: ProgramSpec, compiled: Compiled) -> tuple[float, float]:
    analysis = compiled.programs[spec].cost_analysis() or {}
    return analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0)


def _again_rows(program: Program, step: Step, compiled: Compiled) -> Iterable[ProgramRow]:
    """Forward passes that run once more, for some microbatches or all."""
    for spec, count in Counter(item.spec for item in program.runs if item.spec.kind == "again").items():
        assert spec.segment is not None
        cost = _compiled_cost(spec, compiled) if spec in compiled.programs else _NOT_HERE
        row = _program_row(spec.segment, step, cost)
        yield dataclasses.replace(row, kind=f"{row.kind} once more", runs=count)


def _collective_rows(
    step: Step,
    placement: Placement,
    shardings: Shardings,
    program: Program,
    compiled: Compiled,
    rows: Sequence[ProgramRow],
) -> Iterable[CollectiveRow]:
    """The collectives of each program that has several devices."""
    specs = _computing(program, compiled)
    made: dict[Segment | None, list[MadeEquation]] = {}
    # Programs that do the same are compiled once, with the names of one of them.
    alike: dict[Hashable, list[Segment | None]] = defaultdict(list)
    for segment in dict.fromkeys(spec.segment for spec in specs):
        if segment is None:
            eqns = [shardings.in_mesh_axes(op, 0) for op in step.ops()]
        else:
            eqns = _compat.split(shardings.body(segment))[0].eqns
        made[segment] = made_equations(eqns)
        alike[segment and shardings.form(segment)].append(segment)
    for spec, runs in specs.items():
        segment = spec.segment
        own = made[segment]
        known = [
            dataclasses.replace(theirs, line=mine.line)
            for other in alike[segment and shardings.form(segment)]
            for theirs, mine in zip(made[other], own, strict=False)
        ]
        tasks = segment.tasks if segment is not None else rows[0].tasks
        submesh = segment.submesh if segment is not None else 0
        num_devices = placement.submeshes.meshes[submesh].size
        for found in collectives(compiled.programs[spec].as_text() or "", known, num_devices):
            yield CollectiveRow(submesh, tasks, found, runs)


def _live_bytes(program: Program, step: Step, shardings: Shardings) -> dict[int, int]:
    """The most bytes of activations that each device of a submesh holds at once inside of loops."""
    inside = {var for region in step.regions if region.loop is not None for op in region.ops for var in op.writes()}
    live: dict[int, int] = defaultdict(int)
    peak: dict[int, int] = defaultdict(int)
    for item in program.instructions:
        for slots, sign in ((item.results, 1), (item.frees, -1)):
            for slot in slots:
                var, where, microbatch = program.keys[slot]
                if microbatch is not None and var in inside:
                    live[where] += sign * shard_bytes(var, shardings[var, where])
                    peak[where] = max(peak[where], live[where])
    return peak


def _transfer_rows(program: Program) -> Iterable[TransferRow]:
    alike = Counter((item.source, item.target, item.values) for item in program.transfers)
    for (source, target, values), count in alike.items():
        yield TransferRow(source, target, len(values), sum(num_bytes(var) for var in values), count)


def _loop_rows(program: Program) -> Iterable[LoopRow]:
    for pipeline in program.pipelines:
        used = [stage.forward.submesh for stage in pipeline.stages]
        live: dict[int, int] = defaultdict(int)
        peak: dict[int, int] = defaultdict(int)
        last = {
            stage.forward: stage.backward[-1] if stage.backward else stage.forward
            for stages in pipeline.variants
            for stage in stages
        }
        ends = {(end, start.submesh): start for start, end in last.items()}
        repeated = pipeline.repeated
        for segment, microbatch in pipeline.order:
            if (segment in last and (segment, microbatch) not in repeated) or segment in pipeline.again:
                live[segment.submesh] += 1
                peak[segment.submesh] = max(peak[segment.submesh], live[segment.submesh])
            if (segment, segment.submesh) in ends:
                live[segment.submesh] -= 1
        order = list(dict.fromkeys(used))
        yield LoopRow(
            pipeline.schedule.name,
            pipeline.schedule.num_microbatches // pipeline.schedule.slices,
            tuple(used),
            tuple(peak[where] for where in order),
            pipeline.schedule,
            pipeline.choice,
            pipeline.schedule.slices,
        )
