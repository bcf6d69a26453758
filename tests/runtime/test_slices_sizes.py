"""Sequence slices of values that divisions make large: the next layers may make them as low as a mask, or cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.runtime.sliced_programs import LENGTH, WIDTH, embedded, exact_or_told, in_slices, losses, lower, of_the_night
from tests.runtime.test_slices_visible import arguments

pytestmark = pytest.mark.usefixtures("double", "free_promotion")


def by_keys(make, times=2):
    """A loss that lowers the scores of keys by what `make(hidden, tokens, valid, parameters)` gives several times."""

    def loss(p, batch):
        x, valid = embedded(p, batch["x"]), batch["valid"][..., None] * 1.0
        hidden = x
        for _ in range(times):
            hidden = make(hidden, x, valid, p) @ p["k"]
        q, k, v = (x @ p[name] for name in "qkv")
        scores = q @ k.mT - (q**2) @ ((hidden @ p["v"]) ** 2).mT
        weights = jax.nn.softmax(jnp.where(lower(), scores, -1e9), -1)
        return losses(p, x + weights @ v, batch["y"]).mean()

    return loss


def lowered(make):
    """A loss to whose scores of keys what `make(tokens, valid)` gives is added with a positive factor."""

    def loss(p, batch):
        x, valid = embedded(p, batch["x"]), jnp.clip(batch["valid"][..., None] * 1.0, 0, 1)
        q, k, v = (x @ p[name] for name in "qkv")
        scores = q @ k.mT + (q**2) @ (0 * x + make(x, valid)).mT
        weights = jax.nn.softmax(jnp.where(lower(), scores, -1e9), -1)
        return losses(p, x + weights @ v, batch["y"]).mean()

    return loss


def total(x):
    return x.sum(-1, keepdims=True)


def mean(x):
    return x.mean(-1, keepdims=True)


def halves(x):
    return x.reshape(*x.shape[:-1], 2, -1)


def of_groups(h, x, v):
    seen = halves(x * v)
    return (halves(h) / (seen.std(-1, keepdims=True) + 1e-6)).reshape(h.shape)


DIVISIONS = {
    "root mean square of masked": by_keys(lambda h, x, v, p: h * lax.rsqrt(mean((x * v) ** 2) + 1e-12)),
    "four times": by_keys(lambda h, x, v, p: h * lax.rsqrt(mean((x * v) ** 2) + 1e-8), 4),
    "a norm of masked": by_keys(lambda h, x, v, p: h / (jnp.linalg.norm(x * v, axis=-1, keepdims=True) + 1e-6)),
    "the larger of a norm": by_keys(
        lambda h, x, v, p: h / jnp.maximum(jnp.linalg.norm(x * v, axis=-1, keepdims=True), 1e-6)
    ),
    "absolute values of masked": by_keys(lambda h, x, v, p: h / (total(abs(x * v)) + 1e-5), 5),
    "a variance of masked": by_keys(
        lambda h, x, v, p: (h - mean(h)) / jnp.sqrt((x * v).var(-1, keepdims=True) + 1e-12)
    ),
    "a variance by squares": by_keys(
        lambda h, x, v, p: (h - mean(h)) * lax.rsqrt(jnp.maximum(0.0, mean((x * v) ** 2) - mean(x * v) ** 2) + 1e-12)
    ),
    "a mean of something else": by_keys(
        lambda h, x, v, p: (
            (x * v - mean(h)) * lax.rsqrt(jnp.maximum(0.0, mean((x * v) ** 2) - mean(x * v) ** 2) + 1e-13)
        )
    ),
    "deviations of groups": by_keys(lambda h, x, v, p: of_groups(h, x, v)),
    "sums of exponentials": by_keys(lambda h, x, v, p: h * jnp.exp(x) / (total(jnp.exp(x) * v) + 1e-6)),
    "shares of something else": by_keys(lambda h, x, v, p: (h / (total(abs(x * v)) + 1e-6)) * v + h),
    "an inverse that is scaled": by_keys(lambda h, x, v, p: h * (lax.rsqrt(mean(h**2 * v) + 1e-12) * p["up"][0] * 1e3)),
    "a parameter that is made small": by_keys(lambda h, x, v, p: jnp.where(v > 0, h, h / (1e-6 * p["up"][0]))),
    "its root": by_keys(lambda h, x, v, p: jnp.where(v > 0, h, h * lax.rsqrt(1e-12 * abs(p["up"][0])))),
    "counts of features": by_keys(lambda h, x, v, p: ((1 - v) * jnp.ones(1000) * h[..., :1]) @ jnp.ones((1000, WIDTH))),
    "an odd inverse power": lowered(lambda x, v: lax.integer_pow(-(v + 1e-5), -3)),
    "an inverse of a quotient": lowered(lambda x, v: -1 / ((small := v + 1e-13) / (small + 1))),
    "a power of a quotient": lowered(lambda x, v: -(((small := v + 1e-10) / (small + 1)) ** -1.5)),
    "a negative inverse": lowered(lambda x, v: (1 - v) * (1e7 * x**2 * (-1e7 / (total(x**2) + 1)))),
    "a product of complex numbers": lowered(lambda x, v: jnp.real(lax.square(lax.complex(0 * x, 1e7 * (1 - v) * x)))),
    "a power of complex numbers": lowered(lambda x, v: jnp.real(lax.complex(0 * x, 1e7 * (1 - v) * x) ** 2)),
    "an exponential of complex numbers": lowered(lambda x, v: -jnp.exp(lax.complex(30 * (1 - v) + 0 * x, x)).real),
    "an exponential of their products": lowered(lambda x, v: -jnp.exp(1j * lax.complex(x, -30 * (1 - v) + 0 * x)).real),
    "few bits of the exponent": lowered(lambda x, v: lax.reduce_precision(-7e4 * (1 - v) - x**2, 5, 10)),
    "sums of features": by_keys(lambda h, x, v, p: total((1 - v) * jnp.ones(1000) * h[..., :1]) + 0 * h, 3),
}


# The mask does not get as low as it might.
EXACT = {"shares of something else"}


@pytest.mark.family(16)
@pytest.mark.parametrize(
    "name", of_the_night(DIVISIONS, ("root mean square of masked", "a parameter that is made small"))
)
def test_divisions_that_outgrow_a_mask_are_told(name):
    told = exact_or_told(DIVISIONS[name], 3, arguments())
    assert bool(told) == (name not in EXACT)


# What keeps its size, whatever is added below the line.

EPS = 1e-12


def by_squares(x):
    variance = jnp.maximum(0.0, mean(x * x) - mean(x) ** 2)
    return (x - mean(x)) * lax.rsqrt(variance + EPS)


def scaled_first(x):
    gain = jnp.linspace(0.5, 2, x.shape[-1])
    return (x - mean(x)) * (lax.rsqrt(x.var(-1, keepdims=True) + EPS) * gain) + 0.1


def without_mean(x):
    return (x - jnp.zeros_like(mean(x))) * lax.rsqrt(mean(x**2) - jnp.zeros_like(mean(x)) + EPS)


NORMS = {
    "layer norm by squares": by_squares,
    "scaled first": scaled_first,
    "by deviations": lambda x: (x - mean(x)) / (x.std(-1, keepdims=True) + EPS),
    "without the mean": without_mean,
    "of heads": lambda x: by_squares(halves(x)).reshape(x.shape),
    "nothing": lambda x: x,
}
WEIGHTS = {
    "a softmax": lambda s: jax.nn.softmax(s, -1),
    "dropout": lambda s: jnp.where(
        jax.random.bernoulli(jax.random.key(1), 0.9, s.shape), jax.nn.softmax(s, -1) / 0.9, 0
    ),
    "by hand": lambda s: (e := jnp.exp(s - s.max(-1, keepdims=True))) * (1 / total(e)),
}


def decoder(norm=lambda x: x, weights=WEIGHTS["a softmax"], layers=8):
    """A decoder of many layers, whose first is applied to tokens that are zero where there is padding."""

    def loss(p, batch):
        x = embedded(p, batch["x"]) * batch["valid"][..., None]
        for _ in range(layers):
            h = norm(x)
            scores = (h @ p["q"]) @ (h @ p["k"]).mT / WIDTH**0.5
            x = x + 0.5 * weights(
                jnp.where(lower() & (batch["valid"][:, None] > 0) | jnp.eye(LENGTH, dtype=bool), scores, -1e9)
            ) @ (h @ p["v"])
        return losses(p, x, batch["y"]).mean()

    return loss


def by_their_norm(weights):
    """Weights that one number scales, without dimensions."""
    return weights * (lax.rsqrt((weights**2).sum() + EPS) * 2)


def turning(turn):
    """Attention with rotary positions that the batch counts."""

    def loss(p, batch):
        x, valid = embedded(p, batch["x"]), batch["valid"] > 0
        angles = jnp.cumsum(1e3 * valid, 1)[..., None] / 10.0 ** jnp.arange(WIDTH // 2)
        turned = [lax.complex(*jnp.split(x @ p[name], 2, -1)) * turn(angles) for name in "qk"]
        q, k = (jnp.concatenate([each.real, each.imag], -1) for each in turned)
        scores = q @ k.mT
        weights = jax.nn.softmax(jnp.where(lower() & valid[:, None] | jnp.eye(LENGTH, dtype=bool), scores, -1e9), -1)
        return losses(p, x + weights @ (x @ p["v"]), batch["y"]).mean()

    return loss


ROTARY = {
    "1j times angles": lambda a: jnp.exp(1j * a),
    "1j times positions": lambda a: jnp.exp(1j * (a * 8) / 8),
    "of two parts": lambda a: jnp.exp(lax.complex(jnp.zeros_like(a), -a)),
    "negative": lambda a: jnp.exp(-1j * a),
    "squared": lambda a: jnp.exp(1j * a) ** 2,
}


ACCEPTED = {
    **{f"rotary positions, {name}": turning(turn) for name, turn in ROTARY.items()},
    "weights by their norm": lambda p, batch: decoder(layers=2)(p | {"k": by_their_norm(p["k"])}, batch),
    **{name: decoder(norm) for name, norm in NORMS.items()},
    **{f"no norm, {name}": decoder(weights=weights) for name, weights in WEIGHTS.items()},
}


@pytest.mark.family(64)
@pytest.mark.parametrize(
    "name",
    of_the_night(
        ACCEPTED, ("rotary positions, 1j times angles", "scaled first", "weights by their norm", "no norm, dropout")
    ),
)
def test_decoders_of_many_layers_keep_their_size(name):
    found, expected = in_slices(ACCEPTED[name], 3, arguments())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)
