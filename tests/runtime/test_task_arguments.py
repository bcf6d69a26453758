"""What a task takes and gives back: any callable, any tree of arguments, closures, keywords, tasks in tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    all_devices,
    assert_close,
    ids,
    layer,
    normal,
    on,
    same,
    stages,
    submesh,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


@pytest.mark.parametrize(
    "dtypes", [("float32",), ("int16", "float32"), ("int8", "float64", "int32")], ids=lambda dtypes: "+".join(dtypes)
)
def test_sequence_of_tasks_on_lists_of_arrays(dtypes):
    def double(values):
        return [value + value for value in values]

    def fun(values):
        for index in range(3):
            values = mm.task(double, task=on(index))(values)
        return values

    values = [np.arange(4, dtype=dtype) for dtype in dtypes]
    _, found = same(fun, stages(3), values)
    assert_close(found, [jnp.asarray(8 * value) for value in values], 0)
    assert all(ids(value) == {2} for value in found)


@pytest.mark.parametrize("layers", [1, 3])
def test_task_of_checkpointed_layers_used_twice(layers):
    block = jax.checkpoint(layer)

    def deep(ws, x):
        for w in ws:
            x = block(w, x)
        return x

    def fun(params, x):
        def loss(params):
            return mm.task(deep, task=on(1))(params, mm.task(deep, task=on(0))(params, x)).sum()

        return jax.value_and_grad(loss)(params)

    same(fun, stages(2), weights(layers), normal(3, WIDTH))


def test_gradients_through_tasks_with_an_integer_argument():
    def scaled(x, y, scale):
        return (x * y * scale).sum()

    def fun(x, y, scale):
        def loss(x, y):
            z = mm.task(lambda x, y: x + y, task=on(0))(x, y)
            return mm.task(scaled, task=on(1))(z, y, 2) + mm.task(scaled, task=on(1))(z, x, scale)

        return jax.value_and_grad(loss, argnums=(0, 1))(x, y)

    x, y = np.arange(4.0), np.arange(4.0) + 1
    _, (value, (dx, _)) = same(fun, stages(2), x, y, 3)
    assert float(value) == float(((x + y) * y * 2 + (x + y) * x * 3).sum())
    assert_close(dx, jnp.asarray(2 * y + 3 * (2 * x + y)), 1e-12)


class Layer:
    """A callable object with state of its own, as the older tests of MultiMesh have it."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, w, x):
        return jnp.tanh(self.scale * (x @ w))


@pytest.mark.parametrize("kind", ["object", "method", "partial", "lambda", "jit"])
def test_any_callable_is_a_task(kind):
    model = Layer(0.5)
    fun = {
        "object": model,
        "method": model.__call__,
        "partial": functools.partial(lambda scale, w, x: jnp.tanh(scale * (x @ w)), 0.5),
        "lambda": lambda w, x: jnp.tanh(0.5 * (x @ w)),
        "jit": jax.jit(model.__call__),
    }[kind]
    meshes = [submesh(range(4), x=2, y=2), submesh(range(4, 8), x=2, y=2)]

    def step(params, x):
        def loss(params):
            value = x
            for index in range(2):
                value = mm.task(fun, mesh=meshes[index])(params[index], value)
            return (value**2).sum()

        return jax.value_and_grad(loss)(params)

    mesh = all_devices()
    sharded = jax.device_put(normal(4, WIDTH), NamedSharding(meshes[0].on(jax.devices()), P("x", "y")))
    _, (_, grads) = same(step, mesh, weights(2), sharded)
    assert [ids(g) for g in grads] == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_keyword_arguments_flags_and_strings():
    def block(w, x, *, gain=1.0, kind, train=False, mask=None):
        x = {"tanh": jnp.tanh, "sin": jnp.sin}[kind](x @ w) * gain
        if mask is not None:
            x = jnp.where(mask, x, 0.0)
        return x * 2.0 if train else x

    def fun(params, x, gain):
        y = mm.task(block, task=on(0))(params[0], x, kind="tanh", train=True, gain=gain)
        return mm.task(block, task=on(1))(w=params[1], x=y, kind="sin", mask=x > 0)

    same(fun, stages(2), weights(2), normal(3, WIDTH), 0.25)
    same(fun, stages(2), weights(2), x=normal(3, WIDTH), gain=np.asarray(0.25))


def test_closures_over_tracers_and_arrays():
    fixed = jnp.asarray(normal(WIDTH, seed=8))
    numpy_fixed = normal(3, WIDTH, seed=9)

    def fun(params, x, gain):
        def loss(params, gain):
            # `gain`, `x` and the weight are tracers of three levels.
            y = mm.task(lambda: jnp.tanh(x @ params[0]) * gain + fixed[None] + numpy_fixed, task=on(0))()
            z = mm.task(lambda y: jnp.tanh(y @ params[1]) * gain - fixed[None], task=on(1))(y)
            return (z**2).sum()

        return jax.grad(loss, argnums=(0, 1))(params, gain)

    same(fun, stages(2), weights(2), normal(3, WIDTH), np.asarray(0.3))


@pytest.mark.parametrize("outer_stage", [0, 1])
def test_outermost_of_nested_tasks_wins(outer_stage):
    def inner(w, x):
        return mm.task(layer, task=on(1 - outer_stage))(w, x)

    def fun(params, x):
        def loss(params):
            y = mm.task(lambda ps, x: inner(ps[1], inner(ps[0], x)), task=on(outer_stage))(params, x)
            return (y**2).sum()

        return jax.value_and_grad(loss)(params)

    _, (_, grads) = same(fun, stages(2), weights(2), normal(3, WIDTH))
    assert {frozenset(ids(g)) for g in grads} == {frozenset({outer_stage})}


def test_results_of_every_kind():
    def block(x):
        return {"a": x + 1, "b": (x.sum(), None, [x.astype(jnp.int32), 3, jnp.zeros((0, 2))]), "same": x, "x": x}

    def fun(x, unused):
        first = mm.task(block, task=on(0))(x)
        return mm.task(block, task=on(1))(first["a"]), first, unused

    same(fun, stages(2), np.arange(3.0), np.arange(2))


def test_task_without_arguments_or_results():
    def fun(x):
        table = mm.task(lambda: jnp.arange(4.0) * 2, task=on(1))()
        assert mm.task(lambda x: None, task=on(0))(x) is None
        assert mm.task(lambda x: (), task=on(0))(x) == ()
        return mm.task(lambda x, t: x * t, task=on(1))(x, table)

    _, found = same(fun, stages(2), np.arange(4.0))
    assert ids(found) == {1}


def test_task_inside_of_scan_cond_and_while_gives_the_same_values():
    def fun(params, x):
        x = mm.task(layer, task=on(0))(params[0], x)
        task = mm.task(layer, task=on(1))
        x, ys = jax.lax.scan(lambda x, w: (task(w, x), x.sum()), x, jnp.stack(params))
        x = jax.lax.cond(x.sum() > 0, lambda: task(params[1], x), lambda: x)
        x = jax.lax.fori_loop(0, 2, lambda _, x: task(params[0], x), x)
        return x, ys

    same(fun, stages(2), weights(2), normal(3, WIDTH))
