"""Run jobs in simulated time: each waits for others, and progresses at a rate that depends on which others run.

XLA's CPU client runs programs of all its devices on one pool of threads, each as soon as its arguments are there; two
of one device may run at once. So these devices are no queues, and what they share, cores and memory, makes programs
slower that run at the same time. By how much is measured, never taken from a recorded step.
"""

from __future__ import annotations

import bisect
import heapq
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TimedJob:
    """Something that takes time.

    Attributes:
        seconds: How long it takes alone.
        after: The jobs that it waits for, by their positions.
        issued: It does not start before that.
        takes_place: Whether it needs a place, of which there are only so many.
    """

    seconds: float
    after: frozenset[int]
    issued: float = 0.0
    takes_place: bool = False


def run_jobs(
    jobs: Sequence[TimedJob],
    slowdowns: Callable[[Collection[int]], Mapping[int, float]],
    places: float = math.inf,
) -> tuple[list[float], list[float]]:
    """When each job starts and ends.

    A job takes a place in the order in which jobs can start. All that run progress at rates that depend on which
    there are (processor sharing), so time goes from one start or end to the next.

    Args:
        jobs: The jobs; none waits for itself, however indirectly.
        slowdowns: For jobs that run at once, how many times as long as alone each of them takes.
        places: How many jobs with a place run at once at most.
    """
    waits = [len(job.after) for job in jobs]
    readers: list[list[int]] = [[] for _ in jobs]
    for position, job in enumerate(jobs):
        for other in job.after:
            readers[other].append(position)
    starts, ends = [0.0] * len(jobs), [0.0] * len(jobs)
    # When a job can start at the earliest, and which one.
    coming = [(job.issued, position) for position, job in enumerate(jobs) if not waits[position]]
    heapq.heapify(coming)
    queue: list[tuple[float, int]] = []
    # What is left to do of each job that runs, in seconds alone.
    left: dict[int, float] = {}
    now, taken = 0.0, 0
    while coming or queue or left:
        while coming and coming[0][0] <= now:
            able, position = heapq.heappop(coming)
            if jobs[position].takes_place:
                heapq.heappush(queue, (able, position))
            else:
                left[position], starts[position] = jobs[position].seconds, now
        while queue and taken < places:
            _, position = heapq.heappop(queue)
            left[position], starts[position] = jobs[position].seconds, now
            taken += 1
        pace = slowdowns(left)
        finish = {position: now + seconds * pace[position] for position, seconds in left.items()}
        soonest = min(finish.values(), default=math.inf)
        then = min(soonest, coming[0][0]) if coming else soonest
        for position in list(left):
            if finish[position] > then:
                left[position] -= (then - now) / pace[position]
                continue
            del left[position]
            ends[position] = then
            taken -= jobs[position].takes_place
            for reader in readers[position]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(coming, (max(then, jobs[reader].issued), reader))
        now = then
    assert not any(waits), "jobs wait for each other"
    return starts, ends


@dataclass(frozen=True)
class SharedCores:
    """What programs of a step lose to each other.

    Attributes:
        places: How many programs run at once at most.
        counts: Numbers of programs at once for which the times were measured, from 1 on, in rising order.
        slowdowns: For each instruction, how many times as long it takes with as many at once; 1 for the first count.
    """

    places: int
    counts: tuple[int, ...]
    slowdowns: Sequence[Sequence[float]]

    def slowdown(self, index: int, count: int) -> float:
        """How many times as long an instruction takes while so many programs run, on a line between what was measured.

        Beyond the largest count the last line goes on.
        """
        counts, known = self.counts, self.slowdowns[index]
        right = min(max(bisect.bisect_left(counts, count), 1), len(counts) - 1)
        if right == 0:
            return 1.0
        share = (count - counts[right - 1]) / (counts[right] - counts[right - 1])
        return known[right - 1] + share * (known[right] - known[right - 1])


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on, by their numbers."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def run_shared(jobs: Sequence[TimedJob], indices: Sequence[int], cores: SharedCores) -> tuple[list[float], list[float]]:
    """When each job starts and ends; see `run_jobs`.

    Args:
        jobs: Runs of instructions; programs need a place, transfers do not.
        indices: The instruction of each.
        cores: What they lose to each other.
    """

    def slowdowns(running: Collection[int]) -> dict[int, float]:
        taken = sum(jobs[position].takes_place for position in running)
        return {
            position: cores.slowdown(indices[position], taken) if jobs[position].takes_place else 1.0
            for position in running
        }

    return run_jobs(jobs, slowdowns, cores.places)
