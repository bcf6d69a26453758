"""Measure a step: how long each of its programs and transfers takes alone, and the whole in simulated time."""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from mmruntime._execution.run import StepRunner
from mmruntime._inspect.costs import stage_costs, typical
from mmruntime._inspect.measure_processes import measure_processes
from mmruntime._inspect.run_jobs import SharedCores, usable_cores
from mmruntime._inspect.simulate_processes import simulate_processes
from mmruntime._inspect.simulate_step import simulate_step
from mmruntime._inspect.timeline import Measurement
from mmruntime._inspect.waited_run import Timed, copies, timed
from mmruntime._partition.pipeline.instructions import Program, RunInstruction

# Steps that `measure` runs; each program's shortest time counts.
_REPEATS = 3
# Threads at most that run a step at once to see what programs lose to each other. Each has a copy of the inputs.
_CROWD = 8


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
    devices = [{device.id for device in mesh.devices.flat} for mesh in meshes]
    group = runner.group
    if group is None:
        runs, issue = _alone(runner, program, inputs)
        best = [min(each) for each in runs]
        alone, issued = typical(program, best), typical(program, issue)
        apart = simulated = simulate_step(program, devices, carried, alone, issue=issued)
        cores = _shared_cores(runner, program, inputs, meshes, runs)
        if cores is not None:
            simulated = simulate_step(program, devices, carried, alone, issue=issued, cores=cores)
    else:
        found = measure_processes(runner, group, program, inputs, meshes)
        best = [min(each) for each in found.seconds]
        # The calls of each process are its own; here, nothing holds a device up.
        apart = simulate_step(program, devices, carried, typical(program, best))
        simulated = simulate_processes(program, devices, found.owners, carried, found.costs)
    once: dict[int, float] = defaultdict(float)
    transfers: dict[tuple[int, int], float] = defaultdict(float)
    for item, seconds in zip(program.instructions, best, strict=True):
        if not isinstance(item, RunInstruction):
            transfers[item.source, item.target] = max(transfers[item.source, item.target], seconds)
        elif item.microbatch is None:
            once[item.spec.submesh] += seconds
    return Measurement(tuple(stage_costs(program, best, min)), dict(once), dict(transfers), simulated, apart)


def _alone(runner: StepRunner, program: Program, inputs: Sequence[Any]) -> tuple[list[list[float]], list[float]]:
    """The times of each instruction in a few steps of this process, and the shortest time of its call."""
    runs: list[list[float]] = [[] for _ in program.instructions]
    issue = [float("inf")] * len(program.instructions)
    for _ in range(_REPEATS):
        times = timed(runner, copies(inputs))
        for index, own in enumerate(runs):
            own.append(times[index].ended - times[index].issued)
            issue[index] = min(issue[index], times[index].called - times[index].issued)
    return runs, issue


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
    segments = [item.spec.segment for item in program.runs if item.spec.segment is not None]
    effects = any(op.eqn.effects for segment in segments for op in segment.ops)
    if effects or len(devices) == 1 or any(mesh.size > 1 or mesh.devices.flat[0].platform != "cpu" for mesh in meshes):
        return None
    cores = len(usable_cores())
    most = min(len(devices), _CROWD)
    counts = sorted({1, min(cores, most), most})
    slowdowns = [[1.0] for _ in program.instructions]
    # Medians of both, as the shortest time in a crowd is that of a moment when the others waited.
    alone = typical(program, [statistics.median(each) for each in runs])
    for count in counts[1:]:
        crowded = typical(program, _crowded(runner, inputs, count, len(program.instructions)))
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
            inputs_of = [copies(placed) for _ in range(count)]
            jax.block_until_ready(inputs_of)
            together = threading.Barrier(count)

            def run(own: Sequence[Any], together: threading.Barrier = together) -> dict[int, Timed]:
                together.wait()
                # As for `measure` itself: such settings hold in their own thread.
                with jax.disable_jit(False):
                    return timed(runner, own)

            for found in pool.map(run, inputs_of):
                for index, own in enumerate(times):
                    own.append(found[index].ended - found[index].issued)
    return [statistics.median(each) for each in times]
