"""Submeshes of any shape and order, and arrays that lie elsewhere."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    all_devices,
    assert_close,
    batches,
    ids,
    layer,
    normal,
    same,
    sgd,
    shard_shape,
    squares,
    submesh,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


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
    table, w, tokens = step.latest_plan.step.invars
    shardings = step.latest_plan.shardings
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
    assert step.num_plans == 1


def test_feeding_shardings_back_changes_nothing():
    first, second = submesh([0, 1], x=2), submesh([2, 3], x=2)

    def fun(a, b, x):
        y = mm.task(lambda w, x: layer(mm.with_sharding_constraint(w, P("x")), x), mesh=first)(a, x)
        z = mm.task(lambda w, y: layer(mm.with_sharding_constraint(w, P(None, None)), y), mesh=second)(b, y)
        return a * 1.0, b * 1.0, z

    step = mm.mjit(fun, mesh=all_devices())
    a, b, _ = step(*weights(2), normal(4, WIDTH))
    assert step.latest_plan.runner.misplaced == 3
    again = step(a, b, normal(4, WIDTH))
    assert step.latest_plan.runner.misplaced == 1
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
    x = step.latest_plan.step.invars[1]
    layout = NamedSharding(first.mesh.on(jax.devices()), P("batch", "model"))
    assert step.latest_plan.shardings[x, 0].is_equivalent_to(layout, 2)
    assert ids(found) == {2, 3}


def test_slice_of_an_unknown_axis_is_refused():
    mesh = mm.MultiMesh(axis_sizes=(2, 2, 1, 2), axis_names=tuple("wxyz"))
    with pytest.raises(ValueError, match="no axis 'stage'; the axes are 'w', 'x', 'y', 'z'"):
        mesh.slice(stage=0)
