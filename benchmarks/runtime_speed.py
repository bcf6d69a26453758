"""Compare a rewritten step with plain `jax.jit` and with a hand-written pipeline driver, in one run.

    python benchmarks/runtime_speed.py [--model transformer] [--width 16] [--batch 64] [--layers 2] [--repeats 20]

The models are in `models.py`: a perceptron of few large products, which flatters, and a transformer of many small
arrays. Their steps are in `steps.py`. Both are trained by Adam.

The hand-written driver is in `hand_written.py`. It is the floor for Python dispatch. Building is from the call of
`jit` or `mjit` to the first result: trace, compile and one step. The unrolled step runs on one device, its loop over
microbatches written out; its compilation is the first, which also pays for what JAX sets up once.

Steps are measured in turn, so that whatever else the machine does falls on all of them alike. Figures are minima over
the repeats; machines are noisy, so read the ratios. CPU time is that of the issuing thread.

The step of one program is `mm.mjit` and `jax.jit` of the same function on one device: both get the same host arrays as
their batch, and as their parameters what they returned before. Short steps take turns a thousand times. Beside the
ratio of the minima stands the median of the ratios of neighbouring steps, which other programs that come and go do not
move; below stands what `jax.jit` of the same function, compiled once more, is to itself, which is noise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
)

import jax
from hand_written import HandWritten
from models import MODELS, first_state
from steps import loss_marked, loss_plain, make_step, make_unrolled
from timing import measure

import mmruntime as mm

STAGES, MICROBATCHES = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="transformer")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2, help="layers per stage")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    model = MODELS[args.model](STAGES, args.layers, args.width, args.batch)
    states = [first_state(params) for params in model.params]
    batch = model.batch
    mesh = mm.MultiMesh(axis_sizes=(STAGES, 2), axis_names=("stage", "data"))
    built: dict[str, float] = {}
    runs: dict[str, Callable[[], Any]] = {}
    tasks: dict[str, int] = {}

    def add(name: str, build: Callable[[], Callable[[], Any]]) -> None:
        started = time.perf_counter()
        runs[name] = build()
        jax.block_until_ready(runs[name]())
        built[name] = time.perf_counter() - started

    def stepper(step: Any) -> Callable[[], Any]:
        state = {"states": states}

        def run() -> Any:
            state["states"], value = step(state["states"], batch)
            return state["states"], value

        return run

    add("jax.jit, unrolled", lambda: stepper(jax.jit(make_unrolled(model, MICROBATCHES))))
    hand = HandWritten([mesh.slice(stage=s) for s in range(STAGES)], model, states, MICROBATCHES)
    add("hand-written 1F1B", lambda: lambda: (hand(batch), hand.states))
    tasks["hand-written 1F1B"] = hand.tasks
    pipelined = mm.mjit(make_step(loss_marked(model, STAGES), MICROBATCHES), mesh=mesh)
    add("mm.mjit 1F1B", lambda: stepper(pipelined))
    tasks["mm.mjit 1F1B"] = pipelined.explain().runs_per_step
    single = mm.MultiMesh(axis_sizes=(1,), axis_names=("data",))
    add("mm.mjit, one device", lambda: stepper(mm.mjit(make_step(loss_plain(model), MICROBATCHES), mesh=single)))
    add("jax.jit, scan", lambda: stepper(jax.jit(make_step(loss_plain(model), MICROBATCHES))))

    found = measure(runs, args.repeats)
    pair = ("mm.mjit, one device", "jax.jit, scan")
    again = stepper(jax.jit(make_step(loss_plain(model), MICROBATCHES)))
    again()
    rounds = max(args.repeats, min(1000, int(2000 / found[pair[1]].wall)))
    one = measure({**{name: runs[name] for name in pair}, "jax.jit, scan again": again}, rounds)

    print(
        f"{args.model}, {model.flops / 1e9:.3g} GFLOP per step; {STAGES} stages x 2 devices, {args.layers} layers "
        f"each, {MICROBATCHES} microbatches; JAX {jax.__version__}"
    )
    print(f"{'':22}{'build s':>9}{'wall ms':>9}{'issue CPU ms':>14}{'programs':>10}{'CPU us each':>13}")
    for name, timing in found.items():
        each = f"{tasks[name]:10d}{timing.cpu / tasks[name] * 1e3:13.0f}" if name in tasks else ""
        print(f"{name:22}{built[name]:9.2f}{timing.wall:9.2f}{timing.cpu:14.2f}{each}")
    ours, hand_written = found["mm.mjit 1F1B"], found["hand-written 1F1B"]
    issue = ours.cpu / hand_written.cpu
    programs = tasks["mm.mjit 1F1B"] / tasks["hand-written 1F1B"]
    print(f"CPU per program, mm.mjit 1F1B / hand-written 1F1B: {issue / programs:.2f}")
    print(f"issue CPU per step, mm.mjit 1F1B / hand-written 1F1B: {issue:.2f}")
    print(f"wall, mm.mjit 1F1B / hand-written 1F1B: {ours.wall / hand_written.wall:.2f}")
    print(f"build, mm.mjit 1F1B / jax.jit, unrolled: {built['mm.mjit 1F1B'] / built['jax.jit, unrolled']:.2f}")
    plain = one[pair[1]]
    for name, timing in one.items():
        if timing is not plain:
            neighbours = statistics.median(x / y for x, y in zip(timing.walls, plain.walls, strict=True))
            print(
                f"{rounds} rounds, {name} / {pair[1]}: wall {timing.wall / plain.wall:.3f}, of neighbours "
                f"{neighbours:.3f}; issue CPU {timing.cpu * 1e3:.0f} / {plain.cpu * 1e3:.0f} us"
            )


if __name__ == "__main__":
    main()
