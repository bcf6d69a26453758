"""Code in a mesh context that may compute with arrays from elsewhere: `jax.set_mesh` would place its results."""

from __future__ import annotations

import pytest
from fixture_files import source_files

from mmrewrite.modernize.registry import ModernizeRegistry
from mmrewrite.modernize.rewrite import modernize_project
from mmrewrite.results import Rewrite

pytestmark = pytest.mark.python

REGISTRY = ModernizeRegistry()
TEXT = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pjit import pjit
from jax.sharding import PartitionSpec as P

def fn(x):
    return jax.lax.with_sharding_constraint(x, P('x'))

step = pjit(fn, in_axis_resources=P('x'), out_axis_resources=None)

def helper(x):
    return x + 1

class State:
    count: jax.Array
    size: int

class Runner:
    scale = 3
    rate: jax.Array = 3

    def __init__(self, n: int, w):
        self.n = n
        self.w = w
        self.count = 0

    def run(self, mesh: jax.sharding.Mesh, {parameters}):
        with mesh:
            y = step(x)
            {code}
        return y
"""


def modernized(parameters: str, code: str) -> Rewrite:
    data = TEXT.format(parameters=parameters, code=code).encode()
    (result,) = modernize_project(source_files({"a.py": data}), REGISTRY)
    return result


def context_of(parameters: str, code: str) -> str:
    result = modernized(parameters, code)
    (line,) = (line for line in result.result.decode().splitlines() if line.startswith("        with "))
    return line.strip()


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ("x", "x + 1"),
        ("x", "-x"),
        ("x", "x == 1"),
        ("x", "x['a'] + 1"),
        ("x", "x.state.count * 2"),
        ("x", "x.get('a') + 1"),
        ("x", "z = x['a']; z += 1"),
        ("x", "z, _ = x; z - 1"),
        ("x", "[each + 1 for each in x]"),
        ("x", "(x if y is None else 0) + 1"),
        ("x", "x[0]"),
        ("x", "x.T"),
        ("x", "helper(x)"),
        ("x", "max(x['a'], 1)"),
        ("x, *rest", "rest[0] + 1"),
        ("x: jax.Array", "x * 2"),
        ("x: 'jnp.ndarray | None'", "x * 2"),
        ("x: object", "x * 2"),
        ("x: State", "x.count + 1"),
        ("x: 'State'", "x.count + 1"),
        ("x", "getattr(x, name) + 1"),
        ("x", "getattr(Runner, name)(x)"),
        ("x: jax.Array", "for each in x: pass"),
        ("x: jax.Array", "[each for each in x]"),
        ("x: jax.Array", "print(*x)"),
        ("x: 'jnp.ndarray'", "a, b = x"),
        ("x", "self.w + 1"),
        ("x", "self.rate + 1"),
        ("x", "self.other + 1"),
    ],
)
def test_what_may_compute_with_an_array_keeps_its_device(parameters: str, code: str) -> None:
    assert context_of(parameters, code) == "with compat.mesh_context(mesh):"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ("x", "pass"),
        ("x", "not x"),
        ("x", "x is None"),
        ("x", "x == 'a'"),
        ("x", "'%s' % x"),
        ("x", "x['a']"),
        ("x", "x.shape[0] + 1"),
        ("x", "len(x) + 1"),
        ("x", "y + 1"),
        ("x, *rest", "rest + (1,)"),
        ("x, *rest", "rest[0]"),
        ("x: int", "x + 1"),
        ("x: 'int'", "x + 1"),
        ("x: np.ndarray", "x[0] + 1"),
        ("x: State", "x.size + 1"),
        ("x", "for each in x: pass"),
        ("x: list[jax.Array]", "for each in x: pass"),
        ("x: list[jax.Array]", "a, b = x"),
        ("x", "self.n + 1"),
        ("x", "self.count += 1"),
        ("x", "self.scale * 2"),
    ],
)
def test_what_computes_with_no_array_may_run_under_set_mesh(parameters: str, code: str) -> None:
    assert context_of(parameters, code) == "with jax.set_mesh(mesh):"


def test_the_reason_names_the_operation() -> None:
    result = modernized("x", "x + 1")
    (use,) = (use for use in result.compat if use.function == "mesh_context")
    line = result.original.decode().splitlines().index("            x + 1") + 1
    assert f"`x + 1` on line {line} of a.py may compute on the default device" in use.reason
