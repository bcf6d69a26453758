"""What microbatches in slices of their sequence gain: idle time and activations, against Seq1F1B's formulae.

    JAX_PLATFORMS=cpu python benchmarks/sequence_slices.py

First on paper: `schedules.sliced` in simulated time for several sizes, where a step is to be idle for
(p - 1) (tF + tB) / k of its time and stage s is to hold p - s + k - 1 slices, each of them one k-th of a microbatch's
activations (Seq1F1B, arXiv:2406.03488). Then for real: a transformer on four virtual devices, with and without slices.
Its programs hold as many slices at once as the schedule says, its results are those of the whole sequence, and the
bytes of activations that its arrays hold at once are counted from its instructions.

Goals: idle time and slices held are those of the formulae; gradients differ by at most 1e-9 in double precision; each
device holds at most (p - s + k - 1) / k of the activations of a microbatch, those of the first stage without slices,
and a tenth more for keys and values that several slices read. The exit status is 1 if one is missed.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import jax
import jax.numpy as jnp
import numpy as np

import mmruntime as mm
from mmruntime import schedules

STAGES, MICROBATCHES, LENGTH, WIDTH, HEADS, WORDS = 4, 8, 64, 32, 2, 17
SIZES = [(2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 8, 4), (8, 32, 8)]


def simulated() -> bool:
    print(f"{'p':>3} {'m':>3} {'k':>3}  {'idle':>6} {'formula':>8}  slices held (formula)")
    fine = True
    for stages, microbatches, slices in SIZES:
        forward, backward = 1.0 / slices, 2.0 / slices
        schedule = schedules.sliced("1f1b", stages, microbatches, slices)
        schedule.validate()
        run = schedules.simulate(schedule, forward, backward / 2, backward / 2)
        idle, formula = run.makespan - max(run.busy), (stages - 1) * (forward + backward)
        held = [min(stages - stage + slices - 1, microbatches * slices) for stage in range(stages)]
        same = abs(idle - formula) < 1e-9 and [round(each) for each in run.live] == held
        fine &= same
        print(
            f"{stages:3} {microbatches:3} {slices:3}  {idle:6.3f} {formula:8.3f}  "
            f"{[round(each) for each in run.live]} ({held}) {'' if same else 'MISSED'}"
        )
    return fine


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape) / shape[0] ** 0.5

    layers = [
        {"qkv": normal(WIDTH, 3 * WIDTH), "out": normal(WIDTH, WIDTH), "up": normal(WIDTH, 4 * WIDTH)}
        | {"down": normal(4 * WIDTH, WIDTH)}
        for _ in range(STAGES)
    ]
    return {
        "embed": normal(WORDS, WIDTH),
        "place": normal(LENGTH, WIDTH),
        "layers": layers,
        "head": normal(WIDTH, WORDS),
    }


def layer(weights: dict[str, Any], x: jax.Array) -> jax.Array:
    examples, length, width = x.shape
    y = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
    query, key, value = jnp.split((y @ weights["qkv"]).reshape(examples, length, HEADS, -1), 3, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (width / HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), value)
    x = x + mixed.reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def loss(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    x = params["embed"][batch["ids"]] + params["place"]
    for number, weights in enumerate(params["layers"]):
        x = mm.task(layer, task=mm.stage(number, STAGES, axis="stage"))(weights, x)
    logits = jax.nn.log_softmax(x @ params["head"])
    return -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], -1))


def run(slices: int) -> tuple[Any, tuple[int, ...], list[int]]:
    """Results of a step, slices that each stage holds at once, and bytes of activations that each device holds."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, WORDS, (2 * MICROBATCHES, LENGTH + 1))
    batch = {"ids": ids[:, :-1], "targets": ids[:, 1:]}
    mesh = mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",))

    @functools.partial(mm.mjit, mesh=mesh)
    def step(params: Any, batch: Any) -> Any:
        gradient = jax.value_and_grad(loss)
        return mm.microbatch(gradient, count=MICROBATCHES, argnum=1, schedule="1f1b", reduce="exact", slices=slices)(
            params, batch
        )

    results = step(parameters(), batch)
    report = step.explain()
    (row,) = report.loops
    return results, row.live, [each.held.activations for each in report.memory]


def main() -> int:
    fine = simulated()
    jax.config.update("jax_enable_x64", True)
    expected, _, before = run(1)
    print(
        f"\n{'k':>3}  {'difference':>10}  slices held   activations on each device, in microbatches of the first stage"
    )
    for slices in (2, 4):
        found, held, after = run(slices)
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        difference = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
        formula = [STAGES - stage + slices - 1 for stage in range(STAGES)]
        # The first stage holds p microbatches without slices.
        shares = [each * STAGES / before[0] for each in after]
        goals = [each / slices * 1.1 for each in formula]
        good = difference <= 1e-9 and list(held) == formula
        good &= all(share <= goal for share, goal in zip(shares, goals, strict=True))
        fine &= good
        print(
            f"{slices:3}  {difference:10.1e}  {list(held)}  "
            f"{', '.join(f'{share:.2f} (at most {goal:.2f})' for share, goal in zip(shares, goals, strict=True))}"
            f"{'' if good else '  MISSED'}"
        )
    print("\nAll goals are met." if fine else "\nA goal is missed.")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
