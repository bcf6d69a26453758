"""Optimizers and loss scales that look at all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    adam,
    adam_state,
    batches,
    four_layers,
    sgd,
    stages,
    train,
    value_and_grad,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


def global_norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


@pytest.mark.parametrize("limit", [0.1, 1e6], ids=["clipped", "not_clipped"])
def test_clipping_by_global_norm(limit):
    def step(state, batch):
        value, grads = value_and_grad(four_layers, schedule="1f1b")(state["params"], batch)
        norm = global_norm(grads)
        scale = jnp.minimum(1.0, limit / norm)
        grads = jax.tree.map(lambda g: g * scale, grads)
        return adam(state, grads), {"loss": value, "norm": norm, "scale": scale}

    train(step, stages(4), adam_state(weights(4)), batches(3))


def test_clipping_each_gradient_by_its_own_norm_and_reporting_all():
    def step(params, batch):
        value, grads = value_and_grad(four_layers)(params, batch)
        norms = [jnp.linalg.norm(g) for g in grads]
        grads = [g * jnp.minimum(1.0, 0.1 / norm) for g, norm in zip(grads, norms, strict=True)]
        return sgd(params, grads), (value, norms, jnp.max(jnp.stack(norms)))

    train(step, stages(4), weights(4), batches(2))


def test_per_microbatch_gradient_normalised_inside_of_the_loop():
    def step(params, batch):
        def normalised(params, batch):
            value, grads = jax.value_and_grad(four_layers)(params, batch)
            norm = global_norm(grads)
            return value, jax.tree.map(lambda g: g / norm, grads)

        value, grads = mm.microbatch(normalised, argnum=1, count=4, schedule="1f1b")(params, batch)
        return sgd(params, grads), value

    train(step, stages(4), weights(4), batches(2))


def test_finite_check_with_dynamic_loss_scale():
    def step(state, batch):
        def scaled(params, batch):
            return four_layers(params, batch) * state["scale"]

        value, grads = value_and_grad(scaled, schedule="1f1b")(state["params"], batch)
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        finite = functools.reduce(jnp.logical_and, [jnp.isfinite(g).all() for g in grads])
        params = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), sgd(state["params"], grads), state["params"]
        )
        scale = jnp.where(finite, state["scale"] * 2.0, state["scale"] / 2.0)
        return {"params": params, "scale": scale}, {"loss": value / state["scale"], "finite": finite}

    bad = batches(3)
    bad[1]["x"][0, 0] = np.inf
    bad[1]["y"][0, 0] = np.inf

    def finite_only(state, batch):
        new, out = step(state, batch)
        return new, {"finite": out["finite"], "loss": jnp.where(out["finite"], out["loss"], -1.0)}

    state = {"params": weights(4), "scale": np.asarray(8.0)}
    _, state = train(finite_only, stages(4), state, bad)
    assert float(state["scale"]) == 16.0


def test_weight_decay_momentum_moving_average_and_learning_rate_schedule():
    def step(state, batch):
        value, grads = value_and_grad(four_layers, schedule="1f1b", reduce="mean", check=False)(state["params"], batch)
        rate = 0.1 * jnp.where(state["count"] < 1, 0.1, 1.0 / (1 + state["count"].astype(value.dtype)))
        momentum = jax.tree.map(lambda m, g, p: 0.9 * m + g + 0.01 * p, state["momentum"], grads, state["params"])
        params = jax.tree.map(lambda p, m: p - rate * m, state["params"], momentum)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
        return {"params": params, "momentum": momentum, "average": average, "count": state["count"] + 1}, value

    params = weights(4)
    zeros = jax.tree.map(np.zeros_like, params)
    state = {"params": params, "momentum": zeros, "average": params, "count": np.zeros((), np.int32)}
    train(step, stages(4), state, batches(3))


def test_optax_chain_with_masks_and_accumulators():
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optax.chain(
            optax.apply_if_finite(optax.chain(optax.clip_by_global_norm(0.3), optax.adamw(0.01)), 3),
        )

        def step(state, batch):
            params, opt_state = state
            value, grads = value_and_grad(four_layers, schedule="1f1b")(params, batch)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

        params = [jnp.asarray(w) for w in weights(4)]
        train(step, stages(4), (params, optimizer.init(params)), batches(3), rtol=1e-11)
