"""Numbers of microbatches, shapes of batches, and outputs of pipelined steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    SCHEDULES,
    WIDTH,
    adam_state,
    adam_step,
    assert_close,
    assert_equal,
    batches,
    four_layers,
    ids,
    in_stages,
    layer,
    normal,
    on,
    same,
    sgd,
    sgd_step,
    squares,
    stages,
    train,
    value_and_grad,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


@pytest.mark.parametrize(
    ("count", "schedule"), [(1, "1f1b"), (2, "gpipe"), (2, "1f1b"), (3, "wavefront"), (3, "zb-h2")]
)
def test_fewer_microbatches_than_stages(count, schedule):
    train(sgd_step(four_layers, count=count, schedule=schedule), stages(4), weights(4), batches(2, examples=6))


@pytest.mark.optimized
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
    assert step.num_plans == 3


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
