"""Sequence slices of masks that are made by arithmetic: rows that something hides besides the causal mask are seen."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.runtime.sliced_programs import (
    EXAMPLES,
    LENGTH,
    WIDTH,
    attention,
    data,
    distances,
    embedded,
    exact_or_told,
    in_slices,
    losses,
    lower,
    masked,
    of_the_night,
    parameters,
)

pytestmark = pytest.mark.usefixtures("double", "free_promotion")


def arguments():
    """Examples of which some begin with padding, so that rows see nothing."""
    rng = np.random.default_rng(3)
    valid = np.ones((EXAMPLES, LENGTH), np.int32)
    valid[0, :2] = valid[1, :1] = valid[2, 3:] = valid[3, :4] = 0
    segments = np.cumsum(rng.integers(0, 2, (EXAMPLES, LENGTH)), 1).astype(np.int32)
    batch = data() | {"valid": valid, "segments": segments}
    return jax.tree.map(np.float64, parameters()), batch


def keys(array):
    return array[:, None, :]


def of_scores(mask):
    """A loss whose attention has `mask(scores, batch, parameters)` for scores."""

    def loss(p, batch):
        return losses(p, attention(p, embedded(p, batch["x"]), lambda s: mask(s, batch, p)), batch["y"]).mean()

    return loss


def biased(bias, low=-1e9):
    return of_scores(lambda s, batch, p: masked(s + bias(batch, p), low=low))


def hidden(batch):
    return keys(batch["valid"] - 1.0)


def learned(batch, p):
    return keys(batch["segments"] * p["q"][0, 0])


def of_two_heads(join):
    """A loss of two heads of attention, the second of which `join(scores)` hides."""

    def loss(p, batch):
        x = embedded(p, batch["x"])
        q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, -1) for name in "qkv")
        scores = jnp.where(lower(), join(jnp.einsum("bqhd,bkhd->bhqk", q, k)), -1e30)
        x = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)
        return losses(p, x, batch["y"]).mean()

    return loss


def as_a_feature(p, batch):
    """A bias of keys that is a feature of them, as for kernels that take no bias."""
    x = embedded(p, batch["x"])
    q = jnp.concatenate([x @ p["q"], jnp.ones_like(x[..., :1])], -1)
    k = jnp.concatenate([x @ p["k"], (batch["valid"][..., None] - 1.0) * 1e12], -1)
    scores = masked(jnp.einsum("btd,bsd->bts", q, k), low=-1e9)
    return losses(p, x + jax.nn.softmax(scores, -1) @ (x @ p["v"]), batch["y"]).mean()


def of_features(make, by=1.0, width=1):
    """A bias of keys that is one of their features or several: `make(which tokens are valid, tokens)`, scaled `by`."""

    def loss(p, batch):
        x = embedded(p, batch["x"])
        bias = make(batch["valid"][..., None] * 1.0, x)
        q = jnp.concatenate([x @ p["q"], jnp.ones((*x.shape[:2], width))], -1)
        k = jnp.concatenate([x @ p["k"], jnp.broadcast_to(bias, (*x.shape[:2], width))], -1)
        scores = masked(jnp.einsum("btd,bsd->bts", q, k) * by, low=-1e9)
        return losses(p, x + jax.nn.softmax(scores, -1) @ (x @ p["v"]), batch["y"]).mean()

    return loss


def energy(x):
    return 1 + (x * x).mean(-1, keepdims=True)


NO_ROW = "it sees no position"
BEHIND = "behind it, which no causal mask"
later = np.triu(np.ones((LENGTH, LENGTH)), 1)
REFUSED = {
    "integers": (biased(lambda b, p: keys((b["valid"] - 1) * 2_000_000_000).astype(float)), NO_ROW),
    "in two steps": (biased(lambda b, p: hidden(b) * 1e5 * 1e5), NO_ROW),
    "a quotient": (biased(lambda b, p: hidden(b) / 1e-10), NO_ROW),
    "a sum": (biased(lambda b, p: hidden(b) * 6e8 + hidden(b) * 6e8), NO_ROW),
    "a square subtracted": (biased(lambda b, p: -jnp.square(hidden(b) * 1e5)), NO_ROW),
    "subtracted": (of_scores(lambda s, b, p: masked(s - jnp.square(hidden(b) * 1e5), low=-1e9)), NO_ROW),
    "a power": (biased(lambda b, p: -(keys(b["valid"] * 1.0) ** -2), -1e30), NO_ROW),
    "a pole": (biased(lambda b, p: 1 - 1 / keys(b["valid"]), -1e30), NO_ROW),
    "a root's pole": (biased(lambda b, p: -jax.lax.rsqrt(keys(b["valid"]) * 1.0), -1e30), NO_ROW),
    "a logarithm": (biased(lambda b, p: jnp.log1p(hidden(b)), -1e30), NO_ROW),
    "another inverse": (biased(lambda b, p: jnp.arctanh(hidden(b)), -1e30), NO_ROW),
    "an exponential": (biased(lambda b, p: -jnp.exp(-100 * hidden(b))), NO_ROW),
    "an exponential of scores": (of_scores(lambda s, b, p: masked(-jnp.exp(s - 50 * hidden(b)), low=-1e9)), NO_ROW),
    "a function without a rule": (of_scores(lambda s, b, p: masked(jnp.sinh(s + 50 * hidden(b)), low=-1e9)), NO_ROW),
    "a power of scores": (of_scores(lambda s, b, p: masked(-((abs(s) - 1e3 * hidden(b)) ** 7.5), low=-1e9)), NO_ROW),
    "shifted bits": (biased(lambda b, p: -2.0 * keys(jnp.left_shift(1 - b["valid"], 30))), NO_ROW),
    "half precision": (biased(lambda b, p: (hidden(b) * 1e5).astype(jnp.float16).astype(float), -1e30), NO_ROW),
    "padding of an array": (
        biased(
            lambda b, p: keys(jnp.pad(b["segments"][:, 1:] * 1.0, ((0, 0), (1, 0)), constant_values=-jnp.inf)), -1e30
        ),
        NO_ROW,
    ),
    "entries that are not there": (
        biased(
            lambda b, p: keys(p["q"][0].at[jnp.where(b["valid"], 1, WIDTH + 5)].get(mode="fill", fill_value=-jnp.inf)),
            -1e30,
        ),
        NO_ROW,
    ),
    "a head joined": (of_two_heads(lambda s: jnp.concatenate([s[:, :1], jnp.full_like(s[:, :1], -1e35)], 1)), NO_ROW),
    "a head stacked": (of_two_heads(lambda s: jnp.stack([s[:, 0], jnp.full_like(s[:, 0], -1e35)], 1)), NO_ROW),
    "a feature": (as_a_feature, NO_ROW),
    "many features": (of_features(lambda v, x: (v - 1) * 2e7, width=64), NO_ROW),
    "a feature by a root": (of_features(lambda v, x: (v - 1) * 1e5 * jax.lax.rsqrt(energy(x)), 1e5), NO_ROW),
    "a feature that is divided": (of_features(lambda v, x: (v - 1) * 1e5 / energy(x), 1e5), NO_ROW),
    "a sum that is divided": (of_features(lambda v, x: ((v - 1) * 1e5 + x[..., :1]) / energy(x), 1e5), NO_ROW),
    "shown again": (of_scores(lambda s, b, p: masked(s, low=-1e9) + learned(b, p) + 1e10 * later), BEHIND),
    "shown again in part": (
        of_scores(lambda s, b, p: masked(s, low=-1e9) + learned(b, p) + later * (np.arange(LENGTH) < 3) * 2e9),
        BEHIND,
    ),
    "shown again in steps": (
        of_scores(lambda s, b, p: masked(s, low=-1e9) + learned(b, p) + 4e8 * later + 4e8 * later + 4e8 * later),
        BEHIND,
    ),
    "shown again by integers": (
        of_scores(lambda s, b, p: masked(s, low=-1e9) + learned(b, p) + keys(b["segments"] * 2_000_000_000)),
        "shows what the mask hides",
    ),
    "a number beyond integers": (
        of_scores(
            lambda s, b, p: jnp.where(-distances() < jnp.full((LENGTH, 1), jnp.inf).astype(jnp.int32), s, -jnp.inf)
        ),
        BEHIND,
    ),
    "an integer that wraps round": (
        of_scores(
            lambda s, b, p: jnp.where(jnp.asarray(later, jnp.uint8) - b["valid"][:, :, None] * 0 - 1 > 0, s, -1e30)
        ),
        NO_ROW,
    ),
}
BY_DAY = ("integers", "in two steps", "subtracted", "a feature", "many features", "a head joined", "shown again")


@pytest.mark.family(64)
@pytest.mark.parametrize("name", of_the_night(REFUSED, BY_DAY))
def test_rows_that_arithmetic_hides_are_told_at_their_line(name):
    loss, reason = REFUSED[name]
    assert re.search(reason, exact_or_told(loss, 3, arguments()))


ACCEPTED = {
    "distances": biased(lambda b, p: -0.3 * jnp.abs(jnp.asarray(distances() * 1.0))),
    "a penalty of padding": biased(lambda b, p: hidden(b) * 1e4),
    "minus infinity behind integers": biased(
        lambda b, p: keys((b["valid"] - 1) * 2_000_000_000).astype(float), -jnp.inf
    ),
    "a mask of truths": of_scores(
        lambda s, b, p: jnp.where(jnp.logical_not(jnp.asarray(2 * later, jnp.int32).astype(bool)), s, -1e30)
    ),
    "half precision": of_scores(lambda s, b, p: masked(s.astype(jnp.bfloat16), low=-1e30).astype(float)),
    "a soft cap": of_scores(lambda s, b, p: masked(5 * jnp.tanh(s / 5) + learned(b, p))),
}


@pytest.mark.parametrize("name", of_the_night(ACCEPTED, ("minus infinity behind integers",)))
def test_rows_that_arithmetic_leaves_visible_are_exact(name):
    for one, other in zip(*in_slices(ACCEPTED[name], 3, arguments()), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


NUMBERS = [1e2, 1e4, 1e5, -1e5, -1e2, 2.0, 0.5, -1.0, 1e8, -1e8, 6e8, -2e9, 1e9, 1e-5]


def random_bias(rng, batch, p):
    """Numbers that are added to scores, made of masks in the ways in which programs make them low."""
    valid = batch["valid"]
    leaves = [
        lambda: hidden(batch),
        lambda: keys(valid - 1),
        lambda: valid[:, :, None] - 1.0,
        lambda: keys(valid > 0),
        lambda: batch["segments"][:, :, None] == keys(batch["segments"]),
        lambda: lower(),
        lambda: 1 - lower(),
        lambda: -1.0 * distances(),
        lambda: learned(batch, p),
        lambda: keys(valid) & lower(),
    ]
    poles = [jnp.log1p, jnp.log, lambda x: 1 - 1 / x, lambda x: -jnp.exp(x), lambda x: jnp.log(x + 1e-30)]
    types = [jnp.float16, jnp.float32, jnp.int32, bool, jnp.bfloat16, jnp.uint8]

    def number():
        return float(rng.choice(NUMBERS))

    def made(depth):
        if depth == 0:
            return jnp.asarray(leaves[int(rng.integers(len(leaves)))](), float)
        kind, x = int(rng.integers(15)), made(depth - 1)
        if kind < 4:
            return x * number()
        if kind < 9:
            operation = (jnp.add, jnp.subtract, jnp.multiply, jnp.minimum, jnp.maximum)[kind - 4]
            return operation(x, made(depth - 1))
        if kind == 9:
            return jnp.where(x > 0, made(depth - 1), number())
        if kind == 10:
            return -jnp.square(x)
        if kind == 11:
            return poles[int(rng.integers(len(poles)))](x)
        if kind == 12:
            return x.astype(types[int(rng.integers(len(types)))]).astype(float)
        return x / number() if kind == 13 else jnp.maximum(x, number())

    return made(int(rng.integers(1, 5)))


def random_scores(number):
    def scores(s, batch, p):
        rng = np.random.default_rng(number)
        low, form = float(rng.choice([-1e9, -1e9, -1e30, -1e30, -np.inf])), int(rng.integers(5))
        bias = random_bias(rng, batch, p)
        if form == 0:
            return jnp.where(lower(), s + bias, low)
        if form == 1:
            return jnp.where(lower(), s, low) + bias
        if form == 2:
            return s + bias + jnp.where(lower(), 0.0, low)
        if form == 3:
            other = jnp.where(bias > 0, s, float(rng.choice([-1e9, -1e8, -1e20])))
            return jnp.where(lower(), other, low) + random_bias(rng, batch, p)
        return jnp.where(lower(), s, low) - bias

    return scores


@pytest.mark.slow
@pytest.mark.parametrize("number", [n if n in (1, 2) else pytest.param(n, marks=pytest.mark.slow) for n in range(60)])
def test_random_biases_are_exact_or_told(number):
    exact_or_told(of_scores(random_scores(number)), 2 + number % 3, arguments())
