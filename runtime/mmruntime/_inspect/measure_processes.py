"""Measure a step of several processes: what each instruction takes in each of them, while all wait for each other."""

from __future__ import annotations

import json
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from mmruntime._execution.run import StepRunner
from mmruntime._execution.transfers.own_parts import processes
from mmruntime._inspect.costs import typical
from mmruntime._inspect.process_times import gather, joined, share
from mmruntime._inspect.run_jobs import usable_cores
from mmruntime._inspect.simulate_processes import ProcessCosts, Work
from mmruntime._inspect.waited_run import BEGIN, RESULTS, copies, timed
from mmruntime._jaxpr.ir import is_scalar
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._processes.exchange import own_host
from mmruntime._processes.group import Group

# Steps that count, after a first one in which programs are compiled.
_REPEATS = 3
# What a sender is given at most until all of a transfer is sent.
_LONGEST_REST_S = 0.1
# No instruction is taken to be shorter: what it keeps busy is a share of its time.
_SHORTEST_S = 1e-6


@dataclass(frozen=True)
class ProcessMeasurement:
    """What a step of several processes takes.

    Attributes:
        seconds: For each instruction, how long it took in each of a few steps.
        owners: The processes of each submesh.
        costs: What simulation needs to know.
    """

    seconds: list[list[float]]
    owners: Sequence[tuple[int, ...]]
    costs: ProcessCosts


class _CpuTime(NamedTuple):
    """Seconds of CPU time that one instruction takes in one process.

    Attributes:
        waited: The calling thread's, where it waits for each instruction.
        computing: All threads' then.
        calling: The calling thread's, where it does not wait.
    """

    waited: float
    computing: float
    calling: float


@dataclass(frozen=True)
class _MeasuredStep:
    """One step that was measured.

    Attributes:
        elapsed: For each instruction, seconds from the call in the last process that takes part until the results are
            there in all of them.
        used: For each process, the CPU time of the instructions that it takes part in, in order of issue.
    """

    elapsed: Mapping[int, float]
    used: Mapping[int, Mapping[int, _CpuTime]]


def measure_processes(
    runner: StepRunner, group: Group, program: Program, inputs: Sequence[Any], meshes: Sequence[Mesh]
) -> ProcessMeasurement:
    """Time every instruction alone, in all processes that take part. All of them call this, and have the same from it.

    Args:
        runner: The compiled step.
        group: The processes that run it.
        program: Its instructions.
        inputs: Its flat inputs; they are copied first, so donated ones stay usable.
        meshes: The submeshes.
    """
    owners = [processes(mesh) for mesh in meshes]
    indices = range(len(program.instructions))
    flights = [0.0] * len(indices)
    steps: list[_MeasuredStep] = []
    for _ in range(1 + _REPEATS):
        steps.append(_step(runner, group, inputs, _rests(program, owners, flights)))
        flights = typical(program, [steps[-1].elapsed[index] for index in indices])
    del steps[0]
    elapsed = _medians(program, [step.elapsed for step in steps])
    used = {process: _typical_use(program, [step.used[process] for step in steps]) for process in group.members}
    works = {
        index: _work(elapsed[index], {process: own[index] for process, own in used.items() if index in own})
        for index in (*indices, RESULTS)
    }
    costs = ProcessCosts(
        [works[index] for index in indices],
        {process: [index for index in steps[-1].used[process] if index >= 0] for process in group.members},
        {process: used[process][BEGIN].calling for process in group.members},
        works[RESULTS],
        [slot for slot in program.outputs if slot is not None and is_scalar(program.keys[slot][0])],
        _pools(group, f"cores {group.calls}"),
        runner.calls_wait,
    )
    return ProcessMeasurement([[step.elapsed[index] for step in steps] for index in indices], owners, costs)


def _typical_use(program: Program, steps: Sequence[Mapping[int, _CpuTime]]) -> dict[int, _CpuTime]:
    """The CPU time of each instruction of one process, over some steps and all instructions that do the same."""
    kinds = [
        _medians(program, [{index: each[kind] for index, each in step.items()} for step in steps])
        for kind in range(len(_CpuTime._fields))
    ]
    return {index: _CpuTime(*(kind[index] for kind in kinds)) for index in steps[0]}


def _medians(program: Program, steps: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """For each instruction, and for both ends of the step, the typical one of some steps."""

    def middle(index: int) -> float:
        return statistics.median(step.get(index, 0.0) for step in steps)

    found = typical(program, [middle(index) for index in range(len(program.instructions))])
    return dict(enumerate(found)) | {BEGIN: middle(BEGIN), RESULTS: middle(RESULTS)}


def _step(runner: StepRunner, group: Group, inputs: Sequence[Any], rest: Mapping[int, float]) -> _MeasuredStep:
    """Measure one step, run twice: waiting for each instruction, and as it always runs."""
    times = timed(runner, copies(inputs), lambda index: rest.get(index, 0.0))
    name = f"measure {group.calls}"
    spans, _ = gather({index: (each.issued, each.ended) for index, each in times.items()}, group, name, everybody=True)
    calling = {index: each.calling for index, each in timed(runner, copies(inputs), wait=False).items()}
    own = [(index, each.calling, each.computing, calling[index]) for index, each in times.items()]
    shared = share(json.dumps(own), group, f"{name} CPU time")
    used = {
        process: {index: _CpuTime(*each) for index, *each in json.loads(text)}
        for process, text in zip(group.members, shared, strict=True)
    }
    # Clocks of two processes may differ by more than a small transfer takes.
    elapsed = {index: max(end - start, 0.0) for index, (start, end) in joined(spans or []).items()}
    return _MeasuredStep(elapsed, used)


def _rests(program: Program, owners: Sequence[tuple[int, ...]], flights: Sequence[float]) -> dict[int, float]:
    """For how long this process waits after each transfer that others alone receive: twice what it took before."""
    me = jax.process_index()
    return {
        index: min(2 * flight, _LONGEST_REST_S)
        for index, (item, flight) in enumerate(zip(program.instructions, flights, strict=True))
        if not isinstance(item, RunInstruction) and me in owners[item.source] and me not in owners[item.target]
    }


def _work(elapsed: float, used: Mapping[int, _CpuTime]) -> Work:
    """What an instruction takes.

    Args:
        elapsed: Seconds from its call until its results are there.
        used: The CPU time of each process that takes part.
    """
    seconds = max(elapsed - max(each.waited for each in used.values()), _SHORTEST_S)
    # Work that is over before another process looks is done all the same.
    cores = {process: max(each.computing - each.waited, 0.0) / seconds for process, each in used.items()}
    return Work(seconds, {process: each.calling for process, each in used.items()}, cores)


def _pools(group: Group, name: str) -> dict[int, tuple[Hashable, int]]:
    """The cores of each process: a name, equal for processes that share cores, and their number."""
    found = [json.loads(text) for text in share(json.dumps([own_host(), *sorted(usable_cores())]), group, name)]
    return pools(dict(zip(group.members, ((host, frozenset(cores)) for host, *cores in found), strict=True)))


def pools(usable: Mapping[int, tuple[str, frozenset[int]]]) -> dict[int, tuple[Hashable, int]]:
    """The cores that each process can use, with those that other processes on its host share with it.

    Args:
        usable: For each process its host, and the cores that it may run on.
    """
    groups: list[tuple[str, frozenset[int]]] = []
    for host, cores in usable.values():
        same = [each for each in groups if each[0] == host and each[1] & cores]
        groups = [each for each in groups if each not in same]
        groups.append((host, cores.union(*(each[1] for each in same))))
    return {
        process: next((each, len(each[1])) for each in groups if each[0] == host and cores <= each[1])
        for process, (host, cores) in usable.items()
    }
