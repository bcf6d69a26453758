"""Plans that `mmrewrite suggest` compares, in the order of its model and in that of their measured programs.

    python benchmarks/suggested_order.py --layers 16 --width 512 --rows 128

This machine has fewer cores than such a plan has devices. So of each stage one device's share is run: that of the rows
that a device of the data axis has, and of what a model axis leaves of each layer. Its programs run one after the other,
and what counts is the CPU time of the process for each. These times are put together as on devices that share nothing;
sums over data and model are priced, not measured. The model has the costs of the layers from traces, what `--calibrate`
measures of this machine, and the time of a transfer.

Goals: tau at least 0.75 over pairs of plans that differ by 10 % or more, 0.6 over all; the first place no more than 5 %
slower than the best that was measured; a median error of 10 %. The exit status is 1 if one is missed. Other programs
slow it down by what they take of the caches, and not by more.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=64 --xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import mmruntime as mm
from mmrewrite.suggest.calibration import calibrated, sizes_to_time
from mmrewrite.suggest.costs import name_divides, read_layers
from mmrewrite.suggest.devices import Accelerator, NetworkLink, find_device
from mmrewrite.suggest.model import CostModel, PlanChoice, Priced
from mmrewrite.suggest.search import named
from mmruntime._commands.calibrate import calibrate
from mmruntime._commands.entry_point import FunctionName
from mmruntime._commands.suggest import costs
from mmruntime._inspect.simulate_step import simulate_step
from mmruntime._inspect.waited_run import copies, timed
from mmruntime._partition.pipeline.instructions import RunInstruction

# Memory as accelerators have it, from a pool: the C library would have the system make large arrays anew, and zero.
_POOL = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
_REPEATS, _DEVICES = 4, 8
# Stages, data, model.
_MESHES = ((8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2), (2, 1, 4))
PLANS = [
    PlanChoice(stages, data, 1, count, schedule, model=model)
    for stages, data, model in _MESHES
    for count, schedule in ((4, "gpipe"), (4, "zb-h1"), (8, "1f1b"), (8, "zb-h1"))
]


def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = mm.with_sharding_constraint(x, PartitionSpec("batch"))
    hidden = mm.with_sharding_constraint(jnp.tanh(x @ p["up"]), PartitionSpec("batch", "hidden"))
    return x + hidden @ p["down"]


def made_step(layers: int, choice: PlanChoice) -> Any:
    """The step on one device of each stage."""
    mesh = mm.MultiMesh(
        axis_sizes=(choice.stages, 1, 1),
        axis_names=("stage", "data", "model"),
        devices=jax.devices()[: choice.stages],
        logical_axes=(("batch", "data"), ("hidden", "model")),
    )

    def loss(params: Sequence[Any], x: jax.Array, y: jax.Array) -> jax.Array:
        for i, p in enumerate(params):
            x = mm.task(layer, task=mm.stage(i, layers))(p, x)
        return jnp.mean((x - y) ** 2)

    @functools.partial(mm.mjit, mesh=mesh, donate_argnums=0)
    def step(params: Sequence[Any], x: jax.Array, y: jax.Array) -> Any:
        gradient = mm.microbatch(
            jax.value_and_grad(loss), count=choice.count, argnum=(1, 2), schedule=choice.schedule, reduce="exact"
        )
        value, grads = gradient(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def arguments(layers: int, width: int, rows: int, choice: PlanChoice) -> Any:
    """What one device has of the arguments of a step."""
    key = jax.random.key(0)
    params = []
    for own in jax.random.split(key, layers):
        up = 0.1 * jax.random.normal(own, (width, 4 * width // choice.model))
        params.append({"up": up, "down": 0.1 * up.T})
    share = rows // choice.data, width
    return params, jax.random.normal(key, share), jnp.ones(share)


def computing(run: Callable[[], Any]) -> float:
    """CPU seconds of the process for the cheapest of some runs; the first one compiles."""
    jax.block_until_ready(run())
    found = []
    for _ in range(_REPEATS):
        begun = time.process_time()
        jax.block_until_ready(run())
        found.append(time.process_time() - begun)
    return min(found)


def linked(device: Accelerator, rows: int, width: int) -> Accelerator:
    """The device with links that take as long as transfers of this machine do."""
    seconds = [
        computing(functools.partial(jax.device_put, jnp.ones((length, width)), jax.devices()[1]))
        for length in (1, rows)
    ]
    rate = 4 * width * (rows - 1) / max(seconds[1] - seconds[0], 1e-6)
    return dataclasses.replace(device, links=(NetworkLink(_DEVICES, rate, seconds[0]),))


def measured(layers: int, width: int, rows: int, choice: PlanChoice, priced: Priced, summed: float) -> float:
    """Seconds of a step on devices that share nothing, of the CPU time of each of its programs.

    Args:
        layers: How many layers.
        width: Their width.
        rows: Rows of a batch.
        choice: The plan.
        priced: Its price, of which the sums over data are taken.
        summed: Seconds of the sums over the model axis of one layer in one direction.
    """
    step = made_step(layers, choice)
    example = arguments(layers, width, rows, choice)
    call = step._split(example, {})
    plan = step._plan_of(call, to_run=True)
    runs = [timed(plan.runner, jax.block_until_ready(copies(call.leaves))) for _ in range(_REPEATS + 1)][1:]
    instructions = plan.program.instructions
    # What does the same takes as long, and other programs of the machine never make it faster.
    shortest: dict[Any, float] = defaultdict(lambda: math.inf)
    kinds = [item.spec if isinstance(item, RunInstruction) else (item.source, item.target) for item in instructions]
    for index, kind in enumerate(kinds):
        shortest[kind] = min(shortest[kind], *(run[index].computing for run in runs))
    seconds = []
    for item, kind in zip(instructions, kinds, strict=True):
        segment = item.spec.segment if isinstance(item, RunInstruction) and item.microbatch is not None else None
        # Weight halves sum nothing over the model axis.
        sums = 0 if segment is None or segment.part == "W" else segment.forward + segment.backward
        seconds.append(shortest[kind] + sums * summed * layers / choice.stages)
    devices = [{device.id for device in mesh.devices.flat} for mesh in plan.placement.submeshes.meshes]
    simulated = simulate_step(plan.program, devices, plan.step.carried, seconds)
    return simulated.makespan + priced.summed


def tau(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> float:
    """Kendall's tau of pairs of (predicted, measured)."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / max(len(signs), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--plans", type=int, default=len(PLANS), help="only so many")
    options = parser.parse_args()
    sizes = options.layers, options.width, options.rows
    # The command imports what it traces by name.
    module: Any = sys.modules[__name__]
    whole = PlanChoice(2, 1, 1, 2, "1f1b")
    module.traced = made_step(options.layers, whole)
    module.example = lambda: arguments(*sizes, whole)
    named_by = FunctionName("--entry", f"{__name__}:traced"), FunctionName("--args", f"{__name__}:example")
    document = costs(*named_by, platform="cpu")
    layers = read_layers(document, name_divides(document))
    timed = calibrate(*named_by, sizes_to_time(options.rows, _DEVICES), clock=time.process_time)
    device, calibration = calibrated(layers, options.rows, find_device("cpu"), timed)
    device = linked(device, options.rows // 8, options.width)
    print(device.as_toml())
    print(
        f"by the record of a CPU the model was {calibration.error:.0%} off for a layer, fitted {calibration.left:.0%}\n"
    )
    model = CostModel(layers, options.rows, device, donates=True)
    found = []
    print(f"{'plan':44}  {'predicted':>11}  {'measured':>11}")
    for choice in PLANS[: options.plans]:
        order = named(choice.schedule, choice.stages, choice.count, 1)
        if order is None or choice.stages > options.layers or options.rows % (choice.count * choice.data):
            continue
        priced = model.price(choice, order)
        predicted = priced.seconds
        # One class in each layer, which sums what it hands on.
        size = 4 * options.width * options.rows / choice.count / choice.data
        summed = 2 * (choice.model - 1) / choice.model * size / device.links[0].bandwidth + device.links[0].latency
        seconds = measured(*sizes, choice, priced, summed if choice.model > 1 else 0.0)
        found.append((predicted, seconds))
        name = f"stage={choice.stages}, data={choice.data}, model={choice.model}, {choice.count}, {choice.schedule}"
        print(f"{name:44}  {predicted * 1e3:8.2f} ms  {seconds * 1e3:8.2f} ms", flush=True)
    pairs = list(itertools.combinations(found, 2))
    apart = [(a, b) for a, b in pairs if max(a[1], b[1]) >= 1.1 * min(a[1], b[1])]
    regret = min(found)[1] / min(each[1] for each in found) - 1
    error = statistics.median(abs(predicted / seconds - 1) for predicted, seconds in found)
    print(f"{len(found)} plans: tau {tau(pairs):.2f} over all pairs, {tau(apart):.2f} over those 10 % apart")
    print(f"first place {regret:.0%} slower than the best; median error {error:.0%}")
    return int(tau(apart) < 0.75 or tau(pairs) < 0.6 or regret > 0.05 or error > 0.1)


if __name__ == "__main__":
    if not _POOL.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_POOL})
    sys.exit(main())
