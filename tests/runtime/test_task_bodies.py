"""What stands inside and around of tasks, and the types of what they compute with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    adam_state,
    adam_step,
    batches,
    ids,
    layer,
    normal,
    on,
    sgd,
    sgd_step,
    squares,
    stages,
    train,
    value_and_grad,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


@pytest.mark.parametrize("where", ["inside", "around", "whole", "whole_with_policy"])
def test_checkpoint(where):
    def block(w, x):
        return layer(w, layer(w, x))

    def model(params, x):
        for index in range(3):
            if where == "inside":
                piece = mm.task(jax.checkpoint(block), task=on(index))
            elif where == "around":
                piece = jax.checkpoint(mm.task(block, task=on(index)))
            else:
                piece = mm.task(block, task=on(index))
            x = piece(params[index], x)
        return x

    if where == "whole":
        model = jax.checkpoint(model)
    elif where == "whole_with_policy":
        model = jax.checkpoint(model, policy=jax.checkpoint_policies.dots_saveable)

    def loss(params, batch):
        return squares(model(params, batch["x"]), batch["y"])

    train(sgd_step(loss, schedule="1f1b"), stages(3), weights(3), batches(2))


@pytest.mark.parametrize("remat", [False, True])
def test_scan_over_layers_inside_of_a_task(remat):
    def body(x, w):
        return layer(w, x), None

    def block(stack, x):
        return jax.lax.scan(jax.checkpoint(body) if remat else body, x, stack)[0]

    def loss(params, batch):
        x = batch["x"]
        for index in range(2):
            x = mm.task(block, task=on(index))(params[index], x)
        return squares(x, batch["y"])

    params = [np.stack(weights(3)), np.stack(weights(6)[3:])]
    train(adam_step(loss, schedule="1f1b"), stages(2), adam_state(params), batches(2))


@pytest.mark.parametrize("where", ["inside", "around"])
def test_custom_vjp(where):
    def pair(fun):
        wrapped = jax.custom_vjp(fun)
        wrapped.defvjp(
            lambda w, x: (fun(w, x), (w, x)),
            lambda saved, ct: jax.tree.map(lambda g: 0.5 * g, jax.vjp(fun, *saved)[1](ct)),
        )
        return wrapped

    def loss(params, batch):
        x = batch["x"]
        for index in range(3):
            if where == "inside":
                x = mm.task(pair(layer), task=on(index))(params[index], x)
            else:
                x = pair(mm.task(layer, task=on(index)))(params[index], x)
        return squares(x, batch["y"])

    train(sgd_step(loss, schedule="1f1b"), stages(3), weights(3), batches(2))


def test_custom_vjp_between_tasks_reverses_the_gradient():
    @jax.custom_vjp
    def reverse(x):
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, ct: (-ct,))

    def loss(params, batch):
        features = mm.task(layer, task=on(0))(params[0], batch["x"])
        label = mm.task(layer, task=on(1))(params[1], features)
        domain = mm.task(layer, task=on(2))(params[2], reverse(features))
        return squares(label, batch["y"]) + domain.sum()

    train(sgd_step(loss, schedule="1f1b"), stages(3), weights(3), batches(2))


def test_control_flow_inside_of_tasks():
    def gated(w, x, flag):
        return jax.lax.cond(flag > 0, lambda: layer(w, x), lambda: x)

    def loss(params, batch):
        x = mm.task(gated, task=on(0))(params[0], batch["x"], batch["x"][0, 0])
        x = mm.task(lambda w, x: jax.lax.fori_loop(0, 3, lambda i, x: layer(w, x), x), task=on(1))(params[1], x)
        x = mm.task(lambda x: jnp.sort(x, axis=-1), task=on(1))(x)
        return squares(x, batch["y"])

    train(sgd_step(loss, schedule="1f1b"), stages(2), weights(2), batches(2))


def test_inner_jit_and_nested_functions_shared_by_stages():
    @jax.jit
    def shared(w, x):
        return jax.nn.gelu(x @ w)

    def loss(params, batch):
        x = batch["x"]
        for index in range(3):
            x = mm.task(lambda w, x: shared(w, shared(w, x)), task=on(index))(params[index], x)
        return squares(jax.jit(lambda x: x * 2.0)(x), batch["y"])

    train(jax.jit(sgd_step(loss, schedule="1f1b")), stages(3), weights(3), batches(2))


def test_batch_statistics_without_microbatches():
    def block(p, running, x):
        x = x @ p["w"]
        mean, var = x.mean(0), x.var(0)
        running = {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * var}
        x = (x - mean[None]) / jnp.sqrt(var[None] + 1e-3)
        return jnp.tanh(x * p["scale"][None]), running

    def step(state, batch):
        def loss(params):
            x, running = batch["x"], []
            for index in range(3):
                x, stats = mm.task(block, task=on(index))(params[index], state["running"][index], x)
                running.append(stats)
            return squares(x, batch["y"]), running

        (value, running), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        return {"params": sgd(state["params"], grads), "running": running}, value

    params = [{"w": w, "scale": np.ones((WIDTH,))} for w in weights(3)]
    running = [{"mean": np.zeros((WIDTH,)), "var": np.ones((WIDTH,))} for _ in range(3)]
    train(step, stages(3), {"params": params, "running": running}, batches(3), rtol=1e-11)


def test_statistics_added_up_over_microbatches():
    def loss(params, batch):
        x, sums = batch["x"], []
        for index in range(2):
            x, total = mm.task(lambda w, x: (layer(w, x), layer(w, x).sum(0)), task=on(index))(params[index], x)
            sums.append(total)
        return squares(x, batch["y"]), sums

    def step(state, batch):
        (value, sums), grads = mm.microbatch(
            jax.value_and_grad(loss, has_aux=True), argnum=1, count=4, schedule="1f1b"
        )(state["params"], batch)
        running = [0.9 * old + 0.1 * new / 8.0 for old, new in zip(state["running"], sums, strict=True)]
        return {"params": sgd(state["params"], grads), "running": running}, value

    state = {"params": weights(2), "running": [np.zeros((WIDTH,))] * 2}
    train(step, stages(2), state, batches(2))


def test_bfloat16_activations_with_float32_parameters():
    def block(w, x):
        return jnp.tanh(x @ w.astype(jnp.bfloat16))

    def loss(params, batch):
        x = batch["x"].astype(jnp.bfloat16)
        for index in range(3):
            x = mm.task(block, task=on(index))(params[index], x)
        return squares(x.astype(jnp.float32), batch["y"])

    params = [w.astype(np.float32) for w in weights(3)]
    data = [{key: value.astype(np.float32) for key, value in batch.items()} for batch in batches(2)]
    train(sgd_step(loss, schedule="1f1b"), stages(3), params, data, rtol=2e-2)


def test_integer_inputs_and_results():
    def step(params, batch):
        def loss(params, batch):
            x = mm.task(lambda t, i: t[i], task=on(0))(params["table"], batch["tokens"])
            x = mm.task(layer, task=on(1))(params["w"], x)
            return (x**2).sum(), {"seen": (batch["tokens"] >= 0).sum(), "largest": x.argmax(-1).sum()}

        (value, aux), grads = mm.microbatch(jax.value_and_grad(loss, has_aux=True), argnum=1, count=4, schedule="1f1b")(
            params, batch
        )
        return sgd(params, grads), (value, aux)

    params = {"table": normal(5, WIDTH, seed=3), "w": weights(1)[0]}
    train(step, stages(2), params, [{"tokens": np.arange(8, dtype=np.uint8) % 5}] * 2)


@pytest.mark.parametrize(("typed", "per_microbatch"), [(True, True), (False, True), (False, False)])
def test_dropout_keys(typed, per_microbatch):
    def drop(key, w, x):
        x = layer(w, x)
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2.0, 0.0)

    def step(state, batch):
        key, used = jax.random.split(state["key"])

        def loss(params, batch, key):
            x = batch["x"]
            for index in range(2):
                x = mm.task(drop, task=on(index))(jax.random.fold_in(key, index), params[index], x)
            return squares(x, batch["y"])

        value, grads = mm.microbatch(
            jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b", rng=2 if per_microbatch else None
        )(state["params"], batch, used)
        return {"params": sgd(state["params"], grads), "key": key}, value

    key = jax.random.key(0) if typed else jax.random.PRNGKey(0)
    train(step, stages(2), {"params": weights(2), "key": key}, batches(2))


def test_keys_in_the_sliced_batch():
    def loss(params, batch):
        noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(batch["keys"])
        x = mm.task(layer, task=on(0))(params[0], batch["x"] + noise)
        x = mm.task(lambda w, x, k: layer(w, x) + jax.random.uniform(k[0], x.shape), task=on(1))(
            params[1], x, batch["keys"]
        )
        return squares(x, batch["y"])

    data = [{**batch, "keys": jax.random.split(jax.random.key(5), 8)} for batch in batches(2)]
    train(sgd_step(loss, schedule="1f1b"), stages(2), weights(2), data)


def test_complex_numbers():
    def loss(params, batch):
        x = mm.task(lambda w, x: jnp.fft.fft(x) * w[None], task=on(0))(params["w"], batch["x"])
        x = mm.task(lambda v, x: jnp.abs(x @ v), task=on(1))(params["v"], x)
        return squares(x, batch["y"])

    w = weights(3)
    params = {"w": w[0][0] + 1j * w[0][1], "v": w[1] + 1j * w[2]}

    def step(params, batch):
        value, grads = value_and_grad(loss, schedule="1f1b")(params, batch)
        return jax.tree.map(lambda p, g: p - 0.01 * jnp.conj(g), params, grads), value

    train(step, stages(2), params, batches(2), rtol=1e-11)


def test_data_and_tensor_parallel_stages():
    P = PartitionSpec
    pairs = (("batch", "data"), ("hidden", "model"))

    def block(p, x):
        x = mm.with_sharding_constraint(x, P("batch", None))
        up = mm.with_sharding_constraint(p["up"], P(None, "hidden"))
        down = mm.with_sharding_constraint(p["down"], P("hidden", None))
        return x + jnp.tanh(x @ up) @ down

    def loss(params, batch):
        x = batch["x"]
        for index in range(2):
            x = mm.task(block, mesh_slice={"stage": index}, logical_axes=pairs, name=f"s{index}")(params[index], x)
        return squares(x, batch["y"])

    params = [{"up": normal(4, 8, seed=s), "down": normal(8, 4, seed=s + 9)} for s in range(2)]
    mesh = stages(2, data=2, model=2)
    _, state = train(
        adam_step(loss, schedule="1f1b"), mesh, adam_state(params), batches(3, examples=16), donate_argnums=0
    )
    for part in ("params", "mu", "nu"):
        for index in range(2):
            up = state[part][index]["up"]
            assert ids(up) == {4 * index + k for k in range(4)}
            assert up.sharding.shard_shape(up.shape) == (4, 4)
            down = state[part][index]["down"]
            assert down.sharding.shard_shape(down.shape) == (4, 4)
