"""Programs in which examples may act on each other: microbatches give what one device gives, or are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mmruntime as mm
from tests.runtime.exactness.checking import difference

pytestmark = pytest.mark.family

RNG = np.random.default_rng(0)
B, T, D = 6, 4, 3
PARAMS = {"w": RNG.normal(size=(D, D)), "v": RNG.normal(size=(D,))}
BATCH = {
    "x": RNG.normal(size=(B, T, D)),
    "y": RNG.normal(size=(B, D)),
    "label": RNG.integers(0, D, B),
    "segment": RNG.integers(0, 3, B),
    "keep": RNG.random((B, T)) > 0.4,
    "weight": RNG.random(B) + 0.5,
}


def tokens(p: Any, b: Any) -> Any:
    return jnp.tanh(b["x"] @ p["w"])


def features(p: Any, b: Any) -> Any:
    return tokens(p, b).mean(1)


def losses(p: Any, b: Any) -> Any:
    return ((features(p, b) - b["y"]) ** 2).sum(-1)


def size(b: Any) -> int:
    return len(b["x"])


def within_capacity(p: Any, b: Any) -> Any:
    flat = tokens(p, b).reshape(-1, D)
    gates = jax.nn.softmax(flat @ p["w"])
    chosen = jax.nn.one_hot(gates.argmax(-1), D)
    place = (jnp.cumsum(chosen, 0) * chosen).sum(-1)
    return (flat * gates.max(-1, keepdims=True) * (place <= 3)[:, None]).mean()


def load_of_experts(p: Any, b: Any) -> Any:
    gates = jax.nn.softmax(tokens(p, b).reshape(-1, D) @ p["w"])
    return (jax.nn.one_hot(gates.argmax(-1), D).mean(0) * gates.mean(0)).sum()


def normalised(p: Any, b: Any) -> Any:
    z = features(p, b)
    return (((z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-5) - b["y"]) ** 2).mean()


def in_axis(function: Any) -> Any:
    return lambda p, b: jax.vmap(function, axis_name="examples")(losses(p, b)).sum()


@jax.custom_vjp
def centred(x: Any) -> Any:
    return x.sum()


centred.defvjp(lambda x: (x.sum(), x), lambda x, g: (g * (x - x.mean()),))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (g / jnp.maximum(1, jnp.linalg.norm(g) * 3),))


def own_gradient(p: Any, b: Any) -> Any:
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(jax.grad(lambda p: losses(p, b).mean())(p)))


def index_of(p: Any, b: Any) -> Any:
    return jnp.arange(size(b))


PROGRAMS = {
    "scatter, added": lambda p, b: jnp.zeros(3).at[b["segment"]].add(losses(p, b)).sum(),
    "scatter, squared": lambda p, b: (jnp.zeros(3).at[b["segment"]].add(losses(p, b)) ** 2).sum(),
    "scatter, set": lambda p, b: jnp.zeros(3).at[b["segment"]].set(losses(p, b)).sum(),
    "scatter, largest": lambda p, b: jnp.zeros(3).at[b["segment"]].max(losses(p, b)).sum(),
    "scatter on ones": lambda p, b: jnp.ones(3).at[b["segment"]].add(losses(p, b)).sum(),
    "scatter, dropped": lambda p, b: jnp.zeros(2).at[b["segment"]].add(losses(p, b), mode="drop").sum(),
    "segments by the batch": lambda p, b: jax.ops.segment_sum(losses(p, b), b["segment"], size(b)).mean(),
    "positions as weights": lambda p, b: (losses(p, b) * index_of(p, b)).sum(),
    "a line of weights": lambda p, b: (losses(p, b) * jnp.linspace(0, 1, size(b))).sum(),
    "every other example": lambda p, b: losses(p, b)[::2].sum(),
    "pairs": lambda p, b: losses(p, b).reshape(-1, 2).prod(-1).sum(),
    "tiles": lambda p, b: (jnp.tile(losses(p, b), 2) * jnp.repeat(b["weight"], 2)).sum(),
    "repeats": lambda p, b: (jnp.repeat(losses(p, b), 2) * jnp.repeat(b["weight"], 2)).sum(),
    "sorted and weighted": lambda p, b: (jnp.sort(losses(p, b)) * b["weight"]).sum(),
    "the two largest": lambda p, b: lax.top_k(losses(p, b), 2)[0].sum(),
    "ranks": lambda p, b: (losses(p, b) * jnp.argsort(jnp.argsort(lax.stop_gradient(losses(p, b))))).sum(),
    "a median": lambda p, b: jnp.median(losses(p, b)),
    "medians of rows": lambda p, b: jnp.median(tokens(p, b), axis=1).sum(),
    "a percentile": lambda p, b: jnp.percentile(losses(p, b), 30.0),
    "a deviation": lambda p, b: losses(p, b).std(ddof=1),
    "deviations of rows": lambda p, b: tokens(p, b).var(1, ddof=1).mean(),
    "hard examples": lambda p, b: jnp.where(losses(p, b) > losses(p, b).mean(), losses(p, b), 0).mean(),
    "a running sum": lambda p, b: jnp.cumsum(losses(p, b)).sum(),
    "a running product": lambda p, b: jnp.cumprod(losses(p, b)).sum(),
    "an associative scan": lambda p, b: lax.associative_scan(jnp.add, losses(p, b)).sum(),
    "a scan that counts": lambda p, b: lax.scan(lambda c, r: (c + 1, r * c), 0.0, losses(p, b))[1].sum(),
    "a scan that starts at one": lambda p, b: lax.scan(lambda c, r: (c + r, None), 1.0, losses(p, b))[0],
    "a loop of examples": lambda p, b: lax.fori_loop(0, size(b), lambda i, c: c + losses(p, b)[i], 0.0),
    "a map": lambda p, b: lax.map(lambda r: (jnp.tanh(r @ p["w"]) ** 2).sum(), b["x"]).mean(),
    "a condition on the batch": lambda p, b: lax.cond(
        b["weight"].sum() > 6.0, lambda: losses(p, b).mean(), lambda: 2 * losses(p, b).mean()
    ),
    "a reduction from one": lambda p, b: lax.reduce(losses(p, b), 1.0, lax.add, (0,)),
    "a product": lambda p, b: lax.reduce(losses(p, b), 1.0, lax.mul, (0,)),
    "a softmax of examples": lambda p, b: (jax.nn.softmax(losses(p, b)) * losses(p, b)).sum(),
    "a weighted mean": lambda p, b: jnp.average(losses(p, b), weights=b["weight"]),
    "a masked mean": lambda p, b: jnp.mean(tokens(p, b).sum(-1), where=b["keep"]),
    "a root of the mean": lambda p, b: jnp.sqrt(losses(p, b).mean()),
    "the number of examples": lambda p, b: losses(p, b).mean() + size(b),
    "the number squared": lambda p, b: losses(p, b).sum() / size(b) ** 2,
    "the number in a power": lambda p, b: (losses(p, b) ** (1 / size(b))).mean(),
    "the number in a branch": lambda p, b: losses(p, b).mean() if size(b) > 3 else losses(p, b).sum(),
    "a matrix of examples": lambda p, b: (features(p, b) @ features(p, b).T).sum(),
    "its diagonal": lambda p, b: (features(p, b) @ features(p, b).T * jnp.eye(size(b))).sum(),
    "covariances": lambda p, b: jnp.cov(features(p, b).T).sum(),
    "examples turned round": lambda p, b: (losses(p, b) * jnp.flip(b["weight"])).sum(),
    "contrasts": lambda p, b: -jnp.diag(jax.nn.log_softmax(features(p, b) @ b["y"].T)).mean(),
    "batch normalisation": normalised,
    "capacities": within_capacity,
    "loads": load_of_experts,
    "a mean of an axis": in_axis(lambda r: (r - lax.pmean(r, "examples")) ** 2),
    "an index of an axis": in_axis(lambda r: r * lax.axis_index("examples")),
    "all of an axis": in_axis(lambda r: (r * lax.all_gather(r, "examples")).sum()),
    "bytes that wrap round": lambda p, b: (
        (b["segment"].astype(jnp.int8) * 60).sum(dtype=jnp.int8) * losses(p, b).mean()
    ),
    "a rounded quotient": lambda p, b: (b["segment"].sum() // 2) * losses(p, b).mean(),
    "a sum that is clipped": lambda p, b: jnp.clip(losses(p, b).mean(), 0, 1),
    "frequencies": lambda p, b: (losses(p, b) / jnp.bincount(b["label"], length=D)[b["label"]]).mean(),
    "a backward pass with a mean": lambda p, b: centred(losses(p, b)),
    "a backward pass with a norm": lambda p, b: clipped(losses(p, b)).mean(),
    "a checkpoint": lambda p, b: jax.checkpoint(losses, policy=jax.checkpoint_policies.nothing_saveable)(p, b).mean(),
    "a static number": lambda p, b: jax.jit(lambda x, n: x.sum() / n, static_argnums=1)(losses(p, b), size(b)),
    "a spectrum": lambda p, b: jnp.abs(jnp.fft.fft(losses(p, b))).sum(),
    "windows": lambda p, b: lax.reduce_window(losses(p, b), 0.0, lax.add, (2,), (1,), "VALID").sum(),
    "a gradient's norm": own_gradient,
    "padding": lambda p, b: jnp.pad(losses(p, b), (0, 1)).mean(),
    "numbers joined": lambda p, b: jnp.concatenate([losses(p, b), jnp.ones(2)]).sum(),
    "all but the first": lambda p, b: jnp.where(index_of(p, b) == 0, 0.0, losses(p, b)).sum(),
    "dimensions exchanged": lambda p, b: (jnp.swapaxes(tokens(p, b), 0, 1).reshape(-1, T, D) * b["x"]).sum(),
    "a penalty": lambda p, b: losses(p, b).mean() + 0.1 * (p["w"] ** 2).sum(),
}
# The others need other examples than those of a microbatch, or are not known not to.
PROVED = (
    "scatter, added", "scatter, set", "scatter on ones", "scatter, dropped", "positions as weights",
    "a line of weights",
    "pairs", "repeats", "medians of rows", "deviations of rows", "a scan that starts at one", "a map",
    "a condition on the batch", "a weighted mean", "a masked mean", "the number of examples", "the number squared",
    "the number in a power", "examples turned round", "an index of an axis", "bytes that wrap round",
    "a rounded quotient", "frequencies", "a backward pass with a norm", "a checkpoint", "a static number",
    "all but the first", "a penalty", "segments by the batch", "every other example", "tiles", "a running sum",
    "windows", "padding", "numbers joined", "dimensions exchanged", "a root of the mean", "a sum that is clipped",
)  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_across_examples_give_what_one_device_gives_or_are_refused(name):
    gradient = jax.value_and_grad(PROGRAMS[name])
    arguments = jax.tree.map(jnp.asarray, (PARAMS, BATCH))
    step = jax.jit(mm.microbatch(gradient, count=3, argnum=1, reduce="exact"))
    if name not in PROVED:
        with pytest.raises(ValueError, match=r'reduce="exact" cannot be kept'):
            step.lower(*arguments)
        return
    for found, expected in zip(*map(jax.tree.leaves, (step(*arguments), gradient(*arguments))), strict=True):
        assert difference(found, expected) <= 1e-9
