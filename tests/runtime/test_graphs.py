"""Graphs of tasks that are no chain: skips, branches, stages that come back; split backward passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    SCHEDULES,
    adam_state,
    adam_step,
    batches,
    ids,
    in_stages,
    layer,
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


def test_loss_that_uses_activations_of_two_stages():
    def loss(params, batch):
        first = mm.task(layer, task=on(0))(params[0], batch["x"])
        second = mm.task(layer, task=on(1))(params[1], first)
        third = mm.task(layer, task=on(2))(params[2], second)
        return squares(third, batch["y"]) + 0.1 * (first * third).sum() + 0.01 * (second**2).sum()

    train(sgd_step(loss, schedule="1f1b"), stages(3), weights(3), batches(2))


def test_auxiliary_loss_of_every_stage():
    def loss(params, batch):
        x, extra = batch["x"], []
        for index in range(4):
            x, aux = mm.task(lambda w, x: (layer(w, x), (layer(w, x) ** 2).mean()), task=on(index))(params[index], x)
            extra.append(aux)
        return squares(x, batch["y"]) + 0.1 * sum(extra), extra

    def step(params, batch):
        (value, extra), grads = mm.microbatch(
            jax.value_and_grad(loss, has_aux=True), argnum=1, count=4, schedule="1f1b"
        )(params, batch)
        return sgd(params, grads), (value, extra)

    train(step, stages(4), weights(4), batches(2))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_skip_connections_across_stages(schedule):
    def loss(params, batch):
        first = mm.task(layer, task=on(0))(params[0], batch["x"])
        second = mm.task(layer, task=on(1))(params[1], first)
        third = mm.task(lambda w, x, skip: layer(w, x) + skip, task=on(2))(params[2], second, first)
        fourth = mm.task(lambda w, x, a, b: layer(w, x + a) * b, task=on(3))(params[3], third, first, batch["x"])
        return squares(fourth, batch["y"])

    train(sgd_step(loss, schedule=schedule), stages(4), weights(4), batches(2))


def test_residual_stream_added_outside_of_tasks():
    def loss(params, batch):
        x = batch["x"]
        for index in range(4):
            x = x + 0.5 * mm.task(layer, task=on(index))(params[index], x)
        x = x - x.mean(axis=-1, keepdims=True)
        return squares(x, batch["y"]) / x.shape[0]

    train(sgd_step(loss, schedule="1f1b"), stages(4), weights(4), batches(2))


@pytest.mark.parametrize(
    ("where", "schedule"),
    [
        ((0, 1, 0, 1), "1f1b"),
        ((0, 1, 0, 1), "wavefront"),
        ((0, 1, 1, 0), "gpipe"),
        ((0, 1, 1, 0), "1f1b"),
        ((0, 1, 2, 0), "1f1b"),
        ((1, 0, 1, 0), "gpipe"),
    ],
    ids=str,
)
def test_stages_that_come_back_to_a_submesh(where, schedule):
    def loss(params, batch):
        x = batch["x"]
        for w, place in zip(params, where, strict=True):
            x = mm.task(layer, task=on(place))(w, x)
        return squares(x, batch["y"])

    train(sgd_step(loss, schedule=schedule), stages(max(where) + 1), weights(4), batches(2))


@pytest.mark.parametrize("costs", [None, (1, 1, 1, 1, 1, 1, 6)], ids=["even", "weighted"])
def test_uneven_stages(costs):
    def loss(params, batch):
        x = batch["x"]
        for index, w in enumerate(params):
            x = mm.task(layer, task=mm.stage(index, len(params), weights=costs))(w, x)
        return squares(x, batch["y"])

    _, params = train(sgd_step(loss, schedule="1f1b"), stages(3), weights(7), batches(2))
    expected = {None: [0, 0, 1, 1, 2, 2, 2], (1, 1, 1, 1, 1, 1, 6): [0, 0, 0, 1, 1, 1, 2]}[costs]
    assert [ids(w) for w in params] == [{stage} for stage in expected]


def test_two_branches_of_one_stage_that_do_not_see_each_other():
    def loss(params, batch):
        stem = mm.task(layer, task=on(0))(params[0], batch["x"])
        left = mm.task(layer, task=on(1))(params[1], stem)
        right = mm.task(layer, task=on(2))(params[2], stem)
        return squares(mm.task(lambda w, a, b: layer(w, a) * b, task=on(3))(params[3], left, right), batch["y"])

    train(sgd_step(loss, schedule="1f1b"), stages(4), weights(4), batches(2))


def test_two_towers_with_a_contrastive_loss():
    """Neither tower depends on the other; the loss needs both."""

    def loss(params, batch):
        one = mm.task(layer, task=on(0))(params[0], batch["x"])
        two = mm.task(layer, task=on(1))(params[1], batch["y"])
        return -jnp.trace(jax.nn.log_softmax(one @ two.T))

    train(sgd_step(loss, schedule="1f1b"), stages(2), weights(2), batches(2))


def test_work_outside_of_tasks_before_between_and_after():
    def loss(params, batch):
        x = batch["x"] @ params["in"] + params["bias"][None]
        x = mm.task(layer, task=on(0))(params["w"][0], jax.nn.relu(x))
        x = x * params["gain"][None]
        x = mm.task(layer, task=on(1))(params["w"][1], x)
        return squares(x @ params["out"], batch["y"])

    w = weights(4)
    params = {"in": w[0], "bias": w[0][0], "w": w[1:3], "gain": w[1][0], "out": w[3]}
    train(adam_step(loss, schedule="1f1b"), stages(2), adam_state(params), batches(2))


def test_unused_and_frozen_parameters():
    def loss(params, batch):
        w = params["w"]
        x = mm.task(layer, task=on(0))(jax.lax.stop_gradient(w[0]), batch["x"])
        x = mm.task(layer, task=on(1))(w[1], x)
        return squares(x, batch["y"])

    params = {"w": weights(2), "unused": weights(3)[2], "none": np.zeros((0, 3))}
    train(adam_step(loss, schedule="1f1b"), stages(2), adam_state(params), batches(2))


def test_gradient_with_respect_to_some_parameters_only():
    def step(state, batch):
        def loss(tuned, batch):
            return squares(
                in_stages([state["fixed"][0], tuned[0], state["fixed"][1], tuned[1]], batch["x"], 4), batch["y"]
            )

        value, grads = value_and_grad(loss, schedule="1f1b")(state["tuned"], batch)
        return {"fixed": state["fixed"], "tuned": sgd(state["tuned"], grads)}, value

    w = weights(4)
    train(step, stages(4), {"fixed": w[:2], "tuned": w[2:]}, batches(2))


def test_loss_divided_by_what_another_loop_counts():
    def loss(params, batch):
        x = in_stages(params, batch["x"], 2)
        return (((x - batch["y"]) ** 2) * batch["mask"][:, None]).sum(), batch["mask"].sum()

    def step(params, batch):
        (value, count), grads = mm.microbatch(
            jax.value_and_grad(loss, has_aux=True), argnum=1, count=4, schedule="1f1b"
        )(params, batch)
        grads = jax.tree.map(lambda g: g / count, grads)
        return sgd(params, grads), value / count

    data = [{**batch, "mask": np.arange(8) % 3 / 2} for batch in batches(2)]
    train(step, stages(2), weights(2), data)


@pytest.mark.parametrize(
    ("body", "schedule"),
    [("shared", "zb-h1"), ("shared_v", "zb-v"), ("scan", "zb-h2"), ("checkpoint", "zb-h2"), ("outside", "zb-h1")],
)
def test_split_backward_passes(body, schedule):
    """Weight gradients are put off; they are those of the whole backward pass, whatever stands in the tasks."""
    where = (0, 1, 1, 0) if body == "shared_v" else (0, 1, 2)
    block = {
        "shared": lambda own, shared, x: layer(shared, layer(own, x)),
        "shared_v": lambda own, shared, x: layer(shared, layer(own, x)),
        "scan": lambda own, shared, x: jax.lax.scan(lambda x, w: (layer(w, x), None), x, jnp.stack([own, own.T]))[0],
        "checkpoint": jax.checkpoint(lambda own, shared, x: layer(own, layer(own, x))),
        "outside": lambda own, shared, x: layer(own, x),
    }[body]

    def loss(params, batch):
        x = batch["x"]
        for index, place in enumerate(where):
            y = mm.task(block, task=on(place, f"layer_{index}"))(params["own"][index], params["shared"], x)
            x = (x + y) / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1.0) if body == "outside" else y
        return squares(x, batch["y"])

    params = {"own": weights(4)[: len(where)], "shared": weights(5)[4]}
    train(sgd_step(loss, schedule=schedule), stages(max(where) + 1), params, batches(2))
