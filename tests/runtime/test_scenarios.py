"""MultiMesh's tutorials and examples: the layouts and device sets that they show, and the values of plain `jax.jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import WIDTH, assert_close, ids, layer, normal, on, same, sgd, stages, weights

BATCH_AND_MODEL = (("batch", "x"), ("model", "x"))


pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


def layouts(step, *args):
    """The layout that a step wants each argument in."""
    report = step.plan(*args)
    plan = step.latest_plan
    return [plan.shardings[var, row.submesh] for var, row in zip(plan.step.invars, report.inputs, strict=True)]


def blocks(sharding, shape):
    """The slices of an array by device id, as (start, stop) per dimension."""
    return {
        device.id: tuple(
            (s.start or 0, size if s.stop is None else s.stop) for s, size in zip(index, shape, strict=True)
        )
        for device, index in sharding.devices_indices_map(shape).items()
    }


def rows(devices, count=8, width=8):
    """Row blocks on devices, in order."""
    size = count // len(devices)
    return {device: ((k * size, (k + 1) * size), (0, width)) for k, device in enumerate(devices)}


def columns(devices, count=8, width=8):
    size = width // len(devices)
    return {device: ((0, count), (k * size, (k + 1) * size)) for k, device in enumerate(devices)}


# A1: hello world.


def test_hello_world():
    def f(x):
        return jnp.cos(x), jnp.sin(x)

    def g(x, y):
        return x * x + y * y

    def plain(x):
        return g(*f(x))

    x = np.arange(8.0)
    alone = jax.jit(plain)(x)
    assert ids(alone) == {0}
    on_two = jax.jit(plain)(jax.device_put(x, NamedSharding(Mesh(np.asarray(jax.devices()[:2]), ("x",)), P("x"))))
    assert ids(on_two) == {0, 1}

    place = [mm.TaskMesh(devices=[k], axis_sizes=(1,), axis_names=("x",)) for k in range(2)]

    def hello(x):
        return mm.task(g, mesh=place[1])(*mm.task(f, mesh=place[0])(x))

    step = mm.mjit(hello, devices=jax.devices()[:2])
    for found in (alone, on_two, step(x)):
        assert_close(found, jnp.ones(8), 1e-6)
    assert ids(step(x)) == {1}


# A2: one submesh.


def layer1(x, w):
    x = mm.with_sharding_constraint(x, P("batch", None))
    w = mm.with_sharding_constraint(w, P("model", None))
    return jnp.einsum("bm,mh->bh", x, w)


def layer2(x, w):
    w = mm.with_sharding_constraint(w, P(None, "model"))
    return mm.with_sharding_constraint(jnp.einsum("bm,mh->bh", x, w), P("batch", None))


def two_layers(params, batch):
    return layer2(layer1(batch, params[0]), params[1])


def integers():
    matrix = np.arange(64).reshape(8, 8)
    return [matrix, matrix.copy()], matrix.copy()


@pytest.mark.filterwarnings("ignore:The logical axis")
def test_autosharding_without_tasks_replicates():
    step, found = same(two_layers, mm.MultiMesh(axis_sizes=(8,), axis_names=("x",)), *integers())
    for sharding in (*layouts(step, *integers()), found.sharding):
        assert sharding.spec == P()
        assert {device.id for device in sharding.device_set} == set(range(8))


def test_autosharding_in_one_task():
    every = mm.TaskMesh(devices=range(8), axis_sizes=(8,), axis_names=("x",))
    fun = mm.task(two_layers, mesh=every, logical_axes=BATCH_AND_MODEL)
    step, found = same(fun, mm.MultiMesh(axis_sizes=(8,), axis_names=("x",)), *integers())
    first, second, batch = layouts(step, *integers())
    assert (first.spec, second.spec, batch.spec) == (P("x"), P(None, "x"), P("x"))
    assert found.sharding.spec == P("x")
    # A batch with a layout of its own is taken as well.
    params, batch = integers()
    mine = NamedSharding(Mesh(np.asarray(jax.devices()).reshape(4, 2), ("a", "b")), P("b", "a"))
    assert_close(step(params, jax.device_put(batch, mine)), found, 0)


# A3: two submeshes.


def test_two_submeshes():
    first = mm.TaskMesh(devices=(0, 1, 2, 3), axis_names=("x", "y"), axis_sizes=(4, 1))

    def fun(params, batch):
        hidden = mm.task(layer1, mesh=first, logical_axes=BATCH_AND_MODEL)(batch, params[0])
        return mm.task(layer2, mesh=first.place((4, 5, 6, 7)), logical_axes=BATCH_AND_MODEL)(hidden, params[1])

    mesh = mm.MultiMesh(axis_sizes=(8,), axis_names=("x",))
    step, found = same(fun, mesh, *integers())
    one, two, batch = [blocks(sharding, (8, 8)) for sharding in layouts(step, *integers())]
    assert one == rows([0, 1, 2, 3])
    assert two == columns([4, 5, 6, 7])
    assert batch == rows([0, 1, 2, 3])
    assert ids(found) == {4, 5, 6, 7}
    # A batch cut over all eight devices is moved to the four that want it.
    params, batch = integers()
    everywhere = NamedSharding(Mesh(np.asarray(jax.devices()).reshape(8, 1), ("x", "y")), P("x"))
    assert_close(step(params, jax.device_put(batch, everywhere)), found, 0)


# A4: a MultiMesh and registered scopes.


@pytest.mark.parametrize("how", ["mesh_slice", "slice_global_mesh"])
def test_registered_scopes_on_a_multimesh(how):
    def fun(params, batch):
        with jax.named_scope("layer0"):
            hidden = layer1(batch, params[0])
        with jax.named_scope("layer1"):
            return layer2(hidden, params[1])

    mesh = mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "batch", "model"))

    def choose(group, backprop):
        index = int(group.removeprefix("layer"))
        if how == "mesh_slice":
            return mm.Task(mesh_slice={"stage": index})
        return mm.Task(mesh=mm.slice_global_mesh(stage=index))

    mesh.register_task(r"(layer\d+)", callback=choose)
    step, found = same(fun, mesh, *integers())
    one, two, batch = [blocks(sharding, (8, 8)) for sharding in layouts(step, *integers())]
    # Replicated over the axis that nobody uses.
    assert one == {**rows([0, 1]), **rows([2, 3])}
    assert {k: one[k] for k in (0, 2)} != {k: one[k] for k in (0, 1)}
    assert two == {**columns([4, 5]), **columns([6, 7])}
    assert batch == {0: ((0, 4), (0, 8)), 1: ((0, 4), (0, 8)), 2: ((4, 8), (0, 8)), 3: ((4, 8), (0, 8))}
    assert ids(found) == {4, 5, 6, 7}


# B2 to B14: scripts.


def test_one_simple_task():
    step, found = same(mm.task(lambda x: jnp.sin(x) * 2, task=on(1)), stages(2), np.arange(8.0))
    assert step.explain().programs[0].tasks == ("stage_1",)
    assert ids(found) == {1}


def test_sharded_task():
    grid = mm.TaskMesh(devices=range(4), axis_sizes=(2, 2), axis_names=("x", "y"))

    def fun(a, b):
        def body(a, b):
            a = mm.with_sharding_constraint(a, P("x", None))
            b = mm.with_sharding_constraint(b, P(None, "y"))
            return mm.with_sharding_constraint(a @ b, P("x", "y"))

        return mm.task(body, mesh=grid)(a, b)

    mesh = mm.MultiMesh(axis_sizes=(8,), axis_names=("devices",))
    step, found = same(fun, mesh, normal(4, 6), normal(6, 8))
    a, b = layouts(step, normal(4, 6), normal(6, 8))
    assert (a.spec, b.spec, found.sharding.spec) == (P("x"), P(None, "y"), P("x", "y"))
    assert ids(found) == {0, 1, 2, 3}
    jax.debug.visualize_array_sharding(found)


def test_preamble_runs_with_the_first_task():
    def fun(w, x):
        return mm.task(layer, task=on(1))(w, mm.task(layer, task=on(0))(w, 2 * x))

    step, _ = same(fun, stages(2), weights(1)[0], normal(3, WIDTH))
    assert {where for _, where in [(row.name, row.submesh) for row in step.explain().inputs]} == {0}
    assert [row.submesh for row in step.explain().programs] == [0, 1]


def test_constant_results():
    def fun(x):
        a = mm.task(lambda x: (x, jnp.arange(4.0), 7.0), task=on(0))(x)
        return a, mm.task(lambda x, c, s: x + c * s, task=on(1))(*a)

    same(fun, stages(2), np.arange(4.0))


def test_results_with_and_without_constraints():
    def body(w, x):
        x = mm.with_sharding_constraint(x, P("data", None))
        y = x @ w
        return y, mm.with_sharding_constraint(jnp.sin(w.T), P("model", None)), y.sum(), jnp.ones((2, 2))

    mesh = stages(2, data=2, model=2)
    _, found = same(mm.task(body, task=on(1)), mesh, normal(WIDTH, 6), normal(8, WIDTH))
    assert found[0].sharding.spec == P("data", "model")
    assert found[1].sharding.spec[0] == "model"
    assert found[2].sharding.is_fully_replicated
    assert all(ids(value) <= {4, 5, 6, 7} for value in found[:2])
    assert ids(found[2]) == set(range(8))


@pytest.mark.parametrize("calls", [1, 3])
def test_chain_of_many_layers_over_repeated_steps(calls):
    kinds = [lambda w, x: x @ w, lambda w, x: x * w[:1], lambda w, x: x + w[1:2], lambda w, x: jnp.sin(x)]

    def fun(ws, x):
        for index, w in enumerate(ws):
            x = mm.task(kinds[index % 4], task=on(index % 4))(w, x)
        return x

    step, plain = mm.mjit(fun, mesh=stages(4)), jax.jit(fun)
    found = expected = normal(3, WIDTH)
    for _ in range(calls):
        found, expected = step(weights(8), found), plain(weights(8), expected)
    assert_close(found, expected, 1e-12)


def test_parameter_replicated_over_submeshes():
    def fun(w, x):
        outs = [mm.task(layer, task=on(k))(w, x) for k in range(4)]
        return [o.sum() for o in outs], w - 1.0

    step, _ = same(fun, stages(4), weights(1)[0], normal(3, WIDTH))
    # Sent once to each of the other three, together with x.
    sends = [(row.source, row.target, row.arrays, row.runs) for row in step.explain().transfers]
    assert sorted(target for source, target, arrays, runs in sends if arrays == 2 and runs == 1) in (
        [1, 2, 3],
        [0, 1, 2, 3][1:],
    )


def attention(p, x):
    q, k, v = [jnp.einsum("bsd,dhk->bhsk", x, p[name]) for name in "qkv"]
    scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k) / 2.0)
    return x + jnp.einsum("bhst,bhtk,hkd->bsd", scores, v, p["o"])


@pytest.mark.parametrize(
    "variant", [pytest.param("plain", marks=pytest.mark.optimized), "checkpoint", "barrier", "loop"]
)
def test_attention_pipeline(variant):
    """Four layers and four microbatches on four submeshes of two devices."""

    def body(p, x):
        x = mm.with_sharding_constraint(x, P("batch", None, None))
        if variant == "checkpoint":
            return jax.checkpoint(attention)(p, x)
        if variant == "loop":
            return jax.lax.scan(lambda x, _: (attention(p, x), None), x, None, length=2)[0]
        return attention(p, x)

    def loss(params, x):
        for index, p in enumerate(params):
            x = mm.task(body, mesh_slice={"stage": index}, logical_axes=[("batch", "data")], name=f"l{index}")(p, x)
            if variant == "barrier":
                x = jax.lax.optimization_barrier(x)
        return (x**2).sum()

    def step(params, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(params, x)
        return sgd(params, grads, 0.01), value

    params = [
        {
            name: normal(*shape, seed=10 * k + j) / 4
            for j, (name, shape) in enumerate({"q": (4, 2, 2), "k": (4, 2, 2), "v": (4, 2, 2), "o": (2, 2, 4)}.items())
        }
        for k in range(4)
    ]
    _, (new, _) = same(step, stages(4, data=2), params, normal(8, 3, 4))
    for index in range(4):
        assert {frozenset(ids(leaf)) for leaf in jax.tree.leaves(new[index])} == {frozenset({2 * index, 2 * index + 1})}


def test_implicit_decomposition_equals_explicit_tasks():
    def implicit(params, x):
        for index, w in enumerate(params):
            with jax.named_scope(f"layer{index}"):
                x = layer(w, x)
        return x

    def explicit(params, x):
        for index, w in enumerate(params):
            x = mm.task(layer, task=on(index))(w, x)
        return x

    mesh = stages(3)
    mesh.register_task(r"(layer\d)", callback=lambda group, _: on(int(group[-1])))
    args = (weights(3), normal(3, WIDTH))
    one, two = mm.mjit(implicit, mesh=mesh), mm.mjit(explicit, mesh=stages(3))
    assert_close(one(*args), two(*args), 0)
    assert [(row.submesh, row.equations > 0) for row in one.explain().programs] == [
        (row.submesh, True) for row in two.explain().programs
    ]
