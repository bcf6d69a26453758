"""Code in a mesh context that may compute with arrays from elsewhere: `jax.set_mesh` would place its results."""

from __future__ import annotations

import pytest
from fixture_files import source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.results import Rewrite

REGISTRY = ModernizeRegistry()
TEXT = """
import collections
import copy
import dataclasses
import functools
import itertools
import queue
import typing

import jax
import jax.numpy as jnp
import numpy as np
import einops
from typing import Any, TypeVar, Union, Optional, Dict
from jax.experimental.pjit import pjit
from jax.sharding import PartitionSpec as P
from b import OTHER, make_other, TABLE
import b

def fn(x):
    return jax.lax.with_sharding_constraint(x, P('x'))

step = pjit(fn, in_axis_resources=P('x'), out_axis_resources=None)
Array = Union[jnp.ndarray, np.ndarray]
Tree = Any
T = TypeVar("T")
Alias = jax.Array
W = jnp.ones(3)
W2 = jnp.ones(3) + 1
WT = {{"a": jnp.ones(3)}}
WL = [jnp.ones(3)]
WR = jnp.ones(6).reshape(2, 3)

def make():
    return jnp.ones(3)
WM = make()
WC = jax.tree.map(jnp.zeros_like, WT)

def helper(x):
    return x + 1

def same(x):
    return x

def first(x, y):
    return x

def unpack(x):
    for each in x.values():
        yield each

class Base:
    count: jax.Array

class State(Base):
    size: int

class Other:
    def __init__(self, w):
        self.w = w
    def get_w(self):
        return self.w
    @property
    def prop(self):
        return self.w

class Holder:
    w2: jax.Array

class Another:
    def __init__(self):
        self.w2 = 3

class Setting:
    def __init__(self, pairs):
        for k, v in pairs:
            setattr(self, k, v)

class SubSetting(Setting):
    known = 3
    def run(self, mesh: jax.sharding.Mesh, x):
        with mesh:
            y = step(x)
            {own}
        return y

class Dictionary(dict):
    pass
Pair = collections.namedtuple("Pair", "a b")

@functools.cache
def cached(x):
    return x

def fill(d, x):
    d["a"] = x

class ListOf(list):
    pass

class Runner:
    table = {{}}
    scale = 3
    w2: jax.Array
    rate: jax.Array = 3

    def __init__(self, n: int, w, pairs):
        self.n = n
        self.count = 0
        self.w = w
        setattr(self, "set_w", w)
        object.__setattr__(self, "set_o", w)
        self.__dict__["set_d"] = w
        self.cache = {{}}
        self.cache["w"] = w
        for self.looped in w:
            pass
        self.other = Other(w)
        self.p, self.q = 3, w
        self.items_ = []
        self.numbers = []
        self.numbers.append(3)
        with Other(w) as self.entered:
            pass
        self.fixed = {{"a": 3}}
    def add(self, v):
        self.items_.append(v)
        Runner.table["a"] = v

    def pick(self, x):
        return x
    @staticmethod
    def spick(x):
        return x
    def run(self, mesh: jax.sharding.Mesh, {parameters}):
        with mesh:
            y = step(x)
            {code}
        return y
"""

OTHER_MODULE = """
import jax.numpy as jnp

OTHER = jnp.ones(3)
TABLE = {"w": OTHER}

def make_other():
    return OTHER
"""
# Parameters, and code with them that may compute with an array of JAX.
COMPUTE = (
    ("x", "z = same(x) + 1"),
    ("x", "z = self.pick(x) + 1"),
    ("x", "z = self.spick(x)\nz += 1"),
    ("x", "z = first(x, 3) * 2"),
    ("x, d", "z = [v + 1 for v in d.values()]"),
    ("x, d", "for v in d.values(): v + 1"),
    ("x, d", "for k, v in d.items(): v + 1"),
    ("x, s", "s2 = s.replace(a=1)\ns2.step + 1"),
    ("x, s", "s2 = s.copy()\ns2['a'] + 1"),
    ("x", "x.copy()"),
    ("x", "z = list(x)"),
    ("x, d", "for a, c in zip(x, d): a + c"),
    ("x, d", "for a in enumerate(d): pass"),
    ("x", "for each in x: pass"),
    ("x", "a, c = x"),
    ("x", "[each for each in x]"),
    ("x", "print(*x)"),
    ("x", "self.set_w + 1"),
    ("x", "self.set_o + 1"),
    ("x", "self.set_d + 1"),
    ("x", "self.cache['w'] + 1"),
    ("x", "self.looped + 1"),
    ("x", "self.other.w + 1"),
    ("x", "self.other.get_w() + 1"),
    ("x", "self.w2 + 1"),
    ("x", "type(self).w2 + 1"),
    ("x: State", "x.count + 1"),
    ("x, s: State", "s.count + 1"),
    ("x, s: Other", "s.w + 1"),
    ("x, s: Other", "s.prop + 1"),
    ("x, s: Other", "s.get_w() + 1"),
    ("x, s: Other", "z = s.get_w()\nz + 1"),
    ("x: Array", "x + 1"),
    ("x: Tree", "x + 1"),
    ("x: T", "x + 1"),
    ("x: Alias", "x + 1"),
    ("x: Alias", "for e in x: pass"),
    ("x, d: dict", "d['a'] + 1"),
    ("x, d: list", "d[0] + 1"),
    ("x, d: Dict", "d['a'] + 1"),
    ("x, d: typing.Iterable", "z = [e + 1 for e in d]"),
    ("x, d: typing.Sequence[int]", "for e in d: pass"),
    ("x, d: typing.Iterator[int]", "for e in d: pass"),
    ("x, d: list", "for e in d[0]: pass"),
    ("x, d: dict[str, Any]", "for k, v in d.items():\n    for e in v: pass"),
    ("x, d: ListOf", "for e in d: pass"),
    ("x, *n", "for e in n:\n    for f in e: pass"),
    ("x", "W + 1"),
    ("x", "W2 + 1"),
    ("x", "WT['a'] + 1"),
    ("x", "WL[0] + 1"),
    ("x", "WR + 1"),
    ("x", "WM + 1"),
    ("x", "WC['a'] + 1"),
    ("x", "OTHER + 1"),
    ("x", "b.OTHER + 1"),
    ("x", "make_other() + 1"),
    ("x", "b.make_other() + 1"),
    ("x", "TABLE['w'] + 1"),
    ("x", "o = Other(x)\no.w + 1"),
    ("x, s: Other", "d = {}\nd['a'] = x\nd['a'] + 1"),
    ("x", "d = []\nd.append(x)\nd[0] + 1"),
    ("x", "d = dict(a=x)\nd['a'] + 1"),
    ("x", "d = {'a': x}\nd['a'] + 1"),
    ("x", "d = [x, 1]\nd[0] + 1"),
    ("x", "d = [e for e in (x, 1)]\nd[0] + 1"),
    ("x", "(x if y else 1) + 1"),
    ("x", "copy.copy(x) + 1"),
    ("x", "typing.cast(int, x) + 1"),
    ("x", "next(iter(x))"),
    ("x", "next(iter([x])) + 1"),
    ("x", "q = queue.Queue()\nq.put(x)\nq.get() + 1"),
    ("x", "np.mean(x)"),
    ("x", "np.reshape(x, (2, 3))"),
    ("x", "einops.rearrange(x, 'a b -> b a')"),
    ("x", "match x:\n    case [a, c]: a + c"),
    ("x", "match x:\n    case 3: pass"),
    ("x", "(z := x) + 1"),
    ("x", "z = (w := x)\nw + 1"),
    ("x", "with self.lock(x) as z: z + 1"),
    ("x", "self.any_name + 1"),
    ("x", "self.q + 1"),
    ("x", "self.items_[0] + 1"),
    ("x", "self.table['a'] + 1"),
    ("x", "Runner.table['a'] + 1"),
    ("x", "self.entered + 1"),
    ("x", "self.entered.w + 1"),
    ("x", "self.other.other.w + 1"),
    ("x", "functools.partial(same, x)() + 1"),
    ("x", "cached(x) + 1"),
    ("x", "d = Dictionary(a=x)\nd['a'] + 1"),
    ("x", "p = Pair(x, 1)\np.a + 1"),
    ("x", "d = {}\nfill(d, x)\nd['a'] + 1"),
    ("x", "d = {}\ne = d\ne['a'] = x\nd['a'] + 1"),
    ("x", "for e in unpack(x): e + 1"),
    ("x", "import random\nrandom.choice(x)"),
    ("x", "import math\nmath.fsum(x)"),
    ("x", "import bisect\nbisect.bisect(x, 3)"),
    ("x", "d = []\nd.extend(x)"),
    ("x", "(a,), c = x, 3"),
    ("x", "a = 1\na += x\na + 1"),
    ("x", "self.n += x"),
    ("x", "d = [0]\nd[0] += x"),
    ("x", "sum(e for e in (x, x))"),
    ("x", "z = 3 in [x]"),
    ("x", "[z := x, z + 1]"),
    ("x", "z = getattr(self, 'q') + 1"),
    ("x", "z = vars(self)['q'] + 1"),
    ("x", "z = self.__dict__['q'] + 1"),
    ("x", "z = dataclasses.replace(x, a=1).b + 1"),
    ("x", "z = (lambda a: a)(x) + 1"),
    ("x", "z = (lambda a=x: a)() + 1"),
    ("x", "z = max(x, 1)"),
    ("x", "z = [*map(same, x)]"),
    ("x", "z = list(map(lambda a: W, range(3)))\nz[0] + 1"),
    ("x", "z = dict(zip('ab', [x]))\nz['a'] + 1"),
    ("x", "z = sorted([x, x], key=id)\nz[0] + 1"),
    ("x", "z = [x][0] + 1"),
    ("x", "z = {'a': [x]}\nfor k, v in z.items():\n    v[0] + 1"),
    ("x", "z = next(iter({'a': x}.values())) + 1"),
    ("x", "try:\n    z = x\nexcept ValueError as e:\n    z = e.args\nz + 1"),
    ("x", "z = x if y is None else 3\nz + 1"),
    ("x", "z = y or x\nz + 1"),
    ("x", "global G\nG = x\nG + 1"),
    ("x", "def inner(): return x\ninner() + 1"),
    ("x, n: 'Literal[\"a\"]'", "z = n + 1"),
    ("x, n: 'jax.Array | None'", "z = n + 1"),
    ("x, n: typing.Tuple[jax.Array, int]", "z = n[0] + 1"),
    ("x, n: typing.Tuple[jax.Array, int]", "for e in n: e + 1"),
    ("x, n: 'Unknown'", "z = n + 1"),
    ("x, n: 'some.library.Type'", "z = n + 1"),
    ("x, n: Pair", "z = n.a + 1"),
    ("x, n: ListOf", "z = n[0] + 1"),
    ("x, *n", "z = n[0] + 1"),
    ("x, *n", "for e in n: e + 1"),
    ("x, **n", "for k, v in n.items(): v + 1"),
    ("x, n=3", "z = n + 1"),
    ("x", "self.looped + 1"),
    ("x", "z = super().w + 1"),
    ("x", "z = self.unbound_method() + 1"),
    ("x", "for a, c in [x]: pass"),
    ("x, n: list[jax.Array]", "for a, c in n: pass"),
    ("x, d: dict[str, jax.Array]", "for a, c in d.items(): c + 1"),
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
    ("x", "z = helper(3), helper(x)"),
    ("x", "z = sum(unpack(x))"),
    ("x", "max(x['a'], 1)"),
    ("x, *rest", "rest[0] + 1"),
    ("x: jax.Array", "x * 2"),
    ("x: 'jnp.ndarray | None'", "x * 2"),
    ("x: object", "x * 2"),
    ("x: 'State'", "x.count + 1"),
    ("x", "getattr(x, name) + 1"),
    ("x", "getattr(Runner, name)(x)"),
    ("x: jax.Array", "for each in x: pass"),
    ("x: jax.Array", "[each for each in x]"),
    ("x: jax.Array", "print(*x)"),
    ("x: 'jnp.ndarray'", "a, b = x"),
    ("x", "self.w + 1"),
    ("x", "self.rate + 1"),
)
# The same for code that computes with none.
COMPUTE_NOTHING = (
    ("x, d: int", "z = same(d) + 1"),
    ("x", "z = helper(3)"),
    ("x, d", '"a" in d'),
    ("x, d", "z = y + 1"),
    ("x", "z = len(x) + 1"),
    ("x", "z = x.shape[0] + 1"),
    ("x", "z = self.n + 1"),
    ("x, s: State", "s.size + 1"),
    ("x", "for i in range(3): i + 1"),
    ("x", "for i, e in enumerate(range(3)): i + 1"),
    ("x, d: list[int]", "for e in d: e + 1"),
    ("x, d: 'list[int]'", "z = [e + 1 for e in d]"),
    ("x, d: np.ndarray", "np.mean(d)"),
    ("x, d: np.ndarray", "for e in d: e + 1"),
    ("x", "d = []\nd.append(3)\nd[0] + 1"),
    ("x", "d = {}\nd['a'] = 3\nd['a'] + 1"),
    ("x", "np.prod(x.shape)"),
    ("x", "z = np.asarray(x) + 1"),
    ("x", "z = jax.device_get(x) + 1"),
    ("x", "z = float(x) + 1"),
    ("x", "z = [jax.device_get(v) + 1 for v in (x,)]"),
    ("x", "self.p + 1"),
    ("x", "self.numbers[0] + 1"),
    ("x", "self.fixed['a'] + 1"),
    ("x", "z = 1"),
    ("x", "a, = x,"),
    ("x", "z = any(e is None for e in (x, 1))"),
    ("x", "z = {**x}"),
    ("x", "z = getattr(self, 'p') + 1"),
    ("x", "z = step(x)\nz + 1"),
    ("x", "z = step(x)\nfor e in z: pass"),
    ("x", "z = {'a': step(x)}\nz['a'] + 1"),
    ("x, n: int", "z = list(range(n))"),
    ("x, n: typing.Callable", "z = n is None"),
    ("x, n: typing.Optional[int]", "z = n + 1"),
    ("x, n: 'int | None'", "z = n + 1"),
    ("x, n: typing.Tuple[int, int]", "z = n[0] + 1"),
    ("x, n: typing.Tuple[jax.Array, int]", "for e in n: pass"),
    ("x, n: jax.sharding.Mesh", "z = n.devices[0]"),
    ("x, *n: int", "z = n[0] + 1"),
    ("x, *n", "for e in n: pass"),
    ("x, d: dict[str, jax.Array]", "for a, c in d.items(): pass"),
    ("x, d: dict[str, jax.Array]", "for a, c in sorted(d.items()): pass"),
    ("x, d: dict[str, jax.Array]", "[a for i, (a, c) in enumerate(d.items())]"),
    ("x, d: list", "for e in reversed(d): pass"),
    ("x, **n", "for k, v in n.items(): pass"),
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
    ("x: list[jax.Array]", "for each in x: pass"),
    ("x: list[jax.Array]", "a, b = x"),
    ("x", "self.n + 1"),
    ("x", "self.count += 1"),
    ("x", "self.scale * 2"),
)


def modernized(parameters: str, code: str, own: str = "pass") -> Rewrite:
    indent = "\n" + " " * 12
    text = TEXT.format(parameters=parameters, code=code.replace("\n", indent), own=own)
    files = source_files({"a.py": text.encode(), "b.py": OTHER_MODULE.encode()})
    return next(result for result in modernize_project(files, REGISTRY) if b"class Runner" in result.original)


def contexts_of(result: Rewrite) -> list[str]:
    return [line.strip() for line in result.result.decode().splitlines() if line.startswith("        with ")]


@pytest.mark.parametrize(("parameters", "code"), COMPUTE)
def test_what_may_compute_with_an_array_keeps_its_device(parameters: str, code: str) -> None:
    assert contexts_of(modernized(parameters, code))[-1] == "with compat.mesh_context(mesh):"


@pytest.mark.parametrize(("parameters", "code"), COMPUTE_NOTHING)
def test_what_computes_with_no_array_may_run_under_set_mesh(parameters: str, code: str) -> None:
    assert contexts_of(modernized(parameters, code))[-1] == "with jax.set_mesh(mesh):"


@pytest.mark.parametrize("attribute", ["known", "set_elsewhere"])
def test_attributes_that_setattr_may_set_by_a_computed_name_may_be_arrays(attribute: str) -> None:
    """In classes that derive from the one whose objects it sets."""
    result = modernized("x", "pass", own=f"self.{attribute} + 1")
    assert contexts_of(result)[0] == "with compat.mesh_context(mesh):"


def test_a_class_beside_another_one_sets_attributes_of_the_same_objects() -> None:
    both = "class Both(SubSetting, Other): pass"
    text = TEXT.replace("class SubSetting(Setting):", "class SubSetting:")
    for more, expected in (("", "with jax.set_mesh(mesh):"), (both, "with compat.mesh_context(mesh):")):
        source = text.format(parameters="x", code="pass", own="self.known + 1").replace(
            "known = 3", "known = 3\n    w = 3"
        )
        files = {"a.py": f"{source}\n{more}\n".replace("self.known", "self.w").encode(), "b.py": OTHER_MODULE.encode()}
        result = next(each for each in modernize_project(source_files(files), REGISTRY) if b"Runner" in each.original)
        assert contexts_of(result)[0] == expected


def test_the_reason_names_the_operation() -> None:
    result = modernized("x", "x + 1")
    (use,) = (use for use in result.compat if use.function == "mesh_context")
    line = result.original.decode().splitlines().index("            x + 1") + 1
    assert f"`x + 1` on line {line} of a.py may compute on the default device" in use.reason
