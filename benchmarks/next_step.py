"""Whether the next step begins before this one is over: what the end of a step is a barrier for.

    python benchmarks/next_step.py

Four stages on four virtual CPU devices, whose last one takes long to update its parameters. Two steps are issued one
after the other, and the time is taken until the calls return, until the first stage has its new parameters, until it
has run all forward passes of the second step, and until the last stage has its new parameters; once with each gradient
used as it is, once scaled by the norm of all. Goal: in both cases the second step's forward passes of the first stage
are done before the first step's last update. The exit status is 1 if one is missed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import jax
import jax.numpy as jnp

import mmruntime as mm

WIDTH, STAGES, MICROBATCHES = 64, 4, 4


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w)


def loss(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    first = x
    for index, w in enumerate(weights):
        x = mm.task(layer, name=f"layer_{index}", task=mm.Task(mesh_slice={"stage": index}))(w, x)
        first = x if index == 0 else first
    # Ready when the first stage has run the forward passes of all microbatches.
    return jnp.mean(x * x), jnp.sum(first, axis=0)


def step(weights: list[jax.Array], x: jax.Array, *, norm: bool) -> tuple[list[jax.Array], jax.Array]:
    run: Any = mm.microbatch(
        jax.value_and_grad(loss, has_aux=True),
        count=MICROBATCHES,
        argnum=1,
        schedule="1f1b",
        reduce=(("mean", "sum"), "mean"),
    )
    (_, first), grads = run(weights, x)
    scale = 0.1 / jnp.sqrt(1 + sum(jnp.sum(grad * grad) for grad in grads)) if norm else 0.1
    *others, last = [w - scale * grad for w, grad in zip(weights, grads, strict=True)]
    last = jax.lax.fori_loop(0, 60_000, lambda _, each: jnp.tanh(each @ each) * 1e-9 + each, last)
    return [*others, last], first


def main() -> int:
    met = True
    x = jnp.ones((4 * MICROBATCHES, WIDTH))
    print(f"{'scaled by the norm':<20}{'issued':>9}{'new first':>11}{'next first stage':>18}{'new last':>10}  ms")
    for norm in (False, True):
        mesh = mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",))
        compiled = mm.mjit(lambda weights, x, norm=norm: step(weights, x, norm=norm), mesh=mesh)
        weights = [jnp.eye(WIDTH) * 0.1] * STAGES
        for _ in range(2):
            weights, _ = jax.block_until_ready(compiled(weights, x))
        start = time.perf_counter()
        new, _ = compiled(weights, x)
        _, forward = compiled(new, x)
        times = [time.perf_counter() - start]
        for value in (new[0], forward, new[-1]):
            value.block_until_ready()
            times.append(time.perf_counter() - start)
        met &= times[2] < times[3] / 2
        issued, first, ahead, last = (1e3 * each for each in times)
        print(f"{'yes' if norm else 'no':<20}{issued:>9.0f}{first:>11.0f}{ahead:>18.0f}{last:>10.0f}")
    print("goal met" if met else "goal MISSED")
    return not met


if __name__ == "__main__":
    sys.exit(main())
