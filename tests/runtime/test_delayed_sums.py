"""Sums over devices that share parameters: once per step, behind the microbatch loop, and the same numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import normal, on, sgd

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]

WIDTH, EXAMPLES, COUNT = 4, 16, 4


def dense(w, x):
    return jnp.tanh(x @ w)


def checkpointed(w, x):
    return jax.checkpoint(dense)(w, x)


def repeated(w, x):
    return jax.lax.scan(lambda x, _: (dense(w, x), None), x, None, length=3)[0]


def stacked(w, x):
    return jax.lax.scan(lambda x, w: (jax.checkpoint(dense)(w, x), None), x, jnp.stack([w, 2 * w, w]))[0]


def looked_up(w, x):
    return x + w[jnp.argsort(x[:, :2], axis=1)].sum(1)


def gained(w, x):
    """Weights without examples of their own: scales, biases, pieces and joins of them."""
    left, right = jnp.split(w, 2, axis=0)
    joined = jnp.concatenate([right * 2, -left / 3])
    chosen = jnp.where(jnp.arange(WIDTH) < 2, joined[0], jnp.pad(joined[1, :2], (0, 2)))
    return x * (chosen + joined[::-1].reshape(-1)[:WIDTH] + w.T[1])[None]


def convolved(w, x):
    kernel = w.reshape(2, 2, 4)
    images = x.reshape(-1, 2, 2)
    return jax.lax.conv_general_dilated(images, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))[:, 0]


def penalized(w, x):
    return dense(w, x) + 0.01 * jnp.sum(w**2)


FORMS = (dense, checkpointed, repeated, stacked, looked_up, gained, convolved, penalized)


def every_form(weights, x):
    return sum(form(w, x) for form, w in zip(FORMS, weights, strict=True)) / len(FORMS)


def loss(layer, params, batch):
    x, y = mm.with_sharding_constraint(batch, P("batch"))
    for index, w in enumerate(params):
        x = mm.task(layer, task=on(index))(w, x)
    return jnp.mean((x - y) ** 2)


def train(loss, schedule="1f1b", **options):
    gradient = jax.value_and_grad(loss)
    options = {"reduce": "exact", **options}

    def step(params, batch):
        value, grads = mm.microbatch(gradient, argnum=1, count=COUNT, schedule=schedule, **options)(params, batch)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return sgd(params, jax.tree.map(lambda g: g / (1 + norm), grads)), value

    return step


def mesh(count=2):
    axes = {"stage": count, "data": 2}
    return mm.MultiMesh(
        axis_sizes=tuple(axes.values()), axis_names=tuple(axes), logical_axes=(("batch", "data"), ("rows", "data"))
    )


def weights(*counts):
    return [normal(*counts, WIDTH, WIDTH, seed=1 + index) / 2 for index in range(2)]


def run(step, params, on_mesh=None):
    """The report of a step, whose results are those of plain JAX."""
    batch = normal(EXAMPLES, WIDTH), normal(EXAMPLES, WIDTH, seed=9)
    compiled = mm.mjit(step, mesh=on_mesh or mesh())
    expected = jax.jit(step)(params, batch)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, compiled(params, batch), expected)
    return compiled.explain()


def in_loop(report):
    """Collectives of the programs that run once per microbatch: each of them, and its bytes."""
    return [(row.found.kind, row.found.size) for row in report.collectives if row.runs > 1]


def test_every_form_of_gradient_is_added_up_once_per_step():
    report = run(train(functools.partial(loss, every_form)), weights(len(FORMS)))
    assert [(row.axes, row.accumulators, row.kept) for row in report.sums] == [(("data",), 3, ())]
    assert in_loop(report) == []
    assert {row.found.kind for row in report.collectives} == {"all-reduce"}
    # The weights of a stage, and on the last one the loss, in one collective.
    size = 8 * len(FORMS) * WIDTH**2
    assert [row.found.size for row in report.collectives] == [size, size + 8]


@pytest.mark.parametrize("schedule", ["zb-h1", "gpipe"])
def test_schedules(schedule):
    report = run(train(functools.partial(loss, lambda w, x: stacked(w[0], repeated(w[1], x))), schedule), weights(2))
    assert in_loop(report) == []


def tied(params, batch):
    x, y = mm.with_sharding_constraint(batch, P("batch"))
    x = mm.task(dense, task=on(0))(params[0], x)
    x = mm.task(dense, task=on(1))(params[1], x)
    x = mm.task(dense, task=on(1))(params[0].T, x)
    return jnp.mean((x - y) ** 2)


def test_tied_weights_are_added_up_once_per_stage():
    report = run(train(tied), weights())
    assert [row.accumulators for row in report.sums] == [4]
    assert in_loop(report) == []


def test_one_submesh():
    def on_one(params, batch):
        x, y = mm.with_sharding_constraint(batch, P("batch"))
        return jnp.mean((mm.task(dense, task=on(0))(params[1], dense(params[0], x)) - y) ** 2)

    report = run(train(on_one), weights(), mesh(1))
    assert [row.accumulators for row in report.sums] == [3]
    assert [row.found.count for row in report.collectives] == [1]


def test_in_each_microbatch_if_the_user_says_so():
    report = run(train(functools.partial(loss, dense), sync="microbatch"), weights())
    assert report.sums == ()
    assert ("all-reduce", 8 * WIDTH**2) in in_loop(report)


def test_gradients_that_the_loop_reads_are_added_up_in_it():
    """Clipped by microbatch: not a sum over examples."""

    def clipped(params, batch):
        value, grads = jax.value_and_grad(functools.partial(loss, dense))(params, batch)
        return value, [g / (1 + jnp.sqrt(jnp.sum(g**2))) for g in grads]

    def step(params, batch):
        _, grads = mm.microbatch(clipped, argnum=1, count=COUNT, reduce="mean", check=False)(params, batch)
        return sgd(params, grads)

    report = run(step, weights())
    (row,) = report.sums
    assert row.accumulators == 0
    assert any("test_delayed_sums.py" in each for each in row.kept)
    assert len(in_loop(report)) == 2
    assert "sums over devices in each microbatch: " in str(report)


def test_a_loss_that_couples_examples():
    """What couples examples meets in each microbatch, the gradients of the weights after the last."""

    def compared(w, x, y):
        return jnp.mean(jnp.diag(jax.nn.log_softmax(x @ w @ y.T)))

    def contrastive(params, batch):
        x, y = mm.with_sharding_constraint(batch, P("batch"))
        x = mm.task(dense, task=on(0))(params[0], x)
        return mm.task(compared, task=on(1))(params[1], x, y)

    report = run(train(contrastive, reduce="mean", check=False), weights())
    assert [row.accumulators >= 2 for row in report.sums] == [True]
    assert not [kind for kind, size in in_loop(report) if (kind, size) == ("all-reduce", 8 * WIDTH**2)]


def cut_outside(params, x):
    for index, w in enumerate(params):
        x = mm.task(dense, task=on(index))(mm.with_sharding_constraint(w, P("rows")), x)
    return x


def cut_inside(params, x):
    def layer(w, x):
        return jax.checkpoint(lambda w, x: dense(mm.with_sharding_constraint(w, P("rows")).astype(x.dtype), x))(w, x)

    for index, w in enumerate(params):
        x = mm.task(layer, task=on(index))(w, x)
    return x


def cut_and_shared(params, x):
    return cut_outside((params[0], params[0]), cut_outside(params, x))


@pytest.mark.parametrize("forward", [cut_outside, cut_inside, cut_and_shared])
def test_parameters_are_gathered_once_per_step(forward):
    def fully_sharded(params, batch):
        x, y = mm.with_sharding_constraint(batch, P("batch"))
        return jnp.mean((forward(params, x) - y) ** 2)

    apart = run(train(fully_sharded), weights())
    assert "all-gather" in dict(in_loop(apart))
    report = run(train(fully_sharded, all_gather="data"), weights())
    assert in_loop(report) == []
    assert {row.found.kind for row in report.collectives} >= {"all-gather"}
    # Parameters and what becomes of them stay cut.
    assert [row.spec for row in report.inputs if row.carried] == ["P('data',)"] * 2


def test_parameters_that_are_cut_in_front_of_the_loop():
    def step(params, batch):
        params = [mm.with_sharding_constraint(w, P("rows")) for w in params]
        return train(functools.partial(loss, dense), all_gather=("data",))(params, batch)

    assert in_loop(run(step, weights())) == []


def test_an_axis_that_no_submesh_has():
    step = train(functools.partial(loss, dense), all_gather="rows")
    with pytest.raises(ValueError, match=r"all_gather='rows' is no axis of the submeshes .*, which have stage, data\."):
        mm.mjit(step, mesh=mesh()).plan(weights(), (normal(EXAMPLES, WIDTH), normal(EXAMPLES, WIDTH)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sync": "never"}, ValueError, r"microbatch: sync must be .*, got 'never'"),
        ({"sync": "microbatch", "all_gather": "data"}, ValueError, r'all_gather= keeps .* sync="microbatch" adds'),
        ({"all_gather": 1}, TypeError, r"all_gather .* the name of a mesh axis, or several"),
    ],
)
def test_what_sync_and_all_gather_take(options, error, message):
    with pytest.raises(error, match=message):
        mm.microbatch(jax.grad(tied), argnum=1, count=COUNT, **options)
