"""What plain `jax.jit` compiles beside a step for the mesh, and what stands around that step."""

from __future__ import annotations

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

pytestmark = pytest.mark.quick

PROGRAM = """\
import functools
import equinox as eqx
import jax
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:  # mm: stages
            x = layer(x)
        return x


# mm: mesh(stage=2)
def loss_fn(model, batch, scale=1.0):
    return (scale * model(batch) ** 2).mean()


def evaluate(model, batch, scale=1.0):
    return model(scale * batch)


def run(compiled, model, batch):
    return compiled(model, batch)


def main(batch, config):
    model = Model(nnx.Rngs(0))
    {around}
    compiler = nnx.jit if config else jax.jit
    # mm: mjit
    train = {train}
    train(model, batch)
    {evaluation}
"""
# What the step for the mesh takes of the function around it says nothing about the others that this function compiles.
STEPS = [
    "nnx.jit(nnx.grad(loss_fn))",
    "compiler(nnx.grad(loss_fn))",
    "nnx.jit(functools.partial(nnx.grad(loss_fn), scale=config))",
    "nnx.jit(lambda model, batch: nnx.grad(loss_fn)(model, config * batch))",
    "nnx.jit(nnx.grad(loss_fn), donate_argnums=config)",
]
EVALUATIONS = [
    "nnx.jit(evaluate)(model, batch)",
    "nnx.jit(fun=evaluate)(model, batch)",
    "compiler(evaluate)(model, batch)",
    "compiler(fun=evaluate)(model, batch)",
    "compiler(evaluate if config else evaluate)(model, batch)",
    "eqx.filter_jit(evaluate)(model, batch)",
    "nnx.jit(functools.partial(evaluate, scale=config))(model, batch)",
    "run(compiled=nnx.jit(evaluate), model=model, batch=batch)",
    "nnx.jit(evaluate)(nnx.view(model, deterministic=True), batch)",
    "nnx.jit(evaluate)(nnx.clone(model), batch)",
    "nnx.jit(evaluate)(nnx.merge(nnx.split(model)[0], state), batch)",
    "graphdef, state = nnx.split(model)\n    nnx.jit(evaluate)(nnx.merge(graphdef, state), batch)",
    "graphdef, *states = nnx.split(model)\n    nnx.jit(evaluate)(nnx.merge(graphdef, *states), batch)",
    "eqx.filter_jit(evaluate)(eqx.nn.inference_mode(model), batch)",
    "eqx.filter_jit(evaluate)(eqx.tree_at(lambda model: model.layers, model, None), batch)",
    "params, rest = eqx.partition(model, eqx.is_array)\n    nnx.jit(evaluate)(eqx.combine(params, rest), batch)",
]


def told(train: str = STEPS[0], evaluation: str = "", around: str = "") -> list[str]:
    """What a program is told; its step is rewritten."""
    result = rewrite_source(PROGRAM.format(train=train, evaluation=evaluation, around=around), Registry())
    assert (result.failure, result.errors) == (None, ())
    assert b"train = mm.mjit(" in result.result
    return [each.reason for each in result.refusals]


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [*((each, EVALUATIONS[0]) for each in STEPS), *((STEPS[0], each) for each in EVALUATIONS[1:])],
)
def test_an_evaluation_on_one_device_is_told(train: str, evaluation: str) -> None:
    assert any("reaches a task, and plain `jax.jit` would inline it" in each for each in told(train, evaluation))


@pytest.mark.parametrize("train", STEPS)
@pytest.mark.parametrize(
    "around",
    [
        "batch = jax.device_put(batch, jax.devices()[0])",
        "batch = jax.device_put(batch, jax.sharding.NamedSharding(config, jax.P('data')))",
        "jax.debug.callback(print, batch, ordered=True)",
    ],
)
def test_what_runs_before_the_step_asks_for_nothing_in_it(train: str, around: str) -> None:
    assert told(train, around=around) == []


@pytest.mark.parametrize(
    ("compiled", "is_told"),
    [
        ("jax.jit(functools.partial(initial, size=4))(config)", False),
        ("jax.jit(functools.partial(evaluate, model, scale=initial))(batch)", True),
    ],
)
def test_what_makes_parameters_is_not_told(compiled: str, is_told: bool) -> None:
    around = "def initial(key, size):\n        return model.init(key, jax.numpy.ones((size, 4)))"
    assert bool(told(evaluation=compiled, around=around)) is is_told
