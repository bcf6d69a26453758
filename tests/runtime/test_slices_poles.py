"""Sequence slices of functions with a pole: a mask may lie on it and hide what it is added to, or it cannot."""

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from jax import lax

from tests.runtime.sliced_programs import (
    LENGTH,
    WIDTH,
    WORDS,
    attention,
    distances,
    embedded,
    exact_or_told,
    in_slices,
    losses,
    lower,
    masked,
    of_the_night,
)
from tests.runtime.test_slices_visible import arguments, keys, of_scores

pytestmark = pytest.mark.usefixtures("double", "free_promotion")

TINY = 1e-20


def hiding(make, low=-1e9):
    """A loss whose scores are `make(scores, which keys are no padding, batch, parameters)`."""
    return of_scores(lambda s, batch, p: masked(make(s, keys(batch["valid"]) * 1.0, batch, p), low=low))


def of_keys(make, low=-1e9):
    """A loss whose keys are zero where there is padding."""

    def loss(p, batch):
        x = embedded(p, batch["x"])
        scores = make(jnp.einsum("btd,bsd->bts", x @ p["q"], (x * batch["valid"][..., None]) @ p["k"]))
        return losses(p, x + jax.nn.softmax(masked(scores, low=low), -1) @ (x @ p["v"]), batch["y"]).mean()

    return loss


def of_tokens(make):
    """A loss whose tokens are zero where there is padding, and then what is made of them."""

    def loss(p, batch):
        x = make(embedded(p, batch["x"]) * batch["valid"][..., None])
        return losses(p, attention(p, x, lambda s: masked(s, low=-1e9)), batch["y"]).mean()

    return loss


def of_features(p, batch):
    """A bias of keys that is a feature of them, and becomes low after the product."""
    x = embedded(p, batch["x"])
    q = jnp.concatenate([x @ p["q"], jnp.ones_like(x[..., :1])], -1)
    k = jnp.concatenate([x @ p["k"], (batch["valid"][..., None] - 1.0) * 1e5], -1)
    scores = jnp.einsum("btd,bsd->bts", q, k) * 1e5
    return losses(p, x + jax.nn.softmax(masked(scores, low=-1e9), -1) @ (x @ p["v"]), batch["y"]).mean()


def of_table(p, batch):
    """Keys from a table whose row for padding is zero."""
    table = jnp.concatenate([jnp.zeros((1, WIDTH)), p["embed"]])
    x = embedded(p, batch["x"])
    k = table[jnp.where(batch["valid"] > 0, batch["x"] + 1, 0)]
    scores = -1 / abs(jnp.einsum("btd,bsd->bts", x @ p["q"], k) + TINY)
    return losses(p, x + jax.nn.softmax(masked(scores, low=-1e9), -1) @ (x @ p["v"]), batch["y"]).mean()


def with_positions():
    """The arguments, with a parameter for each position."""
    params, batch = arguments()
    return params | {"positions": np.linspace(-1, 1, LENGTH) + 0.05}, batch


def apart(p):
    return jnp.abs(p["positions"][:, None] - p["positions"][None])


def of_distances(p, batch):
    x = embedded(p, batch["x"]) @ p["q"]
    apart = (x[:, :, None] - x[:, None]).sum(-1)
    return losses(p, x + jax.nn.softmax(masked(-1 / abs(apart + TINY), low=-1e9), -1) @ (x @ p["v"]), batch["y"]).mean()


def infinite(p, batch):
    x = embedded(p, batch["x"])
    values = (x @ p["v"]) / batch["valid"][..., None]
    x = x + jax.nn.softmax(masked(jnp.einsum("btd,bsd->bts", x @ p["q"], x @ p["k"])), -1) @ values
    return jnp.where(jnp.arange(LENGTH) < 1, losses(p, x, batch["y"]), 0).mean()


MASKS = {
    "a square": hiding(lambda s, v, b, p: -1 / (s**2 * v + TINY)),
    "a quotient": hiding(lambda s, v, b, p: -1 / jnp.abs(s * v + TINY)),
    "a mask of integers": hiding(lambda s, v, b, p: -1 / (s * keys(b["valid"]) + TINY) ** 2),
    "a root": hiding(lambda s, v, b, p: -lax.rsqrt(jnp.abs(s) * v), -1e30),
    "digamma": hiding(lambda s, v, b, p: -abs(special.digamma(s * v + TINY))),
    "polygamma": hiding(lambda s, v, b, p: -special.polygamma(1, jnp.abs(s) * v + 1e-10)),
    "zeta": hiding(lambda s, v, b, p: -special.zeta(2.0, jnp.abs(s) * v + 1e-10)),
    "a tangent": hiding(lambda s, v, b, p: -abs(jnp.tan(s * v * 0.1 + (1 - v) * np.pi / 2))),
    "a logarithm": hiding(lambda s, v, b, p: jnp.log(jnp.abs(s) * v), -1e30),
    "a large logarithm": hiding(lambda s, v, b, p: jnp.log(jnp.abs(s) * v + 1e-300) * 1e8),
    "another logarithm": hiding(lambda s, v, b, p: jnp.log1p(v - 1 + 0 * s), -1e30),
    "an inverse tangent": hiding(lambda s, v, b, p: jnp.arctanh(v - 1 + 0.1 * jnp.tanh(s) * v), -1e30),
    "an inverse error function": hiding(lambda s, v, b, p: special.erfinv(jnp.tanh(s) * v - (1 - v)), -1e30),
    "a gamma function": hiding(lambda s, v, b, p: -special.gammaln(s * v * 0.1), -1e30),
    "a power": hiding(lambda s, v, b, p: -((jnp.abs(s) * v + 1e-9) ** -2.5)),
    "an integer power": hiding(lambda s, v, b, p: -((s * v + 1e-9) ** -2)),
    "an exponent": hiding(lambda s, v, b, p: -(2.0 ** ((1 - v) * 60 + s))),
    "a choice": hiding(lambda s, v, b, p: -1 / jnp.abs(jnp.where(v > 0, s, 0.0) + TINY)),
    "a choice of what is not zero": hiding(lambda s, v, b, p: -1 / jnp.where(s * v == 0, TINY, abs(s * v))),
    "a rectifier": hiding(lambda s, v, b, p: -1 / (jax.nn.relu(s) + TINY)),
    "a comparison": hiding(lambda s, v, b, p: -1 / (s * (s > 0) + TINY) ** 2),
    "a clip": hiding(lambda s, v, b, p: -1 / jnp.clip(s * v, 0, 1), -1e30),
    "rounding": hiding(lambda s, v, b, p: -1 / (jnp.round(s * 1e-3) + TINY) ** 2),
    "rounding down": hiding(lambda s, v, b, p: -1 / abs(jnp.floor(s) * v + TINY)),
    "half precision": hiding(lambda s, v, b, p: -1 / ((s * v).astype(jnp.float16) * 1e-4).astype(float) ** 2, -1e30),
    "the end of half precision": hiding(
        lambda s, v, b, p: ((s - (1 - v) * 6e4).astype(jnp.float16) * 2).astype(float), -1e30
    ),
    "a number that is rounded away": hiding(lambda s, v, b, p: -1 / (((s * v) ** 2 + 1.0) + 1e-18 - 1.0)),
    "a difference": hiding(lambda s, v, b, p: -1 / (abs(s - s * v) + TINY)),
    "a difference of sums": hiding(lambda s, v, b, p: -1 / abs((s * v + p["q"][0, 0]) - p["q"][0, 0] + TINY)),
    "a difference of a row": hiding(lambda s, v, b, p: -1 / (abs(s - s.max(-1, keepdims=True)) + TINY)),
    "a cosine": hiding(lambda s, v, b, p: -1 / abs(jnp.arccos(jnp.tanh(s) * v) - np.pi / 2 + TINY)),
    "an inverse sine": hiding(lambda s, v, b, p: -1 / abs(jnp.arcsinh(s * v + 1e3 * (1 - v)) - np.arcsinh(1e3) + TINY)),
    "an angle": hiding(lambda s, v, b, p: -1 / abs(jnp.arctan2(s * v, 1.0) + TINY)),
    "a sign": hiding(lambda s, v, b, p: -1 / abs(jnp.sign(s * v) + TINY)),
    "an exponential that vanishes": hiding(lambda s, v, b, p: -1 / jnp.exp(s - (1 - v) * 50)),
    "an exponential twice": hiding(lambda s, v, b, p: -jnp.exp(jnp.exp(s * v + (1 - v) * 4.0))),
    "an exponential less one": hiding(lambda s, v, b, p: -1 / abs(jnp.expm1(s * v) + TINY)),
    "hyperbolic": hiding(lambda s, v, b, p: -(jnp.sinh(s * v + (1 - v) * 17) ** 2)),
    "a gate": hiding(lambda s, v, b, p: -1 / (1 - jax.nn.sigmoid(s * v + (1 - v) * 60))),
    "a softmax": hiding(lambda s, v, b, p: -1 / jax.nn.softmax(jnp.where(lower(), s * v - (1 - v) * 60, -1e30), -1)),
    "a spread": hiding(lambda s, v, b, p: -1 / (jnp.std(jnp.stack([s * v, 2 * s * v], -1), -1) + TINY)),
    "a square of sums": hiding(lambda s, v, b, p: -1 / ((s * v) ** 2 + 1 - (s * v + 1) ** 2 + TINY)),
    "a norm of something else": hiding(lambda s, v, b, p: -abs(s) * lax.rsqrt((s * v) ** 2 + 1e-30)),
    "numbers of the batch": hiding(lambda s, v, b, p: -1 / abs(keys(b["segments"]) - 3.0 + 0 * s + TINY)),
    "tokens as numbers": hiding(lambda s, v, b, p: s - 1 / abs(keys(b["x"]) - 4 + TINY)),
    "a temperature and a mask": hiding(lambda s, v, b, p: -(s**2) / ((p["q"][0, 0] * v) ** 2 + TINY)),
    "a table of truths": hiding(lambda s, v, b, p: -1 / (s * jnp.asarray([0.0, 1.0])[keys(b["valid"])] + TINY) ** 2),
    "a product": hiding(lambda s, v, b, p: s - (1 - v) * jnp.prod(jnp.stack([jnp.ones_like(s) * 9.0] * 10, -1), -1)),
    "complex numbers": hiding(lambda s, v, b, p: -1 / (abs(lax.complex(s * v, s * v)) + TINY)),
    "a span without an end": hiding(
        lambda s, v, b, p: s - 1 / abs(1.5 + jnp.log((s * v) ** 2 + (1 - v) ** 2 * (np.exp(-1.5) - 0.05) + 0.05)),
        -1e12,
    ),
    "positions that are learned": hiding(lambda s, v, b, p: s - 1 / apart(p)),
    "their logarithm": hiding(lambda s, v, b, p: s + jnp.log(apart(p))),
    "their power": hiding(lambda s, v, b, p: s - apart(p) ** -0.5),
    "a parameter that is rectified": hiding(lambda s, v, b, p: s - 1 / jax.nn.relu(p["positions"])),
    "a parameter that is compared": hiding(lambda s, v, b, p: s - 1 / (p["positions"] > 0).astype(float)),
    "keys": of_keys(lambda s: -1 / (abs(s) + TINY)),
    "a logarithm of keys": of_keys(lambda s: jnp.log(abs(s)), -1e30),
    "tokens": of_tokens(lambda x: 1 / (x + TINY)),
    "a norm of tokens": of_tokens(lambda x: x + 1 / (jnp.linalg.norm(x, axis=-1, keepdims=True) + TINY)),
    "features": of_features,
    "a table": of_table,
    "distances": of_distances,
    "scaled up": of_scores(lambda s, b, p: jnp.where(lower(), s + (keys(b["valid"]) - 1.0) * 1e3, -1e9) * 1e7),
    "scaled with padding": of_scores(lambda s, b, p: jnp.where(lower() & (keys(b["valid"]) > 0), s, -1e30) / 3),
}
BY_DAY = (
    "a square",
    "a span without an end",
    "positions that are learned",
    "the end of half precision",
    "keys",
    "features",
    "a difference of sums",
)


# The mask does not get as low as it might, or the last slice's rows alone see nothing.
EXACT = {"a softmax", "numbers of the batch", "scaled up", "tokens", "a norm of tokens"}


@pytest.mark.family(64)
@pytest.mark.parametrize("name", of_the_night(MASKS, BY_DAY))
def test_rows_that_a_mask_at_a_pole_hides_are_told_at_their_line(name):
    told = exact_or_told(MASKS[name], 3, with_positions())
    assert bool(told) == (name not in EXACT)


def test_hidden_positions_hold_numbers():
    """Where they do not, gradients say it; without gradients the step does."""
    assert not exact_or_told(infinite, 3, arguments())
    told = exact_or_told(infinite, 3, arguments(), of=lambda loss: loss)
    assert "infinite or no number" in told


# What decoders divide by.


def mean(x):
    return x.mean(-1, keepdims=True)


def root_mean_square(x, eps=1e-6):
    return x * lax.rsqrt(mean(x**2) + eps)


def by_hand(x):
    variance = mean((x - mean(x)) ** 2)
    return (x - mean(x)) / jnp.sqrt(variance + 1e-5)


def by_squares(x):
    variance = mean(x * x) - mean(x) ** 2
    return (x - mean(x)) * lax.rsqrt(variance + 1e-5)


def by_norm(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


NORMS = {
    "norm alone": by_norm,
    "layer norm": lambda x: (x - mean(x)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-12),
    "layer norm by hand": by_hand,
    "layer norm by squares": by_squares,
    "standardized": jax.nn.standardize,
    "deviations": lambda x: (x - mean(x)) / (x.std(-1, keepdims=True) + 1e-6),
    "root mean square": root_mean_square,
    "single precision": lambda x: root_mean_square(x.astype(jnp.float32)).astype(x.dtype),
    "norm": lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12),
    "inverse of a norm": lambda x: x * (1 / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-24)),
    "absolute": lambda x: x / (jnp.abs(x).sum(-1, keepdims=True) + 1e-9),
}


def exponentials(s):
    return jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))


def shown_only(s):
    weights = jnp.where(lower(), jnp.exp(jnp.where(lower(), s, 0)), 0.0)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1.0, total)


def rectified(s):
    weights = jnp.where(lower(), jax.nn.relu(s), 0) ** 2
    return weights / (weights.sum(-1, keepdims=True) + 1e-6)


def softmax(s):
    return jax.nn.softmax(s, -1)


WEIGHTS = {
    "softmax where": lambda s: jax.nn.softmax(s, -1, where=lower()),
    "a quotient": lambda s: exponentials(s) / exponentials(s).sum(-1, keepdims=True),
    "an inverse": lambda s: exponentials(s) * (1 / exponentials(s).sum(-1, keepdims=True)),
    "a number added": lambda s: exponentials(s) / (1e-9 + exponentials(s).sum(-1, keepdims=True)),
    "zero replaced": shown_only,
    "rectified": rectified,
    "gates": jax.nn.sigmoid,
    "scaled after": lambda s: softmax(s / jnp.sqrt(jnp.asarray(WIDTH, float))),
    "scaled by a number": lambda s: softmax(s * WIDTH**-0.5),
    "dropout": lambda s: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.9, s.shape), softmax(s) / 0.9, 0.0),
}


def experts(p, x):
    gates, chosen = lax.top_k(jax.nn.softmax(x @ p["up"], -1), 2)
    gates = (jax.nn.one_hot(chosen, WIDTH) * (gates / gates.sum(-1, keepdims=True))[..., None]).sum(-2)
    return gates * jax.nn.gelu(x @ p["k"])


def gated(p, x):
    return (jax.nn.silu(x @ p["up"]) * (x @ p["k"])) @ p["q"]


def decoder(
    norm=root_mean_square,
    weights=softmax,
    layer=gated,
    queries=lambda q: q,
    scores=lambda s, p: s,
    layers=3,
    low=-1e30,
    loss=None,
):
    """A decoder of several layers whose tokens are zero where there is padding."""

    def model(p, batch):
        x = embedded(p, batch["x"]) * batch["valid"][..., None]
        for _ in range(layers):
            h = norm(x)
            s = scores(jnp.einsum("btd,bsd->bts", queries(h @ p["q"]), queries(h @ p["k"])), p)
            x = x + weights(jnp.where(lower(), s, low)) @ (h @ p["v"])
            x = x + layer(p, norm(x))
        if loss is not None:
            return loss(p, norm(x), batch)
        return losses(p, norm(x), batch["y"]).mean()

    return model


def mean_of_valid(p, x, batch):
    return (losses(p, x, batch["y"]) * batch["valid"]).sum() / batch["valid"].sum()


def smoothed(p, x, batch):
    target = jax.nn.one_hot(batch["y"], WORDS) * 0.9 + 0.1 / WORDS
    each = -(target * jax.nn.log_softmax(x @ p["out"])).sum(-1)
    return (each * batch["valid"]).sum() / (batch["valid"].sum() + 1e-9)


def with_norm_of_weights(p, batch):
    return decoder()({**p, "q": p["q"] / jnp.linalg.norm(p["q"], axis=0)}, batch)


ACCEPTED = {
    **{f"{name} of layers": decoder(norm=norm) for name, norm in NORMS.items()},
    **{f"{name} of queries": decoder(queries=norm) for name, norm in NORMS.items() if "layer" not in name},
    **{f"weights: {name}": decoder(weights=weights) for name, weights in WEIGHTS.items()},
    "experts": decoder(layer=experts),
    "softplus": decoder(layer=lambda p, x: jax.nn.softplus(x @ p["up"]) @ p["q"]),
    "a temperature": decoder(scores=lambda s, p: s / p["q"][0, 0]),
    "a softplus of a temperature": decoder(scores=lambda s, p: s / jax.nn.softplus(p["q"][0, 0])),
    "a soft cap": decoder(scores=lambda s, p: 50 * jnp.tanh(s / 50)),
    "distances": decoder(scores=lambda s, p: s - 0.5 * jnp.abs(jnp.asarray(distances() * 1.0))),
    "scaled minus infinity": decoder(weights=WEIGHTS["scaled after"], low=-jnp.inf),
    "many layers": decoder(norm=NORMS["layer norm"], layers=12),
    "normalised weights": with_norm_of_weights,
    "unit vectors": decoder(norm=NORMS["norm"], queries=NORMS["norm"], scores=lambda s, p: s * WIDTH**0.5),
    "a mean of valid tokens": decoder(loss=mean_of_valid),
    "smoothed labels": decoder(loss=smoothed),
    "a checkpoint": jax.checkpoint(decoder(norm=by_hand)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", of_the_night(ACCEPTED, ("layer norm of layers", "weights: softmax where")))
def test_decoders_that_divide_by_norms_and_sums_are_exact(name):
    found, expected = in_slices(ACCEPTED[name], 3, arguments())
    tolerance = 1e-5 if "single" in name else 1e-9
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
