"""What tasks and microbatch loops do with arguments, transformations, donation, and submeshes of any shape."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import (
    SCHEDULES,
    WIDTH,
    assert_close,
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


def submesh(devices, **axes):
    return mm.TaskMesh(devices=devices, axis_sizes=tuple(axes.values()), axis_names=tuple(axes))


def all_devices(**axes):
    return mm.MultiMesh(axis_sizes=tuple(axes.values()) or (8,), axis_names=tuple(axes) or ("x",))


def chain(params, x):
    for index, w in enumerate(params):
        x = mm.task(layer, task=on(index))(w, x)
    return x


def plain_chain(params, x):
    for w in params:
        x = layer(w, x)
    return x


def shard_shape(array):
    return array.sharding.shard_shape(array.shape)


# Tasks.


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


# Transformations.


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
    expected = jax.grad(lambda params: (plain_chain(params, normal(5, 3, WIDTH)) ** 2).sum())(weights(2))
    assert_close(grads, expected, 1e-12)
    assert len(step._latest.placement.submeshes.meshes) == 2


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
    assert_close(found, jax.hessian(functools.partial(loss, plain_chain))(*args), 1e-11)


def test_compiled_step_inside_of_other_transformations():
    step = mm.mjit(lambda params, x: (chain(params, x) ** 2).sum(), mesh=stages(2))
    args = (weights(2), normal(3, WIDTH))
    expected = (plain_chain(*args) ** 2).sum()
    assert_close(jax.jit(step)(*args), expected, 1e-12)
    assert_close(
        jax.grad(step)([jnp.asarray(w) for w in args[0]], args[1]),
        jax.grad(lambda params: (plain_chain(params, args[1]) ** 2).sum())(args[0]),
        1e-12,
    )


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
        message = r"loop at .*test_behaviours\.py:\d+.* differentiated.*mm\.microbatch\(jax\.value_and_grad\(loss\)"
        with pytest.raises(ValueError, match=message):
            mm.mjit(transformed, mesh=stages(2))(*args)
    # One device has no such limit.
    expected = jax.grad(lambda params: (plain_chain(params, args[1]) ** 2).sum())(args[0])
    assert_close(jax.jit(jax.grad(loss))(*args), expected, 1e-12)


def test_mapped_loop_is_refused_with_the_way_out():
    def total(w, x):
        return (mm.task(layer, task=on(1))(w, x) ** 2).sum()

    w, xs = weights(1)[0], normal(3, 4, WIDTH)

    def outside(w, xs):
        return jax.vmap(mm.microbatch(jax.value_and_grad(total), argnum=1, count=2), in_axes=(None, 0))(w, xs)

    message = r"loop at .*test_behaviours\.py:\d+.* mapped by jax\.vmap.*mm\.microbatch\(jax\.vmap\(fun\), dim=1"
    with pytest.raises(ValueError, match=message):
        mm.mjit(outside, mesh=stages(2))(w, xs)
    directly = jax.vmap(mm.microbatch(lambda x: total(w, x), count=2))
    with pytest.raises(ValueError, match=r"^microbatch: the loop was itself mapped by jax\.vmap"):
        mm.mjit(directly, mesh=stages(2))(xs)
    mapped = jax.vmap(jax.value_and_grad(total), in_axes=(None, 0))
    _, found = same(mm.microbatch(mapped, dim=1, argnum=1, count=2), stages(2), w, xs)
    assert_close(found, jax.jit(outside)(w, xs), 1e-12)


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
    assert [ids(part["scale"]) for part in new] == [{1}, {1}]
    assert len(step.explain().transfers) == 3


def test_nested_loops_are_refused():
    def inner(w, x):
        return mm.microbatch(lambda w, x: (mm.task(layer, task=on(1))(w, x) ** 2).sum(), argnum=1, count=2)(w, x)

    def outer(w, x):
        return mm.microbatch(lambda w, x: inner(w, mm.task(layer, task=on(0))(w, x)), argnum=1, count=2)(w, x)

    with pytest.raises(ValueError, match=r"loop at .*test_behaviours\.py:\d+.* lies inside another microbatch loop"):
        mm.mjit(outer, mesh=stages(2))(weights(1)[0], normal(4, WIDTH))


# Donation.


def test_donation_of_one_argument():
    step = mm.mjit(lambda x: mm.task(lambda x: x * 2, task=on(0))(x), mesh=stages(2), donate_argnums=0)
    mesh = stages(2).slice(stage=0)
    x = jax.device_put(np.arange(4.0), NamedSharding(mesh, P()))
    assert_close(step(x), jnp.arange(4.0) * 2, 0)
    assert x.is_deleted()


def test_donation_of_several_arguments_with_an_output_that_is_an_input():
    def fun(a, b, c):
        first = mm.task(lambda a, b: a + b, task=on(0))(a, b)
        return first, b, mm.task(lambda c, f: c * f, task=on(1))(c, first), a

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=(0, 2))
    values = [np.arange(4.0) + k for k in range(3)]
    home = [NamedSharding(stages(2).slice(stage=stage), P()) for stage in (0, 0, 1)]
    a, b, c = jax.device_put(values, home)
    found = step(a, b, c)
    assert_close(found, jax.jit(fun)(*values), 0)
    # `a` is handed back and `b` was not donated.
    assert not b.is_deleted()
    assert_close(b, jnp.asarray(values[1]), 0)
    assert c.is_deleted()


@pytest.mark.parametrize("donated", [(), (0,), (0, 1)], ids=str)
def test_donation_of_sharded_arguments(donated):
    def fun(x, y):
        return mm.task(lambda x, y: (x + y, x - y), task=on(0))(x, y), mm.task(jnp.cos, task=on(1))(x)

    mesh = stages(2, data=2)
    layout = NamedSharding(mesh.slice(stage=0), P("data"))
    step = mm.mjit(fun, mesh=mesh, donate_argnums=donated)
    expected = jax.jit(fun)(np.arange(4.0), np.ones(4))
    for _ in range(2):
        x, y = jax.device_put((np.arange(4.0), np.ones(4)), layout)
        assert_close(step(x, y), expected, 1e-12)
        for position, array in enumerate((x, y)):
            if position not in donated:
                assert_close(array, jnp.asarray((np.arange(4.0), np.ones(4))[position]), 0)


def test_three_traced_steps_with_donation_in_closed_form():
    """y = a * b * x with sgd on the sum: every step is known by hand."""

    def step(params, x):
        def loss(params):
            hidden = mm.task(lambda a, x: a * x, task=on(0))(params["a"], x)
            return mm.task(lambda b, h: (b * h).sum(), task=on(1))(params["b"], hidden)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.1), value

    compiled = mm.mjit(step, mesh=stages(2), donate_argnums=0)
    x = np.arange(3.0)
    a, b = np.full(3, 2.0), np.full(3, 3.0)
    params = {"a": jnp.asarray(a), "b": jnp.asarray(b)}
    for _ in range(3):
        params, value = compiled(params, x)
        assert abs(float(value) - float((a * b * x).sum())) < 1e-12
        a, b = a - 0.1 * b * x, b - 0.1 * a * x
        assert_close(params, {"a": jnp.asarray(a), "b": jnp.asarray(b)}, 1e-12)
    assert [ids(params["a"]), ids(params["b"])] == [{0}, {1}]


def test_state_whose_entries_share_an_array_can_be_donated():
    """A step that resets an average to the parameters returns one value several times."""

    def step(state, x):
        w = mm.task(lambda a, b, c, x: a - 0.1 * x + 0.1 * b - 0.2 * c, task=on(0))(
            state["w"], state["fast"], state["slow"], x
        )
        v = mm.task(lambda v, w: v - 0.1 * w, task=on(1))(state["v"], w)
        return {"w": w, "fast": w, "slow": w, "v": v, "start": state["start"], "zero": jnp.zeros(4)}, x.sum()

    state = {name: np.ones(4) for name in ("w", "fast", "slow", "v", "start", "zero")}
    train(step, stages(2), state, [np.arange(4.0)] * 3, donate_argnums=0)


def test_input_that_is_handed_through_is_the_callers_and_the_result_another_array():
    def fun(state, x):
        y = mm.task(lambda a, x: a + x, task=on(0))(state["a"], x)
        return {"a": x, "b": mm.task(lambda b, y: b + y, task=on(1))(state["b"], y)}, x

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=0)
    x = jax.device_put(np.arange(4.0), NamedSharding(stages(2).slice(stage=0), P()))
    state = {"a": np.ones(4), "b": np.ones(4)}
    for _ in range(3):
        state, same_x = step(state, x)
    assert not x.is_deleted()
    assert not same_x.is_deleted()
    # b grows by a + x, where a is 1 at first and x afterwards.
    assert_close(state["b"], jnp.asarray(2 + 5 * np.arange(4.0)), 1e-12)
    assert_close(x, jnp.arange(4.0), 0)


def test_constants_and_literals_given_back_survive_donation():
    constant = jnp.arange(4.0)

    def step(state, x):
        used = mm.task(lambda a, c, x: a * c + x, task=on(0))(state["a"], state["c"] + constant, x)
        more = mm.task(lambda b, x: b + x, task=on(1))(state["b"], used)
        return {"a": constant, "b": more, "c": jnp.zeros(4), "n": 0.0 * 0}, used

    state = {"a": np.ones(4), "b": np.ones(4), "c": np.ones(4), "n": np.asarray(1.0)}
    train(step, stages(2), state, [np.arange(4.0)] * 4, donate_argnums=0)
    assert_close(constant, jnp.arange(4.0), 0)


def test_donation_by_name_and_static_arguments():
    def fun(state, x, *, times, extra):
        for _ in range(times):
            state = mm.task(lambda s, x: s + x, task=on(0))(state, x)
        return state, mm.task(lambda s, e: s * e, task=on(1))(state, extra)

    step = mm.mjit(fun, mesh=stages(2), donate_argnames="state", static_argnames="times")
    for times in (1, 3, 1):
        state = jax.device_put(np.zeros(3), NamedSharding(stages(2).slice(stage=0), P()))
        found = step(state, np.ones(3), times=times, extra=np.full(3, 2.0))
        assert_close(found, (jnp.full(3, float(times)), jnp.full(3, 2.0 * times)), 0)
    assert len(step._plans) == 2


def test_state_may_start_as_numbers():
    def step(state, x):
        w = mm.task(lambda w, r, x: w - r * x, task=on(1))(state["w"], state["rate"], x)
        return {"n": state["n"] + 1, "rate": state["rate"] * 0.5, "w": w}, w.sum()

    train(step, stages(2), {"n": 0, "rate": 1.0, "w": np.ones(4)}, [np.arange(4.0)] * 3)


def test_state_passed_by_keyword_stays_in_place():
    def step(*, state, batch):
        value, grads = mm.microbatch(
            jax.value_and_grad(lambda p, b: squares(chain(p, b["x"]), b["y"])), argnum=1, count=2
        )(state, batch)
        return sgd(state, grads), value

    compiled = mm.mjit(step, mesh=stages(2), donate_argnames="state")
    state = weights(2)
    for batch in batches(3):
        state, _ = compiled(state=state, batch=batch)
    assert compiled._latest.runner.misplaced == 2
    assert len(compiled._plans) == 1


def test_callbacks_inside_and_outside_of_tasks():
    seen = []

    def note(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())

    def noisy(w, x):
        note(x)
        return layer(w, x)

    def loss(params, batch):
        x = batch["x"]
        for index, w in enumerate(params):
            x = mm.task(noisy, task=on(index))(w, x)
        note(x)
        return squares(x, batch["y"])

    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(params, batch)
        note(value)
        return sgd(params, grads), value

    noted = []
    for compiled in (mm.mjit(step, mesh=stages(2)), jax.jit(step)):
        seen.clear()
        compiled(weights(2), batches(1)[0])
        jax.effects_barrier()
        noted.append(sorted(seen))
    assert len(noted[0]) == 13
    # The thread that calls back may not know that this one computes in double precision.
    np.testing.assert_allclose(noted[0], noted[1], rtol=1e-6)


# Submeshes of any shape.


def test_unequal_submeshes():
    """One, four and two devices."""
    meshes = [submesh([0], x=1), submesh([1, 2, 3, 4], x=2, y=2), submesh([5, 6], x=2)]

    def step(params, batch):
        def loss(params, batch):
            x = batch["x"]
            for w, mesh in zip(params, meshes, strict=True):
                x = mm.task(
                    lambda w, x: layer(w, mm.with_sharding_constraint(x, P("batch", "hidden"))),
                    mesh=mesh,
                    logical_axes=[("batch", "x"), ("hidden", "y" if "y" in mesh.mesh.axis_names else None)],
                    name=f"on_{mesh.devices.size}",
                )(w, x)
            return squares(x, batch["y"])

        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(params, batch)
        return sgd(params, grads), value

    _, params = train(step, all_devices(), weights(3), batches(2))
    assert [ids(w) for w in params] == [{0}, {1, 2, 3, 4}, {5, 6}]


def test_submeshes_that_are_not_contiguous_or_not_in_order():
    meshes = [submesh([6, 0, 3], x=3), submesh([5, 1], x=2)]

    def fun(params, x):
        def loss(params):
            y = mm.task(lambda w, x: layer(w, mm.with_sharding_constraint(x, P("x"))), mesh=meshes[0])(params[0], x)
            return mm.task(lambda w, y: layer(w, mm.with_sharding_constraint(y, P(None, "x"))).sum(), mesh=meshes[1])(
                params[1], y
            )

        return jax.value_and_grad(loss)(params)

    _, (_, grads) = same(fun, all_devices(), weights(2), normal(6, WIDTH))
    assert [ids(g) for g in grads] == [{0, 3, 6}, {1, 5}]


def test_reshard_between_submeshes_of_other_sizes_that_share_devices():
    """layer0 on 0-3, layer1 on 0-1, the arguments cut over four."""
    wide, narrow = submesh(range(4), batch=4, model=1), submesh(range(2), batch=2, model=1)

    def block(w, x):
        x = mm.with_sharding_constraint(x, P("batch", None))
        return mm.with_sharding_constraint(x @ w, P("batch", "model"))

    def fun(w0, w1, x):
        def loss(ws):
            y = mm.task(block, mesh=wide, name="layer0")(ws[0], x)
            z = mm.task(block, mesh=narrow, name="layer1")(ws[1], y)
            return (z**2).sum(), z

        (value, out), grads = jax.value_and_grad(loss, has_aux=True)((w0, w1))
        return value, out, grads

    mesh = all_devices()
    layout = NamedSharding(wide.on(jax.devices()), P("batch"))
    args = jax.device_put((*weights(2), normal(8, WIDTH)), layout)
    _, (_, out, grads) = same(fun, mesh, *args)
    assert ids(out) == {0, 1}
    assert shard_shape(out) == (4, WIDTH)
    assert [ids(g) for g in grads] == [{0, 1, 2, 3}, {0, 1}]


def test_reshard_explicitly_sharded_argument():
    """Tasks on 0-1 and 2-3, the batch cut over 0-3."""
    first, second = submesh([0, 1], x=2), submesh([2, 3], x=2)
    whole = jax.sharding.Mesh(np.asarray(jax.devices()[:4]), ("all",))

    def fun(params, x):
        y = mm.task(lambda w, x: layer(w, mm.with_sharding_constraint(x, P("x"))), mesh=first)(params[0], x)
        return mm.task(layer, mesh=second)(params[1], y)

    batch = jax.device_put(normal(8, WIDTH), NamedSharding(whole, P("all")))
    _, found = same(fun, all_devices(), weights(2), batch)
    assert ids(found) == {2, 3}
    assert shard_shape(found) == (4, WIDTH)


def test_several_axes_on_one_dimension():
    """Embeddings on 0-7 as 4 x 2, layer0 on 0-3 as 2 x 2."""
    pairs = [("batch", "data"), ("model", "tensor")]
    every, half = submesh(range(8), data=4, tensor=2), submesh(range(4), data=2, tensor=2)

    def embed(table, tokens):
        tokens = mm.with_sharding_constraint(tokens, P(("batch", "model"), None))
        return mm.with_sharding_constraint(table[tokens], P(("batch", "model"), None))

    def fc(w, x):
        x = mm.with_sharding_constraint(x, P("batch", None, None))
        return x @ mm.with_sharding_constraint(w, P(None, "model"))

    def fun(table, w, tokens):
        x = mm.task(embed, mesh=every, logical_axes=pairs, name="embed")(table, tokens)
        return mm.task(fc, mesh=half, logical_axes=pairs, name="layer0")(w, x)

    step, found = same(fun, all_devices(), normal(5, WIDTH), weights(1)[0], np.arange(24).reshape(8, 3) % 5)
    assert ids(found) == {0, 1, 2, 3}
    table, w, tokens = step._latest.step.invars
    shardings = step._latest.shardings
    assert shardings[tokens, 0].shard_shape((8, 3)) == (1, 3)
    assert shardings[w, 1].shard_shape((WIDTH, WIDTH)) == (WIDTH, WIDTH // 2)
    assert shardings[table, 0].is_fully_replicated


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_arrays_and_contexts_of_other_meshes(kind):
    """Another mesh in context, and arrays laid out on it, change nothing."""
    one, two = submesh([0, 1], x=2), submesh([2, 3, 4, 5], y=4)

    def fun(params, x):
        y = mm.task(lambda w, x: layer(w, mm.with_sharding_constraint(x, P("x"))), mesh=one)(params[0], x)
        z = mm.task(lambda w, y: layer(w, mm.with_sharding_constraint(y, P(None, "y"))), mesh=two)(params[1], y)
        return z, x, params[0], 1.0

    args = (weights(2), normal(4, WIDTH))
    expected = jax.jit(fun)(*args)
    other = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2)
    laid_out = jax.device_put(args, NamedSharding(other, P("a")))
    step = mm.mjit(fun, mesh=all_devices())
    with jax.set_mesh(other):
        assert_close(step(*args), expected, 1e-12)
        assert_close(step(*laid_out), expected, 1e-12)
    assert_close(mm.mjit(fun, mesh=all_devices())(*laid_out), expected, 1e-12)
    assert len(step._plans) == 1


def test_feeding_shardings_back_changes_nothing():
    first, second = submesh([0, 1], x=2), submesh([2, 3], x=2)

    def fun(a, b, x):
        y = mm.task(lambda w, x: layer(mm.with_sharding_constraint(w, P("x")), x), mesh=first)(a, x)
        z = mm.task(lambda w, y: layer(mm.with_sharding_constraint(w, P(None, None)), y), mesh=second)(b, y)
        return a * 1.0, b * 1.0, z

    step = mm.mjit(fun, mesh=all_devices())
    a, b, _ = step(*weights(2), normal(4, WIDTH))
    assert step._latest.runner.misplaced == 3
    again = step(a, b, normal(4, WIDTH))
    assert step._latest.runner.misplaced == 1
    assert [out.sharding for out in again[:2]] == [a.sharding, b.sharding]
    assert (ids(a), ids(b)) == ({0, 1}, {2, 3})
    assert shard_shape(a) == (WIDTH // 2, WIDTH)
    assert b.sharding.is_fully_replicated


@pytest.mark.parametrize("how", ["task", "callback"])
def test_registered_task_gives_the_input_its_layout(how):
    def fun(w, x):
        with jax.named_scope("task0"):
            x = layer(w, mm.with_sharding_constraint(x, P("batch", "model")))
        with jax.named_scope("task1"):
            return layer(w, x)

    first = mm.Task(mesh=submesh([0, 1], batch=2, model=1))
    second = mm.Task(mesh=submesh([2, 3], batch=2, model=1))
    mesh = all_devices()
    context = mm.Context()
    if how == "task":
        context.register_task("task0", task=first)
        context.register_task("task1", task=second)
    else:
        context.register_task(r"(task\d+)", callback=lambda group, backprop: [first, second][int(group[-1])])
    with context:
        step, found = same(fun, mesh, weights(1)[0], normal(4, WIDTH))
    x = step._latest.step.invars[1]
    layout = NamedSharding(first.mesh.on(jax.devices()), P("batch", "model"))
    assert step._latest.shardings[x, 0].is_equivalent_to(layout, 2)
    assert ids(found) == {2, 3}


def test_slice_of_an_unknown_axis_is_refused():
    mesh = mm.MultiMesh(axis_sizes=(2, 2, 1, 2), axis_names=tuple("wxyz"))
    with pytest.raises(ValueError, match="no axis 'stage'; the axes are 'w', 'x', 'y', 'z'"):
        mesh.slice(stage=0)


# Microbatch loops.


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
        ({"size": 2, "dim": 2}, r"dim=2 is out of range for batch of shape \(8, 4\)"),
        ({"size": 2, "argnum": 2}, r"argnum=2 is the argument to slice"),
    ],
    ids=str,
)
def test_batches_that_cannot_be_cut_are_refused(options, message):
    fun = mm.microbatch(lambda w, x: mm.task(layer, task=on(0))(w, x).sum(), **{"argnum": 1, **options})
    for call in (fun, jax.jit(fun), mm.mjit(fun, mesh=stages(2))):
        with pytest.raises((ValueError, TypeError), match=message):
            call(weights(1)[0], normal(8, WIDTH))


# Without a mesh, and called eagerly.


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
    assert len(step._plans) == 2
    assert (ids(inside), ids(again)) == ({1}, {1})
