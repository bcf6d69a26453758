"""What programs do beside training, on parameters that a pipelined step has placed: evaluate, log, generate."""

import sys
import types

import jax
import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from tests.fixture_files import source_files
from tests.runtime.helpers import assert_close, normal

for library in ("equinox", "haiku", "optax"):
    pytest.importorskip(library)

HEAD = """
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

# mm: mesh(stage=2)
tx = optax.adam(0.1)


"""
# What each program does after `state = train(state, x)`, besides the line that calls the model itself.
TAIL = """

def beside(state, x):
    state = train(state, x)
    out = [evaluate(state, x), norm(state)]
    logged = f"{float(out[0]):.4f} {float(norm(state)):.4f}"
    tokens = x
    for _ in range(3):
        tokens = following(state, tokens)
    out += [tokens, called(state, x)]
    state = train(state, x)
    out += [evaluate(state, x), optax.tree.norm(jax.device_get(arrays(state)))]
    return out, logged
"""
NNX = """
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:  # mm: stages
            x = jnp.tanh(layer(x))
        return x


def loss_fn(model, x):
    return jnp.mean((model(x) - 2 * x) ** 2)


@nnx.jit  # mm: mjit
def train_step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)  # mm: microbatch(count=2)
    optimizer.update(model, grads)
    return loss


evaluate_objects = nnx.jit(loss_fn)  # mm: mjit


@nnx.jit  # mm: mjit
def norm_of_objects(model):
    return optax.tree.norm(nnx.state(model, nnx.Param))


@nnx.jit  # mm: mjit
def generate(model, tokens):
    return model(tokens)


def init(x):
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def train(state, x):
    train_step(*state, x)
    return state


def evaluate(state, x):
    return evaluate_objects(state[0], x)


def norm(state):
    return norm_of_objects(state[0])


def following(state, tokens):
    return generate(state[0], tokens)


def called(state, x):
    model, optimizer = state
    train_step(model, optimizer, x)
    return model(x)  # mm: gather(model)


def arrays(state):
    return jax.tree.leaves(nnx.state(state[0]))
"""
LINEN = """
from flax import linen as nn
from flax.training.train_state import TrainState


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(2):  # mm: stages
            x = jnp.tanh(nn.Dense(4, name=f"layer_{i}")(x))
        return x


@jax.jit  # mm: mjit
def train(state, x):
    def loss_fn(params, x):
        return jnp.mean((state.apply_fn({"params": params}, x) - 2 * x) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params, x)  # mm: microbatch(count=2)
    return state.apply_gradients(grads=grads)


@jax.jit  # mm: mjit
def evaluate(state, x):
    return jnp.mean((state.apply_fn({"params": state.params}, x) - 2 * x) ** 2)


@jax.jit  # mm: mjit
def following(state, tokens):
    return state.apply_fn({"params": state.params}, tokens)


@jax.jit  # mm: mjit
def norm(state):
    return optax.tree.norm(state.params)


def init(x):
    model = Model()
    return TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), x)["params"], tx=tx)


def called(state, x):
    state = train(state, x)
    return state.apply_fn({"params": state.params}, x)  # mm: gather(state.params)


def arrays(state):
    return jax.tree.leaves(state.params)
"""
EQUINOX = """
import equinox as eqx


class Model(eqx.Module):
    layers: list

    def __init__(self, key):
        self.layers = [eqx.nn.Linear(4, 4, key=each) for each in jax.random.split(key, 2)]

    def __call__(self, x):
        for layer in self.layers:  # mm: stages
            x = jnp.tanh(layer(x))
        return x


def loss_fn(model, x):
    return jnp.mean((jax.vmap(model)(x) - 2 * x) ** 2)


@eqx.filter_jit  # mm: mjit
def train_step(model, opt_state, x):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x)  # mm: microbatch(count=2)
    updates, opt_state = tx.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state


evaluate_model = eqx.filter_jit(loss_fn)  # mm: mjit


@eqx.filter_jit  # mm: mjit
def norm_of_model(model):
    return optax.tree.norm(eqx.filter(model, eqx.is_array))


@eqx.filter_jit  # mm: mjit
def generate(model, tokens):
    return jax.vmap(model)(tokens)


def init(x):
    model = Model(jax.random.key(0))
    return model, tx.init(eqx.filter(model, eqx.is_array))


def train(state, x):
    return train_step(*state, x)


def evaluate(state, x):
    return evaluate_model(state[0], x)


def norm(state):
    return norm_of_model(state[0])


def following(state, tokens):
    return generate(state[0], tokens)


def called(state, x):
    model, opt_state = state
    model, opt_state = train_step(model, opt_state, x)
    return jax.vmap(model)(x)  # mm: gather(model)


def arrays(state):
    return jax.tree.leaves(eqx.filter(state[0], eqx.is_array))
"""
HAIKU = """
import haiku as hk


def forward(x):
    layers = [hk.Linear(4) for _ in range(2)]
    for layer in layers:  # mm: stages
        x = jnp.tanh(layer(x))
    return x


network = hk.without_apply_rng(hk.transform(forward))


def loss_fn(params, x):
    return jnp.mean((network.apply(params, x) - 2 * x) ** 2)


@jax.jit  # mm: mjit
def train_step(params, opt_state, x):
    grads = jax.grad(loss_fn)(params, x)  # mm: microbatch(count=2)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state


evaluate_params = jax.jit(loss_fn)  # mm: mjit
norm_of_params = jax.jit(optax.tree.norm)  # mm: mjit
generate = jax.jit(network.apply)  # mm: mjit


def init(x):
    params = network.init(jax.random.key(0), x)
    return params, tx.init(params)


def train(state, x):
    return train_step(*state, x)


def evaluate(state, x):
    return evaluate_params(state[0], x)


def norm(state):
    return norm_of_params(state[0])


def following(state, tokens):
    return generate(state[0], tokens)


def called(state, x):
    params, opt_state = state
    params, opt_state = train_step(params, opt_state, x)
    return network.apply(params, x)  # mm: gather(params)


def arrays(state):
    return jax.tree.leaves(state[0])
"""
PROGRAMS = {"nnx": NNX, "linen": LINEN, "equinox": EQUINOX, "haiku": HAIKU}


def rewritten(text):
    (result,) = rewrite_project(source_files({"program.py": text.encode()}), Registry())
    assert not result.errors
    return result


def module_of(text):
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(compile(text, "program.py", "exec"), module.__dict__)
    finally:
        del sys.modules["program"]
    return module


@pytest.mark.family
@pytest.mark.parametrize("name", PROGRAMS)
def test_beside_training(name) -> None:
    text = HEAD + PROGRAMS[name] + TAIL
    result = rewritten(text)
    assert not result.refusals
    x = normal(4, 4)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        one, many = module_of(text), module_of(result.result.decode())
        (expected, line), (found, same_line) = (each.beside(each.init(x), x) for each in (one, many))
        assert_close(found, expected, rtol=2e-4)
        assert line == same_line
        state = many.train(many.init(x), x)
        places = {device.id for array in many.arrays(state) for device in array.devices()}
        assert places == {0, 1}

    # Without the hint the program that is run says so, with the line.
    hint = next(part for part in text.split("\n") if "# mm: gather" in part).partition("  # mm: gather")
    without = text.replace(hint[1] + hint[2], "")
    if name == "equinox":
        # Called under `jax.vmap`, its layers are closed over, so that JAX copies them to where the examples are.
        return
    program = module_of(rewritten(without).result.decode())
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=r"got arrays of several stages.*# mm: gather\(model\)") as told,
    ):
        program.called(program.init(x), x)
    lines = rewritten(without).result.decode().splitlines()
    assert f"at program.py:{lines.index(hint[0]) + 1}" in str(told.value)
