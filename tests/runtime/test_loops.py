"""What a microbatch loop takes and gives back, with and without tasks, with and without a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    SCHEDULES,
    WIDTH,
    assert_close,
    chain,
    ids,
    layer,
    normal,
    on,
    plain_chain,
    same,
    sgd,
    stages,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


def test_loop_over_one_task():
    fun = mm.microbatch(mm.task(lambda x: (x**2).sum(), task=on(1)), dim=0, size=2)
    _, found = same(fun, stages(2), np.arange(4.0))
    assert float(found) == 14.0
    assert_close(jax.jit(fun)(np.arange(4.0)), jnp.asarray(14.0), 0)
    assert_close(fun(np.arange(4.0)), jnp.asarray(14.0), 0)


def test_pytree_batch_with_work_before_and_after():
    def body(batch, w):
        y = mm.task(lambda b, w: b["a"] @ w + b["b"] * b["c"], task=on(0))(batch, w)
        return mm.task(lambda y: (y**2).sum(0), task=on(1))(y)

    def fun(batch, w):
        batch = jax.tree.map(lambda leaf: leaf * 2.0, batch)
        return mm.microbatch(body, size=2)(batch, w + 1.0) / 4.0

    batch = {"a": normal(4, 4), "b": normal(4, 1, seed=1), "c": normal(4, 1, seed=2)}
    same(fun, stages(2), batch, weights(1)[0])


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("schedule", [*SCHEDULES, "zero-bubble-h2"])
def test_named_layers_in_a_loop(schedule, num_stages):
    split = ("_activations", "_gradients") if schedule == "zero-bubble-h2" else None

    def body(params, x):
        for index, w in enumerate(params):
            with jax.named_scope(f"layer{index}"):
                x = layer(w, x)
        return (x**2).sum()

    mesh = stages(num_stages)
    mesh.register_task(
        r"(layer\d+)",
        callback=lambda group, backprop: mm.Task(
            name=f"{group}_bwd" if backprop else group,
            mesh_slice={"stage": int(group[-1]) % num_stages},
            split_backprop=split,
        ),
    )

    def step(params, x):
        value, grads = mm.microbatch(jax.value_and_grad(body), argnum=1, size=2, schedule=schedule)(params, x)
        return sgd(params, grads), value

    train(step, mesh, weights(2), [normal(8, WIDTH), normal(8, WIDTH, seed=5)])


def test_scopes_used_inside_and_outside_of_the_loop_with_an_inner_jit():
    @jax.jit
    def scoped(w, x):
        with jax.named_scope("layer0"):
            x = layer(w, x)
        with jax.named_scope("layer1"):
            return layer(w, x)

    mesh = stages(2)
    mesh.register_task(r"(layer\d)", callback=lambda group, _: on(int(group[-1]), group))

    def fun(w, x):
        x = scoped(w, x)
        total, grads = mm.microbatch(
            jax.value_and_grad(lambda w, x: (scoped(w, x) ** 2).sum()), argnum=1, size=2, schedule="1f1b"
        )(w, x)
        return scoped(w - grads, x) + total

    same(fun, mesh, weights(1)[0], normal(4, WIDTH))


def test_loop_without_any_task():
    def fun(w, x):
        return mm.microbatch(jax.value_and_grad(lambda w, x: (layer(w, x) ** 2).sum()), argnum=1, count=2)(w, x)

    same(fun, stages(2), weights(1)[0], normal(4, WIDTH))


def test_loop_with_tasks_before_and_after_on_other_submeshes():
    def fun(params, x):
        x = mm.task(layer, task=on(0))(params[0], x)
        value, grad = mm.microbatch(
            jax.value_and_grad(lambda w, x: (mm.task(layer, task=on(1))(w, x) ** 2).sum()), argnum=1, count=2
        )(params[1], x)
        return value, mm.task(lambda w, g: layer(w, g), task=on(2))(params[2], grad)

    _, (_, out) = same(fun, stages(3), weights(3), normal(4, WIDTH))
    assert ids(out) == {2}


def test_loop_of_one_microbatch_is_the_function_itself():
    fun = mm.microbatch(lambda x: (mm.task(jnp.cos, task=on(1))(x), x.sum()), size=4)
    same(fun, stages(2), np.arange(4.0))


def test_mean_and_mixed_reductions():
    def body(w, x):
        y = mm.task(layer, task=on(1))(w, x)
        return (y**2).mean(), {"count": jnp.asarray(y.shape[0]), "sum": y.sum()}

    def fun(w, x):
        return mm.microbatch(body, argnum=1, count=4, reduce=("mean", {"count": "sum", "sum": "sum"}))(w, x)

    w, x = weights(1)[0], normal(8, WIDTH)
    _, (mean, rest) = same(fun, stages(2), w, x)
    assert_close((mean, rest["sum"]), ((layer(w, x) ** 2).mean(), layer(w, x).sum()), 1e-12)
    assert int(rest["count"]) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, r"a batch of 8 examples along dim=0 cannot be cut evenly by size=3"),
        ({"count": 3}, r"cannot be cut evenly by count=3"),
        ({"size": 16}, r"cannot be cut evenly by size=16"),
        ({"size": 2, "dim": 2}, r"dim=2 is out of range for argument 1 of <lambda>, whose shape is \(8, 4\)"),
        ({"size": 2, "argnum": 2}, r"argnum=2 is the argument to slice"),
    ],
    ids=str,
)
def test_batches_that_cannot_be_cut_are_refused(options, message):
    fun = mm.microbatch(lambda w, x: mm.task(layer, task=on(0))(w, x).sum(), **{"argnum": 1, **options})
    for call in (fun, jax.jit(fun), mm.mjit(fun, mesh=stages(2))):
        with pytest.raises((ValueError, TypeError), match=message):
            call(weights(1)[0], normal(8, WIDTH))


def test_marked_functions_outside_of_any_compiled_step():
    args = (weights(2), normal(3, WIDTH))
    assert_close(chain(*args), plain_chain(*args), 1e-12)
    with stages(2):
        assert_close(chain(*args), plain_chain(*args), 1e-12)
        assert_close(jax.jit(chain)(*args), plain_chain(*args), 1e-12)
        loss = jax.value_and_grad(lambda p, x: (chain(p, x) ** 2).sum())
        plain = jax.value_and_grad(lambda p, x: (plain_chain(p, x) ** 2).sum())
        assert_close(loss(*args), plain(*args), 1e-12)


def test_transforms_ignored_at_call_time():
    step = mm.mjit(chain, mesh=stages(2))
    args = (weights(2), normal(3, WIDTH))
    inside = step(*args)
    with mm.ignore_transforms():
        outside = step(*args)
        with mm.ignore_transforms(False):
            again = step(*args)
    assert_close([inside, outside, again], [plain_chain(*args)] * 3, 1e-12)
    assert step.num_plans == 2
    assert (ids(inside), ids(again)) == ({1}, {1})
