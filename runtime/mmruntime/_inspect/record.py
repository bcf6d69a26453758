"""Record a step while it runs, and time each of its programs alone."""

from __future__ import annotations

import os
import queue
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from mmruntime import schedules
from mmruntime._execution.own_parts import copied
from mmruntime._execution.run import StepRunner
from mmruntime._inspect.gather import Times, gather
from mmruntime._inspect.shared_cores import SharedCores
from mmruntime._inspect.simulate_step import simulate_step
from mmruntime._inspect.timeline import Measurement, Span, StageCost, Timeline
from mmruntime._partition.instructions import Instruction, Program, RunInstruction
from mmruntime._partition.issue_order import Pipeline
from mmruntime._partition.segment import Segment

# Steps that `measure` runs; each program's shortest time counts.
_REPEATS = 3
# Threads at most that run a step at once to see what programs lose to each other. Each has a copy of the inputs.
_CROWD = 8


def record(name: str, runner: StepRunner, program: Program, inputs: Sequence[Any]) -> Timeline:
    """Run a step twice and record when each program and transfer of the second run was issued and finished.

    JAX does not report when a program finished, and waiting for results in the issuing thread would serialise the step.
    So a tiny program reads one element of each instruction's first result, and a thread per device waits for these in
    order, while the step goes on as it would.

    Over several processes, the first of them has the rows of all; another one has those of its own submeshes.

    Args:
        name: The step's name.
        runner: The compiled step.
        program: Its instructions.
        inputs: Its flat inputs; they are copied first, so donated ones stay usable.
    """
    # The first run compiles the tiny programs.
    _watched(runner, inputs)
    watch = _watched(runner, inputs)
    times: Times = {index: (at, watch.ends[index]) for index, at in watch.issues.items()}
    group, error, partial = runner.group, 0.0, False
    if group is not None:
        found, offset = gather(times, group, f"timeline {group.calls}", everybody=False)
        error, partial = offset.error, found is None
        times = times if found is None else _joined(found)
    started = min((at for at, _ in times.values()), default=0.0)
    spans = _spans(program, {index: (at - started, end - started) for index, (at, end) in times.items()})
    simulations: tuple[schedules.Simulation, ...] = ()
    if not partial:
        seconds = [0.0] * len(program.instructions)
        for index, span in spans.items():
            seconds[index] = span.end - span.start
        costs = _stage_costs(program, seconds, statistics.median)
        simulations = tuple(
            _simulate(pipeline, stages) for pipeline, stages in zip(program.pipelines, costs, strict=True)
        )
    rows = tuple(sorted(spans.values(), key=lambda span: span.start))
    return Timeline(name, rows, simulations, None if not partial else jax.process_index(), error)


def _joined(found: Sequence[Times]) -> Times:
    """The times of instructions, from those of all processes that take part in them.

    An instruction has begun when the last of them has issued it.
    """
    joined: dict[int, tuple[float, float]] = {}
    for times in found:
        for index, (start, end) in times.items():
            before = joined.get(index, (start, end))
            joined[index] = max(before[0], start), max(before[1], end)
    return joined


def _watched(runner: StepRunner, inputs: Sequence[Any]) -> _Watch:
    watch = _Watch()
    try:
        runner.run_watched(_copies(inputs), watch.issued)
    finally:
        watch.no_more()
    watch.finish()
    return watch


def measure(
    runner: StepRunner, program: Program, inputs: Sequence[Any], meshes: Sequence[Mesh], carried: Mapping[int, int]
) -> Measurement:
    """Time every instruction alone, waiting for each; the shortest of a few steps counts.

    Over several processes, all of them have the times of all. Where devices share the cores of this machine, as those
    of XLA's CPU client do, instructions are also timed while others run.

    Args:
        runner: The compiled step.
        program: Its instructions.
        inputs: Its flat inputs; they are copied first, so donated ones stay usable.
        meshes: The submeshes.
        carried: Positions of inputs that are state, and of the output that is their next value.
    """
    runs: list[list[float]] = [[] for _ in program.instructions]
    issue: list[float] | None = [float("inf")] * len(program.instructions)
    for _ in range(_REPEATS):
        times, returned = _waited(runner, _copies(inputs))
        joined: Times = times
        if (group := runner.group) is not None:
            found, _ = gather(times, group, f"measure {group.calls}", everybody=True)
            joined = _joined(found or [])
            # Each process issues its own part.
            issue = None
        for index, (start, end) in joined.items():
            # Clocks of two processes may differ by more than a small transfer takes.
            runs[index].append(max(end - start, 0.0))
            if issue is not None:
                issue[index] = min(issue[index], returned[index] - start)
    best = [min(each) for each in runs]
    once: dict[int, float] = defaultdict(float)
    transfers: dict[tuple[int, int], float] = defaultdict(float)
    for item, seconds in zip(program.instructions, best, strict=True):
        if not isinstance(item, RunInstruction):
            transfers[item.source, item.target] = max(transfers[item.source, item.target], seconds)
        elif item.microbatch is None:
            once[item.spec.submesh] += seconds
    devices = [{device.id for device in mesh.devices.flat} for mesh in meshes]
    alone, issued = _typical(program, best), None if issue is None else _typical(program, issue)
    apart = simulate_step(program, devices, carried, alone, issue=issued)
    cores = _shared_cores(runner, program, inputs, meshes, runs)
    simulated = apart if cores is None else simulate_step(program, devices, carried, alone, issue=issued, cores=cores)
    return Measurement(tuple(_stage_costs(program, best, min)), dict(once), dict(transfers), simulated, apart)


def _waited(runner: StepRunner, inputs: Sequence[Any]) -> tuple[Times, dict[int, float]]:
    """When each instruction of a step was issued and had its results, one after the other, and when its call returned.

    Args:
        runner: The compiled step.
        inputs: Its flat inputs, which it may donate.
    """
    times: dict[int, tuple[float, float]] = {}
    returned: dict[int, float] = {}

    def waited(index: int, values: Sequence[Any], issued: float) -> None:
        returned[index] = time.perf_counter()
        jax.block_until_ready([value for value in values if value is not None])
        times[index] = issued, time.perf_counter()

    runner.run_watched(inputs, waited)
    return times, returned


def _shared_cores(
    runner: StepRunner, program: Program, inputs: Sequence[Any], meshes: Sequence[Mesh], runs: Sequence[Sequence[float]]
) -> SharedCores | None:
    """How much slower instructions are while others of the step run; None where devices are taken to share nothing.

    Several threads run the step at once, each waiting for every instruction, so that any instruction is timed while as
    many others run as there are other threads, of all kinds. That needs programs of one device each: of those of
    several devices, two at once may wait for each other's collectives. Effects would mix.

    Args:
        runner: The compiled step.
        program: Its instructions.
        inputs: Its flat inputs.
        meshes: The submeshes.
        runs: The times of each instruction alone.
    """
    devices = {device for mesh in meshes for device in mesh.devices.flat}
    effects = any(
        op.eqn.effects
        for item in program.instructions
        if isinstance(item, RunInstruction) and item.spec.segment is not None
        for op in item.spec.segment.ops
    )
    if (
        runner.group is not None
        or effects
        or len(devices) == 1
        or any(mesh.size > 1 or mesh.devices.flat[0].platform != "cpu" for mesh in meshes)
    ):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = min(len(devices), _CROWD)
    counts = sorted({1, min(cores, most), most})
    slowdowns = [[1.0] for _ in program.instructions]
    # Medians of both, as the shortest time in a crowd is that of a moment when the others waited.
    alone = _typical(program, [statistics.median(each) for each in runs])
    for count in counts[1:]:
        crowded = _typical(program, _crowded(runner, inputs, count, len(program.instructions)))
        for known, seconds, together in zip(slowdowns, alone, crowded, strict=True):
            known.append(max(1.0, together / seconds) if seconds else 1.0)
    # XLA's CPU client has so many threads for programs: as many as cores, or as devices.
    places = max(cores, len(jax.devices("cpu")))
    return SharedCores(places, tuple(counts), slowdowns)


def _crowded(runner: StepRunner, inputs: Sequence[Any], count: int, instructions: int) -> list[float]:
    """The median time of each instruction while so many threads run the step at once, each on a copy of the inputs."""
    times: list[list[float]] = [[] for _ in range(instructions)]
    with ThreadPoolExecutor(count) as pool:
        for _ in range(_REPEATS):
            # Types of NumPy arrays and numbers depend on settings of this thread.
            placed = [value if isinstance(value, jax.Array) else jnp.asarray(value) for value in inputs]
            copies = [_copies(placed) for _ in range(count)]
            jax.block_until_ready(copies)
            together = threading.Barrier(count)

            def run(own: Sequence[Any], together: threading.Barrier = together) -> Times:
                together.wait()
                # As for `measure` itself: such settings hold in their own thread.
                with jax.disable_jit(False):
                    return _waited(runner, own)[0]

            for found in pool.map(run, copies):
                for index, (start, end) in found.items():
                    times[index].append(end - start)
    return [statistics.median(each) for each in times]


def _typical(program: Program, seconds: Sequence[float]) -> list[float]:
    """For each instruction the median over all that do the same, as each alone was run a few times only."""

    def kind(item: Instruction) -> Any:
        return item.spec if isinstance(item, RunInstruction) else (item.source, item.target, item.values)

    alike: dict[Any, list[float]] = defaultdict(list)
    for item, cost in zip(program.instructions, seconds, strict=True):
        alike[kind(item)].append(cost)
    medians = {key: statistics.median(costs) for key, costs in alike.items()}
    return [medians[kind(item)] for item in program.instructions]


class _Watch:
    """Collects when instructions were issued and when their results were ready."""

    def __init__(self) -> None:
        self.issues: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self._queues: dict[Any, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def issued(self, index: int, values: Sequence[Any], at: float) -> None:
        self.issues[index] = at
        probe = _probe(values)
        if probe is None:
            self.ends[index] = time.perf_counter()
            return
        (device,) = probe.devices()
        if device not in self._queues:
            self._queues[device] = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._wait, args=(self._queues[device],), daemon=True))
            self._threads[-1].start()
        self._queues[device].put((index, probe))

    def _wait(self, waiting: queue.SimpleQueue[Any]) -> None:
        while (item := waiting.get()) is not None:
            index, probe = item
            try:
                probe.block_until_ready()
            except Exception as error:
                # A failure of XLA may be of any class.
                self._failure = error
            self.ends[index] = time.perf_counter()

    def no_more(self) -> None:
        """Let the threads end, once they have seen all that was issued."""
        for waiting in self._queues.values():
            waiting.put(None)

    def finish(self) -> None:
        """Wait for the ends of all, and raise what one of them has failed with."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure


_first_element: Callable[[Any], Any] = jax.jit(lambda shard: jnp.ravel(shard)[:1])


def _probe(values: Sequence[Any]) -> Any:
    """An array that is ready when the values are; they themselves may be donated to a later program by then."""
    for value in values:
        # Of what a transfer sends to another process, nothing is here.
        if value is not None and value.addressable_shards and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return _first_element(value.addressable_shards[0].data)
    return None


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [_copy(value) if isinstance(value, jax.Array) else value for value in inputs]


def _copy(array: Any) -> Any:
    # What other processes have a part of, only a program of all of them could copy as a whole.
    return array.copy() if array.is_fully_addressable else copied(array)


def _spans(program: Program, times: Times) -> dict[int, Span]:
    ready: dict[int, float] = {}
    free: dict[int, float] = defaultdict(float)
    kinds = _kinds(program)
    spans: dict[int, Span] = {}
    for index, item in enumerate(program.instructions):
        if index not in times:
            continue
        issued, ended = times[index]
        waits = max((ready[slot] for slot in item.args if slot in ready), default=0.0)
        start = max(issued, waits)
        if isinstance(item, RunInstruction):
            where = item.spec.submesh
            start = max(start, free[where])
            end = max(start, ended)
            free[where] = end
            kind, stage = kinds.get(item.spec.segment, ("", None)) if item.spec.segment is not None else ("", None)
            if item.spec.kind == "again":
                kind = "R"
            spans[index] = Span(where, None, _name(item), kind, item.microbatch, issued, start, end, stage)
        else:
            end = max(start, ended)
            spans[index] = Span(item.target, item.source, _name(item), "", item.microbatch, issued, start, end)
        ready.update(dict.fromkeys(item.results, end))
    return spans


def _name(item: Instruction) -> str:
    if not isinstance(item, RunInstruction):
        return f"{len(item.values)} arrays {item.source} to {item.target}"
    segment = item.spec.segment
    return item.spec.kind if segment is None else ", ".join(segment.tasks) or "outside of tasks"


def _kinds(program: Program) -> dict[Segment, tuple[str, tuple[int, int]]]:
    """The passes that each program of a loop does (as `Span.kind`), its loop and its stage."""
    kinds: dict[Segment, tuple[str, tuple[int, int]]] = {}
    for loop, pipeline in enumerate(program.pipelines):
        for stages in pipeline.variants:
            for number, stage in enumerate(stages):
                forward = "F" + ((stage.forward.part or "B") if stage.forward.backward else "")
                kinds[stage.forward] = forward, (loop, number)
                kinds.update({each: (each.part or "B", (loop, number)) for each in stage.backward})
                kinds.update(dict.fromkeys(stage.weights, ("W", (loop, number))))
    return kinds


def _stage_costs(
    program: Program, seconds: Sequence[float], typical: Callable[[Sequence[float]], float]
) -> list[tuple[StageCost, ...]]:
    """The cost of each stage of each loop: `typical` (a median or a minimum) over its microbatches."""
    runs: dict[Segment, list[float]] = defaultdict(list)
    for item, cost in zip(program.instructions, seconds, strict=True):
        if not isinstance(item, RunInstruction) or item.spec.kind == "again":
            continue
        if item.spec.segment is not None and item.microbatch is not None:
            runs[item.spec.segment].append(cost)
    once = {segment: typical(costs) for segment, costs in runs.items()}
    loops = []
    for pipeline in program.pipelines:
        stages = []
        for stage in pipeline.stages:
            backward = sum(once[each] for each in stage.backward)
            weights = sum(once[each] for each in stage.weights)
            stages.append(StageCost(once[stage.forward], backward, weights))
        loops.append(tuple(stages))
    return loops


def _simulate(pipeline: Pipeline, stages: Sequence[StageCost]) -> schedules.Simulation:
    return schedules.simulate(
        pipeline.schedule,
        forward=[stage.forward for stage in stages],
        backward_input=[stage.backward_input for stage in stages],
        backward_weight=[stage.backward_weight for stage in stages],
    )
