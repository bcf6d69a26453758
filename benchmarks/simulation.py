"""Compare the simulated time of a step with the recorded one, for many plans of one model.

    python benchmarks/simulation.py [--width 640] [--batch 1024] [--rounds 2] [--repeats 5] [--goal 0.05] [--tau 0.8]

Two processes with one CPU device each, each tied to a core of its own, with one thread for programs: a program uses
one core then, as it would use one accelerator. `step.measure()` times each program, transfer and call alone and
simulates the step from that; then the step is run from one moment in both processes, and the time counts until both
have all its results, the median of some runs. All plans take turns, in several rounds of which the shortest times
count, so that a machine that becomes slower in between is no difference between plans. What else runs falls on
the recorded time alone, so a quiet machine is needed. `alone` is the time of the same computation by `jax.jit` on one
device, between two rounds: where its slowest is far from its quickest, the machine was not quiet. `apart` is what
devices would take whose programs lose nothing to calls and transfers.

Plans differ in schedule, microbatches, chunks, cut, and whether layers are computed again in the backward pass. Exit
status 1 if a simulated makespan is off by more than the goal, or if the order of the plans by it and by the recorded
time agree less than Kendall's tau says (Kendall 1938, https://doi.org/10.1093/biomet/30.1-2.81; the form tau-b of
`scipy.stats.kendalltau`); 2 where a process cannot be tied to one of two cores (Linux alone can).

`--processes 1` is the same for two devices in one process, which share two cores as XLA likes; it misses the goals.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

LAYERS = 8
# By default glibc may give memory back to the system after a program and take it again for the next one, in some runs,
# not in others; programs then take up to half as long again.
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
# Both start this many seconds after the first says so, by when the other one has heard it.
_LEAD_S = 0.003


class Plan(NamedTuple):
    """A way to run the model.

    Attributes:
        schedule: The schedule.
        count: The number of microbatches.
        chunks: Virtual stages on each submesh; None for one.
        placement: "v" for rounds that go to and fro; None if each begins at the first submesh.
        cut: How many layers each stage has; None for equal shares.
        again: Whether the backward pass computes layers again instead of keeping what is inside of them.
    """

    schedule: str
    count: int
    chunks: int | None = None
    placement: str | None = None
    cut: tuple[int, int] | None = None
    again: bool = False

    def __str__(self) -> str:
        cut = f", cut {self.cut[0]}+{self.cut[1]}" if self.cut else ""
        return f"{self.schedule}, {self.count} microbatches{cut}{', layers again' if self.again else ''}"


PLANS = [
    *(Plan("gpipe", count) for count in (2, 4, 8, 16)),
    *(Plan("1f1b", count) for count in (2, 4, 8, 16)),
    *(Plan("1f1b", count, cut=(5, 3)) for count in (4, 8)),
    *(Plan("1f1b", count, cut=(3, 5)) for count in (4, 8)),
    *(Plan("gpipe", 8, cut=cut) for cut in ((6, 2), (2, 6))),
    *(Plan("zb-h1", count) for count in (2, 4, 8)),
    *(Plan("interleaved-1f1b", count, chunks=2) for count in (2, 4, 8)),
    *(Plan("zb-v", count, chunks=2, placement="v") for count in (2, 4, 8)),
    *(Plan("1f1b", count, again=True) for count in (2, 4, 8)),
    Plan("gpipe", 4, again=True),
]


def main() -> int:
    """Start the processes; the largest exit status of theirs, 128 plus the signal for one that a signal ended."""
    options = _arguments()
    if options.child is not None:
        return _child(options)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        print(f"Nothing was measured: two processes need a core each, and here {len(cores)} can be chosen.")
        return 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ends = socket.socketpair()
    common = [sys.executable, __file__, *sys.argv[1:], "--coordinator", address]
    environment = os.environ | _KEEP_MEMORY
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(options.processes):
            peer = ends[rank].fileno()
            place = ["--child", str(rank), "--core", str(cores[rank]), "--peer", str(peer)]
            running.append(subprocess.Popen([*common, *place], pass_fds=[peer], env=environment))
        for end in ends:
            end.close()
        statuses = [process.wait() for process in running]
        return max(status if status >= 0 else 128 - status for status in statuses)
    finally:
        for process in running:
            process.kill()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=640, help="width of a layer (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1024, help="examples in a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over all plans (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each step in a round (default %(default)s)")
    parser.add_argument("--plans", type=int, default=len(PLANS), help="so many of the plans (default %(default)s)")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="processes (default %(default)s)")
    parser.add_argument("--transport", default="auto", help="what carries arrays between them (default %(default)s)")
    parser.add_argument("--goal", type=float, default=0.05, help="largest error of a makespan (default %(default)s)")
    parser.add_argument("--tau", type=float, default=0.8, help="least Kendall's tau (default %(default)s)")
    for name in ("--child", "--core", "--peer"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(options: argparse.Namespace) -> int:
    """Measure and run all plans as one of the processes; the first one prints both times. The exit status."""
    _start(options)
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    shape = 2, options.width, options.width
    params = [rng.normal(size=shape).astype(np.float32) / 32 for _ in range(LAYERS)]
    batch = rng.normal(size=(2, options.batch, options.width)).astype(np.float32)
    first, both = options.child == 0, _Both(options)
    plans = PLANS[: options.plans]
    if first:
        print(f"JAX {jax.__version__}, {options.processes} processes, two submeshes of one CPU device")
        print(f"{LAYERS} layers of width {options.width}, {options.batch} examples")
        print(f"{'plan':38}{'apart ms':>10}{'simulated ms':>14}{'recorded ms':>13}{'error':>8}")
    steps = [_step(plan) for plan in plans]
    alone = jax.jit(_train(plans[0]))
    times = [(float("inf"),) * 3] * len(plans)
    quiet = []
    for _ in range(options.rounds):
        quiet.append(_typical(lambda: alone(params, batch), options.repeats))
        for number, step in enumerate(steps):
            placed, _ = step(params, batch)
            measured = step.measure(placed, batch)
            recorded = _recorded(step, placed, batch, options.repeats, both)
            found = measured.apart.makespan, measured.simulated.makespan, recorded
            times[number] = tuple(map(min, times[number], found))
    if not first:
        return 0
    for plan, (apart, simulated, recorded) in zip(plans, times, strict=True):
        row = "".join(
            f"{seconds * 1e3:{width}.1f}" for seconds, width in ((apart, 10), (simulated, 14), (recorded, 13))
        )
        print(f"{plan!s:38}{row}{simulated / recorded - 1:8.1%}")
    print(f"alone: {min(quiet) * 1e3:.1f} ms in the quickest round, {max(quiet) * 1e3:.1f} ms in the slowest")
    return _verdict([row[1:] for row in times], options)


def _start(options: argparse.Namespace) -> None:
    """Tie this process to its core, and start JAX."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    import mmruntime as mm

    if options.processes == 1:
        mm.init(cpus=2)
        return
    os.sched_setaffinity(0, {options.core})
    os.environ["PJRT_NPROC"] = "1"
    mm.init(
        cpus=1,
        coordinator_address=options.coordinator,
        num_processes=2,
        process_id=options.child,
        transport=options.transport,
    )


class _Both:
    """The two processes: what lets them start at the same moment, and brings their times together."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._first, self._single = options.child == 0, options.processes == 1
        self._file = socket.socket(fileno=options.peer).makefile("rw")

    def start(self) -> float:
        """When both go on, by a clock that they share."""
        if self._single:
            return time.perf_counter()
        if self._first:
            self._hear()
            at = time.perf_counter() + _LEAD_S
            self._say(at)
        else:
            self._say(0.0)
            at = self._hear()
        while time.perf_counter() < at:
            pass
        return at

    def last(self) -> float:
        """When the later of both has come here."""
        now = time.perf_counter()
        if self._single:
            return now
        self._say(now)
        return max(now, self._hear())

    def _say(self, number: float) -> None:
        self._file.write(json.dumps(number) + "\n")
        self._file.flush()

    def _hear(self) -> float:
        return float(json.loads(self._file.readline()))


def _train(plan: Plan) -> Any:
    import jax
    import jax.numpy as jnp

    import mmruntime as mm

    # Layers cost inversely to what a stage shall have of them.
    weights = None if plan.cut is None else [1 / size for size in plan.cut for _ in range(size)]
    options = {"chunks": plan.chunks, "placement": plan.placement, "weights": weights}

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ w[0]) @ w[1]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for index, w in enumerate(params):
            run = jax.checkpoint(layer) if plan.again else layer
            x = mm.task(run, task=mm.stage(index, LAYERS, axis="stage", **options))(w, x)
        return jnp.mean((x - y) ** 2)

    def train(params: Any, batch: Any) -> Any:
        gradients = mm.microbatch(
            jax.value_and_grad(loss), dim=1, argnum=1, count=plan.count, schedule=plan.schedule, reduce="mean"
        )
        value, grads = gradients(params, batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    return train


def _step(plan: Plan) -> Any:
    import mmruntime as mm

    return mm.mjit(_train(plan), mesh=mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",)))


def _typical(run: Callable[[], Any], repeats: int) -> float:
    """The median of some runs, each until all results are there; those that compile are not counted."""
    import jax

    walls = []
    for _ in range(2 + repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        walls.append(time.perf_counter() - start)
    return statistics.median(walls[2:])


def _recorded(step: Any, params: Any, batch: Any, repeats: int, both: _Both) -> float:
    """The median of some runs that begin in both processes at once, each until both have all results."""
    import jax

    walls = []
    for _ in range(repeats):
        start = both.start()
        results = step(params, batch)
        jax.block_until_ready(results)
        walls.append(both.last() - start)
        del results
    return statistics.median(walls)


def _verdict(rows: list[tuple[float, float]], options: argparse.Namespace) -> int:
    from scipy.stats import kendalltau

    worst = max(abs(simulated / recorded - 1) for simulated, recorded in rows)
    tau = float(kendalltau(*zip(*rows, strict=True)).statistic)
    print(f"largest error {worst:.1%} (goal {options.goal:.0%}), Kendall's tau {tau:.2f} (goal {options.tau})")
    return 0 if worst <= options.goal and tau >= options.tau else 1


if __name__ == "__main__":
    sys.exit(main())
