"""Train a pipeline on the devices of all processes, and go on from the last checkpoint, whatever devices wrote it.

    python train.py CHECKPOINTS
    mmrewrite run --processes 4 --max-restarts 3 --min-processes 1 -- python train.py CHECKPOINTS

The number of stages follows the number of devices, so that a job that is started again with fewer processes goes on.
"""

import argparse
import os

import mmruntime as mm

mm.init()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

import mmruntime.orbax  # noqa: E402

LAYERS, WIDTH, EXAMPLES = 4, 16, 16


def layer(w, x):
    return jnp.tanh(x @ w)


def loss_fn(params, batch):
    x = batch["x"]
    for index, w in enumerate(params):
        x = mm.task(layer, task=mm.stage(index, LAYERS))(w, x)
    return ((x - batch["y"]) ** 2).mean()


def train_step(state, batch):
    loss, grads = mm.microbatch(jax.value_and_grad(loss_fn), argnum=1, count=4, reduce="exact", schedule="1f1b")(
        state["params"], batch
    )
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "step": state["step"] + 1}, loss


def first_state():
    params = [jax.random.normal(jax.random.key(index), (WIDTH, WIDTH)) / 4 for index in range(LAYERS)]
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "step": jnp.zeros((), jnp.int32)}


def batch_of(step):
    """The same in every process, and in every run."""
    numbers = np.random.default_rng(step)
    return {name: numbers.normal(size=(EXAMPLES, WIDTH)).astype(jnp.zeros(()).dtype) for name in "xy"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--stages", type=int)
    options = parser.parse_args()
    count = jax.device_count()
    stages = options.stages or max(number for number in (1, 2, 4) if count % number == 0)
    mesh = mm.MultiMesh(axis_sizes=(stages, count // stages), axis_names=("stage", "data"))
    step = mm.mjit(train_step, mesh=mesh, donate_argnums=0)
    step.plan(jax.eval_shape(first_state), batch_of(0))
    # Makes every array where the step reads it.
    state = mm.mjit(first_state, out_like=step)()

    # Arrays are saved from the devices where they are, which may be those of some processes only.
    mmruntime.orbax.register()
    manager = ocp.CheckpointManager(
        os.path.abspath(options.checkpoints), options=ocp.CheckpointManagerOptions(max_to_keep=3)
    )
    latest = manager.latest_step()
    if latest is not None:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        state = manager.restore(latest, args=ocp.args.StandardRestore(like))
    for number in range(latest or 0, options.steps):
        state, loss = step(state, batch_of(number))
        if number % 2:
            # It is written while the next steps run.
            manager.save(number + 1, args=ocp.args.StandardSave(state))
        print(f"step {number + 1} on {stages} stages: {float(loss)!r}", flush=True)
    manager.close()


if __name__ == "__main__":
    main()
