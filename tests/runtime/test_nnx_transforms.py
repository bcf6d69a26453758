"""`nnx.remat`, `nnx.vmap` and `nnx.scan` inside of steps: numbers, and the submesh of each layer."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import mmruntime as mm
from tests.runtime.helpers import assert_close, stages

pytestmark = pytest.mark.family


class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.norm = nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.dense(self.norm(x)))


class Layers(nnx.Module):
    def __init__(self, rngs, transform):
        self.blocks, self.transform = nnx.List([Block(rngs) for _ in range(2)]), transform

    def __call__(self, x):
        for index, block in enumerate(self.blocks):
            x = mm.task(self.transform(lambda block, x: block(x)), task=mm.stage(index, 2, axis="stage"))(block, x)
        return x


class Stack(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.split_rngs(splits=4)(nnx.vmap(Block))(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x, block):
            return block(x)

        return mm.stage_scan(run, axis="stage")(x, self.blocks)


MODELS = {
    "remat": lambda: Layers(nnx.Rngs(0), nnx.remat),
    "vmap": lambda: Layers(nnx.Rngs(0), lambda call: nnx.vmap(call, in_axes=(None, 0))),
    "scan": lambda: Stack(nnx.Rngs(0)),
}


def loss(model, x):
    return jnp.mean((model(x) - 2 * x) ** 2)


def update(gradient, model, optimizer, x):
    value, grads = gradient(model, x)
    optimizer.update(model, grads)
    return value


@pytest.mark.parametrize("name", MODELS)
def test_transforms_of_nnx_in_a_step(name) -> None:
    gradient, x = nnx.value_and_grad(loss), jax.random.normal(jax.random.key(0), (8, 4))
    pipelined = mm.microbatch(gradient, argnum=1, count=2, schedule="1f1b", reduce="exact")
    step = mm.mjit(lambda *objects: update(pipelined, *objects), mesh=stages(2), like=nnx.jit)
    plain = nnx.jit(lambda *objects: update(gradient, *objects))
    many, one = MODELS[name](), MODELS[name]()
    optimizers = [nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param) for model in (many, one)]
    for _ in range(2):
        found, expected = step(many, optimizers[0], x), plain(one, optimizers[1], x)
        assert_close(found, expected, rtol=1e-5)
    found, expected = (jax.tree.leaves(nnx.state(model)) for model in (many, one))
    assert_close(found, expected, rtol=1e-4)
    places = [[shard.device.id for shard in leaf.addressable_shards] for leaf in found]
    assert places == ([[0, 1]] * 4 if name == "scan" else [[0]] * 4 + [[1]] * 4)
