"""Sequence slices of the forms that decoders have: masks of the batch, layers of libraries, checkpoints and scans."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmruntime._compat import split
from mmruntime._jaxpr.ir import Op
from mmruntime._jaxpr.rewrite import open_calls
from mmruntime._slices.constants import Constants
from tests.runtime.sliced_programs import (
    EXAMPLES,
    LENGTH,
    WIDTH,
    WORDS,
    attention,
    data,
    distances,
    embedded,
    exact_or_told,
    in_slices,
    losses,
    lower,
    masked,
    model,
    of_the_night,
    parameters,
)

pytestmark = pytest.mark.usefixtures("double", "free_promotion")


def of_batch(mask):
    """A loss whose scores are masked by `mask(scores, tokens that are no padding, which document each is of)`."""

    def loss(p, batch):
        x = attention(p, embedded(p, batch["x"]), lambda s: mask(s, batch["weight"] > 0, batch["x"] // 2))
        return losses(p, x, batch["y"]).mean()

    return loss


def same(documents):
    return documents[:, :, None] == documents[:, None, :]


def keys(valid):
    return valid[:, None, :]


def eye():
    return jnp.eye(LENGTH, dtype=bool)


def by_hand(p, x, low=-jnp.inf):
    scores = jnp.where(lower(), jnp.einsum("btd,bsd->bts", x @ p["q"], x @ p["k"]) / WIDTH**0.5, low)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return x + (weights / weights.sum(-1, keepdims=True)) @ (x @ p["v"])


def with_softmax_of_visible(p, batch):
    x = embedded(p, batch["x"])
    scores = jnp.einsum("btd,bsd->bts", x @ p["q"], x @ p["k"])
    weights = jax.nn.softmax(scores, -1, where=lower() & keys(batch["weight"] > 0))
    return losses(p, x + weights @ (x @ p["v"]), batch["y"]).mean()


def without_maximum(p, batch):
    x = embedded(p, batch["x"])
    weights = jnp.exp(jnp.einsum("btd,bsd->bts", x @ p["q"], x @ p["k"])) * (lower() & keys(batch["weight"] > 0))
    return losses(p, x + weights / (1e-6 + weights.sum(-1, keepdims=True)) @ (x @ p["v"]), batch["y"]).mean()


def two_by_two(x):
    angles = jnp.arange(LENGTH)[:, None] / 10.0 ** jnp.arange(WIDTH // 2)
    one, other = x[..., ::2], x[..., 1::2]
    turned = (one * jnp.cos(angles) - other * jnp.sin(angles), one * jnp.sin(angles) + other * jnp.cos(angles))
    return jnp.stack(turned, -1).reshape(x.shape)


def complex_numbers(x):
    angles = jnp.exp(1j * jnp.arange(LENGTH)[:, None] / 10.0 ** jnp.arange(WIDTH // 2))
    turned = jax.lax.complex(x[..., ::2], x[..., 1::2]) * angles
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def rotary(turn):
    def attend(p, x):
        scores = masked(jnp.einsum("btd,bsd->bts", turn(x @ p["q"]), turn(x @ p["k"])))
        return x + jax.nn.softmax(scores, -1) @ (x @ p["v"])

    return of_layer(attend)


def of_layer(layer):
    return lambda p, batch: losses(p, layer(p, embedded(p, batch["x"])), batch["y"]).mean()


def gathered_places(p, batch):
    places = jnp.take(p["place"], jnp.broadcast_to(jnp.arange(LENGTH), batch["x"].shape), axis=0)
    return losses(p, attention(p, p["embed"][batch["x"]] + places), batch["y"]).mean()


def stacked_layers(layer, **options):
    def loss(p, batch):
        stacks = {name: jnp.stack([p[name], 1.1 * p[name], 0.9 * p[name]]) for name in "qkv"}
        x, norms = jax.lax.scan(
            lambda x, w: (y := layer(w, x), (y**2).sum(-1)), embedded(p, batch["x"]), stacks, **options
        )
        return losses(p, x, batch["y"]).mean() + norms.mean()

    return loss


def mean_of_valid(p, batch):
    each = losses(p, attention(p, embedded(p, batch["x"])), batch["y"])
    return (each * batch["weight"]).sum() / jnp.maximum(batch["weight"].sum(), 1)


def mean_of_examples(p, batch):
    each = losses(p, attention(p, embedded(p, batch["x"])), batch["y"]) * batch["weight"]
    return (each.sum(-1) / jnp.maximum(batch["weight"].sum(-1), 1)).mean()


def mean_where(p, batch):
    return jnp.mean(losses(p, attention(p, embedded(p, batch["x"])), batch["y"]), where=batch["weight"] > 0)


def product_of_heads(bias=False, groups=2, **options):
    def loss(p, batch):
        x = embedded(p, batch["x"])
        q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, -1) for name in "qkv")
        made = dict(options)
        if bias:
            made["bias"] = -0.1 * jnp.abs(jnp.asarray(distances(), x.dtype))[None, None]
        for name, make in options.items():
            made[name] = make(batch) if callable(make) else make
        x = x + jax.nn.dot_product_attention(q, k[:, :, :groups], v[:, :, :groups], is_causal=True, **made).reshape(
            x.shape
        )
        return losses(p, x, batch["y"]).mean()

    return loss


ACCEPTED = {
    "documents": of_batch(lambda s, valid, d: masked(s, lower() & same(d))),
    "documents before": of_batch(lambda s, valid, d: masked(jnp.where(same(d), s, -1e30))),
    "documents that differ": of_batch(
        lambda s, valid, d: jnp.where(~lower() | (d[:, :, None] != d[:, None, :]), -1e30, s)
    ),
    "documents multiplied": of_batch(lambda s, valid, d: masked(s, lower() * same(d) > 0)),
    "documents added": of_batch(lambda s, valid, d: s + jnp.where(lower() & same(d), 0, -1e30)),
    "documents added as numbers": of_batch(lambda s, valid, d: s + (1.0 - (lower() & same(d))) * -1e9),
    "documents in a window": of_batch(lambda s, valid, d: masked(s, lower() & same(d) & (distances() < 3))),
    "padding and minus infinity": of_batch(
        lambda s, valid, d: masked(s, lower() & (keys(valid) | (jnp.arange(LENGTH) < 1)), -jnp.inf)
    ),
    "padding hidden less than later positions": of_batch(
        lambda s, valid, d: masked(jnp.where(keys(valid), s, -1e9), low=-jnp.inf)
    ),
    "padding added before": of_batch(lambda s, valid, d: masked(s + keys(valid - 1.0) * 1e9, low=-jnp.inf)),
    "padding added behind": of_batch(lambda s, valid, d: masked(s, low=-jnp.inf) + keys(valid - 1.0) * 1e9),
    "padding that sees itself": of_batch(lambda s, valid, d: masked(s, lower() & keys(valid) | eye())),
    "documents and padding": of_batch(lambda s, valid, d: masked(s, lower() & same(d) & keys(valid) | eye())),
    "softmax of the visible": with_softmax_of_visible,
    "no maximum": without_maximum,
    "softmax by hand": of_layer(by_hand),
    "rotary in twos": rotary(two_by_two),
    "rotary of complex numbers": rotary(complex_numbers),
    "places gathered": gathered_places,
    "a checkpoint": of_layer(jax.checkpoint(by_hand)),
    "a checkpoint of two layers": of_layer(jax.checkpoint(lambda p, x: by_hand(p, jnp.tanh(attention(p, x))))),
    "a checkpoint in a checkpoint": of_layer(jax.checkpoint(lambda p, x: by_hand(p, jax.checkpoint(attention)(p, x)))),
    "a checkpoint that saves products": of_layer(jax.checkpoint(by_hand, policy=jax.checkpoint_policies.dots_saveable)),
    "a scan over layers": stacked_layers(by_hand),
    "a scan backwards": stacked_layers(by_hand, reverse=True, unroll=3),
    "a scan of checkpoints": stacked_layers(jax.checkpoint(by_hand)),
    "a checkpoint of a scan": jax.checkpoint(stacked_layers(by_hand)),
    "mapped": of_layer(lambda p, x: jax.vmap(lambda y: by_hand(p, y[None])[0])(x)),
    "mean of valid tokens": mean_of_valid,
    "mean of each example's valid tokens": mean_of_examples,
    "mean where": mean_where,
}

# These compute softmax in single precision.
PRODUCTS = {
    "causal": product_of_heads(),
    "shared keys": product_of_heads(groups=1),
    "distances as a bias": product_of_heads(bias=True),
    "a window": product_of_heads(local_window_size=(2, 0)),
    "documents": product_of_heads(mask=lambda batch: same(batch["x"] // 2)[:, None]),
}

PADDING = "it sees no position"
REFUSED = {
    "padding": (of_batch(lambda s, valid, d: masked(s, lower() & keys(valid))), PADDING),
    "documents and padding": (of_batch(lambda s, valid, d: masked(s, lower() & same(d) & keys(valid))), PADDING),
    "documents of others": (
        of_batch(lambda s, valid, d: masked(s, lower() & (d[:, :, None] == d[::-1, None]))),
        PADDING,
    ),
    "documents before and behind": (of_batch(lambda s, valid, d: masked(s, same(d))), "no causal mask"),
    "documents by floats": (of_batch(lambda s, valid, d: masked(s, lower() & same(d * 1.5))), PADDING),
    "minus infinity or less": (
        of_batch(lambda s, valid, d: masked(masked(s, low=-jnp.inf), lower() & keys(valid), -1e30)),
        PADDING,
    ),
    "or": (of_batch(lambda s, valid, d: masked(s, lower() | keys(valid), -jnp.inf)), "no causal mask"),
    "half a mask": (of_batch(lambda s, valid, d: masked(s, jnp.where(keys(valid), lower(), True))), "no causal mask"),
    "lengths": (
        product_of_heads(
            query_seq_lengths=lambda batch: LENGTH - (batch["x"][:, 0] > 2).astype(jnp.int32),
            key_value_seq_lengths=lambda batch: LENGTH - (batch["x"][:, 0] > 2).astype(jnp.int32),
        ),
        PADDING,
    ),
    "a scan over positions": (
        of_layer(
            lambda p, x: jax.lax.scan(lambda c, y: (c + y, c), 0 * p["q"][: EXAMPLES // 2], x.swapaxes(0, 1))[
                1
            ].swapaxes(0, 1)
        ),
        "not known",
    ),
}


def arguments(p=None):
    numbers = data()
    return jax.tree.map(np.asarray, parameters() if p is None else p), numbers


def check(loss, p=None, tolerance=1e-9):
    found, expected = in_slices(loss, 3, arguments(p))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", of_the_night(ACCEPTED, ("documents and padding",)))
def test_masks_and_forms_of_layers_are_exact(name):
    check(ACCEPTED[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_attention_of_jax_is_exact(name):
    check(PRODUCTS[name], tolerance=1e-6)


@pytest.mark.parametrize("name", of_the_night(REFUSED, ("padding",)))
def test_masks_that_hide_rows_are_told_at_their_line(name):
    loss, reason = REFUSED[name]
    assert reason in exact_or_told(loss, 3, arguments())


def test_rows_that_see_nothing_are_known_in_low_precision():
    loss = model(lambda s: masked(s.astype(jnp.bfloat16), lower(below=-1), -1e30))
    assert PADDING in exact_or_told(loss, 3, arguments())


# Libraries.


def linen(mask=None, remat=False, rate=0.0):
    nn = pytest.importorskip("flax.linen")

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, batch):
            double = {"param_dtype": jnp.float64}
            x = nn.Embed(WORDS, WIDTH, **double)(batch["x"])
            shown = nn.make_causal_mask(batch["x"])
            if mask is not None:
                shown = mask(nn, shown, batch)
            layer = nn.remat(nn.MultiHeadDotProductAttention) if remat else nn.MultiHeadDotProductAttention
            made = layer(2, qkv_features=WIDTH, deterministic=False, dropout_rate=rate, **double)
            x = x + made(nn.LayerNorm(**double)(x), mask=shown)
            return nn.Dense(WORDS, **double)(nn.gelu(nn.Dense(2 * WIDTH, **double)(nn.LayerNorm(**double)(x))))

    decoder = Decoder()

    def loss(p, batch):
        logits = decoder.apply(p, batch, rngs={"dropout": jax.random.key(3)})
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][..., None], -1).mean()

    return loss, decoder.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, data())


def linen_documents(nn, shown, batch):
    return nn.combine_masks(shown, nn.make_attention_mask(batch["x"] // 2, batch["x"] // 2, jnp.equal))


def linen_padding(nn, shown, batch):
    return nn.combine_masks(shown, nn.make_attention_mask(batch["weight"] > 0, batch["weight"] > 0), dtype=bool)


def of_nnx():
    nnx = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=nnx.Rngs(0), param_dtype=jnp.float64))

    def loss(p, batch):
        x = embedded(p[1], batch["x"])
        x = x + nnx.merge(graph, p[0])(x, mask=nnx.make_causal_mask(batch["x"]))
        return losses(p[1], x, batch["y"]).mean()

    return loss, (state, parameters())


def of_equinox():
    eqx = pytest.importorskip("equinox")
    layer = eqx.nn.MultiheadAttention(2, WIDTH, key=jax.random.key(0), dtype=jnp.float64)
    arrays, rest = eqx.partition(layer, eqx.is_array)

    def loss(p, batch):
        x = embedded(p[1], batch["x"])
        shown = lower() & same(batch["x"] // 2)
        x = x + jax.vmap(lambda y, mask: eqx.combine(p[0], rest)(y, y, y, mask=mask))(x, shown)
        return losses(p[1], x, batch["y"]).mean()

    return loss, (arrays, parameters())


LIBRARIES = {
    "linen": linen,
    "linen, documents": lambda: linen(linen_documents),
    "linen, padding": lambda: linen(lambda *args: linen_padding(*args) | eye()),
    "linen, checkpoint": lambda: linen(remat=True),
    "linen, dropout": lambda: linen(rate=0.5),
    "nnx": of_nnx,
    "equinox": of_equinox,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_layers_of_libraries_are_exact(name):
    check(*LIBRARIES[name]())


@pytest.mark.slow
def test_flax_masks_of_padding_are_told():
    loss, p = linen(linen_padding)
    assert "mask | jnp.eye" in exact_or_told(loss, 3, arguments(p))


# Random masks.


def random_mask(rng, valid, documents):
    """A mask of a random program: mostly causal, with rows that may see nothing."""
    makes = [
        lambda: lower(),
        lambda: lower(below=int(rng.integers(-1, 2))),
        lambda: keys(valid),
        lambda: valid[:, :, None],
        lambda: same(documents),
        lambda: documents[:, :, None] >= documents[:, None, :],
        lambda: same(jnp.where(valid, documents, 0)),
        lambda: eye(),
        lambda: jnp.asarray(distances() < 3),
        lambda: jnp.broadcast_to(valid[:, :1, None], (valid.shape[0], LENGTH, LENGTH)),
    ]

    def combined(depth):
        if depth == 0:
            return makes[int(rng.integers(len(makes)))]()
        one, other = combined(depth - 1), combined(depth - 1)
        kind = int(rng.integers(6))
        if kind == 0:
            return one | other
        if kind == 1:
            return ~(~one | ~other)
        if kind == 2:
            return jnp.asarray(one, float) * jnp.asarray(other, float) > 0
        if kind == 3:
            return jnp.where(one, other, bool(rng.integers(2)))
        return one & other

    found = combined(int(rng.integers(1, 4)))
    return found & lower() if rng.random() < 0.6 else found


def test_entries_of_random_masks_that_are_known_are_what_they_are_for_any_batch():
    for number in range(60):

        def program(valid, documents, scores, number=number):
            rng = np.random.default_rng(number)
            mask = random_mask(rng, valid, documents)
            bias = jnp.where(mask, rng.choice([0.0, 1.0]), rng.choice([-1e30, -np.inf]))
            return jnp.where(random_mask(rng, valid, documents), scores + bias, bias) * (1.0 - mask)

        batch = data()
        shapes = jnp.zeros((EXAMPLES, LENGTH), bool), batch["x"], jnp.zeros((EXAMPLES, LENGTH, LENGTH))
        traced, values = split(jax.make_jaxpr(program)(*shapes))
        eqns = [each.eqn for eqn in traced.eqns for each in open_calls(Op(eqn))]
        consts = dict(zip(traced.constvars, values, strict=True))
        partly = Constants(consts)
        partly.add(eqns)
        for draw in range(3):
            rng = np.random.default_rng((number, draw))
            inputs = [rng.random((EXAMPLES, LENGTH)) < 0.5, rng.integers(0, 3, (EXAMPLES, LENGTH), np.int32)]
            inputs.append(rng.normal(size=(EXAMPLES, LENGTH, LENGTH)))
            fully = Constants(consts | dict(zip(traced.invars, inputs, strict=True)))
            fully.add(eqns)
            for eqn in eqns:
                for var in eqn.outvars:
                    entries, value = partly.find_partly(var), fully.find(var)
                    if entries is not None and value is not None:
                        known = np.broadcast_to(entries.known, value.shape)
                        np.testing.assert_array_equal(np.broadcast_to(entries.values, value.shape)[known], value[known])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_attention_with_random_masks_is_exact_or_told(number):
    rng = np.random.default_rng(number)
    low, form = rng.choice([-1e30, -np.inf]), int(rng.integers(3))

    def mask(s, valid, d):
        shown = random_mask(np.random.default_rng((number, 1)), valid, d)
        other = random_mask(np.random.default_rng((number, 2)), valid, d)
        if form == 0:
            return jnp.where(shown, s, low)
        if form == 1:
            return s + jnp.where(shown, 0.0, low)
        return jnp.where(lower(), jnp.where(other, s, -1e20), low)

    exact_or_told(of_batch(mask), 2 + number % 3, arguments())
