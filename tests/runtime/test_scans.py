"""`stage_scan` and `microbatch_scan`: a scan that the program has, run as stages or as microbatches."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import mmruntime as mm

pytestmark = pytest.mark.family


@pytest.fixture(scope="module", autouse=True)
def promotion_of_libraries():
    """Flax is not written for strict promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


LAYERS = {
    "w": np.linspace(-1, 1, 6 * 4 * 4, dtype=np.float32).reshape(6, 4, 4),
    "b": np.linspace(0, 1, 6 * 4, dtype=np.float32).reshape(6, 4),
}
X = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)


def body(x, layer):
    y = jnp.tanh(x @ layer["w"] + layer["b"])
    return y, y.mean()


def make_step(scan, **options):
    def loss_fn(layers, x):
        x, means = scan(body, x, layers, **options)
        return jnp.mean(x**2) + means[0] + 2 * means[-1]

    return lambda layers, x: jax.value_and_grad(loss_fn)(layers, x)


def assert_close(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}])
@pytest.mark.parametrize("weights", [None, (1, 1, 1, 1, 1, 5)])
def test_stages_of_a_scan(options, weights):
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    step = mm.mjit(make_step(mm.stage_scan(jax.lax.scan, weights=weights), **options), mesh=mesh)
    with pytest.warns(UserWarning, match="5, 1 of their layers") if weights else nullcontext():
        found = step(LAYERS, X)
    assert_close(found, jax.jit(make_step(jax.lax.scan, **options))(LAYERS, X))
    assert {"stage_0", "stage_1"} <= {name for row in step.explain().tasks for name in row.tasks}


def test_without_a_mesh_it_is_the_scan():
    assert_close(jax.jit(make_step(mm.stage_scan(jax.lax.scan)))(LAYERS, X), make_step(jax.lax.scan)(LAYERS, X))


def test_mistakes():
    mesh = mm.MultiMesh(axis_sizes=(8,), axis_names=("stage",))
    with pytest.raises(ValueError, match="6 layers cannot be dealt out over 8 slices"):
        mm.mjit(make_step(mm.stage_scan(jax.lax.scan)), mesh=mesh)(LAYERS, X)
    with pytest.raises(ValueError, match="expected one scan in tanh, found 0"):
        mm.mjit(lambda x: mm.stage_scan(jnp.tanh)(x), mesh=mesh)(X)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(4)(x)))
        return x + y, None


def make_model(wrap):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(4)(x)
            stacked = nn.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=4
            )
            x, _ = wrap(stacked())(x, None)
            return nn.Dense(2)(x)

    return Model()


@pytest.mark.slow
def test_flax_scan_keeps_parameters_and_dropout():
    plain, cut = make_model(lambda scanned: scanned), make_model(mm.stage_scan)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    variables = plain.init(keys, X)
    with mesh:
        assert_close(cut.init(keys, X), variables)

    def make(model):
        def loss(variables, x, key):
            return jnp.mean(model.apply(variables, x, rngs={"dropout": key}) ** 2)

        return jax.value_and_grad(loss)

    step = mm.mjit(make(cut), mesh=mesh)
    key = jax.random.key(2)
    assert_close(step(variables, X, key), jax.jit(make(plain))(variables, X, key))
    assert {"stage_0", "stage_1"} <= {name for row in step.explain().tasks for name in row.tasks}


def loss_fn(params, rows):
    h = mm.task(jnp.tanh, "first", mesh_slice={"stage": 0})(rows["x"] @ params)
    return mm.task(lambda h: jnp.mean((h - rows["y"]) ** 2), "second", mesh_slice={"stage": 1})(h)


PARAMS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
BATCH = {"x": X, "y": X[:, ::-1].copy()}


@jax.jit
def add_up(total, one):
    return jax.tree.map(jnp.add, total, one)


def scanned(scan, params, batch):
    def micro(carry, rows):
        total, grads, seen, worst, small = carry
        loss, more = jax.value_and_grad(loss_fn)(params, rows)
        worst = jnp.maximum(worst, rows["x"].max(axis=0))
        return (total + loss, add_up(grads, more), seen + 1, worst, small & (rows["x"] < 1).all()), loss

    pieces = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), batch)
    start = (jnp.float32(1.0), jnp.zeros_like(params), 0, jnp.zeros(4, jnp.float32), True)
    (total, *rest), losses = scan(micro, start, pieces)
    return total / 4, rest, losses


def looped(loop, params, batch):
    def micro(i, carry):
        total, grads = carry
        rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, 2 * i, 2), batch)
        loss, more = jax.value_and_grad(loss_fn)(params, rows)
        return total + loss, jax.tree.map(lambda one, other: one + other, more, grads)

    return loop(0, 4, micro, (0.0, jnp.zeros_like(params)))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("program", "loop", "options"),
    [
        (scanned, jax.lax.scan, {}),
        (scanned, lambda *args: jax.lax.scan(*args, reverse=True), {}),
        (looped, jax.lax.fori_loop, {"count": 4}),
    ],
)
def test_microbatches_of_a_loop(program, loop, options, schedule):
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    wrapped = mm.microbatch_scan(loop, schedule=schedule, **options)
    step = mm.mjit(lambda params, batch: program(wrapped, params, batch), mesh=mesh)
    expected = jax.jit(lambda params, batch: program(loop, params, batch))(PARAMS, BATCH)
    assert_close(step(PARAMS, BATCH), expected)
    assert len(step.explain().loops) == 1
    assert step.explain().proofs[0] == "the loop's own results, proved"
    assert_close(jax.jit(lambda params, batch: program(wrapped, params, batch))(PARAMS, BATCH), expected)


def sums_over_pieces(loss, scan, params, batch):
    """The sum of losses of four pieces, and of their gradients, as a program writes it by hand."""

    def micro(carry, rows):
        total, grads = carry
        value, more = jax.value_and_grad(loss)(params, rows)
        return (total + value / 4, grads + more), None

    pieces = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), batch)
    return scan(micro, (jnp.float32(0), jnp.zeros_like(params)), pieces)[0]


def mean_of_kept(params, rows):
    keep = rows["x"][:, 0] > 0.2
    return (jnp.tanh(rows["x"] @ params[0]).sum(-1) * keep).sum() / jnp.maximum(keep.sum(), 1)


def with_decay(params, rows):
    return jnp.tanh(rows["x"] @ params[0]).sum() + (params**2).sum()


def of_two_rows(params, rows):
    if rows["x"].shape[0] > 2:
        raise ValueError("two rows at a time")
    return jnp.tanh(rows["x"] @ params[0]).sum()


AS_WHOLE = "what one pass over the whole batch gives, but for a constant factor"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (loss_fn, f"{AS_WHOLE}: leaf 0 of the carry, leaf 1 of the carry"),
        (mean_of_kept, "(mean_of_kept) computes `max` of a sum or mean over examples"),
        (with_decay, "(with_decay) adds what does not depend on the batch, such as weight decay"),
        (of_two_rows, "not known to be what one pass over the whole batch gives: leaf 0 of the carry"),
    ],
    ids=["mean", "mean of what is kept", "decay", "another size"],
)
def test_a_loop_by_hand_is_held_against_one_pass(loss, said):
    wrapped = mm.microbatch_scan(jax.lax.scan)
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    step = mm.mjit(lambda params, batch: sums_over_pieces(loss, wrapped, params, batch), mesh=mesh)
    found = step(PARAMS, BATCH)
    # Whatever the whole batch would give: these are the program's own numbers.
    assert_close(found, sums_over_pieces(loss, jax.lax.scan, PARAMS, BATCH))
    assert said in "\n".join(step.explain().proofs)


def test_loops_that_are_no_sums():
    def product(scan):
        return lambda x: scan(lambda carry, row: (carry * row.sum(), None), 1.0, x)

    def reader(scan):
        return lambda x: scan(lambda carry, row: (carry + row.sum() * carry, None), 1.0, x)

    def keys(scan):
        def body(carry, row):
            key, sub = jax.random.split(carry)
            return key, row * jax.random.normal(sub)

        return lambda x: scan(body, jax.random.key(0), x)

    def largest(scan):
        return lambda x: scan(lambda carry, row: (jnp.maximum(carry, row.sum() * carry), None), 1.0, x)

    scan = mm.microbatch_scan(jax.lax.scan)
    with pytest.raises(ValueError, match=r"read leaf 0 of the carry \(.*\), of which they take the maximum"):
        jax.jit(largest(scan))(X)
    for program in (product, keys):
        with pytest.raises(ValueError, match=r"leaf 0 of the carry of scan \(.*\) is not a sum: an iteration may add"):
            jax.jit(program(scan))(X)
    with pytest.raises(ValueError, match=r"iterations of scan read leaf 0 of the carry \(.*\), to which they add"):
        jax.jit(reader(scan))(X)
    with pytest.raises(ValueError, match=r"the loop has 8 iterations, but count=4"):
        jax.jit(lambda x: mm.microbatch_scan(jax.lax.scan, count=4)(lambda c, r: (c + r.sum(), None), 0.0, x))(X)


def test_several_arguments_and_results_by_example():
    def rows_loss(params, x, y):
        out = jnp.tanh(x @ params)
        return jnp.mean((out - y) ** 2), {"rows": out, "seen": x.shape[0]}

    grad_fn = jax.value_and_grad(rows_loss, has_aux=True)
    reduce = (("mean", {"rows": "concat", "seen": "sum"}), "mean")
    cut = mm.microbatch(grad_fn, size=2, argnum=(1, 2), reduce=reduce)
    expected = grad_fn(PARAMS, BATCH["x"], BATCH["y"])
    assert_close(jax.jit(cut)(PARAMS, BATCH["x"], BATCH["y"]), expected)
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    assert_close(mm.mjit(cut, mesh=mesh)(PARAMS, BATCH["x"], BATCH["y"]), expected)
    columns = mm.microbatch(lambda x: x * 2, size=2, dim=-1, reduce="concat")
    np.testing.assert_array_equal(columns(X), X * 2)
    with pytest.raises(ValueError, match=r'reduce="concat" joins results along dim=0, which result of shape \(\)'):
        mm.microbatch(jnp.sum, size=2, reduce="concat")(X)
