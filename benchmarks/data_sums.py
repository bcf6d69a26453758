"""What devices of a submesh send each other in a step, for gradients and parameters: once, or per microbatch.

    python benchmarks/data_sums.py [--width 256] [--layers 4] [--microbatches 8]

Two stages of two devices, with the examples cut over `data`. Nothing is timed: the programs are compiled, and their
collectives counted as `explain()` does.
"""

from __future__ import annotations

import argparse
import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import mmruntime as mm

CASES = {
    "parameters on each device, sync='microbatch'": (None, {"sync": "microbatch"}),
    "parameters on each device": (None, {}),
    "parameters cut over data": ("rows", {}),
    "parameters cut over data, all_gather='data'": ("rows", {"all_gather": "data"}),
}


def report(rows, options, arguments):
    """What `explain` says of a step of a chain of dense layers with momentum-free descent."""

    def layer(weights, x):
        for w in weights:
            x = x + jnp.tanh(x @ w)
        return x

    def loss(params, batch):
        x, y = mm.with_sharding_constraint(batch, P("batch"))
        for index, weights in enumerate(params):
            weights = mm.with_sharding_constraint(weights, P(rows))
            x = mm.task(layer, name=f"stage_{index}", mesh_slice={"stage": index})(weights, x)
        return jnp.mean((x - y) ** 2)

    def step(params, batch):
        gradient = mm.microbatch(
            jax.grad(loss), argnum=1, count=arguments.microbatches, schedule="1f1b", reduce="exact", **options
        )
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient(params, batch))

    mesh = mm.MultiMesh(
        axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes=(("batch", "data"), ("rows", "data"))
    )
    weight = jax.ShapeDtypeStruct((arguments.width, arguments.width), jnp.float32)
    rows_of_batch = jax.ShapeDtypeStruct((4 * arguments.microbatches, arguments.width), jnp.float32)
    params = [[weight] * (arguments.layers // 2)] * 2
    return mm.mjit(step, mesh=mesh, donate_argnums=0).plan(params, (rows_of_batch, rows_of_batch))


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    arguments = parser.parse_args()
    size = arguments.layers * arguments.width**2 * 4
    print(f"JAX {jax.__version__}, {size:,} bytes of parameters, {arguments.microbatches} microbatches")
    for name, (rows, options) in CASES.items():
        found = report(rows, options, arguments).collectives
        count = sum(row.found.count * row.runs for row in found)
        moved = sum(row.found.count * row.found.size * row.runs for row in found)
        print(f"{name}: {count} collectives, results of {moved:,} bytes, {moved / size:.2f} of the parameters'")


if __name__ == "__main__":
    main()
