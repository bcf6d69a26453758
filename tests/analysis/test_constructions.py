"""Steps for one device that only make modules, and those that call one."""

from __future__ import annotations

import pytest
from fixture_files import source_files

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project

pytestmark = pytest.mark.quick

HEAD = """\
import jax
import jax.numpy as jnp
from flax import nnx
# mm: mesh(stage=2)
class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = [nnx.Linear(2, 2, rngs=rngs) for _ in range(2)]
    def __call__(self, x):
        for layer in self.layers:  # mm: stages
            x = layer(x)
        return x
    @classmethod
    def create(cls, rngs):
        return cls(rngs)
    @staticmethod
    def run(model, x):
        return model(x)
    def __getitem__(self, x):
        return self(x)
    __matmul__ = __rmatmul__ = __iter__ = __getitem__
    def __invert__(self):
        return self(1)
class Holder:
    def __getitem__(self, i):
        return lambda model, x: model(x)
class Maker:
    def __getitem__(self, i):
        return make
def make(rngs):
    return Model(rngs)
def run(model, x):
    return model(x)
@nnx.jit  # mm: mjit
def step(model, x):
    return model(x)
@nnx.jit
def init(rngs, x):
    return {}
"""
MAKE = [
    "Model(rngs)",
    "make(rngs)",
    "Model.create(rngs)",
    "nnx.state(Model(rngs))",
    "[Model(rngs) for _ in range(2)]",
    "nnx.split(make(rngs))",
    "Maker()[0](rngs)",
    "Model(rngs) is not None",
    "Model(rngs), jnp.zeros((2,)).astype(int)",
]
CALL = [
    "Model(rngs)(x)",
    "make(rngs)(x)",
    "run(Model(rngs), x)",
    "Model.run(Model(rngs), x)",
    "Model.create(rngs)(x)",
    "[run][0](Model(rngs), x)",
    "[Model(rngs)][0](x)",
    "{'a': make(rngs)}['a'](x)",
    "jax.vmap(Model(rngs))(x)",
    "(lambda model: model(x))(Model(rngs))",
    "getattr(Model(rngs), '__call__')(x)",
    "make(rngs)[x]",
    "x @ Model(rngs)",
    "~Model(rngs)",
    "[each for each in make(rngs)]",
    "make(rngs) < x",
    "1 < x < Model(rngs)",
    "[*make(rngs)]",
    "first, *rest = make(rngs)",
    "x @= Model(rngs)",
    "y = make(rngs); y @= x",
    "Holder()[0](Model(rngs), x)",
]


@pytest.mark.parametrize(("result", "is_called"), [*((each, False) for each in MAKE), *((each, True) for each in CALL)])
def test_a_step_that_makes_modules(result: str, is_called: bool) -> None:
    text = HEAD.replace("return {}", result if "= " in result else f"return {result}")
    (found,) = rewrite_project(source_files({"main.py": text.encode()}), Registry(), load={}.get)
    assert found.failure is None
    assert any("`init` reaches a task" in each.reason for each in found.refusals) == is_called, found.refusals
