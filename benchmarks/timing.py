"""Wall and CPU time of calls that take turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass(frozen=True)
class Timing:
    """What each call of a step took, in ms.

    Attributes:
        walls: Until its results were there.
        cpus: CPU time of the issuing thread, until the call returned.
    """

    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    @property
    def wall(self) -> float:
        """The best wall time."""
        return min(self.walls)

    @property
    def cpu(self) -> float:
        """The best CPU time."""
        return min(self.cpus)


def measure(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """Call all steps in turn, another one first each time."""
    timings = {name: Timing() for name in runs}
    names = list(runs)
    gc.collect()
    gc.disable()
    for repeat in range(repeats):
        for turn in range(len(names)):
            name = names[(repeat + turn) % len(names)]
            wall, cpu = time.perf_counter(), time.thread_time()
            result = runs[name]()
            timings[name].cpus.append((time.thread_time() - cpu) * 1e3)
            jax.block_until_ready(result)
            timings[name].walls.append((time.perf_counter() - wall) * 1e3)
    gc.enable()
    return timings
