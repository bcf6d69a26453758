"""What functions compute that a mesh context calls: `jax.set_mesh` replaces it only where none makes an array."""

from __future__ import annotations

import pytest
from fixture_files import modernize_text, source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

REGISTRY = ModernizeRegistry()

# Two meshes reach the sites, so none of them can name its mesh: `jax.set_mesh` or `compat`.
PROGRAM = """
import functools
import heapq
import itertools
import operator
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.experimental.pjit import pjit, with_sharding_constraint
from jax.sharding import Mesh, PartitionSpec as P


def step(x):
    return with_sharding_constraint(2 * x, P("d"))


def run(x):
    return pjit(step, in_axis_resources=None, out_axis_resources=P("d"))(x)


def double(x):
    return x * 2


def twice(x):
    return double(x)


def renamed(x):
    y = x
    return y + 1


def grown(x):
    x += 1
    return x


def named(path: tuple[int, ...], x):
    return path[0] + 1, x.shape


def told(x):
    return x.shape[0] * 2, len(x) + 1, float(x) + 1


@jax.jit
def compiled(x):
    return x * 2


class Scale:
    factor = 2

    def __call__(self, x):
        return x * self.factor

    def apply(self, x):
        return x * 2

    def sizes(self, x):
        return self.factor * 2, x.size


class Box:
    def __init__(self, x):
        self.x = x + 1


class Plain:
    def __init__(self, x):
        self.x = x


made = jnp.ones(3)
if made.ndim:
    made = jnp.zeros(3)


def main(mesh, y):
    with mesh:
        {statement}
        return run(y)


devices = np.array(jax.devices())
main(Mesh(devices, ("d",)), [devices])
main(Mesh(devices[::-1], ("d",)), [devices])
"""

COMPUTE = (
    "y + 1",
    "list(map(str, y))",
    "sorted(y, key=len)",
    "max(y, key=lambda x: x.size)",
    "jax.tree.map(lambda x: x + 1, y)",
    "jax.tree.map(lambda x: x[0] + 1, y)",
    "jax.tree.map(lambda x: x[0], y)",
    "jax.tree.map(lambda *xs: xs[0] + xs[1], y, y)",
    "jax.tree.map(lambda *xs: [x + 1 for x in xs], y, y)",
    "jax.tree.map(lambda x, /, z=1, *, w=2: -w, y)",
    "jax.tree.map(f=lambda x: x + 1, tree=y)",
    "jax.tree_util.tree_map(f=double, tree=y)",
    "jax.tree.map(double, y)",
    "jax.tree.map(twice, y)",
    "jax.tree.map(renamed, y)",
    "jax.tree.map(grown, y)",
    "jax.tree.map(compiled, y)",
    "jax.tree.map(lambda x: double(x), y)",
    "jax.tree.map(lambda x: (lambda z: z + 1)(x), y)",
    "jax.tree.map(lambda x: (z := x) + 1, y)",
    "jax.tree.map(lambda x: x.T, y)",
    "jax.tree.map(lambda x: x.copy(), y)",
    "jax.tree.map(lambda x: x.astype('float32'), y)",
    "jax.tree.map(lambda x: abs(x), y)",
    "jax.tree.map(lambda x: max(x, 1), y)",
    "jax.tree.map(lambda x: x > 0, y)",
    "jax.tree.map(lambda x: [z for z in x], y)",
    "jax.tree.map(lambda x: [*x], y)",
    "jax.tree.map(operator.add, y, y)",
    "jax.tree.map(partial(operator.add, 1), y)",
    "jax.tree.map(partial(double), y)",
    "jax.tree.map(Scale(), y)",
    "jax.tree.map(Scale().apply, y)",
    "jax.tree.map(Box, y)",
    "jax.tree.map(jax.jit(double), y)",
    "jax.tree.map(double if y else told, y)",
    "jax.tree.map([double][0], y)",
    "jax.tree.map(*y)",
    "jax.tree.map(**y)",
    "jax.tree.map(lambda x: x, y, is_leaf=lambda z: z > 1)",
    "jax.tree_util.tree_map_with_path(lambda path, z: z, y, is_leaf=lambda z: z > 1)",
    "jax.tree.leaves(y, lambda z: z > 1)",
    "jax.tree.reduce(lambda a, b: a + b, y)",
    "jax.tree.reduce(operator.add, y, 0)",
    "jax.tree_util.tree_map_with_path(lambda path, z: z + 1, y)",
    "partial(jax.tree.map, double)(y)",
    "jax.tree_util.Partial(jax.tree.map, lambda x: x + 1)(y)",
    "traverse_util.path_aware_map(lambda path, z: z + 1, y)",
    "list(map(lambda x: x + 1, y))",
    "list(map(double, y))",
    "list(filter(lambda x: x > 0, y))",
    "reduce(operator.add, y)",
    "functools.reduce(lambda a, b: a + b, y)",
    "sorted(y, key=lambda x: -x)",
    "max(y, key=lambda x: x + 1)",
    "y.sort(key=lambda x: x + 1)",
    "heapq.nlargest(1, y, lambda x: -x)",
    "list(itertools.starmap(operator.add, y))",
    "list(itertools.accumulate(y, lambda a, b: a + b))",
    "jax.jit(double)(y)",
    "jax.vmap(double)(y)",
    "(lambda x: x + 1)(y)",
    "operator.add(made, 1)",
    "sum(made)",
    "made + 1",
    "-made",
)
MAKE_NONE = (
    "pass",
    "np.ones(3)",
    "jax.tree.map(lambda x: x.shape, y)",
    "jax.tree.map(lambda x: x.shape[0] * 2, y)",
    "jax.tree.map(lambda x: len(x) + 1, y)",
    "jax.tree.map(lambda x: np.asarray(x) + 1, y)",
    "jax.tree.map(lambda x: jax.device_get(x) + 1, y)",
    "jax.tree.map(lambda x: np.asarray(x).tolist()[0] + 1, y)",
    "jax.tree.map(lambda x: x.dtype == 'float32', y)",
    "jax.tree.map(lambda x: x is None or not x, y)",
    "jax.tree.map(lambda *xs: [np.asarray(x) for x in xs], y, y)",
    "jax.tree.map(lambda *xs: xs[0], y, y)",
    "jax.tree.map(np.asarray, y)",
    "jax.tree.map(told, y)",
    "jax.tree.map(Scale().sizes, y)",
    "jax.tree.map(Plain, y)",
    "jax.tree.map(print, y)",
    "jax.tree.map(pjit(step, in_axis_resources=None, out_axis_resources=P('d')), y)",
    "jax.tree.leaves(y, is_leaf=lambda z: z is None)",
    "jax.tree.leaves(y, is_leaf=None)",
    "jax.tree_util.tree_map_with_path(named, y)",
    "list(map(str, [y]))",
    "sorted([y, y], key=len)",
    "operator.add(1, 2)",
)


def style(statement: str) -> str:
    result = modernize_text(PROGRAM.replace("{statement}", statement))
    return "set" if b"with jax.set_mesh(mesh):" in result.result else "compat"


@pytest.mark.parametrize("statement", COMPUTE)
def test_what_computes_stays_on_the_default_device(statement: str) -> None:
    assert style(statement) == "compat"


@pytest.mark.parametrize("statement", MAKE_NONE)
def test_what_makes_no_array_needs_no_compat(statement: str) -> None:
    assert style(statement) == "set"


def test_an_array_that_grows_in_place() -> None:
    assert style("count = 0\n        count += 1") == "set"
    assert style("y += 1") == "compat"
    assert style("global made\n        made += 1") == "compat"


# One mesh, so that the context goes away, unless code that is not in view may look for its mesh.
ONE_MESH = """
import jax
from jax.experimental.pjit import pjit
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(jax.devices(), ("d",))
step = pjit(lambda x: x, in_axis_resources=P("d"), out_axis_resources=P("d"))

LOGS = ([], {})


def give(function):
    return function


def call(function, x):
    function(x)


class Loop:
    def __init__(self, other):
        self.losses, self.last, self.other = [], {}, other

    def run(self, agent, x: jax.Array, name: "str | None", log: list, table: dict, *args, **options):
        with mesh:
            STATEMENT
            return step(x)
"""
METHODS_OUT_OF_VIEW = (
    "agent.update(x)",
    "agent.get(1)",
    "agent.apply(x)",
    "agent.append(x)",
    "agent.copy()",
    "agent.sum()",
    "agent.items.pop()",
    "self.other.update(x)",
    "log[0].update(x)",
    "table.get(name)(x)",
    "table.get(name).update(x)",
    "options.get(name)(x)",
    "[each.copy() for each in log]",
    "log.sort(key=agent)",
    "self.losses.sort(key=agent)",
    "give(agent.update)(x)",
    "call(len, x); call(agent.update, x)",
    "jax.tree.map(*args)",
    "sorted(log, key=agent)",
)
METHODS_IN_VIEW = (
    "x.sum()",
    "x.at[0].set(1).block_until_ready()",
    "step(x).mean()",
    "self.losses.append(x)",
    "self.last.update(x=x)",
    "LOGS[0].append(x)",
    "log.append(x)",
    "log.sort(key=len)",
    "table.get(name)",
    "[value for key, value in table.items()]",
    "options.update(x=x)",
    "args.index(1)",
    "give(len)(x)",
    "call(len, x); call(id, x)",
    "name.split()[0].strip()",
)


def modernized(statement: str) -> bytes:
    files = source_files({"a.py": ONE_MESH.replace("STATEMENT", statement).encode()})
    (result,) = modernize_project(files, REGISTRY)
    assert result.failure is None
    assert not result.refusals
    assert b"jax.jit" in result.result
    return result.result


@pytest.mark.parametrize("statement", METHODS_OUT_OF_VIEW)
def test_a_method_of_what_is_not_seen_may_look_for_the_mesh(statement: str) -> None:
    assert b"with compat.mesh_context(mesh):" in modernized(statement)


@pytest.mark.parametrize("statement", METHODS_IN_VIEW)
def test_methods_of_arrays_and_containers_look_for_no_mesh(statement: str) -> None:
    assert b"with " not in modernized(statement)
