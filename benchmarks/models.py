"""The models that benchmarks pipeline: a perceptron of few large products, and a transformer of many small arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Model:
    """A model in stages.

    Attributes:
        params: The parameters of each stage.
        batch: The input of the first stage, and what the loss compares with.
        stage: The result of a stage, from its parameters and the result of the one before.
        loss: The loss, from the result of the last stage and what it is compared with.
        flops: Floating-point operations of a step, forward and backward, of its matrix products.
    """

    params: list[Any]
    batch: tuple[Any, Any]
    stage: Callable[[Any, Any], Any]
    loss: Callable[[Any, Any], jax.Array]
    flops: float


def perceptron(stages: int, layers: int, width: int, batch: int) -> Model:
    """Residual layers of two products; a mean square; few and large arrays."""
    rng = np.random.default_rng(0)

    def stage(params: Any, x: jax.Array) -> jax.Array:
        for layer in params:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return x

    params = [
        [{"up": _normal(rng, width, 4 * width), "down": _normal(rng, 4 * width, width)} for _ in range(layers)]
        for _ in range(stages)
    ]
    data = tuple(rng.normal(size=(batch, width)).astype(np.float32) for _ in range(2))
    flops = 6.0 * stages * layers * 8 * width * width * batch
    return Model(params, (data[0], data[1]), stage, lambda x, y: jnp.mean((x - y) ** 2), flops)


def transformer(stages: int, layers: int, width: int, batch: int, *, length: int = 16, vocabulary: int = 64) -> Model:
    """A decoder with an embedding, attention, and a head: 12 arrays a layer, most of them small."""
    rng = np.random.default_rng(0)
    heads = max(1, width // 16)

    def attend(p: Any, x: jax.Array) -> jax.Array:
        query, key, value = jnp.split(x @ p["in"] + p["in_bias"], 3, axis=-1)
        query, key, value = (a.reshape(*a.shape[:-1], heads, -1) for a in (query, key, value))
        weights = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = jnp.where(jnp.tril(jnp.ones((length, length), bool)), weights, -1e9)
        found = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(weights), value)
        return found.reshape(x.shape) @ p["out"] + p["out_bias"]

    def normalized(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale + bias

    def stage(params: Any, x: jax.Array) -> jax.Array:
        if "embed" in params:
            x = params["embed"][x] + params["position"]
        for p in params["layers"]:
            if "in" in p:
                x = x + attend(p, normalized(x, p["scale_1"], p["bias_1"]))
            if "up" in p:
                hidden = jax.nn.gelu(normalized(x, p["scale_2"], p["bias_2"]) @ p["up"] + p["up_bias"])
                x = x + hidden @ p["down"] + p["down_bias"]
        return x @ params["head"] if "head" in params else x

    def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))

    def layer() -> dict[str, jax.Array]:
        ones, zeros = jnp.ones((width,)), jnp.zeros((width,))
        return {
            "in": _normal(rng, width, 3 * width),
            "in_bias": jnp.zeros((3 * width,)),
            "out": _normal(rng, width, width),
            "out_bias": zeros,
            "up": _normal(rng, width, 4 * width),
            "up_bias": jnp.zeros((4 * width,)),
            "down": _normal(rng, 4 * width, width),
            "down_bias": zeros,
            "scale_1": ones,
            "bias_1": zeros,
            "scale_2": ones,
            "bias_2": zeros,
        }

    params: list[Any] = [{"layers": [layer() for _ in range(layers)]} for _ in range(stages)]
    params[0] |= {"embed": _normal(rng, vocabulary, width), "position": _normal(rng, length, width)}
    params[-1]["head"] = _normal(rng, width, vocabulary)
    tokens = rng.integers(0, vocabulary, size=(batch, length + 1)).astype(np.int32)
    flops = 6.0 * batch * length * (stages * layers * 12 * width * width + width * vocabulary)
    return Model(params, (tokens[:, :-1], tokens[:, 1:]), stage, loss, flops)


def halved(model: Model) -> Model:
    """A transformer of one layer for each stage in twice the stages: attention on one, its perceptron on the next."""
    attention = ("in", "in_bias", "out", "out_bias", "scale_1", "bias_1")
    params: list[Any] = []
    for stage in model.params:
        (layer,) = stage["layers"]
        first = {name: array for name, array in layer.items() if name in attention}
        second = {name: array for name, array in layer.items() if name not in attention}
        rest = {name: array for name, array in stage.items() if name != "layers"}
        params.append({"layers": [first]} | {name: array for name, array in rest.items() if name != "head"})
        params.append({"layers": [second]} | {name: array for name, array in rest.items() if name == "head"})
    return replace(model, params=params)


MODELS: dict[str, Callable[..., Model]] = {"perceptron": perceptron, "transformer": transformer}


def _normal(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape) * shape[0] ** -0.5, jnp.float32)


def first_state(params: Any) -> tuple[Any, Any, Any, jax.Array]:
    """What `adam` carries for a stage: parameters, both moments, and the number of steps."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, zeros, jnp.zeros(())


def adam(state: Any, grads: Any) -> Any:
    """One update by Adam, written out (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""
    params, first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, first, second, count
