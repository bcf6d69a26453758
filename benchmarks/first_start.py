"""What a first start costs, to that of `jax.jit` of the same step with its loop over microbatches as a scan.

    python benchmarks/first_start.py [--layers 4 16 48] [--stages 4 8] [--repeats 1] [--goal 1.0]

The model is the transformer of `models.py`, trained by Adam, with one device for each stage. With fewer layers than
stages, the attention and the perceptron of a layer are a task each. Each start is a process of its own, with no cache
on disk: from the call of the compiled step to its first result. Figures are CPU time, in which all of XLA's threads
count; wall times stand beside them. `jax.jit` compiles on one device, what a stage is makes no difference to it, so
that it starts once for each number of layers. `XLA` is the share of our CPU time that is spent outside of the thread
that plans. `growth` is the exponent with which our CPU time grows from the row before, per layer: below 1 is sublinear.
The exit status is 1 when a ratio of CPU times is above the goal.

XLA takes several minutes of CPU for 48 layers in one program.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from typing import Any

MICROBATCHES = 8


def start(kind: str, layers: int, stages: int) -> dict[str, float]:
    """Start a step here, and say what that took, in seconds."""
    import jax
    import jax.numpy as jnp
    from models import first_state, halved, transformer
    from steps import loss_marked, loss_plain, make_step, update

    import mmruntime as mm

    per_stage = max(1, layers // stages)
    model = transformer(layers // per_stage, per_stage, 16, 64)
    if layers < stages:
        model = halved(model)

    def in_scan(states: Any, batch: Any) -> Any:
        params = [state[0] for state in states]
        pieces = jax.tree.map(lambda a: a.reshape(MICROBATCHES, -1, *a.shape[1:]), batch)

        def add(total: Any, piece: Any) -> tuple[Any, None]:
            found = jax.value_and_grad(loss_plain(model))(params, piece)
            return jax.tree.map(jnp.add, total, found), None

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        value, grads = jax.tree.map(lambda a: a / MICROBATCHES, jax.lax.scan(add, zeros, pieces)[0])
        return update(states, grads), value

    states = [first_state(params) for params in model.params]
    if kind == "scan":
        step: Any = jax.jit(in_scan)
    else:
        mesh = mm.MultiMesh(axis_sizes=(stages,), axis_names=("stage",))
        step = mm.mjit(make_step(loss_marked(model, stages), MICROBATCHES), mesh=mesh)
    # What JAX sets up once is not of the step.
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))
    wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
    _, value = jax.block_until_ready(step(states, model.batch))
    taken = time.process_time() - cpu
    return {
        "wall": time.perf_counter() - wall,
        "cpu": taken,
        "xla": 1 - (time.thread_time() - thread) / taken,
        "loss": float(value),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 48])
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=1, help="starts of each kind, of which the median counts")
    parser.add_argument("--goal", type=float, default=1.0, help="the largest ratio (default 1.0)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(start(args.child[0], int(args.child[1]), int(args.child[2]))))
        return 0
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)

    def child(kind: str, layers: int, stages: int) -> dict[str, float]:
        found = []
        for _ in range(args.repeats):
            command = [sys.executable, __file__, "--child", kind, str(layers), str(stages)]
            finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if finished.returncode:
                raise SystemExit(f"A start failed:\n{finished.stdout}{finished.stderr}")
            found.append(json.loads(finished.stdout.splitlines()[-1]))
        return {key: statistics.median(each[key] for each in found) for key in found[0]}

    import jax

    print(f"JAX {jax.__version__}; seconds, medians of {args.repeats} starts")
    titles = ("layers", "stages", "scan CPU", "ours CPU", "ratio", "goal", "wall", "ratio", "XLA", "growth")
    print("".join(f"{title:>9}" for title in titles))
    is_met = True
    before: dict[int, tuple[int, float]] = {}
    for layers in args.layers:
        scan = child("scan", layers, 1)
        for stages in args.stages:
            ours = child("ours", layers, stages)
            assert math.isclose(ours["loss"], scan["loss"], rel_tol=1e-4), "the losses differ"
            growth = "" if stages not in before else _exponent((layers, ours["cpu"]), before[stages])
            before[stages] = layers, ours["cpu"]
            ratio = ours["cpu"] / scan["cpu"]
            is_met = is_met and ratio <= args.goal
            print(
                f"{layers:9}{stages:9}{scan['cpu']:9.2f}{ours['cpu']:9.2f}{ratio:9.2f}{args.goal:9.2f}"
                f"{ours['wall']:9.2f}{ours['wall'] / scan['wall']:9.2f}{ours['xla']:9.0%}{growth:>9}",
                flush=True,
            )
    return 0 if is_met else 1


def _exponent(now: tuple[int, float], before: tuple[int, float]) -> str:
    return f"{math.log(now[1] / before[1]) / math.log(now[0] / before[0]):.2f}"


if __name__ == "__main__":
    sys.exit(main())
