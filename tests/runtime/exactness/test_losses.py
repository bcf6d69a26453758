"""Losses as people write them: what is proved of each, its numbers and gradients, or the line that is not exact."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.runtime.exactness.checking import assert_exact, case_of
from tests.runtime.exactness.losses import Losses, model

pytestmark = pytest.mark.family

LOSSES = Losses()
exact, mixed = LOSSES.exact, LOSSES.mixed


def errors(params: Any, batch: Any) -> Any:
    return (model(params, batch["x"]) - batch["y"]) ** 2


def batch_of(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x": jnp.asarray(rng.normal(size=(size, 4))),
        "y": jnp.asarray(rng.normal(size=(size, 4))),
        "label": jnp.asarray(rng.integers(0, 4, size=size)),
        "tokens": jnp.asarray(rng.integers(0, 5, size=(size, 3))),
        "keep": jnp.asarray(rng.random((size, 4)) > 0.4),
    }


def params_of() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "w": jnp.asarray(rng.normal(size=(4, 4))),
        "v": jnp.asarray(rng.normal(size=(4, 4))),
        "table": jnp.asarray(rng.normal(size=(5, 4))),
    }


# Means, in every spelling.


@exact("mean")
def plain_mean(params, batch):
    return jnp.mean(errors(params, batch))


@exact("mean")
def sum_over_len(params, batch):
    e = errors(params, batch)
    return jnp.sum(e) / len(e)


@exact("mean")
def sum_over_shape(params, batch):
    return errors(params, batch).sum() / batch["x"].shape[0]


@exact("mean")
def sum_over_size(params, batch):
    e = errors(params, batch)
    return jnp.sum(e) / e.size


@exact("mean")
def average(params, batch):
    return jnp.average(errors(params, batch))


@exact("mean")
def mean_in_a_helper(params, batch):
    def reduce(e):
        return e.mean()

    return reduce(errors(params, batch))


@exact("mean")
def mean_of_means(params, batch):
    return jnp.mean(jnp.mean(errors(params, batch), axis=0))


@exact("mean")
def mean_of_row_sums(params, batch):
    return errors(params, batch).sum(axis=-1).mean()


@exact("mean")
def mean_of_mapped(params, batch):
    one = jax.vmap(lambda x, y: jnp.mean((model(params, x) - y) ** 2))
    return one(batch["x"], batch["y"]).mean()


@exact("mean")
def mean_over_the_first_axis(params, batch):
    return errors(params, batch).mean(axis=-2).sum()


@exact("mean")
def mean_over_the_transposed_axis(params, batch):
    return jnp.mean((model(params, batch["x"]).T - batch["y"].T) ** 2, axis=1).sum()


@exact("mean")
def mean_of_flattened(params, batch):
    return errors(params, batch).reshape(-1).mean()


@exact("mean")
def mean_after_moving_axes(params, batch):
    return jnp.moveaxis(errors(params, batch), 0, -1).reshape(4, -1).mean(axis=1).sum()


@exact("mean")
def product_with_ones(params, batch):
    e = errors(params, batch)
    return jnp.ones(e.shape[0]) @ e @ jnp.ones(e.shape[1]) / e.size


@exact("mean")
def einsum_of_errors(params, batch):
    d = model(params, batch["x"]) - batch["y"]
    return jnp.einsum("bi,bi->", d, d) / d.shape[0]


@exact("mean")
def vdot_over_size(params, batch):
    d = model(params, batch["x"]) - batch["y"]
    return jnp.vdot(d, d) / d.size


@exact("mean")
def jitted(params, batch):
    return jax.jit(lambda e: e.mean())(errors(params, batch))


@exact("mean")
def cross_entropy(params, batch):
    logits = model(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


@exact("mean")
def one_hot_cross_entropy(params, batch):
    targets = jax.nn.one_hot(batch["label"], 4, dtype=jnp.float64)
    return optax.softmax_cross_entropy(model(params, batch["x"]), targets).mean()


@exact("mean")
def picked_by_position(params, batch):
    logp = jax.nn.log_softmax(model(params, batch["x"]))
    return -logp[jnp.arange(logp.shape[0]), batch["label"]].mean()


@exact("mean")
def taken_along_an_axis(params, batch):
    logp = jax.nn.log_softmax(model(params, batch["x"]))
    return -jnp.take_along_axis(logp, batch["label"][:, None], axis=-1).mean()


@exact("mean")
def embedded_tokens(params, batch):
    z = params["table"][batch["tokens"]].mean(axis=1) @ params["w"]
    return ((z - batch["y"]) ** 2).mean()


@exact("mean")
def tied_embedding(params, batch):
    logits = jnp.tanh(params["table"][batch["tokens"]]) @ params["table"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean()


@exact("mean")
def recurrent(params, batch):
    def cell(h, token):
        h = jnp.tanh(h @ params["w"] + params["table"][token])
        return h, h

    _, hidden = jax.lax.scan(cell, jnp.zeros_like(batch["x"]), batch["tokens"].T)
    return (hidden**2).mean()


@exact("mean")
def gated_recurrence_from_zeros(params, batch):
    def cell(carry, x):
        h, c = carry
        gate = jax.nn.sigmoid(h @ params["w"] + 0.5)
        c = gate * c + x @ params["v"]
        h = jnp.tanh(c) + params["table"][0]
        return (h, c), h

    start = (jnp.zeros_like(batch["x"]), jnp.zeros_like(batch["x"]))
    _, hidden = jax.lax.scan(cell, start, jnp.stack([batch["x"], batch["y"]]))
    return (hidden**2).mean()


@exact("mean")
def layers_in_a_scan(params, batch):
    stacked = jnp.stack([params["w"], params["v"]])
    z, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), batch["x"], stacked)
    return ((z - batch["y"]) ** 2).mean()


@exact("mean")
def examples_in_a_map(params, batch):
    def one(pair):
        x, y = pair
        return jnp.sum((model(params, x) - y) ** 2)

    return jax.lax.map(one, (batch["x"], batch["y"])).mean()


@exact("sum")
def examples_in_a_scan(params, batch):
    def one(total, pair):
        x, y = pair
        return total + jnp.sum((model(params, x) - y) ** 2), None

    return jax.lax.scan(one, 0.0, (batch["x"], batch["y"]))[0]


@exact("mean")
def attention(params, batch):
    h = params["table"][batch["tokens"]]
    scores = jax.nn.softmax(jnp.einsum("bte,bse->bts", h @ params["w"], h), axis=-1)
    return ((scores @ h) ** 2).mean()


@exact("mean")
def normalised_layers(params, batch):
    z = model(params, batch["x"])
    z = (z - z.mean(axis=-1, keepdims=True)) / jnp.sqrt(z.var(axis=-1, keepdims=True) + 1e-5)
    return ((z - batch["y"]) ** 2).mean()


@exact("mean")
def two_views(params, batch):
    both = jnp.concatenate([batch["x"], jnp.flip(batch["x"], axis=-1)])
    one, other = jnp.split(model(params, both), 2)
    return ((one - other) ** 2).mean()


@exact("mean")
def two_views_in_slices(params, batch):
    n = batch["x"].shape[0]
    z = model(params, jnp.concatenate([batch["x"], -batch["x"]]))
    return (z[:n] * z[n:]).mean()


@exact("mean")
def pairs_of_neighbours(params, batch):
    return (model(params, batch["x"]).reshape(-1, 2, 4).sum(axis=1) ** 2).mean()


@exact("mean")
def weight_decay_beside_a_mean(params, batch):
    return jnp.mean(errors(params, batch)) + 0.1 * sum(jnp.sum(p**2) for p in params.values())


@exact("mean")
def auxiliary_in_a_cond(params, batch):
    e = errors(params, batch)
    return jax.lax.cond(params["w"][0, 0] > 0, lambda: e.mean(), lambda: 2 * e.mean())


@exact("mean")
def branch_without_the_batch(params, batch):
    e = errors(params, batch)
    return jax.lax.cond(params["w"][0, 0] > 9, lambda: e.mean(), lambda: params["v"].sum())


@exact("mean")
def iterated(params, batch):
    z = jax.lax.fori_loop(0, 3, lambda i, z: jnp.tanh(z @ params["w"]), batch["x"])
    return ((z - batch["y"]) ** 2).mean()


@exact("mean")
def clipped(params, batch):
    return jnp.clip(errors(params, batch), 0.1, 2.0).mean()


@exact("mean")
def huber(params, batch):
    return optax.huber_loss(model(params, batch["x"]), batch["y"]).mean()


@exact("mean")
def worst_entry_of_each(params, batch):
    return errors(params, batch).max(axis=-1).mean()


@exact("mean")
def sorted_within_each(params, batch):
    return (jnp.sort(model(params, batch["x"]), axis=-1) * jnp.arange(4.0)).mean()


@exact("mean")
def top_two_of_each(params, batch):
    return jax.lax.top_k(errors(params, batch), 2)[0].mean()


@exact("mean")
def accumulated_along_time(params, batch):
    return jnp.cumsum(model(params, batch["x"]), axis=-1).mean()


@exact("mean")
def solved(params, batch):
    matrix = params["w"] @ params["w"].T + jnp.eye(4)
    return (jnp.linalg.solve(matrix, model(params, batch["x"]).T) ** 2).mean()


@exact("mean")
def convolved(params, batch):
    image = jnp.tanh(batch["x"])[:, :, None] * params["w"]
    kernel = params["v"][None, None]
    out = jax.lax.conv_general_dilated(image[:, None], kernel, (1, 1), "SAME")
    return (jax.lax.reduce_window(out, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") ** 2).mean()


@exact("mean", written="mixed")
def gradient_penalty(params, batch):
    gradient = jax.grad(lambda x: model(params, x).mean())(batch["x"])
    return jnp.mean(errors(params, batch)) + 0.5 * jnp.square(gradient).mean()


@exact("mean", written="mixed")
def mean_beside_a_sum(params, batch):
    z = model(params, batch["x"])
    return jnp.mean((z - batch["y"]) ** 2) + 0.1 * jnp.sum(z**2)


# Sums, and means over what the batch alone decides.


@exact("sum")
def plain_sum(params, batch):
    return errors(params, batch).sum()


@exact("sum")
def weight_decay_beside_a_sum(params, batch):
    return errors(params, batch).sum() + 0.1 * sum(jnp.sum(p**2) for p in params.values())


@exact("mean", written="mixed")
def masked_mean(params, batch):
    keep = batch["keep"].astype(jnp.float64)
    return jnp.mean(errors(params, batch) * keep) / jnp.mean(keep)


@exact("sum")
def masked_sum_over_count(params, batch):
    return jnp.where(batch["keep"], errors(params, batch), 0).sum() / batch["keep"].sum().astype(jnp.float64)


@exact("sum")
def mean_where(params, batch):
    return jnp.mean(errors(params, batch), where=batch["keep"])


@exact("sum")
def rebound_mask(params, batch):
    mask = batch["keep"].astype(jnp.float64)
    mask = mask / mask.sum()
    return jnp.sum(errors(params, batch) * mask)


@exact("sum")
def augmented_weights(params, batch):
    w = batch["keep"].astype(jnp.float64)
    w /= w.sum()
    return jnp.sum(errors(params, batch) * w)


@exact("sum")
def mask_divided_later(params, batch):
    e = errors(params, batch) * batch["keep"] / batch["keep"].sum()
    return e.sum()


@exact("sum")
def at_least_one_token(params, batch):
    count = jnp.maximum(batch["keep"].sum(), 1).astype(jnp.float64)
    return (errors(params, batch) * batch["keep"]).sum() / count


@exact("sum")
def weights_by_softmax(params, batch):
    weights = jax.nn.softmax(batch["y"][:, 0])
    return jnp.sum(errors(params, batch).mean(axis=-1) * weights)


@exact("sum")
def class_weights_of_the_batch(params, batch):
    counts = jnp.bincount(batch["label"], length=4).astype(jnp.float64)
    weights = (1 / jnp.maximum(counts, 1))[batch["label"]]
    return (errors(params, batch).mean(axis=-1) * weights).sum() / weights.sum()


@exact("sum")
def targets_standardised_over_the_batch(params, batch):
    y = (batch["y"] - batch["y"].mean(axis=0)) / batch["y"].std(axis=0)
    return ((model(params, batch["x"]) - y) ** 2).sum()


@exact("sum")
def weights_by_rank(params, batch):
    rank = jnp.argsort(jnp.argsort(batch["y"][:, 0])).astype(jnp.float64)
    return (errors(params, batch).mean(axis=-1) * rank).sum()


@exact("sum")
def count_in_a_jitted_function(params, batch):
    @jax.jit
    def reduce(e, keep):
        return (e * keep).sum() / keep.sum()

    return reduce(errors(params, batch), batch["keep"])


@exact("sum")
def count_in_a_checkpoint(params, batch):
    @jax.checkpoint
    def reduce(params, batch):
        return (errors(params, batch) * batch["keep"]).sum() / batch["keep"].sum()

    return reduce(params, batch)


@exact("sum")
def unbiased_variance_of_the_targets(params, batch):
    return errors(params, batch).sum() / batch["y"].var(ddof=1)


@exact("sum")
def over_one_less(params, batch):
    return errors(params, batch).sum() / (batch["x"].shape[0] - 1)


@exact("sum")
def over_the_root(params, batch):
    return errors(params, batch).sum() / batch["x"].shape[0] ** 0.5


@exact("sum")
def weighted_by_position(params, batch):
    positions = jnp.arange(batch["x"].shape[0], dtype=jnp.float64)
    return (errors(params, batch).sum(axis=-1) * positions).sum()


@exact("sum")
def every_other_example(params, batch):
    even = jnp.arange(batch["x"].shape[0]) % 2 == 0
    return jnp.where(even[:, None], errors(params, batch), 0).sum()


@exact("sum")
def segments(params, batch):
    sums = jax.ops.segment_sum(errors(params, batch), batch["label"], num_segments=4)
    return (sums * jnp.arange(4.0)[:, None]).sum()


@exact("sum")
def constants_of_the_batch_size(params, batch):
    weights = np.linspace(0.0, 1.0, batch["x"].shape[0])
    return (errors(params, batch).sum(axis=-1) * weights).sum()


# What examples do to each other.


@mixed
def centred(params, batch):
    z = model(params, batch["x"])
    z = z - z.mean(axis=0)  # here
    return jnp.mean((z - batch["y"]) ** 2)


@mixed
def contrastive(params, batch):
    one, other = model(params, batch["x"]), model(params, batch["y"])
    logits = one @ other.T  # here
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(logits.shape[0])).mean()


@mixed
def covariance(params, batch):
    z = model(params, batch["x"])
    cov = z.T @ z / z.shape[0]
    return jnp.mean((cov - jnp.eye(4)) ** 2)  # here


@mixed
def entropy_of_the_mean(params, batch):
    p = jax.nn.softmax(model(params, batch["x"])).mean(axis=0)
    return errors(params, batch).mean() + jnp.sum(p * jnp.log(p))  # here


@mixed
def root_of_the_mean(params, batch):
    return jnp.sqrt(jnp.mean(errors(params, batch)))  # here


@mixed
def hardest_example(params, batch):
    hard, _ = jax.lax.top_k(errors(params, batch).mean(axis=-1), 1)  # here
    return hard.mean()


@mixed
def weighted_by_their_loss(params, batch):
    e = errors(params, batch).mean(axis=-1)
    w = jax.nn.softmax(e)  # here
    return (w * e).sum()


@mixed
def batch_norm(params, batch):
    z = model(params, batch["x"])
    z = (z - z.mean(axis=0)) / jnp.sqrt(z.var(axis=0) + 1e-5)  # here
    return jnp.mean((z - batch["y"]) ** 2)


@mixed
def median(params, batch):
    return jnp.sort(errors(params, batch), axis=0)[2].sum()  # here


@mixed
def differences_of_neighbours(params, batch):
    z = model(params, batch["x"])
    return jnp.sum((z[1:] - z[:-1]) ** 2)  # here


@mixed
def rolled(params, batch):
    z = model(params, batch["x"])
    return jnp.sum(z * jnp.roll(z, 1, axis=0))  # here


@mixed
def cumulative(params, batch):
    return jnp.cumsum(errors(params, batch), axis=0).sum()  # here


@mixed
def unknown_product_of_all(params, batch):
    return errors(params, batch).mean(axis=-1).prod()  # here


@mixed
def ratio_of_sums(params, batch):
    z = model(params, batch["x"])
    return (z * batch["y"]).sum() / (z**2).sum()  # here


@mixed
def product_of_means(params, batch):
    z = model(params, batch["x"])
    return z.mean() * errors(params, batch).mean()  # here


@mixed
def first_example(params, batch):
    return errors(params, batch)[0].sum()  # here


@mixed
def carried_between_examples(params, batch):
    def step(state, x):
        state = jnp.tanh(state + x)
        return state, state

    _, states = jax.lax.scan(step, jnp.zeros(4), model(params, batch["x"]))  # here
    return states.mean()


@mixed
def branch_by_the_loss(params, batch):
    e = errors(params, batch).mean()
    return jax.lax.cond(e > 1, lambda: e, lambda: 2 * e)  # here


@mixed
def until_small(params, batch):
    z = jax.lax.while_loop(lambda z: jnp.abs(z).max() > 0.1, lambda z: 0.5 * z, batch["x"] @ params["w"])  # here
    return jax.lax.stop_gradient(z).sum() + errors(params, batch).sum()


@mixed
def examples_as_features(params, batch):
    z = model(params, batch["x"])
    return jnp.linalg.norm(z.T @ z)  # here


@mixed
def interleaved(params, batch):
    z = model(params, batch["x"])
    return (z.T.reshape(2, -1, 2, order="F").sum(axis=0) ** 2).sum()  # here


@pytest.mark.parametrize("name", LOSSES.proved)
def test_exact(name: str) -> None:
    expected = LOSSES.proved[name]
    case = case_of(jax.value_and_grad(expected.loss), (params_of(), batch_of(12)))
    assert case.proof.is_exact, [verdict.reason for verdict in case.proof.verdicts]
    word, *gradients = case.words
    assert word == expected.word
    # A parameter that the loss does not read has a gradient of zeros, whatever the batch.
    assert set(gradients) <= {"mean", "sum", "same"}
    assert set(gradients) & {"mean", "sum"}
    assert_exact(case)


@pytest.mark.parametrize("name", LOSSES.unproved)
def test_mixed(name: str) -> None:
    case = case_of(jax.value_and_grad(LOSSES.unproved[name]), (params_of(), batch_of(12)))
    verdict = case.proof.verdicts[0]
    assert verdict.kind == ("unknown" if name.startswith("unknown") else "mixed")
    lines, first = inspect.getsourcelines(LOSSES.unproved[name])
    (here,) = [first + number for number, line in enumerate(lines) if "# here" in line]
    assert verdict.reason is not None
    assert verdict.reason.line.startswith(f"{__file__}:{here} "), verdict.reason
    assert_exact(case)


@pytest.mark.parametrize("name", [name for name, expected in LOSSES.proved.items() if expected.word == "mean"])
def test_as_written(name: str) -> None:
    """What is called a mean is one of the function as it stands, but where values had to be scaled."""
    case = case_of(LOSSES.proved[name].loss, (params_of(), batch_of(12)), as_written=True)
    assert case.words[0] == LOSSES.proved[name].written
