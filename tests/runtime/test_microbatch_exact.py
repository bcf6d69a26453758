"""`microbatch(..., reduce="exact")`: the numbers of the whole batch in a pipeline, or an error with the line."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import mmruntime as mm
from tests.runtime.helpers import assert_close, stages

pytestmark = [pytest.mark.usefixtures("double", "free_promotion"), pytest.mark.family]

STAGES = 2


def params_of(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(8, 8)) / 3) for _ in range(STAGES)]


def batch_of(size: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, size, 8))
    return {"x": jnp.asarray(x), "y": jnp.asarray(y), "keep": jnp.asarray(rng.random((size, 8)) > 0.5)}


def model(params: Any, x: Any) -> Any:
    for index, w in enumerate(params):
        x = mm.task(lambda x, w: jnp.tanh(x @ w), task=mm.stage(index, STAGES), name=f"layer_{index}")(x, w)
    return x


def masked_loss(params: Any, batch: Any) -> Any:
    e = (model(params, batch["x"]) - batch["y"]) ** 2
    keep = batch["keep"].astype(e.dtype)
    decay = sum((w**2).sum() for w in params)
    aux = {
        "tokens": batch["keep"].sum(),
        "rows": e.mean(axis=-1),
        "kept": batch["keep"],
        "signs": e > 1,
        "worst": e.max(),
        "best": e.min(axis=0),
        "any": (e > 3).any(),
        "all": (e < 1e3).all(),
        "norm": params[0].sum(),
        "mean": e.mean(),
        "ones": e.shape[0],
        "count": (e > 1).sum(),
    }
    return (e * keep).sum() / keep.sum() + 0.1 * decay, aux


def exactly(fun: Any, **options: Any) -> Any:
    return mm.microbatch(fun, **{"argnum": 1, "size": 4, "reduce": "exact", **options})


def same_types(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_whole_batch_in_a_pipeline(schedule: str) -> None:
    grad = jax.value_and_grad(masked_loss, has_aux=True)
    mesh = stages(STAGES)
    with mesh:
        expected = jax.jit(grad)(params_of(), batch_of())
    step = mm.mjit(exactly(grad, schedule=schedule), mesh=mesh)
    found = step(params_of(), batch_of())
    same_types(found, expected)
    assert_close(found, expected, 1e-12)


def test_explain_says_what_is_proved() -> None:
    grad = jax.value_and_grad(masked_loss, has_aux=True)
    step = mm.mjit(exactly(grad, schedule="1f1b"), mesh=stages(STAGES))
    step(params_of(), batch_of())
    lines, first = inspect.getsourcelines(masked_loss)
    (line,) = [first + number for number, text in enumerate(lines) if "keep.sum()" in text]
    assert step.explain().proofs == (
        "the whole batch's results, proved",
        "the sum of microbatches' results: result[0][0], result[0][1]['count'], result[1][0] and 1 more",
        "the minimum of microbatches' results: result[0][1]['all'], result[0][1]['best']",
        "the maximum of microbatches' results: result[0][1]['any'], result[0][1]['worst']",
        "microbatches' results joined: result[0][1]['kept'], result[0][1]['rows'], result[0][1]['signs']",
        "the mean of microbatches' results: result[0][1]['mean']",
        "computed once: result[0][1]['norm'], result[0][1]['ones'], result[0][1]['tokens']",
        f"computed once on the whole batch: reduce_sum at {__file__}:{line} (masked_loss), float64[], 8 B",
    )
    assert step.explain().proofs[0] in str(step.explain())


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_sizes_without_a_mesh(size: int) -> None:
    grad = jax.value_and_grad(masked_loss, has_aux=True)
    expected = jax.jit(grad)(params_of(), batch_of())
    for run in (exactly(grad, size=size), jax.jit(exactly(grad, size=size))):
        found = run(params_of(), batch_of())
        same_types(found, expected)
        assert_close(found, expected, 1e-12)
        assert found[0][1]["ones"].weak_type


def test_what_the_batch_decides_is_computed_before_the_loop() -> None:
    jaxpr = jax.make_jaxpr(exactly(jax.value_and_grad(masked_loss, has_aux=True)))(params_of(), batch_of())
    (loop,) = [eqn for eqn in jaxpr.eqns if eqn.params.get("name", "").startswith("mm_microbatch_")]
    before = [eqn.primitive.name for eqn in jaxpr.eqns[: jaxpr.eqns.index(loop)]]
    assert "reduce_sum" in before
    assert not {"tanh", "dot_general", "jit"} & set(before)


def test_other_dimensions_several_arguments_and_keys() -> None:
    def loss(x: Any, params: Any, key: Any, y: Any) -> Any:
        z = model(params, x["in"].T).T
        return ((z - y) ** 2).mean() * (1 + 0 * jax.random.uniform(key)), z

    x, y = {"in": batch_of()["x"].T}, batch_of()["y"].T
    grad = jax.value_and_grad(loss, argnums=1, has_aux=True)
    expected = grad(x, params_of(), jax.random.key(0), y)
    run = mm.microbatch(grad, argnum=(0, 3), dim=1, count=4, rng=2, reduce="exact")
    assert_close(jax.jit(run)(x, params_of(), jax.random.key(0), y), expected, 1e-12)


def test_draws_differ_between_microbatches() -> None:
    def draw(batch: Any, key: Any) -> Any:
        return jax.random.normal(key, batch.shape)

    run = mm.microbatch(draw, count=2, rng=1, reduce="exact")
    found = run(jnp.zeros((4, 3)), jax.random.key(0))
    assert found.shape == (4, 3)
    assert not np.allclose(found[:2], found[2:])


def here(function: Any) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + index for index, line in enumerate(lines) if "# here" in line]
    return f"{__file__}:{number} "


def centred(params: Any, batch: Any) -> Any:
    z = model(params, batch["x"])
    z = z - z.mean(axis=0)  # here
    return jnp.mean((z - batch["y"]) ** 2)


@pytest.mark.parametrize("reduce", ["exact", "mean", "sum", ("mean", "sum")])
def test_an_error_names_the_line(reduce: Any) -> None:
    run = exactly(jax.value_and_grad(centred), reduce=reduce)
    for call in (run, jax.jit(run), mm.mjit(run, mesh=stages(STAGES))):
        with pytest.raises(ValueError, match=r"^microbatch: reduce=") as error:
            call(params_of(), batch_of())
        assert here(centred) in str(error.value)
        assert "combines a sum over examples with single examples (`sub`)" in str(error.value)
        assert "check=False" in str(error.value)


def test_check_false_and_a_bare_call_insist() -> None:
    for options in ({"reduce": "sum", "check": False}, {"reduce": None}):
        loss, _ = exactly(jax.value_and_grad(centred), **options)(params_of(), batch_of())
        parts = [centred(params_of(), jax.tree.map(lambda a, k=k: a[k : k + 4], batch_of())) for k in range(0, 16, 4)]
        assert_close(loss, sum(parts), 1e-12)


@pytest.mark.parametrize(
    ("fun", "reduce", "message"),
    [
        (lambda p, b: model(p, b["x"]).sum(), "mean", 'reduce="mean" for result of .* is the sum of what microb'),
        (lambda p, b: model(p, b["x"]).mean(), "sum", 'reduce="sum" for result of .* is the mean of what microb'),
        (lambda p, b: model(p, b["x"]).max(), "sum", 'reduce="sum" for result of .* is the maximum of what'),
        (lambda p, b: (b["x"].mean(), p[0]), "mean", None),
        (lambda p, b: (b["x"].mean(), p[0]), ("mean", "sum"), r'reduce="sum" for result\[1\] .* is what every microb'),
        (lambda p, b: model(p, b["x"]).T, "concat", 'reduce="concat" for result of .* is what microbatches give, j'),
        (lambda p, b: (model(p, b["x"]), 0 * p[0], jnp.asarray(b["x"].shape[0])), ("concat", "sum", "sum"), None),
        (lambda p, b: ({"n": (b["x"] > 0).sum()}, b["x"].mean()), ("sum", "mean"), None),
    ],
)  # fmt: skip
def test_a_given_reduce_is_held_against_the_proof(fun: Any, reduce: Any, message: str | None) -> None:
    run = exactly(fun, reduce=reduce)
    if message is None:
        assert_close(run(params_of(), batch_of()), jax.jit(fun)(params_of(), batch_of()), 1e-12)
        return
    with pytest.raises(ValueError, match=message):
        run(params_of(), batch_of())


def test_what_has_no_rule_is_said() -> None:
    def fun(params: Any, batch: Any) -> Any:
        z = jnp.tile(model(params, batch["x"]), 40)
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(z.shape, z.dtype), z).sum()  # here

    with pytest.raises(ValueError, match=r"has no rule for `pure_callback`") as error:
        exactly(fun)(params_of(), batch_of())
    assert here(fun) in str(error.value)
    with pytest.warns(UserWarning, match=r"has no rule for `pure_callback`"):
        found = exactly(fun, reduce="sum")(params_of(), batch_of())
    assert_close(found, fun(params_of(), batch_of()), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exactly(fun, reduce="sum", check=False)(params_of(), batch_of())


class Net(nn.Module):
    normalise: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(8, param_dtype=np.float64)(x)
        if self.normalise:
            x = nn.BatchNorm(use_running_average=False, param_dtype=np.float64)(x)
        else:
            x = nn.LayerNorm(param_dtype=np.float64)(x)
        return nn.Dense(8, param_dtype=np.float64)(nn.gelu(x))


@pytest.mark.parametrize("normalise", [False, True])
def test_a_linen_model(normalise: bool) -> None:
    net = Net(normalise)
    variables = net.init(jax.random.key(0), batch_of()["x"])

    def loss(params: Any, batch: Any) -> Any:
        z, _ = net.apply({**variables, "params": params}, batch["x"], mutable=["batch_stats"])
        labels = jnp.argmax(batch["y"], axis=-1)
        return optax.softmax_cross_entropy_with_integer_labels(z, labels).mean()

    grad = jax.value_and_grad(loss)
    if normalise:
        with pytest.raises(ValueError, match=rf"{__file__}:\d+ \(Net.__call__\)"):
            exactly(grad)(variables["params"], batch_of())
        return
    assert_close(jax.jit(exactly(grad))(variables["params"], batch_of()), grad(variables["params"], batch_of()), 1e-12)


def test_an_nnx_model() -> None:
    net = nnx.Linear(8, 8, rngs=nnx.Rngs(0), param_dtype=np.float64)

    def loss(net: Any, batch: Any) -> Any:
        return ((net(batch["x"]) - batch["y"]) ** 2).mean(where=batch["keep"])

    grad = nnx.value_and_grad(loss)
    assert_close(nnx.jit(exactly(grad))(net, batch_of()), grad(net, batch_of()), 1e-12)


def test_multi_steps_of_a_masked_language_model() -> None:
    """Masked tokens, counted over the whole batch, and MultiSteps around adamw: what strangers' programs have."""
    optimizer = optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=2)

    def train(cut: bool) -> Any:
        grad = jax.value_and_grad(masked_loss, has_aux=True)
        grad = exactly(grad, schedule="1f1b") if cut else grad

        def step(state: Any, batch: Any) -> Any:
            params, moments = state
            (loss, aux), grads = grad(params, batch)
            updates, moments = optimizer.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments), (loss, aux["tokens"])

        return step

    state = (params_of(), optimizer.init(params_of()))
    mesh = stages(STAGES)
    whole, cut = jax.jit(train(cut=False)), mm.mjit(train(cut=True), mesh=mesh)
    expected = found = state
    for _ in range(2):
        with mesh:
            expected, _ = whole(expected, batch_of())
        found, _ = cut(found, batch_of())
    assert_close(found, expected, 1e-10)


def _steps_of_another_program(params, batch):
    return jnp.mean(batch @ params) if batch.shape[0] > 4 else jnp.sum(batch @ params)


def _one_row_after_the_other(params, batch):
    return sum(jnp.sum((row @ params) ** 2) for row in batch) / len(batch)


@pytest.mark.parametrize("loss", [_steps_of_another_program, _one_row_after_the_other])
@pytest.mark.parametrize("wrap", [lambda function: function, jax.jit], ids=["eager", "jit"])
def test_a_program_that_differs_for_another_size_is_an_error_and_not_hoisted(loss, wrap):
    """Its parameters are captured by the trace; it would be computed on the whole batch, without microbatches."""
    step = wrap(mm.microbatch(jax.grad(loss), size=2, argnum=1, reduce="exact"))
    with pytest.raises(
        ValueError, match=r"does `\w+` for .* and not for .*, so that the two programs cannot be compared\."
    ):
        step(jnp.ones((4, 2)), jnp.ones((8, 4)))


def _of_labels(params, batch):
    logits = jnp.tanh(batch @ params)
    labels = jnp.zeros((*logits.shape[:-1], 1), int)
    return -jnp.take_along_axis(logits, labels, -1).mean()


def _judged_loss(params, batch):
    """A loss with metrics that are functions of totals, and no results themselves."""
    z = model(params, batch["x"])
    each = ((z - batch["y"]) ** 2).sum(-1)
    is_found, is_there = z[:, 0] > 0, batch["y"][:, 0] > 0
    hits = (is_found & is_there).sum().astype(z.dtype)
    return each.mean(), {
        "perplexity": jnp.exp(each.mean()),
        "f1": 2 * hits / (is_found.sum() + is_there.sum()),
        "root": jnp.sqrt(each.mean() + 0.5 * each.max()),
        "spread": each.max() - each.min(),
        "finite": jnp.isfinite(each.sum()),
        "kinds": jnp.where(each.mean() > 1, jnp.stack([each.max(), each.sum()]), 0.0),
        # Compiled functions, which add up and go on with the sum.
        "norm": jnp.linalg.norm(z),
        "norms": jnp.linalg.norm(z, axis=0),
        "bits": jax.jit(lambda each: jax.jit(jnp.mean)(each) / jnp.log(2.0))(each),
        "entropy": jax.jit(lambda p: -(p.mean(0) * jnp.log(p.mean(0))).sum())(jax.nn.softmax(z)),
    }


def _judged_step(params, batch):
    (loss, metrics), grads = jax.value_and_grad(_judged_loss, has_aux=True)(params, batch)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(grads)))
    return loss, metrics, jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1.0), grads), norm


@pytest.mark.parametrize("size", [2, 4, 16])
def test_functions_of_totals_are_computed_once_of_the_whole_batch(size):
    expected = jax.jit(_judged_step)(params_of(), batch_of())
    for run in (exactly(_judged_step, size=size), jax.jit(exactly(_judged_step, size=size))):
        found = run(params_of(), batch_of())
        same_types(found, expected)
        assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_functions_of_totals_in_a_pipeline(schedule):
    mesh = stages(STAGES)
    with mesh:
        expected = jax.jit(_judged_step)(params_of(), batch_of())
    step = mm.mjit(exactly(_judged_step, schedule=schedule), mesh=mesh)
    found = step(params_of(), batch_of())
    same_types(found, expected)
    assert_close(found, expected, 1e-12)
    assert any(
        line.startswith("computed once of the whole batch's sums, rows and the like:") for line in step.explain().proofs
    )


def test_functions_of_totals_are_differentiated_behind_the_loop():
    """Of results that are summed up, what follows the loop is as differentiable as they are."""

    def root(params, batch):
        return jnp.sqrt(((batch @ params) ** 2).mean())

    params, batch = jnp.arange(1.0, 4.0), jnp.linspace(-1.0, 2.0, 24).reshape(8, 3)
    run = mm.microbatch(root, count=4, argnum=1, reduce="exact")
    assert_close(jax.grad(run)(params, batch), jax.grad(root)(params, batch), 1e-12)


def test_a_loss_that_is_a_function_of_totals_is_named_with_its_gradients():
    """Each example's gradient needs the total before the loop ends."""

    def root(params, batch):
        return jnp.sqrt(jnp.abs(batch @ params).max())

    with pytest.raises(ValueError, match=r"result\[0\], result\[1\] of root: .*`"):
        mm.microbatch(jax.value_and_grad(root), count=4, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))


def test_beside_a_function_of_totals_what_is_not_proved_is_named():
    def judged(params, batch):
        each = (batch @ params) ** 2
        return jnp.exp(each.mean()), jnp.sort(jnp.tile(each[:, None], 300), axis=0)[:3]

    with pytest.raises(ValueError, match=r"kept for result\[1\] of judged: .* computes `sort` along the examples"):
        mm.microbatch(judged, count=2, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))


@pytest.mark.parametrize(
    ("loss", "operation"),
    [
        (lambda z: jnp.log((z**2).max()), "log"),
        (lambda z: (z**2).max() ** 2, "integer_pow"),
        (lambda z: z.max() - (z**2).min(), "sub"),
    ],
)
def test_gradients_that_fail_elsewhere_than_the_loss_say_where_the_cause_is(loss, operation):
    def judged(params, batch):
        return loss(batch @ params)

    text = (
        rf"(?s)kept for .*result\[1\] of .*\sIf that is a gradient of result\[0\], the cause is there: .*`{operation}`"
    )
    with pytest.raises(ValueError, match=text):
        mm.microbatch(jax.value_and_grad(judged), count=2, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))


def test_all_reasons_are_told_at_once_by_what_is_called():
    def judged(params, batch):
        # More than are kept for metrics.
        each = jnp.tile((batch @ params)[:, None], 300)
        table = batch[:, None] * params
        firsts = each[0, 0]
        found = {
            "order": jnp.argsort(each, axis=0),
            "flipped": each[::-1],
            "sofar": jnp.cumsum(each, axis=0),
            "both": jnp.triu(table[:, 0] @ table[:, 0].T).sum() + jnp.cumprod(each, axis=0)[0],
            "scaled": jax.nn.softmax(each, axis=0).astype(int),
            "ranks": jax.lax.sort(each, dimension=0),
            "last": each[-1],
        }
        return each.mean() + firsts, found

    def message(keep):
        def kept(params, batch):
            loss, found = judged(params, batch)
            return loss, {name: found[name] for name in keep}

        with pytest.raises(ValueError) as error:
            mm.microbatch(kept, count=2, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))
        return str(error.value).splitlines()

    first, *reasons, further = message(["order", "both"])
    assert first.endswith("cannot be kept for 5 reasons:")
    expected = [
        r"- result\[0\] of kept: .*takes some of the examples by their position",
        r"- result\[1\]\['both'\] of .*, in `jnp\.triu`, ",
        r"- result\[1\]\['both'\] of .*, in `jnp\.cumprod`, computes `cumprod` along the examples\.",
        r"- result\[1\]\['order'\] of .*, in `jnp\.argsort`, computes `sort` along the examples\.",
    ]
    for pattern in expected:
        assert any(re.match(pattern, reason) for reason in reasons), (pattern, reasons)
    assert further.startswith("If microbatches are to differ")
    assert "- and 4 more" in message(["order", "flipped", "sofar", "both", "ranks", "scaled"])


@pytest.mark.parametrize(
    ("called", "function"),
    [
        ("jnp.prod", jnp.prod),
        ("jnp.prod", lambda each: each.prod()),
        ("jnp.median", jnp.median),
        ("jnp.linalg.det", lambda each: jnp.linalg.det(each[:, None] * each)),
        ("jax.nn.softmax", lambda each: jax.nn.softmax(each).max()),
        ("jax.nn.logsumexp", jax.nn.logsumexp),
        ("jax.lax.top_k", lambda each: jax.lax.top_k(each, 2)[0].sum()),
        ("jax.random.permutation", lambda each: (each * jax.random.permutation(jax.random.key(0), each)).sum()),
        ("", lambda each: (each * each[::-1]).sum()),
    ],
)
@pytest.mark.parametrize("transform", [jax.jit, lambda function: function], ids=["jit", "plain"])
def test_what_is_unproved_is_told_by_what_is_called(called, function, transform):
    def judged(params, batch):
        return transform(function)(batch @ params)

    with pytest.raises(ValueError, match=r"test_microbatch_exact\.py:\d+ \(") as error:
        mm.microbatch(jax.value_and_grad(judged), count=2, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))
    assert re.findall(r", in `(j[\w.]*)`", str(error.value))[:1] == [called][: bool(called)]


def test_means_of_what_is_not_nan_are_told_what_to_write():
    def judged(params, batch, mean):
        return mean((batch["x"] @ params) ** 2, batch["keep"])

    params, batch = jnp.ones(3), {"x": jnp.sin(jnp.arange(24.0)).reshape(8, 3), "keep": jnp.arange(8) % 3 > 0}

    def by_nan(x, keep):
        return jnp.nanmean(jnp.where(keep, x, jnp.nan))

    def gradient(mean):
        step = mm.microbatch(
            jax.value_and_grad(functools.partial(judged, mean=mean)), count=2, argnum=1, reduce="exact"
        )
        return step(params, batch)

    with pytest.raises(ValueError, match=r"in `jnp\.nanmean`, divides by .* write jnp\.mean\(x, where=mask\)"):
        gradient(lambda x, keep: by_nan(x / by_nan(x, keep), keep))
    expected = jax.value_and_grad(judged)(params, batch, by_nan)
    assert_close(gradient(by_nan), expected, 1e-6)
    assert_close(gradient(lambda x, keep: jnp.mean(x, where=keep)), expected, 1e-6)
    assert_close(
        mm.microbatch(judged, count=2, argnum=1, reduce="exact")(params, batch, mean=by_nan), expected[0], 1e-6
    )


def predicted(params, batch):
    return jnp.tanh(batch["x"] @ params["a"]) @ params["b"]


def positive(params, batch):
    out = predicted(params, batch)
    return jnp.where(out < 0.1, jnp.nan, (out - 1) ** 2)


def scanned(params, batch):
    layers = jnp.stack([params["c"]] * 3)
    out = jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), batch["x"], layers)[0]
    return jnp.nanmean(jnp.where(out < 0.1, jnp.nan, out**2))


# Their gradients are multiples of numbers that are known after the loop.
OF_LATE_NUMBERS = {
    "mean of numbers": lambda p, b: jnp.nanmean(positive(p, b)),
    "root of a mean": lambda p, b: jnp.sqrt((predicted(p, b) ** 2).mean()),
    "logarithm of a mean": lambda p, b: jnp.log((predicted(p, b) ** 2).mean()),
    "square of a mean": lambda p, b: (predicted(p, b) ** 2).mean() ** 2,
    "through a scan": scanned,
    "with a penalty": lambda p, b: jnp.nanmean(positive(p, b)) + 0.1 * jnp.sum(p["a"] ** 2),
    "with another mean": lambda p, b: jnp.nanmean(positive(p, b)) + (predicted(p, b) ** 2).mean(),
    "twice": lambda p, b: jnp.nanmean(positive(p, b)) - jnp.nanmean(positive(p, {"x": b["x"] + 1})),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    # Versions of JAX write scans in different ways.
    "name",
    [pytest.param(name, marks=pytest.mark.sample if "scan" in name else ()) for name in OF_LATE_NUMBERS],
)
def test_gradients_that_are_multiples_of_late_numbers(name, dtype):
    shapes = {"a": (5, 7), "b": (7, 2), "c": (5, 5)}
    gradient = jax.value_and_grad(OF_LATE_NUMBERS[name])
    one = jax.jit(gradient)
    loop = jax.jit(mm.microbatch(gradient, count=16, argnum=1, reduce="exact"))

    def error(found, true):
        pairs = zip(*map(jax.tree.leaves, (found, true)), strict=True)
        return np.sqrt(np.mean(np.concatenate([np.ravel(np.float64(leaf) - other) ** 2 for leaf, other in pairs])))

    ratios = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        params = {key: jnp.asarray(rng.normal(size=shape), dtype) for key, shape in shapes.items()}
        batch = {"x": jnp.asarray(rng.normal(size=(64, 5)), dtype)}
        with jax.enable_x64(True):
            true = gradient(*jax.tree.map(lambda leaf: np.float64(leaf), (params, batch)))
        ratios.append(error(loop(params, batch), true) / error(one(params, batch), true))
    # As far from the truth as one device is.
    assert np.exp(np.mean(np.log(ratios))) <= 1.3, ratios


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float8_e5m2])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_backward_pass_of_less_range_keeps_its_factor(dtype, is_inside):
    """Its loss scale may be in the factor: with another number in its place, all gradients would be zeros."""

    def step(params, batch, scale):
        def loss(params):
            def layer(each):
                return ((each.astype(dtype) @ params.astype(dtype)) * dtype(1e-3)) ** 2

            out = jax.lax.map(layer, batch) if is_inside else layer(batch)
            return jnp.nanmean(jnp.where(out < 0, jnp.nan, out).astype(jnp.float32)) * scale

        return jax.grad(loss)(params)

    run = mm.microbatch(step, count=2, argnum=1, reduce="exact")
    with pytest.raises(ValueError, match="divides by a sum or mean over examples that depends on parameters"):
        run(jnp.ones(3, jnp.float32), jnp.ones((8, 4, 3), jnp.float32), jnp.float32(2**15))


def test_what_is_printed_of_a_gradient_keeps_its_factor():
    def step(params, batch):
        grads = jax.grad(lambda p: jnp.nanmean((batch @ p) ** 2))(params)
        jax.debug.print("{}", grads)
        return grads

    with pytest.raises(ValueError, match=r"in `jnp\.nanmean`, divides by"):
        mm.microbatch(step, count=2, argnum=1, reduce="exact")(jnp.ones(3), jnp.ones((8, 3)))


def test_a_mean_that_values_are_held_against_is_not_put_off():
    # The sum of what it is subtracted from, and the mean itself, would be rounded before they are subtracted.
    with pytest.raises(ValueError, match="cannot be kept"):
        mm.microbatch(jax.grad(lambda p, b: (b @ p).std()), count=2, argnum=1, reduce="exact")(
            jnp.ones(3), jnp.ones((8, 3))
        )


def test_how_a_function_of_totals_is_put_together_can_still_be_said():
    def judged(params, batch):
        mean = (batch @ params).mean()
        return mean, jnp.exp(mean)

    params, batch = jnp.arange(1.0, 4.0), jnp.linspace(-1.0, 2.0, 24).reshape(8, 3)
    options = {"count": 4, "argnum": 1, "reduce": ("exact", "mean")}
    with pytest.raises(ValueError, match=r'reduce="mean" is not exact for result\[1\] of judged: '):
        mm.microbatch(judged, **options)(params, batch)
    found = mm.microbatch(judged, check=False, **options)(params, batch)
    parts = jnp.stack([judged(params, part)[1] for part in batch.reshape(4, 2, 3)])
    assert_close(found, (judged(params, batch)[0], parts.mean()), 1e-12)


def _with_metric(metric, width):
    """A step of a loss and a metric of what each example has, and arguments for it."""

    def loss(params, batch):
        logits = batch @ params
        return jax.nn.logsumexp(logits, -1).mean(), metric(logits)

    generator = np.random.default_rng(3)
    arguments = [generator.normal(size=size).astype(np.float32) for size in ((4, width), (16, 4))]
    return jax.value_and_grad(loss, has_aux=True), [jnp.asarray(each) for each in arguments]


# A metric, and the operation that would be in the way.
_AFTERWARDS = {
    "argmax": (lambda z: z.argmax(0), "argmax"),
    "sort": (lambda z: jnp.sort(z, 0), "sort"),
    "cumsum": (lambda z: jnp.cumsum(z, 0), "cumsum"),
    "std": (lambda z: jnp.std(z, 0), "sub"),
    "median": (lambda z: jnp.median(z, 0), "broadcast_in_dim"),
    "nanvar": (lambda z: jnp.nanvar(jnp.where(z > 0, z, jnp.nan), 0), "le"),
    "top_k": (lambda z: jax.lax.top_k(z.T, 2)[0].mean(), "top_k"),
    "slice": (lambda z: z[:2], "slice"),
}
# One number of each example, a few, and more than are kept for a metric.
_WIDTHS = (1, 3, 300)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("name", list(_AFTERWARDS))
def test_metrics_of_a_few_numbers_of_each_example_are_computed_after_the_loop(name, count):
    metric, operation = _AFTERWARDS[name]
    for width in _WIDTHS:
        step, arguments = _with_metric(metric, width)
        run = mm.microbatch(step, count=count, argnum=1, reduce="exact")
        # With two examples in a microbatch, JAX leaves the slice of two out, so that the programs differ.
        if width < 300 and (name, count) != ("slice", 8):
            assert_close(jax.jit(run)(*arguments), step(*arguments), 1e-4)
            continue
        with pytest.raises(ValueError, match=rf"kept for result\[0\]\[1\] of loss: .*`{operation}`") as raised:
            run(*arguments)
        assert "return what it is computed from, such as an array with an entry for each" in str(raised.value)
        assert "batch normalisation" not in str(raised.value)
        step_of_all, _ = _with_metric(lambda z: z, width)
        (value, kept), grads = mm.microbatch(step_of_all, count=count, argnum=1, reduce="exact")(*arguments)
        assert_close(((value, metric(kept)), grads), step(*arguments), 1e-4)


@pytest.mark.parametrize("name", ["sort", "std", "median", "top_k"])
def test_losses_of_such_metrics_are_refused(name):
    """Their gradients need what comes after the loop in it."""
    metric, operation = _AFTERWARDS[name]
    _, arguments = _with_metric(metric, 3)
    gradient = jax.value_and_grad(lambda *each: metric(each[1] @ each[0]).sum())
    with pytest.raises(ValueError, match=rf"kept for result\[0\], result\[1\] of .*`{operation}`"):
        mm.microbatch(gradient, count=4, argnum=1, reduce="exact")(*arguments)


def _of_tokens(params, batch):
    """Attention and cross-entropy by position, of which JAX writes another program for one example."""
    x = batch["x"][..., None] * jnp.ones((1, 1, 8))
    x = x + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x, x)) @ x
    logits = jax.nn.log_softmax(model(params, x))
    picked = jnp.take_along_axis(logits, (batch["y"] > 0).astype(int)[..., None], axis=-1)[..., 0]
    keep = batch["keep"].astype(picked.dtype)
    return -(picked * keep).sum() / keep.sum(), {"rows": picked.mean(axis=-1), "tokens": batch["keep"].sum()}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_microbatches_of_one_example_in_a_pipeline(schedule):
    grad = jax.value_and_grad(_of_tokens, has_aux=True)
    batch = batch_of(4)
    expected = jax.jit(grad)(params_of(), batch)
    step = mm.mjit(exactly(grad, size=1, schedule=schedule), mesh=stages(STAGES))
    found = step(params_of(), batch)
    same_types(found, expected)
    assert_close(found, expected, 1e-12)
    assert {f"layer_{index}" for index in range(STAGES)} <= {name for row in step.explain().tasks for name in row.tasks}


def test_two_microbatches_of_one_example():
    batch = jnp.ones((2, 3, 2)) * jnp.arange(1, 3.0)[:, None, None]
    found = mm.microbatch(jax.grad(_of_labels), count=2, argnum=1, reduce="exact")(jnp.ones((2, 2)), batch)
    assert_close(found, jax.grad(_of_labels)(jnp.ones((2, 2)), batch), 1e-12)


def test_a_microbatch_of_one_example_that_is_another_program_is_said_to_be_one():
    def loss(params, batch):
        x = batch @ params
        return (jnp.tanh(x) if len(batch) > 2 else x).mean()

    with pytest.raises(ValueError, match=r"each microbatch is one example: give it two or more, by a smaller count="):
        mm.microbatch(jax.grad(loss), count=4, argnum=1, reduce="exact")(jnp.ones((2, 2)), jnp.ones((4, 3, 2)))


def _dropped(params, batch, key):
    return jnp.mean((batch * jax.random.bernoulli(key, 0.5, batch.shape)) @ params)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize("form", ["captured", "traced", "argument"])
def test_a_key_that_rng_does_not_name_is_said(make, form, caplog):
    params, batch, key = jnp.ones((4, 2)), jnp.ones((8, 4)), make(0)

    def step(params, batch, key):
        if form == "argument":
            return mm.microbatch(jax.grad(_dropped), size=2, argnum=1, reduce="exact")(params, batch, key)
        captured = make(1) if form == "captured" else key
        loss = jax.grad(lambda params, batch: _dropped(params, batch, captured))
        return mm.microbatch(loss, size=2, argnum=1, reduce="exact")(params, batch)

    jax.jit(step)(params, batch, key)
    assert "draws the same random numbers at" in caplog.text
    assert "test_microbatch_exact.py" in caplog.text


@pytest.mark.parametrize(
    "tell", [lambda value: jax.debug.print("{}", value), lambda value: jax.debug.callback(id, value)]
)
def test_a_call_of_the_host_by_each_microbatch_is_said(tell, caplog):
    def loss(params, batch):
        value = jnp.mean(batch @ params)
        jax.jit(tell)(value)
        return value

    step = mm.microbatch(jax.grad(loss), size=2, argnum=1, reduce="exact")
    jax.make_jaxpr(step)(jnp.ones((4, 2)), jnp.ones((8, 4)))
    assert "test_microbatch_exact.py" in caplog.text
    assert "runs once for each of the 4 microbatches of loss" in caplog.text
    caplog.clear()
    jax.make_jaxpr(step)(jnp.ones((4, 2)), jnp.ones((2, 4)))
    assert not caplog.records


def test_a_key_that_rng_names_is_fine(caplog):
    step = mm.microbatch(jax.grad(_dropped), size=2, argnum=1, rng=2, reduce="exact")
    jax.jit(step)(jnp.ones((4, 2)), jnp.ones((8, 4)), jax.random.key(0))
    assert not caplog.records


def trees(params: Any, batch: Any) -> Any:
    e = ((model(params, batch["x"]) - batch["y"]) ** 2).mean(axis=-1)
    return {
        "loss": e.mean(),
        "worst": e.max(),
        "best": e.min(),
        "any": (e > 1).any(),
        "rows": e,
        "count": (e > 1).sum(),
    }


GIVEN = {"loss": "mean", "worst": "max", "best": "min", "any": "max", "rows": "concat", "count": "sum"}


@pytest.mark.parametrize("exact", [(), ("loss",), ("worst", "any", "rows"), tuple(GIVEN)])
def test_a_tree_of_every_way(exact: tuple[str, ...]) -> None:
    reduce = {name: "exact" if name in exact else how for name, how in GIVEN.items()}
    expected = jax.jit(trees)(params_of(), batch_of())
    found = jax.jit(exactly(trees, reduce=reduce))(params_of(), batch_of())
    same_types(found, expected)
    assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("name", ["worst", "rows", "count"])
def test_one_wrong_way_in_a_tree_is_an_error(name: str) -> None:
    wrong = {"worst": "min", "rows": "max", "count": "max"}[name]
    for rest in ("exact", None):
        reduce = {key: wrong if key == name else rest or how for key, how in GIVEN.items()}
        with pytest.raises(
            ValueError, match=rf'^microbatch: reduce="{wrong}" for result\[\'{name}\'\] of trees is not '
        ):
            exactly(trees, reduce=reduce)(params_of(), batch_of())
        found = exactly(trees, reduce=reduce, check=False)(params_of(), batch_of())
        parts = [trees(params_of(), jax.tree.map(lambda a, k=k: a[k : k + 4], batch_of())) for k in range(0, 16, 4)]
        combiner = {"min": jnp.minimum, "max": jnp.maximum}[wrong]
        total = parts[0][name]
        for part in parts[1:]:
            total = combiner(total, part[name])
        assert_close(found[name], total, 1e-12)
        assert_close(found["loss"], trees(params_of(), batch_of())["loss"], 1e-12)


def test_insisting_beside_what_is_computed_on_the_whole_batch_is_an_error() -> None:
    def fun(params: Any, batch: Any) -> Any:
        e = (model(params, batch["x"]) * batch["keep"]).sum() / batch["keep"].sum()
        return e, e * 2

    assert_close(exactly(fun)(params_of(), batch_of()), fun(params_of(), batch_of()), 1e-12)
    with pytest.raises(ValueError, match=r'^microbatch: result\[1\] of fun reads values .* Give reduce="exact"'):
        exactly(fun, reduce=("exact", "mean"), check=False)(params_of(), batch_of())


def test_explain_says_what_a_bare_sum_is() -> None:
    def fun(params: Any, batch: Any) -> Any:
        z = model(params, batch["x"])
        return {
            "mean": z.mean(),
            "sum": z.sum(),
            "max": z.max(),
            "rows": z,
            "param": params[0],
            "zero": 0 * params[0],
            "norm": jnp.sqrt((z**2).sum()),
            "size": z.shape[0],
        }

    lines, first = inspect.getsourcelines(fun)
    (line,) = [first + number for number, text in enumerate(lines) if "jnp.sqrt" in text]
    norm = (
        f"{__file__}:{line} (test_explain_says_what_a_bare_sum_is.<locals>.fun) computes `sqrt` of a sum or mean over"
    )
    expected = [
        "4 times what the whole batch gives: result['mean'], result['param']",
        "not what the whole batch gives, which is the maximum of what microbatches give: result['max']",
        "not what the whole batch gives, which is what microbatches give, joined: result['rows']",
        "what the whole batch gives: result['size'], result['sum'], result['zero']",
    ]
    for options, head in (
        ({"reduce": None}, "microbatches' results added up, as no reduce= is given"),
        ({"reduce": "sum", "check": False}, "microbatches' results, as reduce= says"),
    ):
        step = mm.mjit(exactly(fun, **options), mesh=stages(STAGES))
        found = step(params_of(), batch_of())
        said = step.explain().proofs
        assert said[0] == head
        assert set(expected) <= set(said)
        assert any(line.startswith(f"not what the whole batch gives, as {norm}") for line in said)
        assert_close(found["mean"], 4 * fun(params_of(), batch_of())["mean"], 1e-12)


def test_a_bare_call_needs_no_whole_batch() -> None:
    def fun(params: Any, batch: Any) -> Any:
        if batch["x"].shape[0] > 4:
            raise MemoryError("too many examples")
        return model(params, batch["x"]).sum()

    step = mm.mjit(exactly(fun, reduce=None), mesh=stages(STAGES))
    step(params_of(), batch_of())
    assert "cannot be traced for the whole batch: MemoryError: too many examples" in step.explain().proofs[1]
    with pytest.raises(MemoryError) as error:
        exactly(fun)(params_of(), batch_of())
    assert error.value.__notes__[0] == (
        "microbatch: fun fails for the whole batch of 16, for which reduce= is checked, and can be traced in a "
        "microbatch of 4 of 16 examples."
    )


def test_an_error_of_one_microbatch_alone_says_so() -> None:
    def fun(params: Any, batch: Any) -> Any:
        return model(params, batch["x"]).reshape(16, 8).sum()

    for reduce in ("exact", "sum", None):
        with pytest.raises(TypeError, match="reshape") as error:
            exactly(fun, reduce=reduce)(params_of(), batch_of())
        assert error.value.__notes__[0] == (
            "microbatch: fun fails in a microbatch of 4 of 16 examples, and can be traced for the whole batch of 16. "
            "A number of examples that is written into it, as in jnp.arange(16), fits one of them at most: take it "
            "from the shape of an argument, as in jnp.arange(x.shape[0]). Pass arrays with a row for each example as "
            "arguments that argnum= cuts; select among all examples outside of the function; or give a size= or count= "
            "that it takes."
        )


@pytest.mark.parametrize("reduce", ["exact", "sum", None])
def test_a_string_among_the_results_is_named(reduce: Any) -> None:
    def fun(params: Any, batch: Any) -> Any:
        return model(params, batch["x"]).sum(), {"note": "text"}

    with pytest.raises(TypeError, match=r"^microbatch: result\[1\]\['note'\] of fun is 'text', which is no array"):
        exactly(fun, reduce=reduce)(params_of(), batch_of())


def test_a_sum_beside_weight_decay_says_how_often_it_is_added() -> None:
    def loss(params: Any, batch: Any) -> Any:
        decay = sum((w**2).sum() for w in params)
        return ((model(params, batch["x"]) - batch["y"]) ** 2).sum() + 0.1 * decay  # here

    with pytest.raises(ValueError, match=r"such as weight decay, .* with 4 microbatches it is added 4 times") as error:
        exactly(loss, reduce="sum")(params_of(), batch_of())
    assert here(loss) in str(error.value)
    assert 'Give reduce="exact"' in str(error.value)
    assert_close(exactly(loss)(params_of(), batch_of()), loss(params_of(), batch_of()), 1e-12)


def test_a_sum_beside_a_mean_is_said() -> None:
    def loss(params: Any, batch: Any) -> Any:
        z = model(params, batch["x"])
        return (z**2).mean() + 0.1 * (z**4).sum()  # here

    for reduce in ("sum", "mean"):
        with pytest.raises(ValueError, match="combines a sum over examples with a mean over them") as error:
            exactly(loss, reduce=reduce)(params_of(), batch_of())
        assert here(loss) in str(error.value)


def test_no_key_on_purpose_is_no_news(caplog: Any) -> None:
    step = mm.microbatch(jax.grad(_dropped), size=2, argnum=1, rng=(), reduce="exact")
    jax.jit(step)(jnp.ones((4, 2)), jnp.ones((8, 4)), jax.random.key(0))
    assert not caplog.records


@pytest.mark.parametrize("fast", [True, False])
def test_batch_statistics_of_each_microbatch(fast: bool) -> None:
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for index in range(2):
                x = nn.Dense(8, use_bias=False, param_dtype=np.float64, name=f"dense_{index}")(x)
                x = nn.BatchNorm(False, param_dtype=np.float64, use_fast_variance=fast, name=f"norm_{index}")(x)
                x = nn.gelu(x)
            return nn.Dense(8, param_dtype=np.float64)(x)

    net = Normed()
    variables = net.init(jax.random.key(0), batch_of()["x"])

    def loss(params: Any, batch: Any) -> Any:
        z, changed = net.apply({**variables, "params": params}, batch["x"], mutable=["batch_stats"])
        decay = 0.01 * sum((p**2).sum() for p in jax.tree.leaves(params))
        return ((z - batch["y"]) ** 2).mean() + decay, (changed["batch_stats"], z)

    grad = jax.value_and_grad(loss, has_aux=True)
    parts = [grad(variables["params"], jax.tree.map(lambda a, k=k: a[k : k + 4], batch_of())) for k in range(0, 16, 4)]
    (value, (state, _)), grads = jax.tree.map(lambda *each: sum(each) / 4, *parts)
    rows = jnp.concatenate([part[0][1][1] for part in parts])
    step = mm.mjit(exactly(grad, batch_stats="microbatch"), mesh=stages(STAGES))
    assert_close(step(variables["params"], batch_of()), ((value, (state, rows)), grads), 1e-12)
    assert any(
        line.startswith("each microbatch's own, not that of the whole batch: ") for line in step.explain().proofs
    )
    with pytest.raises(ValueError, match='batch_stats="microbatch"'):
        exactly(grad)(variables["params"], batch_of())


class Calls(nnx.Variable[Any]):
    """A count of calls, which no example decides."""


class NormedObject(nnx.Module):
    """Batch normalisation and dropout of nnx, which keep their state in the module."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.dense = nnx.Linear(8, 8, use_bias=False, rngs=rngs, param_dtype=np.float64)
        self.norm = nnx.BatchNorm(8, rngs=rngs, param_dtype=np.float64)
        self.norm.mean, self.norm.var = nnx.BatchStat(jnp.arange(8.0)), nnx.BatchStat(jnp.ones(8))
        self.calls = Calls(jnp.zeros((), np.int32))
        self.dropout = nnx.Dropout(0.0)

    def __call__(self, x: Any, rngs: nnx.Rngs) -> Any:
        self.calls[...] += 1
        return nnx.gelu(self.norm(self.dropout(self.dense(x), rngs=rngs)))


def test_batch_statistics_of_nnx_objects_of_each_microbatch() -> None:
    def loss(net: Any, batch: Any, rngs: Any) -> Any:
        z = net(batch["x"], rngs)
        return ((z - batch["y"]) ** 2).mean(), z

    grad = nnx.value_and_grad(loss, has_aux=True)
    reference = NormedObject()
    copies = [nnx.clone(reference) for _ in range(4)]
    parts = [
        grad(copy, jax.tree.map(lambda a, k=k: a[4 * k : 4 * k + 4], batch_of()), nnx.Rngs(0))
        for k, copy in enumerate(copies)
    ]
    (value, _), grads = jax.tree.map(lambda *each: sum(each) / 4, *parts)
    rows = jnp.concatenate([part[0][1] for part in parts])
    state = jax.tree.map(lambda *each: sum(each) / 4, *(nnx.state(copy, nnx.BatchStat) for copy in copies))
    net, rngs = NormedObject(), nnx.Rngs(0)
    step = mm.mjit(exactly(grad, batch_stats="microbatch", rng=2), mesh=stages(STAGES), like=nnx.jit)
    assert_close(step(net, batch_of(), rngs), ((value, rows), grads), 1e-12)
    assert_close(jax.tree.leaves(nnx.state(net, nnx.BatchStat)), jax.tree.leaves(state), 1e-12)
    assert net.calls[...] == 1
    with pytest.raises(ValueError, match=r'changes norm.mean, norm.var of an nnx object .*batch_stats="microbatch"'):
        exactly(grad, rng=2)(NormedObject(), batch_of(), nnx.Rngs(0))


def test_state_that_microbatches_cannot_average_is_named() -> None:
    class Largest(nnx.Module):
        def __init__(self) -> None:
            self.weight, self.seen = nnx.Param(jnp.ones(())), Calls(jnp.zeros(()))

        def __call__(self, x: Any) -> Any:
            x = x * self.weight
            self.seen[...] = jnp.max(jnp.sort(jnp.tile(x, 40), axis=0)[0])
            return x.mean()

    with pytest.raises(ValueError, match=r"cannot be kept for the state seen of <lambda>"):
        exactly(lambda net, batch: net(batch["x"]), batch_stats="microbatch")(Largest(), batch_of())


def test_pairs_of_examples_are_no_batch_statistics() -> None:
    def loss(params: Any, batch: Any) -> Any:
        z = model(params, batch["x"])
        return jnp.mean((z @ z.T) ** 2)  # here

    with pytest.raises(ValueError, match="compares or multiplies examples with each other") as error:
        exactly(jax.value_and_grad(loss), batch_stats="microbatch")(params_of(), batch_of())
    assert here(loss) in str(error.value)


@pytest.mark.parametrize("reduce", ["exact", ("mean", {"none": "exact", "rows": "concat"})])
def test_results_may_hold_none(reduce: Any) -> None:
    def loss(x: jax.Array) -> Any:
        return x.mean(), {"none": None, "rows": x}

    x = jnp.arange(4.0)
    mean, others = mm.microbatch(loss, count=2, reduce=reduce)(x)
    assert others["none"] is None
    np.testing.assert_array_equal(others["rows"], x)
    np.testing.assert_allclose(mean, 1.5)


@pytest.mark.parametrize("form", ["hoisted", "reduction", "each"])
def test_a_loop_is_not_differentiated_by_a_rule_of_which_nothing_is_proved(form):
    @jax.custom_vjp
    def own(x, mask):
        if form == "hoisted":
            return (x * mask).sum() / mask.sum()
        return (x * mask).sum() if form == "reduction" else x

    # The gradient is that of microbatches only if the rule does not ask for the size of the batch.
    own.defvjp(lambda *args: (own(*args), args), lambda args, g: (g * jnp.ones_like(args[0]) / len(args[0]), None))

    def loss(params, batch):
        return own(batch[:, 0] @ params, batch[:, 1, 0]).sum()

    params, batch = jnp.ones(3), jnp.arange(48.0).reshape(8, 2, 3)
    loop = mm.microbatch(loss, size=2, argnum=1, reduce="exact")
    assert_close(loop(params, batch), loss(params, batch), 1e-10)
    with pytest.raises(
        ValueError, match=r"test_microbatch_exact\.py:\d+.* has a derivative rule of its own.* Put jax\.grad"
    ):
        jax.grad(loop)(params, batch)


def test_the_advice_for_derivative_rules_works_and_rules_of_jax_need_none():
    @jax.custom_jvp
    def own(x, mask):
        return (x * mask).sum() / mask.sum()

    own.defjvp(lambda primals, tangents: (own(*primals), 2 * tangents[0].sum()))

    def loss(params, batch):
        return own(batch[:, 0] @ params, batch[:, 1, 0])

    params, batch = jnp.ones(3), jnp.arange(48.0).reshape(8, 2, 3)
    inside = mm.microbatch(jax.grad(loss), size=2, argnum=1, reduce="exact")(params, batch)
    assert_close(inside, jax.grad(loss)(params, batch), 1e-10)

    def plain(params, batch):
        return jax.nn.relu(batch @ params).mean()

    loop = mm.microbatch(plain, size=2, argnum=1, reduce="exact")
    assert_close(jax.grad(loop)(params, batch), jax.grad(plain)(params, batch), 1e-10)


POSITIONS = {
    "a dimension for each": {"argnum": (1, 2), "dim": (1, 0)},
    "from the last": {"argnum": (-3, -2), "dim": (-1, 0), "rng": -1},
    "in another order": {"argnum": (2, -3), "dim": (0, 1), "rng": (3,)},
    "as lists": {"argnum": [1, 2], "dim": [1, -1]},
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_and_dimensions_are_those_that_people_write(name: str) -> None:
    """Columns of the one argument are the rows of the other."""

    def loss(w: Any, columns: Any, targets: Any, key: Any) -> Any:
        errors = w @ columns - targets + 0 * jax.random.normal(key, ())
        return (errors**2).mean(), errors

    arguments = jnp.arange(4.0), jnp.sin(jnp.arange(32.0)).reshape(4, 8), jnp.arange(8.0), jax.random.key(0)
    gradient = jax.value_and_grad(loss, has_aux=True)
    expected = gradient(*arguments)
    step = mm.mjit(mm.microbatch(gradient, size=2, reduce="exact", **{"rng": 3} | POSITIONS[name]), mesh=stages(2))
    assert_close(step(*arguments), expected, 1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": (0, 0), "argnum": 1}, ValueError, r"dim=\(0, 0\) has a dimension for each of 2 .* names one argument"),
        ({"dim": (0,), "argnum": (1, 2)}, ValueError, r"for each of 1 arguments, and argnum= names 2 arguments"),
        ({"dim": (0, 1), "argnum": (1, 2), "slices": 2}, ValueError, r"slices=2 .* one number for all arguments"),
        ({"argnum": (1, -2)}, ValueError, r"argnum=\(1, -2\) names one of 3 arguments twice"),
        ({"argnum": -4}, TypeError, r"argnum=-4 is the argument to slice, but loss was called with 3"),
        ({"argnum": -1, "rng": 2}, TypeError, r"rng=2 must be the position of another positional argument"),
        ({"dim": (0, "1"), "argnum": (1, 2)}, TypeError, r"dim must be an integer, got '1'"),
        ({"dim": (0, 1), "argnum": (1, 2)}, ValueError, r"dim=1 is out of range for argument 2 of loss"),
    ],
)
def test_positions_and_dimensions_that_do_not_fit(options: dict[str, Any], error: Any, message: str) -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((x @ w - y) ** 2).sum()

    with pytest.raises(error, match=message):
        mm.microbatch(jax.grad(loss), size=2, **options)(jnp.ones(4), jnp.ones((8, 4)), jnp.ones(8))


def test_results_are_joined_along_the_dimension_of_the_first_argument() -> None:
    def both(x: Any, y: Any) -> Any:
        return x * y[:, None].T

    x, y = jnp.arange(8.0).reshape(2, 4), jnp.arange(4.0)
    joined = mm.microbatch(both, argnum=(0, 1), dim=(1, 0), size=2, reduce="concat")(x, y)
    np.testing.assert_array_equal(joined, both(x, y))
