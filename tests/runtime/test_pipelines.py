"""Training steps that other pipeline runtimes get wrong, against plain `jax.jit` of the same marked step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import (
    SCHEDULES,
    WIDTH,
    adam,
    adam_state,
    assert_close,
    assert_equal,
    batches,
    ids,
    layer,
    normal,
    on,
    same,
    sgd,
    squares,
    stages,
    train,
    weights,
)

pytestmark = pytest.mark.usefixtures("double")


def in_stages(params, x, count):
    """Layer i on stage i."""
    for index in range(count):
        x = mm.task(layer, task=on(index))(params[index], x)
    return x


def value_and_grad(loss, **options):
    """The loss and its gradient over microbatches."""
    options.setdefault("count", 4)
    return mm.microbatch(jax.value_and_grad(loss), argnum=1, **options)


def sgd_step(loss, **options):
    def step(params, batch):
        value, grads = value_and_grad(loss, **options)(params, batch)
        return sgd(params, grads), value

    return step


def adam_step(loss, **options):
    def step(state, batch):
        value, grads = value_and_grad(loss, **options)(state["params"], batch)
        return adam(state, grads), value

    return step


# Weights that several stages share.


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


# Optimizers that look at all gradients.


def global_norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def four_layers(params, batch):
    return squares(in_stages(params, batch["x"], 4), batch["y"])


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
        value, grads = value_and_grad(four_layers, schedule="1f1b", reduce="mean")(state["params"], batch)
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


# Numbers of microbatches, shapes, outputs.


@pytest.mark.parametrize(
    ("count", "schedule"), [(1, "1f1b"), (2, "gpipe"), (2, "1f1b"), (3, "wavefront"), (3, "zb-h2")]
)
def test_fewer_microbatches_than_stages(count, schedule):
    train(sgd_step(four_layers, count=count, schedule=schedule), stages(4), weights(4), batches(2, examples=6))


def test_schedules_agree_bitwise():
    results = []
    for schedule in SCHEDULES:
        step = mm.mjit(adam_step(four_layers, count=8, schedule=schedule), mesh=stages(4))
        state, losses = adam_state(weights(4)), []
        for batch in batches(2):
            state, value = step(state, batch)
            losses.append(value)
        results.append((state, losses))
    for other in results[1:]:
        assert_equal(other, results[0])


def test_another_batch_shape_on_a_later_call():
    fun = sgd_step(four_layers, count=2, schedule="1f1b")
    step, plain = mm.mjit(fun, mesh=stages(4)), jax.jit(fun)
    found = expected = weights(4)
    for examples in (8, 4, 8, 2):
        (batch,) = batches(1, examples=examples)
        found, one = step(found, batch)
        expected, other = plain(expected, batch)
        assert_close((found, one), (expected, other), 1e-12)
    assert len(step._plans) == 3


def test_another_number_of_microbatches_and_tree_on_a_later_call():
    def loss(params, batch):
        x = in_stages(params, batch["x"], len(params))
        return squares(x, batch["y"]) if "y" in batch else (x**2).sum()

    def fun(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, size=2)(params, batch)
        return sgd(params, grads), value

    step, plain = mm.mjit(fun, mesh=stages(4)), jax.jit(fun)
    for examples, layers, keys in [(8, 4, "xy"), (4, 4, "xy"), (4, 3, "x"), (2, 2, "x"), (8, 4, "xy")]:
        (batch,) = batches(1, examples=examples)
        batch = {key: batch[key] for key in keys}
        assert_close(step(weights(layers), batch), plain(weights(layers), batch), 1e-12)


def test_passthrough_and_literal_outputs_and_one_value_twice():
    constant = jnp.asarray(normal(3, seed=9))

    def fun(params, batch):
        value, grads = value_and_grad(four_layers)(params, batch)
        params_now = sgd(params, grads)
        return (
            params_now,
            value,
            value,
            params_now[0],
            params[2],
            batch["x"],
            batch["unused"],
            3,
            2.5,
            jnp.zeros((2,)),
            constant,
            grads[1],
            grads[1],
            None,
            {"steps": jnp.asarray(7, jnp.int32)},
        )

    batch = {**batches(1)[0], "unused": np.arange(8, dtype=np.int32)}
    plain = jax.jit(fun)(weights(4), batch)
    step = mm.mjit(fun, mesh=stages(4))
    found = step(weights(4), batch)
    assert_close(found, plain, 1e-12)
    assert_close(step(found[0], batch), jax.jit(fun)(plain[0], batch), 1e-12)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))


def test_only_passthrough_and_literals():
    same(lambda x, y: (x, 1, jnp.ones((2,))), stages(2), np.arange(3.0), np.arange(2.0))


def test_argument_passed_twice_and_outputs_fed_to_several_inputs():
    def fun(a, b, batch):
        value, (ga, gb) = mm.microbatch(
            jax.value_and_grad(lambda p, x: (in_stages(p, x, 2) ** 2).sum()), argnum=1, count=2
        )((a, b), batch)
        return a - 0.1 * ga, b - 0.1 * gb, value

    step, plain = mm.mjit(fun, mesh=stages(2)), jax.jit(fun)
    w, x = jnp.asarray(weights(1)[0]), normal(4, WIDTH)
    found, expected = step(w, w, x), plain(w, w, x)
    assert_close(found, expected, 1e-12)
    # Swapped: each is now where the other should be.
    assert_close(step(found[1], found[0], x), plain(expected[1], expected[0], x), 1e-12)


def test_two_microbatch_loops_in_one_step():
    def step(params, batch):
        value, grads = value_and_grad(four_layers, schedule="1f1b")(params, batch)
        params = sgd(params, grads)
        after = mm.microbatch(four_layers, argnum=1, count=2)(params, batch)
        again, grads = value_and_grad(four_layers, count=8, schedule="gpipe")(params, batch)
        return sgd(params, grads), {"before": value, "after": after, "again": again}

    train(step, stages(4), weights(4), batches(2))


def test_two_loops_over_different_stages():
    """A generator on stages 0 and 1, a critic on 2 and 3."""

    def generate(params, x):
        return in_stages(params, x, 2)

    def judge(params, x):
        for index in range(2):
            x = mm.task(layer, task=on(2 + index))(params[index], x)
        return x.sum()

    def step(state, batch):
        def critic_loss(critic, batch):
            fake = jax.lax.stop_gradient(generate(state["generator"], batch["x"]))
            return judge(critic, fake) - judge(critic, batch["y"])

        first, critic_grads = value_and_grad(critic_loss, schedule="1f1b")(state["critic"], batch)
        critic = sgd(state["critic"], critic_grads)

        def generator_loss(generator, batch):
            return -judge(critic, generate(generator, batch["x"]))

        second, grads = value_and_grad(generator_loss, schedule="1f1b")(state["generator"], batch)
        return {"generator": sgd(state["generator"], grads), "critic": critic}, (first, second)

    params = weights(4)
    train(step, stages(4), {"generator": params[:2], "critic": params[2:]}, batches(2))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_forward_only(schedule):
    def evaluate(params, batch):
        def metrics(params, batch):
            out = in_stages(params, batch["x"], 4)
            return {"loss": squares(out, batch["y"]), "right": (out > batch["y"]).sum()}

        return mm.microbatch(metrics, argnum=1, count=4, schedule=schedule)(params, batch)

    _, found = same(evaluate, stages(4), weights(4), batches(1)[0])
    assert found["right"].dtype == jnp.int64


def test_forward_only_without_microbatches():
    _, found = same(lambda params, x: in_stages(params, x, 4), stages(4), weights(4), normal(8, WIDTH))
    assert ids(found) == {3}


def test_prediction_returned_by_a_loop_that_adds_into_its_place():
    """Results of the whole batch come out of a loop by scattering each microbatch into zeros."""

    def predict(params, batch):
        def one(params, batch):
            return jnp.zeros((8, WIDTH)).at[batch["row"]].set(in_stages(params, batch["x"], 2))

        return mm.microbatch(one, argnum=1, count=4)(params, batch)

    batch = {"x": normal(8, WIDTH), "row": np.arange(8)}
    _, found = same(predict, stages(2), weights(2), batch)
    assert_close(found, in_stages(weights(2), batch["x"], 2), 1e-12)


@pytest.mark.parametrize("dim", [1, -1])
def test_microbatches_of_another_dimension(dim):
    def loss(params, x):
        return (in_stages(params, jnp.swapaxes(x, 0, 1), 2) ** 2).sum()

    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), dim=dim, size=2, argnum=1, schedule="1f1b")(
            params, batch
        )
        return sgd(params, grads), value

    train(step, stages(2), weights(2), [normal(WIDTH, 8)] * 2)


# Shapes of the graph.


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


# Schedules that split the backward pass.


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


# What stands inside and around of tasks.


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


# Types.


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


# Submeshes with axes of their own.


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


# Registered scopes.


def scoped(params, batch):
    x = batch["x"]
    for index in range(len(params)):
        with jax.named_scope(f"layer{index}"):
            x = layer(params[index], x)
    return squares(x, batch["y"])


def by_number(group, backprop):
    return mm.Task(mesh_slice={"stage": int(group[-1])}, name=f"{group}{'_bwd' if backprop else ''}")


@pytest.mark.parametrize("remat", [None, "layer", "whole"])
def test_registered_scopes(remat):
    def loss(params, batch):
        x = batch["x"]
        for index in range(3):
            with jax.named_scope(f"layer{index}"):
                x = (jax.checkpoint(layer) if remat == "layer" else layer)(params[index], x)
        return squares(x, batch["y"])

    if remat == "whole":
        loss = jax.checkpoint(loss)
    mesh = stages(3)
    mesh.register_task(r"(layer\d+)", callback=by_number)
    _, params = train(sgd_step(loss, schedule="1f1b"), mesh, weights(3), batches(2))
    assert [ids(w) for w in params] == [{0}, {1}, {2}]


def test_registered_tasks_and_tasks_agree():
    mesh = stages(3)
    for index in range(3):
        mesh.register_task(f"layer{index}", task=on(index))
    by_scope, _ = mm.mjit(sgd_step(scoped), mesh=mesh)(weights(3), batches(1)[0])

    def loss(params, batch):
        return squares(in_stages(params, batch["x"], 3), batch["y"])

    by_task, _ = mm.mjit(sgd_step(loss), mesh=stages(3))(weights(3), batches(1)[0])
    assert_close(by_scope, by_task, 1e-12)
    assert [ids(w) for w in by_scope] == [ids(w) for w in by_task]


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "remat"])
def test_flax_module_names(remat):
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.tanh(nn.Dense(WIDTH, param_dtype=jnp.float64)(nn.LayerNorm(param_dtype=jnp.float64)(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            block = nn.remat(Block) if remat else Block
            for index in range(4):
                x = block(name=f"layer_{index}")(x)
            return nn.Dense(WIDTH, name="head", param_dtype=jnp.float64)(x)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        net = Net()
        params = net.init(jax.random.key(0), normal(2, WIDTH))

        def loss(params, batch):
            return squares(net.apply(params, batch["x"]), batch["y"])

        mesh = stages(4)
        mesh.register_task(r"(layer_\d+)", callback=by_number)
        _, params = train(sgd_step(loss, schedule="1f1b"), mesh, params, batches(2))
    for index in range(4):
        assert [ids(leaf) for leaf in jax.tree.leaves(params["params"][f"layer_{index}"])] == [{index}] * 4
    assert ids(params["params"]["head"]["kernel"]) == {3}


def test_flax_modules_as_tasks_with_dropout_and_batch_statistics():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Dense(WIDTH, param_dtype=jnp.float64)(x)
            x = nn.BatchNorm(use_running_average=not train, param_dtype=jnp.float64)(x)
            return nn.Dropout(0.5)(nn.tanh(x), deterministic=not train)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            for index in range(2):
                x = mm.task(Block(name=f"layer_{index}"), task=on(index))(x, train=train)
            return x

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        net = Net()
        variables = net.init(jax.random.key(0), normal(2, WIDTH), train=False)

        def step(state, batch):
            key, used = jax.random.split(state["key"])

            def loss(params):
                out, updated = net.apply(
                    {"params": params, "batch_stats": state["stats"]},
                    batch["x"],
                    mutable=["batch_stats"],
                    rngs={"dropout": used},
                )
                return squares(out, batch["y"]), updated["batch_stats"]

            (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
            return {"params": sgd(state["params"], grads), "stats": stats, "key": key}, value

        stats = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), variables["batch_stats"])
        state = {"params": variables["params"], "stats": stats, "key": jax.random.key(1)}
        _, state = train(step, stages(2), state, batches(3), rtol=1e-11)
    for index in range(2):
        for part in ("params", "stats"):
            assert {frozenset(ids(leaf)) for leaf in jax.tree.leaves(state[part][f"layer_{index}"])} == {
                frozenset({index})
            }
