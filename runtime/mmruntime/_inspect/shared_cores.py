"""Devices that share the cores of one machine: how much slower a program is while others run, and a step in that time.

XLA's CPU client runs programs of all its devices on one pool of threads, each as soon as its arguments are there; two
of one device may run at once. So these devices are no queues, and what they share, cores and memory, makes programs
slower that run at the same time. By how much is measured, never taken from a recorded step.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mmruntime._inspect.run_jobs import TimedJob, run_jobs


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
