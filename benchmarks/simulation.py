"""Compare the simulated time of a step with the recorded one, for many plans of one model.

    python benchmarks/simulation.py [--width 640] [--batch 1024] [--rounds 3] [--repeats 7] [--goal 0.05] [--tau 0.8]

Two submeshes of one CPU device. `step.measure()` times each program alone and while others of the step run, and
simulates the step from that; then the step is run, and the median time until all its results are there counts, as what
programs lose to each other is a median too. All plans take turns, in several rounds of which the shortest times
count, so that a machine that becomes slower in between is no difference between plans. What else runs falls on
the recorded time alone, so a quiet machine is needed, or `chrt -f 20`. `alone` is the time of the same computation by
`jax.jit` on one device, between two rounds: where its slowest is far from its quickest, the machine was not quiet.

XLA's flag for products in one thread is set, but a program whose equations do not depend on each other still uses as
many threads as there are devices, so two submeshes are not twice as fast as one; `apart` is what devices that share
nothing would take.

Plans differ in schedule, microbatches, chunks and cut. Exit status 1 if a simulated makespan is off
by more than the goal, or if the order of the plans by it and by the recorded time agree less than Kendall's tau says
(Kendall 1938, https://doi.org/10.1093/biomet/30.1-2.81; the form tau-b of `scipy.stats.kendalltau`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"
)

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kendalltau

import mmruntime as mm

LAYERS = 8
# Schedule, microbatches, chunks, placement, and how many layers each stage has; None for equal shares.
PLANS: list[tuple[str, int, int, str | None, list[int] | None]] = [
    *(("gpipe", count, 1, None, None) for count in (2, 4, 8, 16)),
    *(("1f1b", count, 1, None, None) for count in (2, 4, 8, 16)),
    *(("1f1b", count, 1, None, [5, 3]) for count in (4, 8)),
    *(("1f1b", count, 1, None, [3, 5]) for count in (4, 8)),
    *(("gpipe", 8, 1, None, cut) for cut in ([6, 2], [2, 6])),
    *(("zb-h1", count, 1, None, None) for count in (2, 4, 8)),
    *(("interleaved-1f1b", count, 2, None, None) for count in (2, 4, 8)),
    *(("zb-v", count, 2, "v", None) for count in (2, 4, 8)),
]


def main() -> int:
    """Measure and run all plans, print both times, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=640, help="width of a layer (default 640)")
    parser.add_argument("--batch", type=int, default=1024, help="examples in a batch (default 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all plans (default 3)")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each step in a round (default 7)")
    parser.add_argument("--goal", type=float, default=0.05, help="largest error of a makespan (default 0.05)")
    parser.add_argument("--tau", type=float, default=0.8, help="least Kendall's tau (default 0.8)")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(2, options.width, options.width)).astype(np.float32) / 32 for _ in range(LAYERS)]
    batch = rng.normal(size=(2, options.batch, options.width)).astype(np.float32)
    print(f"JAX {jax.__version__}, {LAYERS} layers of width {options.width}, {options.batch} examples, 2 submeshes")
    print(f"{'plan':34}{'apart ms':>10}{'simulated ms':>14}{'recorded ms':>13}{'error':>8}")
    steps = [_step(plan) for plan in PLANS]
    alone = jax.jit(_train(PLANS[0]))
    times = [(float("inf"),) * 3] * len(PLANS)
    quiet = []
    for _ in range(options.rounds):
        quiet.append(_typical(alone, params, batch, options.repeats))
        for number, step in enumerate(steps):
            found = _times(step, params, batch, options.repeats)
            times[number] = (
                min(times[number][0], found[0]),
                min(times[number][1], found[1]),
                min(times[number][2], found[2]),
            )
    for plan, (apart, simulated, recorded) in zip(PLANS, times, strict=True):
        print(
            f"{_named(plan):34}{apart * 1e3:10.1f}{simulated * 1e3:14.1f}{recorded * 1e3:13.1f}"
            f"{simulated / recorded - 1:8.1%}"
        )
    print(f"alone: {min(quiet) * 1e3:.1f} ms in the quickest round, {max(quiet) * 1e3:.1f} ms in the slowest")
    rows = [row[1:] for row in times]
    worst = max(abs(simulated / recorded - 1) for simulated, recorded in rows)
    tau = float(kendalltau(*zip(*rows, strict=True)).statistic)
    print(f"largest error {worst:.1%} (goal {options.goal:.0%}), Kendall's tau {tau:.2f} (goal {options.tau})")
    return 0 if worst <= options.goal and tau >= options.tau else 1


def _named(plan: tuple[str, int, int, str | None, list[int] | None]) -> str:
    schedule, count, _, _, cut = plan
    return f"{schedule}, {count} microbatches" + (f", cut {cut[0]}+{cut[1]}" if cut else "")


def _train(plan: Any) -> Any:
    schedule, count, chunks, placement, cut = plan
    # Layers cost inversely to what a stage shall have of them.
    weights = None if cut is None else [1 / cut[0]] * cut[0] + [1 / cut[1]] * cut[1]

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ w[0]) @ w[1]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for index, w in enumerate(params):
            options = {"chunks": chunks, "placement": placement, "weights": weights}
            task = mm.stage(index, LAYERS, axis="stage", **{k: v for k, v in options.items() if v not in (None, 1)})
            x = mm.task(layer, task=task)(w, x)
        return jnp.mean((x - y) ** 2)

    def train(params: Any, batch: Any) -> Any:
        gradients = mm.microbatch(
            jax.value_and_grad(loss), dim=1, argnum=1, count=count, schedule=schedule, reduce="mean"
        )
        value, grads = gradients(params, batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    return train


def _step(plan: Any) -> Any:
    return mm.mjit(_train(plan), mesh=mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",)))


def _typical(step: Any, params: Any, batch: Any, repeats: int) -> float:
    """The median of some runs, each until all results are there."""
    params, _ = step(params, batch)
    walls = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(step(params, batch))
        walls.append(time.perf_counter() - start)
    return statistics.median(walls)


def _times(step: Any, params: Any, batch: Any, repeats: int) -> tuple[float, float, float]:
    """The simulated time of a step on devices that share nothing, that on these devices, and the recorded one."""
    placed, _ = step(params, batch)
    measured = step.measure(placed, batch)
    return measured.apart.makespan, measured.simulated.makespan, _typical(step, placed, batch, repeats)


if __name__ == "__main__":
    sys.exit(main())
