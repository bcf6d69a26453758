"""Microbatches in short floats are about as near to float64 as one device is, whatever adds them up.

Microbatches of random signs cancel, so that their sum is small beside its terms; equal ones have it grow beyond what a
short float can add to.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import assert_as_near, errors, in_float64, normal, stages

WIDTH, LAYERS = 4, 4
BFLOAT16, FLOAT16, FLOAT8 = jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn


def dense(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None])


def through(layers, x, *, placed):
    for index, p in enumerate(layers):
        x = (mm.task(dense, task=mm.stage(index, len(layers), axis="stage")) if placed else dense)(p, x)
    return x


def tied_loss(params, batch, *, placed=True, mean=True):
    """A mean, a count and a sum; the embedding is used on the first and on the last stage."""
    x = through(params["layers"], batch["x"] @ params["tied"], placed=placed)
    each = ((x @ params["tied"].T - batch["y"]) ** 2).sum(-1)
    count = (each > 0).astype(each.dtype).sum()
    return each.mean() if mean else each.sum(), {"count": count, "sum": each.sum()}


def stacked_loss(params, batch, *, placed=True, mean=True):
    def layer(x, p):
        return dense(p, x), None

    scan = mm.stage_scan(jax.lax.scan, axis="stage") if placed else jax.lax.scan
    x, _ = scan(layer, batch["x"] @ params["tied"], params["stack"])
    each = ((x - batch["y"]) ** 2).sum(-1)
    return each.mean() if mean else each.sum(), {"count": (each > 0).astype(each.dtype).sum()}


def arguments(dtype, examples, *, equal=False):
    """Parameters and a batch; of equal examples all terms of a sum are equal."""
    layers = [{"w": normal(WIDTH, WIDTH, seed=n), "b": 0.1 * normal(WIDTH, seed=9 + n)} for n in range(LAYERS)]
    params = {"tied": 0.5 * normal(WIDTH, WIDTH, seed=20), "layers": layers}
    params["stack"] = jax.tree.map(lambda *each: np.stack(each), *layers)
    rows = [
        normal(1, WIDTH, seed=n).repeat(examples, 0) if equal else normal(examples, WIDTH, seed=n) for n in (30, 31)
    ]
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (params, dict(zip("xy", rows, strict=True))))


def value_and_grad(loss, **options):
    return jax.value_and_grad(functools.partial(loss, **options), has_aux=True)


def exact(loss, count, schedule, **options):
    gradient = mm.microbatch(value_and_grad(loss), argnum=1, count=count, schedule=schedule, reduce="exact", **options)
    return lambda params, batch: gradient(params, batch)


def mean_and_sum(loss, count, schedule):
    kinds = (("mean", "sum"), "mean")
    gradient = mm.microbatch(value_and_grad(loss), argnum=1, count=count, schedule=schedule, reduce=kinds)
    return lambda params, batch: gradient(params, batch)


def of_examples(batch, count):
    return jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), batch)


def loop_from_none(loss, count, schedule):
    """A loop of the program's own, whose sums begin as None and 0: their type is not the program's choice."""

    def step(params, batch):
        pieces = of_examples(batch, count)

        def body(index, grads, total):
            piece = jax.tree.map(lambda leaf: leaf[index], pieces)
            (value, _), own = value_and_grad(loss, mean=False)(params, piece)
            return own if grads is None else jax.tree.map(jnp.add, grads, own), total + value

        grads, total = mm.microbatch_loop(body, schedule=schedule)(range(count), None, 0.0)
        return (total, {}), grads

    return step


def in_own_float32(loss, count, schedule):
    """A loop of the program's own, which adds up in float32 by itself."""

    def step(params, batch):
        def body(carry, piece):
            (value, aux), grads = value_and_grad(loss, mean=False)(params, piece)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), carry, (grads, value, aux["count"])), None

        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
        scan = mm.microbatch_scan(jax.lax.scan, schedule=schedule)
        zero = jnp.zeros((), jnp.float32)
        (grads, total, number), _ = scan(body, (start, zero, zero), of_examples(batch, count))
        return (total, {"count": number}), grads

    return step


CARRIERS = {
    "exact": (exact, {}),
    "mean and sum": (mean_and_sum, {}),
    "loop from None": (loop_from_none, {"mean": False}),
    "scan in its own float32": (in_own_float32, {"mean": False}),
}


def near(step, mesh, loss, dtype, args, **options):
    """Hold a step on a mesh to one device in its own types and in float64."""
    plain = value_and_grad(loss, placed=False, **options)
    (one, aux), grads = jax.jit(plain)(*args)
    found = mm.mjit(step, mesh=mesh)(*args) if mesh is not None else jax.jit(step)(*args)
    (wide, wide_aux), wide_grads = in_float64(plain, *args)
    kept = found[0][1].keys()
    own, reference = [
        ((value, {name: each[name] for name in kept}), grad)
        for value, each, grad in ((one, aux, grads), (wide, wide_aux, wide_grads))
    ]
    found = jax.tree.map(lambda a, b: a.astype(b.dtype), found, own)
    assert_as_near(own, found, reference, dtype)
    if "count" in kept:
        assert float(found[0][1]["count"]) == float(reference[0][1]["count"])


@pytest.mark.family(64)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", CARRIERS)
@pytest.mark.parametrize(("count", "schedule"), [(2, "1f1b"), (64, "zb-h1")])
def test_carriers(name, dtype, count, schedule):
    carrier, options = CARRIERS[name]
    step = carrier(tied_loss, count, schedule)
    near(step, stages(4), tied_loss, dtype, arguments(dtype, 128), **options)


@pytest.mark.family(32)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "wavefront", "zb-h1", "auto"])
def test_schedules(schedule):
    step = exact(tied_loss, 128, schedule)
    near(step, stages(2), tied_loss, BFLOAT16, arguments(BFLOAT16, 256))


@pytest.mark.family(32)
@pytest.mark.parametrize("equal", [False, True], ids=["random", "equal"])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
def test_a_thousand_microbatches(dtype, equal):
    args = arguments(dtype, 1024, equal=equal)
    near(exact(tied_loss, 1024, "1f1b"), stages(2), tied_loss, dtype, args)


@pytest.mark.family(32)
@pytest.mark.parametrize("loss", [tied_loss, stacked_loss])
@pytest.mark.parametrize("options", [{}, {"sync": "microbatch"}], ids=["once per step", "in each microbatch"])
def test_devices_that_share_the_examples(loss, options):
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes={"batch": "data"})

    def cut(params, batch, **options):
        rows = jax.tree.map(lambda leaf: mm.with_sharding_constraint(leaf, P("batch")), batch)
        return loss(params, rows, **options)

    step = exact(cut, 32, "1f1b", **options)
    near(step, mesh, loss, BFLOAT16, arguments(BFLOAT16, 128))


@pytest.mark.parametrize("mesh", [None, (1,)], ids=["jit", "one program"])
def test_without_a_pipeline(mesh):
    mesh = mesh and mm.MultiMesh(axis_sizes=mesh, axis_names=("stage",))
    near(exact(tied_loss, 512, "1f1b"), mesh, tied_loss, BFLOAT16, arguments(BFLOAT16, 512))


def cancelling(dtype):
    """A batch whose gradient is a hundredth of those of its microbatches: pairs of examples with opposite signs."""
    params, batch = arguments(dtype, 128)
    x, y = (np.asarray(batch[name][:64], np.float32) for name in "xy")
    order = np.random.default_rng(0).permutation(128)
    rows = {"x": np.concatenate([x, x])[order], "y": np.concatenate([y, -y + 0.01 * normal(64, WIDTH)])[order]}
    return params, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), rows)


def weighted(params, batch, *, placed=True):
    last = params["layers"][-1]
    x = through(params["layers"][:-1], batch["x"], placed=placed)
    head = lambda p, x: x @ p["w"] + p["b"][None]  # noqa: E731
    x = (mm.task(head, task=mm.stage(1, 2, axis="stage")) if placed else head)(last, x)
    return (x * batch["y"]).sum(), {}


def test_gradients_that_cancel():
    """A rounding of each microbatch's gradient would be as large as their sum."""
    params, batch = cancelling(BFLOAT16)
    one = jax.jit(value_and_grad(weighted, placed=False))(params, batch)[1]
    wide = in_float64(value_and_grad(weighted, placed=False), params, batch)[1]
    step = mm.mjit(exact(weighted, 64, "1f1b"), mesh=stages(2))
    found = errors(one, step(params, batch)[1], wide)
    last = found[f"['layers'][{LAYERS - 1}]['b']"]
    assert last.rewritten <= 1.6 * last.original + 1e-3, last


def test_float8():
    """Sums of float8, whose largest number is 448, over 64 microbatches."""

    def total(params, batch):
        x = mm.task(lambda w, x: x @ w.astype(jnp.float32), task=mm.stage(0, 2))(params[0], batch)
        x = mm.task(lambda w, x: x @ w.astype(jnp.float32), task=mm.stage(1, 2))(params[1], x)
        return x.mean(), (x > 0).astype(FLOAT8).sum()

    params = [jnp.eye(2, dtype=FLOAT8)] * 2
    batch = jnp.ones((64, 2))
    gradient = mm.microbatch(jax.value_and_grad(total, has_aux=True), argnum=1, count=64, reduce="exact")
    (mean, count), grads = mm.mjit(lambda p, b: gradient(p, b), mesh=stages(2))(params, batch)
    (one, _), expected = jax.jit(jax.value_and_grad(total, has_aux=True))(params, batch)
    assert (float(mean), float(count)) == (float(one), 128)
    for found, wanted in zip(grads, expected, strict=True):
        assert found.dtype == FLOAT8
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_each_microbatchs_own_statistics():
    """The mean of microbatches' losses and statistics, with batch normalisation of each."""
    model = nn.Sequential([nn.Dense(4, param_dtype=BFLOAT16, dtype=BFLOAT16), nn.BatchNorm(use_running_average=False)])

    def loss(params, stats, batch):
        found, new = model.apply({"params": params, "batch_stats": stats}, batch["x"], mutable=["batch_stats"])
        return ((found - batch["y"]) ** 2).mean(), new["batch_stats"]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        _, batch = arguments(BFLOAT16, 1024)
        variables = model.init(jax.random.key(0), batch["x"])
        args = variables["params"], variables["batch_stats"], batch
        gradient = jax.value_and_grad(loss, has_aux=True)
        step = mm.microbatch(gradient, argnum=2, count=128, reduce="exact", batch_stats="microbatch")
        (mean, stats), grads = jax.jit(step)(*args)
        pieces = of_examples(batch, 128)
        each = jax.jit(jax.vmap(gradient, in_axes=(None, None, 0)))(*args[:2], pieces)
        (one, one_stats), one_grads = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64).mean(0), each)
    # Gradients in front of a normalisation are small beside their terms.
    found, wanted = (mean, stats, grads["layers_1"]), (one, one_stats, one_grads["layers_1"])
    for own, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.float64(own), expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def halved(w, x):
    return x * w.astype(FLOAT16)


def scaled_mean(params, x, *, placed=True):
    for index, w in enumerate(params):
        x = (mm.task(halved, task=mm.stage(index, 2)) if placed else halved)(w, x)
    return x.astype(jnp.float32).mean() * 2.0**20


@pytest.mark.parametrize("reduce", ["exact", "mean"])
def test_cotangents_are_as_large_as_on_one_device(reduce):
    """They would overflow float16 if each microbatch divided by its own size alone."""
    sign = np.where(np.arange(64) % 2, 1, -1)
    sign[0] = 2
    params, x = [jnp.ones(8)] * 2, jnp.ones((64, 8), FLOAT16) * jnp.asarray(sign, FLOAT16)[:, None]
    with jax.numpy_rank_promotion("allow"):
        one = jax.jit(jax.grad(functools.partial(scaled_mean, placed=False)))(params, x)
        gradient = mm.microbatch(jax.grad(scaled_mean), size=2, argnum=1, reduce=reduce)
        found = mm.mjit(lambda p, x: gradient(p, x), mesh=stages(2))(params, x)
    assert float(one[0][0]) == 6144
    jax.tree.map(np.testing.assert_array_equal, found, one)


@pytest.mark.parametrize("by_hand", [False, True], ids=["flax", "by hand"])
def test_a_loss_scale_skips_the_steps_that_one_device_skips(by_hand):
    """The gradient of the whole batch overflows float16, and those of microbatches do not."""

    def layer(w, x):
        return x @ w.astype(FLOAT16)

    def loss(params, x, *, placed=True):
        for index, w in enumerate(params):
            x = (mm.task(layer, task=mm.stage(index, 2)) if placed else layer)(w, x)
        return ((x.astype(jnp.float32) - 1) ** 2).mean()

    def by_scale(scale, loss, params, x):
        value, grads = jax.value_and_grad(lambda *args: loss(*args) * scale)(params, x)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        return jnp.where(finite, scale, scale / 2), finite, value / scale, grads

    def step(scale, params, x, *, placed):
        own = functools.partial(loss, placed=placed)
        gradient = functools.partial(by_scale, scale, own) if by_hand else scale.value_and_grad(own)
        if placed:
            gradient = mm.microbatch(gradient, size=2, argnum=1, reduce="exact")
        scale, finite, _, grads = gradient(params, x)
        update = lambda p: jax.tree.map(lambda a, b: a - 1e-4 * b, p, grads)  # noqa: E731
        return scale, jax.lax.cond(finite, update, lambda p: p, params), finite

    def run(compiled):
        scale = jnp.float32(2**12) if by_hand else DynamicScale(scale=jnp.float32(2**12), growth_interval=3)
        params, said = [jnp.eye(8) + 0.1 * normal(8, 8, seed=n, dtype=np.float32) for n in range(2)], []
        for _ in range(10):
            scale, params, finite = compiled(scale, params, x)
            said.append((bool(finite), float(scale if by_hand else scale.scale)))
        return said

    x = jnp.asarray(np.abs(normal(64, 8)) * 20, FLOAT16)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        one = run(jax.jit(functools.partial(step, placed=False)))
        assert {finite for finite, _ in one} == {True, False}
        assert run(mm.mjit(functools.partial(step, placed=True), mesh=stages(2))) == one


def test_the_memory_of_sums_and_how_to_have_it_back():
    args = arguments(BFLOAT16, 32)
    held = {}
    for accumulate in ("float32", "parameter"):
        step = mm.mjit(exact(tied_loss, 8, "1f1b", accumulate=accumulate), mesh=stages(2))
        step(*args)
        held[accumulate] = max(row.held.gradients for row in step.explain().memory)
    assert held["float32"] == 2 * held["parameter"]


def test_a_bound_on_memory_includes_sums_in_float32():
    args = arguments(BFLOAT16, 64)

    def peak(accumulate, memory_bytes):
        schedule = mm.schedules.Auto(memory_bytes=memory_bytes, recompute=False)
        step = mm.mjit(exact(tied_loss, 8, schedule, accumulate=accumulate), mesh=stages(2))
        step(*args)
        return max(row.held.activations for row in step.explain().memory)

    # Which bound makes a difference hangs on what is kept, and so on the version of JAX.
    peaks = [(peak("float32", bound), peak("parameter", bound)) for bound in (400, 700, 900)]
    assert all(wide <= short for wide, short in peaks)
    assert any(wide < short for wide, short in peaks)


def test_what_a_program_adds_up_in_bfloat16_stays_as_it_is_written():
    def step(params, batch, scan):
        def body(carry, piece):
            grads = jax.grad(lambda *args: tied_loss(*args, mean=False)[0])(params, piece)
            return jax.tree.map(jnp.add, carry, grads), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return scan(body, zeros, of_examples(batch, 32))[0]["layers"]

    args = arguments(BFLOAT16, 64)
    one = jax.jit(functools.partial(step, scan=jax.lax.scan))(*args)
    found = mm.mjit(functools.partial(step, scan=mm.microbatch_scan(jax.lax.scan)), mesh=stages(2))(*args)
    wide = in_float64(functools.partial(step, scan=jax.lax.scan), *args)
    assert_as_near(one, found, wide, BFLOAT16)


def test_an_unknown_type_to_add_up_in():
    with pytest.raises(ValueError, match=r"accumulate must be .float32. .* or .parameter. .*, got 'float64'"):
        mm.microbatch(jax.grad(tied_loss), size=1, accumulate="float64")
