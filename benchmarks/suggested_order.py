"""Plans that `mmrewrite suggest` compares, in the order of its model and in that of their measured programs.

    python benchmarks/suggested_order.py --layers 16 --width 256 --rows 64

Every plan is a step on eight virtual devices of this machine. Each of its programs is timed alone, and the times are
put together as on devices that share nothing (`Measurement.apart`). The model has the costs of the layers from traces,
and what `--calibrate` measures of this machine: products of these sizes, memory, and the issue of a program.

Goals: tau at least 0.75 over pairs of plans that differ by 10 % or more, 0.6 over all; the first place no more than 5 %
slower than the best that was measured. The exit status is 1 if one is missed. Run it alone: it measures time.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=64 --xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp

import mmruntime as mm
from mmrewrite.suggest.costs import read_layers
from mmrewrite.suggest.devices import find_device
from mmrewrite.suggest.model import CostModel, PlanChoice
from mmrewrite.suggest.search import named
from mmruntime._commands.calibrate import calibrate
from mmruntime._commands.entry_point import FunctionName
from mmruntime._commands.suggest import costs

# Stages, data, microbatches and schedules.
PLANS = [
    (stages, data, count, schedule)
    for stages, data in ((2, 4), (4, 2), (8, 1))
    for count in (2, 4, 8)
    for schedule in ("gpipe", "1f1b", "zb-h1")
]


def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = mm.with_sharding_constraint(x, jax.sharding.PartitionSpec("batch"))
    return x + jnp.tanh(x @ p["up"]) @ p["down"]


def made_step(layers: int, stages: int, data: int, count: int, schedule: str) -> Any:
    devices = jax.devices()[: stages * data]
    mesh = mm.MultiMesh(
        axis_sizes=(stages, data), axis_names=("stage", "data"), devices=devices, logical_axes=(("batch", "data"),)
    )

    def loss(params: Sequence[Any], x: jax.Array, y: jax.Array) -> jax.Array:
        for i, p in enumerate(params):
            x = mm.task(layer, task=mm.stage(i, layers))(p, x)
        return jnp.mean((x - y) ** 2)

    @functools.partial(mm.mjit, mesh=mesh, donate_argnums=0)
    def step(params: Sequence[Any], x: jax.Array, y: jax.Array) -> Any:
        gradient = mm.microbatch(
            jax.value_and_grad(loss), count=count, argnum=(1, 2), schedule=schedule, reduce="exact"
        )
        value, grads = gradient(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def arguments(layers: int, width: int, rows: int) -> Any:
    key = jax.random.key(0)
    up = 0.1 * jax.random.normal(key, (width, 4 * width))
    params = [{"up": up, "down": 0.1 * up.T} for _ in range(layers)]
    return params, jax.random.normal(key, (rows, width)), jnp.ones((rows, width))


def tau(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> float:
    """Kendall's tau of pairs of (predicted, measured)."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / max(len(signs), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--plans", type=int, default=len(PLANS), help="only so many")
    options = parser.parse_args()
    example = arguments(options.layers, options.width, options.rows)
    # The command imports what it traces by name.
    module: Any = sys.modules[__name__]
    module.traced = made_step(options.layers, 2, 1, 2, "1f1b")
    module.example = lambda: example
    document = costs(FunctionName("--entry", f"{__name__}:traced"), FunctionName("--args", f"{__name__}:example"))
    middle = document["traces"][-1]["layers"][options.layers // 2]
    dots = {key: times for part in ("forward", "inputs", "weights") for key, times in middle[part]["dots"].items()}
    model = CostModel(read_layers(document), options.rows, find_device("cpu").measured(calibrate(dots)), donates=True)
    found = []
    print(f"{'plan':34}  {'predicted':>10}  {'measured':>10}")
    for stages, data, count, schedule in PLANS[: options.plans]:
        order = named(schedule, stages, count, 1)
        if order is None or stages > options.layers or options.rows % (count * data):
            continue
        predicted = model.price(PlanChoice(stages, data, 1, count, schedule), order).seconds
        step = made_step(options.layers, stages, data, count, schedule)
        measured = step.measure(*jax.tree.map(jnp.copy, example)).apart.makespan
        found.append((predicted, measured))
        name = f"stage={stages}, data={data}, {count}, {schedule}"
        print(f"{name:34}  {predicted * 1e3:8.2f} ms  {measured * 1e3:8.2f} ms", flush=True)
    pairs = list(itertools.combinations(found, 2))
    apart = [(a, b) for a, b in pairs if max(a[1], b[1]) >= 1.1 * min(a[1], b[1])]
    regret = min(found)[1] / min(each[1] for each in found) - 1
    error = statistics.median(abs(predicted / measured - 1) for predicted, measured in found)
    print(f"tau {tau(pairs):.2f} over all pairs, {tau(apart):.2f} over those 10 % apart")
    print(f"first place {regret:.0%} slower than the best; median error {error:.0%}")
    return int(tau(apart) < 0.75 or tau(pairs) < 0.6 or regret > 0.05)


if __name__ == "__main__":
    sys.exit(main())
