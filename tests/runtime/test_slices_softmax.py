"""Sequence slices of softmaxes as programs write them: by hand, of logarithms, with a number added below the line."""

import os

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from jax import lax

from tests.runtime.sliced_programs import LENGTH, WIDTH, embedded, exact_or_told, in_slices, losses, lower, of_the_night
from tests.runtime.test_slices_visible import arguments

pytestmark = pytest.mark.usefixtures("double", "free_promotion")


def with_sinks(params_and_batch=None):
    """The arguments, with a logit for each head."""
    params, batch = params_and_batch or arguments()
    return params | {"sink": np.linspace(-1, 1.5, 2)}, batch


def far_apart():
    """Arguments whose scores are so far apart that an exponential of them is zero or infinite."""
    params, batch = with_sinks()
    return params | {"q": 60 * params["q"], "k": 60 * params["k"]}, batch


def ties():
    """Arguments with which all scores of a row are equal."""
    params, batch = with_sinks()
    return params | {"q": 0 * params["q"]}, batch


def heads(
    weights,
    mask=lambda s: jnp.where(lower(), s, -1e30),
    groups=2,
    change=lambda s, p: s,
    dtype=float,
    scores_dtype=None,
    layers=1,
):
    """A decoder whose attention has two heads, which may share their keys.

    Args:
        weights: Those of the scores, which are masked and those before, and of the parameters.
        mask: It hides scores.
        groups: How many heads of keys and values there are.
        change: What is done to scores before they are masked.
        dtype: In which attention is computed.
        scores_dtype: In which scores are, if it is another.
        layers: How many layers there are.
    """

    def loss(p, batch):
        x = embedded(p, batch["x"])
        for _ in range(layers):
            h = x.astype(dtype)
            q, k, v = ((h @ p[name].astype(dtype)).reshape(*h.shape[:2], 2, -1) for name in "qkv")
            k, v = (jnp.repeat(each[:, :, :groups], 2 // groups, 2) for each in (k, v))
            s = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(jnp.asarray(WIDTH / 2, dtype))
            s = change(s.astype(scores_dtype or dtype), p)
            w = weights(mask(s), s, p).astype(dtype)
            x = x + jnp.einsum("bhts,bshd->bthd", w, v).reshape(x.shape).astype(float)
        return losses(p, x, batch["y"]).mean()

    return loss


MASKS = {
    "minus infinity": lambda s: jnp.where(lower(), s, -jnp.inf),
    "the least number": lambda s: jnp.where(lower(), s, jnp.finfo(s.dtype).min),
    "seven tenths of it": lambda s: jnp.where(lower(), s, -0.7 * jnp.finfo(s.dtype).max),
    "a billion": lambda s: jnp.where(lower(), s, -1e9),
    "a billion added": lambda s: s + (1 - lower()) * -1e9,
    "a number added": lambda s: s + jnp.where(lower(), 0.0, -1e30).astype(s.dtype),
    "minus infinity added": lambda s: s + jnp.triu(jnp.full((LENGTH, LENGTH), -jnp.inf, s.dtype), 1),
    "the least number added": lambda s: s + jnp.where(lower(), 0.0, jnp.finfo(s.dtype).min).astype(s.dtype),
    "a product": lambda s: s * lower() - 1e10 * (1 - lower()),
}


def largest(s):
    return s.max(-1, keepdims=True)


def of_exponentials(e):
    return e / e.sum(-1, keepdims=True)


def by_hand(s, raw=None, p=None):
    return of_exponentials(jnp.exp(s - largest(s)))


def without_dimension(s, raw, p):
    e = jnp.exp(s - jnp.amax(s, axis=-1)[..., None])
    return e * jnp.reciprocal(jnp.sum(e, axis=-1))[..., None]


def where_finite(s, raw, p):
    top = largest(s)
    e = jnp.exp(s - jnp.where(jnp.isfinite(top), top, 0.0))
    return e / jnp.maximum(e.sum(-1, keepdims=True), 1e-9)


def logarithm(s):
    """That of the sum of exponentials, by hand."""
    top = largest(s)
    return top + jnp.log(jnp.exp(s - top).sum(-1, keepdims=True))


def without_infinity(s, raw, p):
    top = lax.stop_gradient(largest(s))
    top = jnp.where(jnp.isinf(top), 0.0, top)
    return jnp.exp(s - top - jnp.log(jnp.exp(s - top).sum(-1, keepdims=True)))


def sinks(p):
    return p["sink"][None, :, None, None]


def with_larger_of_sink(s, raw, p):
    top = jnp.maximum(largest(s), sinks(p))
    e = jnp.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + jnp.exp(sinks(p) - top))


def with_sink(s, raw, p):
    top = largest(s)
    e = jnp.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + jnp.exp(sinks(p) - top))


def off_by_one(s, raw, p):
    top = jax.nn.relu(largest(s))
    e = jnp.exp(s - top)
    return e / (jnp.exp(-top) + e.sum(-1, keepdims=True))


def off_by_one_of_scores(s, raw, p):
    top = largest(s)
    e = jnp.exp(s - top)
    return e / (jnp.exp(0 - top) + e.sum(-1, keepdims=True))


WEIGHTS = {
    "by hand": by_hand,
    "without the dimension": without_dimension,
    "in binary": lambda s, raw, p: of_exponentials(jnp.exp2(s * np.log2(np.e) - largest(s * np.log2(np.e)))),
    "a number added": lambda s, raw, p: (
        jnp.exp(s - largest(s)) / (jnp.exp(s - largest(s)).sum(-1, keepdims=True) + 1e-9)
    ),
    "shifted before": lambda s, raw, p: jax.nn.softmax(s - largest(s), -1),
    "shifted twice": lambda s, raw, p: by_hand(s - largest(s)),
    "not above a number": lambda s, raw, p: of_exponentials(jnp.exp(s - jnp.maximum(largest(s), -1e6))),
    "where it is finite": where_finite,
    "not normalised": lambda s, raw, p: jnp.exp(s - largest(s)),
    "exp of log_softmax": lambda s, raw, p: jnp.exp(jax.nn.log_softmax(s, -1)),
    "exp less logsumexp": lambda s, raw, p: jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)),
    "exp less another logsumexp": lambda s, raw, p: jnp.exp(s - special.logsumexp(s, axis=-1)[..., None]),
    "exp less logsumexp by hand": lambda s, raw, p: jnp.exp(s - logarithm(s)),
    "where it is not infinite": without_infinity,
    "a sink below": with_sink,
    "the larger of the sink": with_larger_of_sink,
    "a sink and a gate": lambda s, raw, p: (
        by_hand(s) * jax.nn.sigmoid(jax.nn.logsumexp(s, -1, keepdims=True) - sinks(p))
    ),
    "a sink in a logarithm": lambda s, raw, p: jnp.exp(
        s - jnp.logaddexp(jax.nn.logsumexp(s, -1, keepdims=True), sinks(p))
    ),
    "off by one": off_by_one,
    "off by one, of scores": off_by_one_of_scores,
    "off by one, plainly": lambda s, raw, p: jnp.exp(s) / (1 + jnp.exp(s).sum(-1, keepdims=True)),
}


# A column for the sink, joined to the scores and dropped after the softmax.


def column(s, p):
    return jnp.broadcast_to(sinks(p), (*s.shape[:3], 1)).astype(s.dtype)


def with_column(s, p):
    return jnp.concatenate([s, column(s, p)], -1)


def softmax(s):
    return jax.nn.softmax(s, -1)


def hidden_when_joined(pad):
    """A mask of as many columns as there are with the sink."""

    def weights(s, raw, p):
        shown = lower()
        ones = jnp.ones((LENGTH, 1), bool)
        shown = jnp.pad(shown, ((0, 0), (0, 1)), constant_values=True) if pad else jnp.concatenate([shown, ones], -1)
        return softmax(jnp.where(shown, with_column(raw, p), -1e30))[..., :-1]

    return weights


def in_groups(s, raw, p):
    """The heads in groups of one, as of shared keys."""
    grouped = s.reshape(s.shape[0], 2, 1, *s.shape[2:])
    sink = jnp.broadcast_to(p["sink"].reshape(1, 2, 1, 1, 1), (*grouped.shape[:-1], 1))
    w = softmax(jnp.concatenate([grouped, sink], -1)).reshape(*s.shape[:-1], LENGTH + 1)
    return w[..., :LENGTH]


def shifted_column(s, raw, p):
    joined = with_column(s, p)
    return softmax(joined - largest(joined))[..., :-1]


def around(s, raw, p):
    joined = jnp.concatenate([column(s, p), s, 2 * column(s, p)], -1)
    return by_hand(joined)[..., 1:-1]


COLUMNS = {
    "joined": lambda s, raw, p: softmax(with_column(s, p))[..., :-1],
    "joined in front": lambda s, raw, p: softmax(jnp.concatenate([column(s, p), s], -1))[..., 1:],
    "joined on both sides": around,
    "joined and shifted": shifted_column,
    "joined, by hand": lambda s, raw, p: by_hand(with_column(s, p))[..., :LENGTH],
    "joined, a logarithm": lambda s, raw, p: jnp.exp(jax.nn.log_softmax(with_column(s, p), -1))[..., :-1],
    "joined and split": lambda s, raw, p: jnp.split(softmax(with_column(s, p)), [LENGTH], -1)[0],
    "joined in groups": in_groups,
    "joined zeros": lambda s, raw, p: softmax(jnp.concatenate([s, jnp.zeros_like(s[..., :1])], -1))[..., :-1],
    "padded": lambda s, raw, p: softmax(jnp.pad(s, ((0, 0), (0, 0), (0, 0), (0, 1))))[..., :-1],
    "padded in front": lambda s, raw, p: softmax(jnp.pad(s, ((0, 0), (0, 0), (0, 0), (1, 0))))[..., 1:],
    "joined and masked": hidden_when_joined(pad=False),
    "joined and masked with padding": hidden_when_joined(pad=True),
    "of the row": lambda s, raw, p: softmax(jnp.concatenate([s, 0.5 * largest(s) + sinks(p)], -1))[..., :-1],
    "a sink that is read": lambda s, raw, p: by_hand(s) * jax.nn.sigmoid(softmax(with_column(s, p))[..., -1:]),
}
CAPPED = {
    "a soft cap": lambda s, p: 30 * jnp.tanh(s / 30),
    "distances": lambda s, p: (
        s - jnp.asarray([0.5, 0.25])[:, None, None] * abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    ),
}
ACCEPTED = {
    **{name: heads(weights) for name, weights in (WEIGHTS | COLUMNS).items()},
    **{f"by hand, {name}": heads(by_hand, mask) for name, mask in MASKS.items()},
    **{f"logarithm, {name}": heads(WEIGHTS["exp of log_softmax"], mask) for name, mask in MASKS.items()},
    **{f"by hand, {name}": heads(by_hand, change=change) for name, change in CAPPED.items()},
    **{f"logarithm, {name}": heads(WEIGHTS["exp of log_softmax"], change=change) for name, change in CAPPED.items()},
    **{f"joined, {name}": heads(COLUMNS["joined"], mask) for name, mask in MASKS.items()},
    **{f"joined, {name}": heads(COLUMNS["joined"], change=change) for name, change in CAPPED.items()},
    "joined, shared keys": heads(COLUMNS["joined"], groups=1, layers=2),
    "joined, padding": heads(COLUMNS["joined"], lambda s: jnp.where(lower() & (jnp.arange(LENGTH) > 1), s, -1e30)),
    "by hand, shared keys": heads(by_hand, groups=1, layers=2),
    "logarithm, shared keys": heads(WEIGHTS["exp less logsumexp"], groups=1, layers=2),
}
BY_DAY = ("by hand", "exp of log_softmax", "a sink in a logarithm", "off by one")


def agree(loss, args, tolerance=1e-9):
    found, expected = in_slices(loss, 3, args)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(np.asarray(other, float)).all()
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=tolerance, atol=tolerance)


NAN_WITHOUT_OPTIMIZATION = "by hand, distances"


@pytest.mark.family(32)
@pytest.mark.parametrize("name", of_the_night(ACCEPTED, BY_DAY))
def test_softmaxes_are_exact(name):
    if name == NAN_WITHOUT_OPTIMIZATION and os.environ.get("MMREWRITE_TESTS_OPTIMIZED") != "1":
        pytest.skip("XLA without optimization makes NaN of this program under plain jax.jit too")
    agree(ACCEPTED[name], with_sinks())


@pytest.mark.parametrize(
    "name", of_the_night(["by hand", "not normalised", "off by one, of scores"], ["not normalised"])
)
def test_entries_that_are_as_large_share_the_gradient_of_the_maximum(name):
    agree(ACCEPTED[name], ties())


@pytest.mark.parametrize("name", of_the_night(["by hand", "exp of log_softmax", "a sink in a logarithm"], []))
def test_softmaxes_are_exact_where_most_exponentials_vanish(name):
    agree(ACCEPTED[name], far_apart())


@pytest.mark.parametrize("mask", of_the_night(MASKS, []))
@pytest.mark.parametrize("weights", ["by hand", "exp of log_softmax"])
def test_softmaxes_of_few_bits(weights, mask):
    loss = heads(WEIGHTS[weights], MASKS[mask], groups=1, dtype=jnp.bfloat16, scores_dtype=jnp.float32)
    agree(loss, with_sinks(), 2e-2)


# What is exact for other reasons than a softmax is, or not at all.


def rolled(z):
    """What the row before has."""
    return jnp.roll(z, 1, -2)


def of_another_row(s, raw, p):
    e = jnp.exp(s - largest(s))
    return e / rolled(e.sum(-1, keepdims=True))


def of_all_scores(s, raw, p):
    top = largest(s)
    return jnp.exp(s - top) / jnp.exp(raw - top).sum(-1, keepdims=True)


def of_all_logarithms(s, raw, p):
    return jnp.exp(s - jax.nn.logsumexp(raw, -1, keepdims=True))


def masked_after(stop):
    def weights(s, raw, p):
        top = largest(raw)
        return of_exponentials(jnp.exp(raw - (lax.stop_gradient(top) if stop else top)) * lower())

    return weights


def of_columns(s, raw, p):
    return of_exponentials(jnp.exp(s - s.max(-2, keepdims=True)))


def of_all_rows(s, raw, p):
    return of_exponentials(jnp.exp(s - s.max((-1, -2), keepdims=True)))


def hidden_in_the_sum(s, raw, p):
    """A logarithm of what may be zero: rows may have nothing else in them."""
    kept = jnp.arange(LENGTH) > 2
    return jnp.exp(s - largest(s) - jnp.log((jnp.exp(s - largest(s)) * kept).sum(-1, keepdims=True)))


def less_of_another(s, raw, p):
    return jnp.exp(s - largest(s) - jnp.log(jnp.exp(2e7 * s - 1e7 * largest(s)).sum(-1, keepdims=True)))


def of_a_transposed_row(s, raw, p):
    """The largest entry of column `t` taken from row `t`."""
    top = jnp.swapaxes(jnp.broadcast_to(largest(s), s.shape), -1, -2)
    return jnp.exp(s - jnp.log(jnp.exp(s - top).sum(-1, keepdims=True)))


def sink_of_all(s, raw, p):
    e = jnp.exp(s - largest(s))
    return e / (e.sum(-1, keepdims=True) + jnp.exp(raw.mean((-1, -2), keepdims=True)))


def sink_of_what_follows(s, raw, p):
    e = jnp.exp(s - largest(s))
    return e / (e.sum(-1, keepdims=True) + jnp.exp(raw[..., -1:]))


def above_what_the_largest_entry_is_made(s, raw, p):
    """Entries above a number that lies far below what hides: the largest of a row, made larger."""
    top = largest(jnp.where(lower(), -(9e6 * raw * raw), -1e9))
    return (s >= top * 1e6).astype(s.dtype)


def plain_softmax(s, raw, p):
    return jax.nn.softmax(s, -1)


LIKE_A_SOFTMAX = {
    "the sum of another row": heads(of_another_row),
    "the sum of all scores": heads(of_all_scores),
    "the logarithm of all scores": heads(of_all_logarithms),
    "a mask after": heads(masked_after(stop=True)),
    "a mask after, and gradients": heads(masked_after(stop=False)),
    "the largest of a column": heads(of_columns),
    "the largest of all rows": heads(of_all_rows),
    "a sum without some": heads(hidden_in_the_sum),
    "another sum": heads(less_of_another),
    "the largest of a row for a column": heads(of_a_transposed_row),
    "a sink of all positions": heads(sink_of_all),
    "a sink of later positions": heads(sink_of_what_follows),
    "scaled after": heads(by_hand, lambda s: jnp.where(lower(), s, -1e9) * 1e-3),
    "a logarithm scaled after": heads(WEIGHTS["exp of log_softmax"], lambda s: jnp.where(lower(), s, -1e9) * 1e-3),
    "too small a number added twice": heads(by_hand, lambda s: s + (1 - lower()) * -3e8 + (1 - lower()) * -3e8),
    "shown again": heads(by_hand, lambda s: s + (1 - lower()) * -1e9 + (1 - lower()) * 1e9),
    "half precision": heads(by_hand, lambda s: jnp.where(lower(), s, jnp.finfo(s.dtype).min), dtype=jnp.float16),
    "a finite maximum of rows that see nothing": heads(
        where_finite, lambda s: jnp.where(lower() & (jnp.arange(LENGTH) > 1), s, -jnp.inf)
    ),
    "a column of later positions": heads(lambda s, raw, p: softmax(jnp.concatenate([s, raw[..., -1:]], -1))[..., :-1]),
    "a column of all positions": heads(
        lambda s, raw, p: softmax(jnp.concatenate([s, raw.mean(-1, keepdims=True)], -1))[..., :-1]
    ),
    "another column dropped": heads(lambda s, raw, p: softmax(with_column(s, p))[..., 1:]),
    "the last column dropped": heads(lambda s, raw, p: softmax(jnp.concatenate([column(s, p), s], -1))[..., :-1]),
    "a column and no mask": heads(lambda s, raw, p: softmax(with_column(raw, p))[..., :-1]),
    "a column and a mask of other columns": heads(
        lambda s, raw, p: softmax(
            jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH + 1), bool), 1), with_column(raw, p), -1e30)
        )[..., :-1]
    ),
    "a column and another sum": heads(
        lambda s, raw, p: jnp.exp(s - largest(s)) / jnp.exp(with_column(raw, p) - largest(s)).sum(-1, keepdims=True)
    ),
    "a row": heads(lambda s, raw, p: softmax(jnp.concatenate([s, s[..., :1, :]], -2))[..., :-1, :]),
    "scores twice": heads(lambda s, raw, p: softmax(jnp.concatenate([s, s], -1))[..., :LENGTH]),
    "the largest of a dimension, made larger": heads(
        plain_softmax, lambda s: jnp.where(lower(), s + 1e6 * (-(9e6 * s * s)).max(1, keepdims=True), -1e9)
    ),
    "the largest of a row, made larger": heads(
        above_what_the_largest_entry_is_made, lambda s: jnp.where(lower(), s, -1e9)
    ),
    "a soft cap after": heads(by_hand, lambda s: 30 * jnp.tanh(jnp.where(lower(), s, -1e9) / 30)),
}


EXACT = {
    "the largest of a row for a column",
    "scaled after",
    "a logarithm scaled after",
    "too small a number added twice",
}


@pytest.mark.parametrize(
    "name",
    of_the_night(
        LIKE_A_SOFTMAX, ("the sum of all scores", "a mask after", "another sum", "the largest of a row, made larger")
    ),
)
def test_what_is_like_a_softmax_is_told_at_its_line(name):
    told = exact_or_told(LIKE_A_SOFTMAX[name], 3, with_sinks())
    assert bool(told) == (name not in EXACT)
