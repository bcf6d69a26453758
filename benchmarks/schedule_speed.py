"""How long it takes to make, check and simulate large schedules, and to search for one.

    python benchmarks/schedule_speed.py

Prints wall and CPU seconds. The goals are 2 s for a simulation of 64 submeshes and 1024 microbatches, and 10 s for
`auto` with 8 submeshes and 32 microbatches.
"""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from mmruntime.schedules import auto, make, names, simulate

T = TypeVar("T")


def timed(what: str, call: Callable[[], T]) -> T:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:<58} {wall:7.2f} s wall {cpu:7.2f} s CPU", flush=True)
    return result


def large() -> None:
    for name in names():
        schedule = timed(f"make     {name}, p=64, m=1024", lambda name=name: make(name, 64, 1024))
        timed("  validate", schedule.validate)
        simulation = timed("  simulate (validates first)", lambda schedule=schedule: simulate(schedule))
        timed("  steady", lambda simulation=simulation: simulation.steady)


def search() -> None:
    numbers = random.Random(0)

    def uneven(stages: int) -> dict[str, list[float]]:
        kinds = ("forward", "backward_input", "backward_weight")
        return {kind: [numbers.uniform(0.5, 1.5) for _ in range(stages)] for kind in kinds}

    cases = {
        "equal stages, memory 8": {"memory": 8},
        "equal stages, two chunks, memory 8": {"chunks": 2, "memory": 8},
        "uneven stages, memory 8": {**uneven(8), "memory": 8},
        "uneven stages, memory 5": {**uneven(8), "memory": 5},
        "uneven stages, whole backwards": {**uneven(8), "memory": 8, "split": False},
        "uneven stages in a V, memory 8": {**uneven(16), "placement": (*range(8), *reversed(range(8))), "memory": 8},
        "uneven stages, no barrier, memory 12": {**uneven(8), "memory": 12, "barrier": False},
    }
    for what, options in cases.items():
        choice = timed(f"auto     p=8, m=32, {what}", lambda options=options: auto(8, 32, **options))
        print("  " + "\n  ".join(choice.report.splitlines()[:4]))
    timed("auto     p=64, m=1024, memory 64", lambda: auto(64, 1024, memory=64))


if __name__ == "__main__":
    large()
    search()
