"""Weights that several stages share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    adam_state,
    adam_step,
    batches,
    layer,
    normal,
    on,
    sgd,
    sgd_step,
    squares,
    stages,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


@pytest.mark.parametrize(
    ("num_shared", "num_stages", "schedule"),
    [(2, 2, "gpipe"), (2, 3, "1f1b"), (2, 4, "1f1b"), (3, 2, "1f1b"), (3, 3, "gpipe"), (3, 4, "1f1b")],
)
def test_weights_of_one_shape_shared_by_all_stages(num_shared, num_stages, schedule):
    def loss(params, batch):
        x = batch["x"]
        for index in range(num_stages):

            def piece(own, shared, x):
                for w in shared:
                    x = layer(w, x)
                return layer(own, x)

            x = mm.task(piece, task=on(index))(params["own"][index], params["shared"], x)
        return squares(x, batch["y"])

    params = {"own": weights(num_stages), "shared": weights(num_stages + num_shared)[num_stages:]}
    train(sgd_step(loss, schedule=schedule), stages(num_stages), params, batches(2))


def test_each_weight_shared_by_other_stages():
    sharers = {"a": (0, 1), "b": (1, 2), "c": (0, 2, 3), "d": (0, 3), "e": (3, 2, 1, 0)}

    def loss(params, batch):
        x = batch["x"]
        for index in range(4):
            mine = {name: params[name] for name, users in sharers.items() if index in users}

            def piece(mine, x):
                for w in mine.values():
                    x = layer(w, x)
                return x

            x = mm.task(piece, task=on(index))(mine, x)
        return squares(x, batch["y"])

    params = dict(zip(sharers, weights(len(sharers)), strict=True))
    train(adam_step(loss, schedule="1f1b"), stages(4), adam_state(params), batches(3))


def test_tied_embedding_used_twice_in_one_stage_and_again_in_the_last():
    def loss(params, batch):
        table = params["table"]
        embed = mm.task(lambda t, tokens: t[tokens] + t[(tokens + 1) % 5], task=on(0))
        x = embed(table, batch["tokens"])
        x = mm.task(layer, task=on(1))(params["w"], x)

        def head(t, x, labels):
            logits = x @ t.T
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).sum()

        return mm.task(head, task=on(2))(table, x, batch["labels"])

    params = {"table": normal(5, WIDTH, seed=3), "w": weights(1)[0]}
    data = [{"tokens": np.arange(8, dtype=np.int32) % 5, "labels": np.arange(8, dtype=np.int32)[::-1].copy() % 3}] * 3
    train(adam_step(loss, schedule="1f1b"), stages(3), adam_state(params), data)


@pytest.mark.parametrize("inside", [True, False], ids=["sliced_in_task", "sliced_outside"])
def test_stacked_weights_sliced_by_several_stages(inside):
    def loss(params, batch):
        x = batch["x"]
        for index in range(3):
            if inside:
                x = mm.task(lambda p, x, index=index: layer(p["v"][index], layer(p["w"][index], x)), task=on(index))(
                    params, x
                )
            else:
                mine = jax.tree.map(lambda stack, index=index: stack[index], params)
                x = mm.task(lambda p, x: layer(p["v"], layer(p["w"], x)), task=on(index))(mine, x)
        return squares(x, batch["y"])

    stacks = {"w": np.stack(weights(3)), "v": np.stack(weights(6)[3:])}
    train(adam_step(loss, schedule="1f1b"), stages(3), adam_state(stacks), batches(2))


def test_weight_shared_without_microbatches():
    def step(params, batch):
        def loss(params):
            x = batch["x"]
            for index in range(3):
                x = mm.task(lambda w, v, x: layer(v, layer(w, x)), task=on(index))(params["w"], params["v"], x)
            return squares(x, batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    train(step, stages(3), dict(zip("wv", weights(2), strict=True)), batches(2))
