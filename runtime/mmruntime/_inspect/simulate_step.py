"""Simulate a whole step: its instructions in simulated time, from the seconds that each takes.

A schedule knows the passes of one microbatch loop. A step has more: programs that do forward and backward at once, what
is computed before, between and after loops, transfers in flight, replicas of stages, submeshes that share devices, and
the next step, which may begin before this one is over. All of that is in the instructions, so they are simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mmruntime._inspect.run_jobs import SharedCores, TimedJob, run_jobs, run_shared
from mmruntime._partition.pipeline.instructions import Program, RunInstruction

# Steps that follow each other until their time is taken for that of the long run, and those that it is taken over.
_WARM, _COUNTED = 3, 3

ROUNDS = _WARM + _COUNTED + 1

_T = TypeVar("_T")


@dataclass(frozen=True)
class SimulatedStep:
    """A step in simulated time. Times are in seconds.

    Attributes:
        makespan: From the start of a step until all its results are there, when nothing else is under way.
        step_time: Time per step, over many steps, when each step gets the state of the one before and nobody waits for
            results in between.
        busy: Time for which each submesh computes in a step.
        starts: When each instruction starts in the first step, in order of issue.
        ends: When its results are there.
    """

    makespan: float
    step_time: float
    busy: Mapping[int, float]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


def simulate_step(
    program: Program,
    devices: Sequence[Collection[int]],
    carried: Mapping[int, int],
    seconds: Sequence[float],
    *,
    issue: Sequence[float] | None = None,
    cores: SharedCores | None = None,
) -> SimulatedStep:
    """Run the instructions of a step in simulated time.

    A device runs its programs in order of issue, each as soon as its arguments are there; devices that share cores run
    them as `run_shared` says. A link, one direction between two submeshes, carries one transfer at a time, while
    devices compute.

    Args:
        program: The instructions.
        devices: The ids of the devices of each submesh.
        carried: Positions of inputs that are state, and of the output that is their next value.
        seconds: How long each instruction takes alone, in order of issue.
        issue: For how long the calling thread issues each; None if it is taken to be ahead. An instruction does not
            start before those in front of it are issued.
        cores: What devices share; None if nothing.
    """
    issue = [0.0] * len(program.instructions) if issue is None else issue
    count = len(program.instructions)
    many = _run(program, devices, carried, seconds, issue, cores, ROUNDS)
    # With cores alone: programs of the next step take cores from this one where they can start.
    starts, ends = many if cores is None else _run(program, devices, carried, seconds, issue, cores, 1)
    finished = [max(many[1][at * count : (at + 1) * count], default=0.0) for at in range(ROUNDS)]
    return summed_up(program, starts[:count], ends[:count], max(ends[:count], default=0.0), finished)


def summed_up(
    program: Program, starts: Sequence[float], ends: Sequence[float], makespan: float, finished: Sequence[float]
) -> SimulatedStep:
    """A step, from the times of its instructions.

    Args:
        program: The instructions.
        starts: When each starts in the first step.
        ends: When its results are there.
        makespan: When all results of that step are there.
        finished: When all of each of `ROUNDS` steps is done that follow each other.
    """
    busy: dict[int, float] = defaultdict(float)
    for item, start, end in zip(program.instructions, starts, ends, strict=True):
        if isinstance(item, RunInstruction):
            busy[item.spec.submesh] += end - start
    step_time = (finished[-1] - finished[-1 - _COUNTED]) / _COUNTED
    return SimulatedStep(makespan, step_time, dict(busy), tuple(starts), tuple(ends))


def _run(
    program: Program,
    devices: Sequence[Collection[int]],
    carried: Mapping[int, int],
    seconds: Sequence[float],
    issue: Sequence[float],
    cores: SharedCores | None,
    rounds: int,
) -> tuple[list[float], list[float]]:
    """The times of some steps' instructions, one step after the other; devices that share cores are no queues."""
    assert cores is None or all(len(on) == 1 for on in devices), "programs of several devices share no cores"
    # The last job of each device and each link; for each slot, the job behind which it is there.
    free: dict[Any, int] = {}
    made: dict[int, int] = {}
    jobs: list[TimedJob] = []
    queues: Collection[Any]
    issued = 0.0
    for _ in range(rounds):
        for item, cost, own in zip(program.instructions, seconds, issue, strict=True):
            takes_place, queues = False, ()
            if not isinstance(item, RunInstruction):
                queues = ((item.source, item.target),)
            elif cores is None:
                queues = devices[item.spec.submesh]
            else:
                takes_place = True
            after = {made[slot] for slot in item.args if slot in made} | {free[each] for each in queues if each in free}
            free.update(dict.fromkeys(queues, len(jobs)))
            made.update(dict.fromkeys(item.results, len(jobs)))
            jobs.append(TimedJob(cost, frozenset(after), issued, takes_place))
            issued += own
        made = handed_on(program, carried, made)
    if cores is None:
        return run_jobs(jobs, lambda running: dict.fromkeys(running, 1.0))
    return run_shared(jobs, [number % len(seconds) for number in range(len(jobs))], cores)


def handed_on(program: Program, carried: Mapping[int, int], ready: Mapping[int, _T]) -> dict[int, _T]:
    """When state that the step before hands on is there, or what made it, by the slot that it is loaded into."""
    after: dict[int, _T] = {}
    for position, output in carried.items():
        place, made = program.inputs[position], program.outputs[output]
        if place is not None and made is not None and made in ready:
            after[place[0]] = ready[made]
    return after
