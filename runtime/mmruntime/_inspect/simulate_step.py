"""Simulate a whole step: its instructions in simulated time, from the seconds that each takes alone.

A schedule knows the passes of one microbatch loop. A step has more: programs that do forward and backward at once, what
is computed before, between and after loops, transfers in flight, replicas of stages, submeshes that share devices, and
the next step, which may begin before this one is over. All of that is in the instructions, so they are simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mmruntime._partition.instructions import Program, RunInstruction

# Steps that follow each other until their time is taken for that of the long run, and those that it is taken over.
_WARM, _COUNTED = 3, 3


@dataclass(frozen=True)
class SimulatedStep:
    """A step in simulated time. Times are in seconds.

    Attributes:
        makespan: From the start of a step until all its results are there, when nothing else is under way.
        step_time: Time per step in the long run, when each step gets the state of the one before and nobody waits for
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
    program: Program, devices: Sequence[Collection[int]], carried: Mapping[int, int], seconds: Sequence[float]
) -> SimulatedStep:
    """Run the instructions of a step in simulated time.

    A device runs its programs in order of issue, each as soon as its arguments are there. A link, one direction between
    two submeshes, carries one transfer at a time, while devices compute. The calling thread is taken to be ahead.

    Args:
        program: The instructions.
        devices: The ids of the devices of each submesh.
        carried: Positions of inputs that are state, and of the output that is their next value.
        seconds: How long each instruction takes alone, in order of issue.
    """
    free: dict[int, float] = defaultdict(float)
    links: dict[tuple[int, int], float] = defaultdict(float)
    ready: dict[int, float] = {}
    first: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    finished = []
    for _ in range(_WARM + _COUNTED + 1):
        starts, ends = [], []
        for item, cost in zip(program.instructions, seconds, strict=True):
            start = max((ready[slot] for slot in item.args if slot in ready), default=0.0)
            if isinstance(item, RunInstruction):
                on = devices[item.spec.submesh]
                start = max(start, *(free[device] for device in on))
                free.update(dict.fromkeys(on, start + cost))
            else:
                link = item.source, item.target
                start = max(start, links[link])
                links[link] = start + cost
            starts.append(start)
            ends.append(start + cost)
            ready.update(dict.fromkeys(item.results, start + cost))
        if first is None:
            first = tuple(starts), tuple(ends)
        finished.append(max(ends, default=0.0))
        ready = _handed_on(program, carried, ready)
    assert first is not None
    busy: dict[int, float] = defaultdict(float)
    for item, cost in zip(program.instructions, seconds, strict=True):
        if isinstance(item, RunInstruction):
            busy[item.spec.submesh] += cost
    step_time = (finished[-1] - finished[-1 - _COUNTED]) / _COUNTED
    return SimulatedStep(finished[0], step_time, dict(busy), *first)


def _handed_on(program: Program, carried: Mapping[int, int], ready: Mapping[int, float]) -> dict[int, float]:
    """When the state that a step is given by the one before is there, by the slot that it is loaded into."""
    after: dict[int, float] = {}
    for position, output in carried.items():
        place, made = program.inputs[position], program.outputs[output]
        if place is not None and made is not None and made in ready:
            after[place[0]] = ready[made]
    return after
