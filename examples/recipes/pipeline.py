"""The program that the recipes begin with: four layers on two stages, as `mmrewrite apply` leaves it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mmruntime as mm

LAYERS, WIDTH, BATCH = 4, 16, 16
OPTIMIZER = optax.adam(1e-2)
mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))


def layer(w, x):
    return x + jnp.tanh(x @ w)


def loss_fn(params, batch):
    x = batch["x"]
    for i, w in enumerate(params):
        x = mm.task(layer, task=mm.stage(i, LAYERS))(w, x)
    return ((x - batch["y"]) ** 2).mean()


def train_step(state, batch, schedule="1f1b"):
    params, opt_state = state
    loss, grads = mm.microbatch(jax.value_and_grad(loss_fn), size=4, argnum=1, schedule=schedule, reduce="exact")(
        params, batch
    )
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def first_state():
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH for key in keys]
    return params, OPTIMIZER.init(params)


def batch_of(number):
    x, y = np.random.default_rng(number).normal(size=(2, BATCH, WIDTH)).astype(np.float32)
    return {"x": x, "y": y}
