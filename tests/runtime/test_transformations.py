"""Tasks and loops under `vmap`, `jvp`, `grad` and their compositions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    assert_close,
    batches,
    chain,
    ids,
    layer,
    normal,
    on,
    plain_chain,
    same,
    sgd,
    squares,
    stages,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


@pytest.mark.parametrize("where", ["task", "model"])
def test_vmap(where):
    def fun(params, xs):
        def loss(params):
            if where == "model":
                out = jax.vmap(chain, in_axes=(None, 0))(params, xs)
            else:
                out = xs
                for index, w in enumerate(params):
                    out = jax.vmap(mm.task(layer, task=on(index)), in_axes=(None, 0), out_axes=1)(w, out)
                    out = jnp.swapaxes(out, 0, 1)
            return (out**2).sum()

        return jax.value_and_grad(loss)(params)

    step, (_, grads) = same(fun, stages(2), weights(2), normal(5, 3, WIDTH))
    assert [ids(g) for g in grads] == [{0}, {1}]
    expected = jax.jit(jax.grad(lambda params: (plain_chain(params, normal(5, 3, WIDTH)) ** 2).sum()))(weights(2))
    assert_close(grads, expected, 1e-12)
    assert len(step.latest_plan.placement.submeshes.meshes) == 2


def test_per_example_gradients_inside_of_a_microbatch_loop():
    def fun(params, xs):
        def clipped(params, xs):
            grads = jax.vmap(jax.grad(lambda p, x: (chain(p, x[None]) ** 2).sum()), in_axes=(None, 0))(params, xs)
            norms = jnp.sqrt(sum((g**2).sum((1, 2)) for g in grads))
            return [(g * jnp.minimum(1.0, 0.5 / norms)[:, None, None]).sum(0) for g in grads]

        return mm.microbatch(clipped, argnum=1, count=3)(params, xs)

    same(fun, stages(2), weights(2), normal(6, WIDTH))


def test_vmap_keeps_constraints():
    def block(w, x):
        return layer(mm.with_sharding_constraint(w, P(None, "model")), mm.with_sharding_constraint(x, P("batch")))

    def fun(w, xs):
        placed = mm.task(block, mesh_slice={"stage": 1}, logical_axes=[("batch", "data"), ("model", "model")])
        return jax.vmap(placed, in_axes=(None, 0))(w, xs)

    with pytest.warns(UserWarning, match="is inside of a jax.vmap over examples"):
        same(fun, stages(2, data=2, model=2), weights(1)[0], normal(3, 4, WIDTH))


def test_forward_mode():
    def fun(params, x):
        tangents = jax.tree.map(jnp.ones_like, params)
        out, dot = jax.jvp(chain, (params, x), (tangents, x))
        jacobian = jax.jacfwd(lambda s: (chain(params, x * s) ** 2).sum())(2.0)
        linear = jax.linearize(lambda p: chain(p, x), params)[1](tangents)
        return out, dot, jacobian, linear

    args = (weights(2), normal(3, WIDTH))
    _, found = same(fun, stages(2), *args)
    expected = jax.jvp(plain_chain, args, (jax.tree.map(jnp.ones_like, args[0]), args[1]))
    assert_close(found[:2], tuple(expected), 1e-12)


@pytest.mark.parametrize("how", ["grad_of_grad", "hessian_vector", "hessian"])
def test_second_order(how):
    def fun(model, params, x):
        def loss(params):
            return (model(params, x) ** 2).sum()

        if how == "grad_of_grad":
            # A gradient penalty.
            return jax.grad(lambda p: sum((g**2).sum() for g in jax.grad(loss)(p)))(params)
        if how == "hessian_vector":
            return jax.jvp(jax.grad(loss), (params,), (jax.tree.map(jnp.ones_like, params),))[1]
        return jax.hessian(lambda s: loss([s * p for p in params]))(1.5)

    args = (weights(2), normal(3, WIDTH))
    _, found = same(functools.partial(fun, chain), stages(2), *args)
    assert_close(found, fun(plain_chain, *args), 1e-11)


def test_gradient_penalty_in_a_pipeline():
    def step(params, batch):
        def loss(params, batch):
            gradient = jax.grad(lambda x: chain(params, x).sum())(batch["x"])
            return squares(chain(params, batch["x"]), batch["y"]) + 0.1 * (gradient**2).sum()

        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(params, batch)
        return sgd(params, grads), value

    train(step, stages(2), weights(2), batches(2))


def test_second_order_under_plain_jit_alone():
    def loss(model, params, x):
        return (model(params, x) ** 2).sum()

    args = (weights(2), normal(3, WIDTH))
    found = jax.jit(jax.hessian(functools.partial(loss, chain)))(*args)
    assert_close(found, jax.jit(jax.hessian(functools.partial(loss, plain_chain)))(*args), 1e-11)


def test_compiled_step_inside_of_other_transformations():
    step = mm.mjit(lambda params, x: (chain(params, x) ** 2).sum(), mesh=stages(2))
    args = (weights(2), normal(3, WIDTH))
    expected = (plain_chain(*args) ** 2).sum()
    with pytest.warns(UserWarning, match="as a part of its own"):
        assert_close(jax.jit(step)(*args), expected, 1e-12)
    with pytest.warns(UserWarning, match="as a part of its own"):
        found = jax.grad(step)([jnp.asarray(w) for w in args[0]], args[1])
    gradient = jax.jit(jax.grad(lambda params: (plain_chain(params, args[1]) ** 2).sum()))
    assert_close(found, gradient(args[0]), 1e-12)


def test_differentiated_loop_is_refused_with_the_way_out():
    def loss(params, x):
        return mm.microbatch(lambda p, x: (chain(p, x) ** 2).sum(), argnum=1, count=2)(params, x)

    args = (weights(2), normal(4, WIDTH))
    for transformed in (
        jax.grad(loss),
        jax.grad(loss, argnums=1),
        lambda p, x: jax.jvp(loss, (p, x), (p, x)),
        lambda p, x: jax.jvp(lambda x: loss(p, x), (x,), (x,)),
        jax.checkpoint(jax.grad(loss)),
    ):
        message = r"loop at .*transformations\.py:\d+.* differentiated.*mm\.microbatch\(jax\.value_and_grad\(loss\)"
        with pytest.raises(ValueError, match=message):
            mm.mjit(transformed, mesh=stages(2))(*args)
    # One device has no such limit.
    expected = jax.jit(jax.grad(lambda params: (plain_chain(params, args[1]) ** 2).sum()))(args[0])
    assert_close(jax.jit(jax.grad(loss))(*args), expected, 1e-12)


def test_a_mapped_loop_is_a_pipeline():
    def total(w, x):
        return (mm.task(layer, task=on(1))(w, x) ** 2).sum()

    w, xs = weights(1)[0], normal(3, 4, WIDTH)
    separate = mm.microbatch(jax.value_and_grad(total), argnum=1, count=2)
    _, found = same(jax.vmap(separate, in_axes=(None, 0)), stages(2), w, xs)
    _, over_columns = same(jax.vmap(separate, in_axes=(None, 1), out_axes=-1), stages(2), w, xs.swapaxes(0, 1))
    mapped = jax.vmap(jax.value_and_grad(total), in_axes=(None, 0))
    _, inside = same(mm.microbatch(mapped, dim=1, argnum=1, count=2), stages(2), w, xs)
    assert_close(found, inside, 1e-12)
    assert_close(over_columns[1], np.moveaxis(inside[1], 0, -1), 1e-12)


def test_a_loop_that_is_differentiated_and_mapped_is_refused():
    def outside(w, xs):
        summed = mm.microbatch(lambda w, x: (layer(w, x) ** 2).sum(), argnum=1, count=2)
        return jax.vmap(jax.grad(summed), in_axes=(None, 0))(w, xs)

    with pytest.raises(ValueError, match=r"loop at .*test_transformations\.py:\d+.* was itself differentiated"):
        mm.mjit(outside, mesh=stages(2))(weights(1)[0], normal(3, 4, WIDTH))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_gradients_equal_finite_differences(schedule):
    def total(params, x):
        out = x
        for index, w in enumerate(params):
            halves = mm.Task(mesh_slice={"stage": index}, split_backprop=("_activations", "_gradients"))
            out = mm.task(layer, name=f"layer_{index}", task=halves)(w, out)
        return (out**2).sum()

    def with_gradients(params, x):
        return mm.microbatch(jax.value_and_grad(total), argnum=1, count=2, schedule=schedule)(params, x)

    step = mm.mjit(with_gradients, mesh=stages(2))
    params, x, epsilon = weights(2), normal(4, WIDTH), 1e-5
    _, grads = step(params, x)
    for index, w in enumerate(params):
        for entry in np.ndindex(*w.shape):
            moved = np.zeros_like(w)
            moved[entry] = epsilon
            above, below = (
                float(step([p + sign * moved if k == index else p for k, p in enumerate(params)], x)[0])
                for sign in (1, -1)
            )
            assert abs(float(grads[index][entry]) - (above - below) / (2 * epsilon)) < 1e-7


def test_unrolling_is_accepted_and_changes_nothing():
    def step(unrolling, params, x):
        loss = jax.value_and_grad(lambda params, x: (chain(params, x) ** 2).sum())
        return mm.microbatch(loss, argnum=1, count=4, schedule="1f1b", unrolling=unrolling)(params, x)

    args = weights(2), normal(4, WIDTH)
    first, *others = (same(functools.partial(step, unrolling), stages(2), *args) for unrolling in (None, 1, 4))
    for other in others:
        assert other[0].explain().runs_per_step == first[0].explain().runs_per_step
        assert other[0].explain().loops[0].order == first[0].explain().loops[0].order
        assert_close(other[1], first[1], 0)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_values_of_few_elements_are_placed_like_others(width):
    def fun(params, x):
        def loss(params):
            hidden = x
            for index, part in enumerate(params):
                y = mm.task(layer, task=on(index))(part["w"], hidden)
                hidden = hidden + y * part["scale"] + part["bias"]
            return (hidden**2).sum() + jnp.outer(hidden[0], hidden[0]).sum()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params = [{"w": w, "scale": np.ones((1, width)), "bias": np.ones((1, width))} for w in weights(2, width)]
    step, (new, _) = same(fun, stages(2), params, normal(1, width))
    assert [ids(part["w"]) for part in new] == [{0}, {1}]
    assert [ids(part["scale"]) for part in new] == [{0}, {1}]
    assert len(step.explain().transfers) == 3


def test_nested_loops_are_refused():
    def inner(w, x):
        return mm.microbatch(lambda w, x: (mm.task(layer, task=on(1))(w, x) ** 2).sum(), argnum=1, count=2)(w, x)

    def outer(w, x):
        return mm.microbatch(lambda w, x: inner(w, mm.task(layer, task=on(0))(w, x)), argnum=1, count=2)(w, x)

    with pytest.raises(ValueError, match=r"loop at .*transformations\.py:\d+.* lies inside another microbatch loop"):
        mm.mjit(outer, mesh=stages(2))(weights(1)[0], normal(4, WIDTH))
