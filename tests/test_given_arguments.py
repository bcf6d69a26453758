"""What functions of a project are given: a module is followed to the parameter that it may be, and to no other.

The project has a member of the old name itself, so nothing is said of values of which nothing is known.
"""

from __future__ import annotations

import pytest
from fixture_files import modernize_text, source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

REGISTRY = ModernizeRegistry()
HEAD = """\
import jax
import functools
import dataclasses
import contextlib
from typing import NamedTuple


class Own:
    def tree_map(self): pass


"""
# Each marks the lines that read an old name of `jax`; no other may be reported.
PROGRAMS = {
    "class call": ("class C:\n    def f(xp):\n        return xp.tree_map  # old\nC.f(jax)\n"),
    "body call": ("class C:\n    def f(xp):\n        return xp.tree_map  # old\n    y = f(jax)\n"),
    "class call 2": (
        "class C:\n    def f(self, k):\n        self.tree_map\n        return k.tree_map  # old\nC.f(C(), jax)\n"
    ),
    "body 2": ("class C:\n    def f(xp, k):\n        return k.tree_map  # old\n    g = f(1, jax)\n"),
    "static method": (
        "class C:\n    @staticmethod\n    def f(xp, k):\n        return k.tree_map  # old\nC.f(1, jax)\n"
    ),
    "method of a class": (
        "class C:\n    @classmethod\n    def f(cls, k):\n        return k.tree_map  # old\nC.f(jax)\n"
    ),
    "method": ("class C:\n    def f(self, k):\n        self.tree_map\n        return k.tree_map  # old\nC().f(jax)\n"),
    "keyword": ("class C:\n    def f(self, k):\n        return k.tree_map  # old\nC.f(self=C(), k=jax)\n"),
    "keyword for the object": ("class C:\n    def f(xp):\n        return xp.tree_map  # old\nC.f(xp=jax)\n"),
    "alias": ("class C:\n    def f(self, k):\n        return k.tree_map  # old\ng = C.f\ng(C(), jax)\n"),
    "alias first": ("class C:\n    def f(k):\n        return k.tree_map  # old\ng = C.f\ng(jax)\n"),
    "alias func": ("def f(k):\n    return k.tree_map  # old\ng = f\ng(jax)\n"),
    "alias body": ("class C:\n    def f(k):\n        return k.tree_map  # old\n    g = f\n    g(jax)\n"),
    "alias attr": ("class C:\n    def f(k):\n        return k.tree_map  # old\nD = C\nD.f(jax)\n"),
    "subclass attr": ("class C:\n    def f(k):\n        return k.tree_map  # old\nclass D(C): pass\nD.f(jax)\n"),
    "type of self": (
        "class C:\n    def f(k):\n        return k.tree_map  # old\n    def g(self):\n        type(self).f(jax)\n"
    ),
    "__class__": (
        "class C:\n    def f(k):\n        return k.tree_map  # old\n    def g(self):\n        self.__class__.f(jax)\n"
    ),
    "cls": (
        "class C:\n"
        "    def f(k):\n"
        "        return k.tree_map  # old\n"
        "    @classmethod\n"
        "    def g(cls):\n"
        "        cls.f(jax)\n"
    ),
    "loop": ("class C:\n    def f(k):\n        return k.tree_map  # old\nfor c in (C,):\n    c.f(jax)\n"),
    "nested class": ("class C:\n    class D:\n        def f(k):\n            return k.tree_map  # old\nC.D.f(jax)\n"),
    "lambda class": ("class C:\n    f = lambda xp: xp.tree_map  # old\nC.f(jax)\n"),
    "lambda as a method": ("class C:\n    f = lambda self, xp: xp.tree_map  # old\nC().f(jax)\n"),
    "lambda body": ("class C:\n    f = lambda xp: xp.tree_map  # old\n    f(jax)\n"),
    "map": ("class C:\n    def f(k):\n        return k.tree_map  # old\nlist(map(C.f, [jax]))\n"),
    "map body": ("class C:\n    def f(k):\n        return k.tree_map  # old\n    list(map(f, [jax]))\n"),
    "partial": ("class C:\n    def f(k):\n        return k.tree_map  # old\nfunctools.partial(C.f, jax)()\n"),
    "partial f": ("def f(k):\n    return k.tree_map  # old\nfunctools.partial(f, jax)()\n"),
    "map f": ("def f(k):\n    return k.tree_map  # old\nlist(map(f, [jax]))\n"),
    "constructor": ("class C:\n    def __init__(self, k):\n        self.f = k.tree_map  # old\nC(jax)\n"),
    "init class": (
        "class C:\n"
        "    def __init__(self, k):\n"
        "        self.f = k.tree_map  # old\n"
        "class D(C):\n"
        "    def __init__(self):\n"
        "        C.__init__(self, jax)\n"
    ),
    "init super": (
        "class C:\n"
        "    def __init__(self, k):\n"
        "        self.f = k.tree_map  # old\n"
        "class D(C):\n"
        "    def __init__(self):\n"
        "        super().__init__(jax)\n"
    ),
    "init sub": (
        "class C:\n    def __init__(self, k):\n        self.f = k.tree_map  # old\nclass D(C): pass\nD(jax)\n"
    ),
    "init cls": (
        "class C:\n"
        "    def __init__(self, k):\n"
        "        self.f = k.tree_map  # old\n"
        "    @classmethod\n"
        "    def make(cls): return cls(jax)\n"
    ),
    "init alias": ("class C:\n    def __init__(self, k):\n        self.f = k.tree_map  # old\nD = C\nD(jax)\n"),
    "__new__": ("class C:\n    def __new__(cls, k):\n        return k.tree_map  # old\nC(jax)\n"),
    "__call__": ("class C:\n    def __call__(self, k):\n        return k.tree_map  # old\nC()(jax)\n"),
    "__call__ of a name": ("class C:\n    def __call__(self, k):\n        return k.tree_map  # old\nc = C()\nc(jax)\n"),
    "contextmanager": ("@contextlib.contextmanager\ndef f():\n    yield jax\nwith f() as k:\n    k.tree_map  # old\n"),
    "context": ("class C:\n    def __enter__(self):\n        return jax\nwith C() as k:\n    k.tree_map  # old\n"),
    "loop over an object": (
        "class C:\n    def __iter__(self):\n        yield jax\nfor k in C():\n    k.tree_map  # old\n"
    ),
    "property": ("class C:\n    @property\n    def xp(self): return jax\nC().xp.tree_map  # old\n"),
    "property of a function": ("class C:\n    def g(self): return jax\n    xp = property(g)\nC().xp.tree_map  # old\n"),
    "dataclass": ("@dataclasses.dataclass\nclass C:\n    xp: object\nC(jax).xp.tree_map  # old\n"),
    "dataclass2": (
        "@dataclasses.dataclass\n"
        "class C:\n"
        "    n: int\n"
        "    xp: object\n"
        "    def f(self): return self.xp.tree_map  # old\n"
        "C(1, jax)\n"
    ),
    "namedtuple2": ("class C(NamedTuple):\n    xp: object\nC(jax).xp.tree_map  # old\n"),
    "simplens": ("import types\nC = types.SimpleNamespace(xp=jax)\nC.xp.tree_map  # old\n"),
    "closure": ("def g(k):\n    def h(): return k.tree_map  # old\n    return h\ng(jax)\n"),
    "closure of a decorator": (
        "def deco(k):\n"
        "    def g(f):\n"
        "        k.tree_map  # old\n"
        "        return f\n"
        "    return g\n"
        "@deco(jax)\n"
        "def h(): pass\n"
    ),
    "decorated": ("def deco(f):\n    return f(jax)\n@deco\ndef h(k): k.tree_map  # old\n"),
    "callback": ("def run(f):\n    return f(jax)\ndef h(k): k.tree_map  # old\nrun(h)\n"),
    "lambda as a callback": ("def run(f):\n    return f(jax)\nrun(lambda k: k.tree_map)  # old\n"),
    "dict dispatch": ("def h(k): k.tree_map  # old\nD = {'a': h}\nD['a'](jax)\n"),
    "lambda in a table": ("D = {'a': lambda k: k.tree_map}  # old\nD['a'](jax)\n"),
    "getattr call": ("class C:\n    def f(self, k):\n        return k.tree_map  # old\ngetattr(C(), 'f')(jax)\n"),
    "varargs": ("class C:\n    def f(*a):\n        return a[0].tree_map  # old\nC.f(jax)\n"),
    "star": ("class C:\n    def f(k):\n        return k.tree_map  # old\nC.f(*[jax])\n"),
    "starstar": ("class C:\n    def f(k):\n        return k.tree_map  # old\nC.f(**{'k': jax})\n"),
    "setattr func": ("def f(k):\n    return k.tree_map  # old\nclass C: pass\nC.g = f\nC.g(jax)\n"),
    "setattr func2": ("def f(self, k):\n    return k.tree_map  # old\nclass C: pass\nC.g = f\nC().g(jax)\n"),
    "body assigned method": ("def f(self, k):\n    return k.tree_map  # old\nclass C:\n    g = f\nC().g(jax)\n"),
    "wrapped": ("def f(k):\n    return k.tree_map  # old\ng = functools.lru_cache(f)\ng(jax)\n"),
    "wrapped call": ("def f(k):\n    return k.tree_map  # old\nfunctools.lru_cache(f)(jax)\n"),
    "return func": ("def f(k):\n    return k.tree_map  # old\ndef get(): return f\nget()(jax)\n"),
    "object of a method": ("class C:\n    def f(self, k):\n        return self.tree_map\nC().f(jax)\n"),
    "object of a method of a class": ("class C:\n    def f(self, k):\n        return self.tree_map\nC.f(C(), jax)\n"),
    "self other method": (
        "class C:\n    def f(self):\n        return self.tree_map\nclass D:\n    def f(xp): pass\n    f(jax)\n"
    ),
    "self name": ("class C:\n    def f(self):\n        return self.tree_map\ndef f(xp): pass\nf(jax)\n"),
    "self name2": (
        "class C:\n    def f(self):\n        return self.tree_map\nclass D:\n    def f(xp): pass\nD.f(jax)\n"
    ),
    "class of a method": ("class C:\n    @classmethod\n    def f(cls, k):\n        return cls.tree_map\nC.f(jax)\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_module_is_followed_to_the_parameter_that_it_may_be(name: str) -> None:
    text = HEAD + PROGRAMS[name]
    result = modernize_text(text)
    marked = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# old")}
    assert {item.line for item in (*result.refusals, *result.left)} == marked


def test_an_object_of_a_class_of_a_file_that_is_not_given_is_looked_at() -> None:
    read = {"./a.py": b"class Base: ...\nclass C(Base): ...\n"}
    source = b"from flax import nnx\nfrom a import C\n\nc = C()\nc.layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(0))]\n"
    (result,) = modernize_project(source_files({"b.py": source}), REGISTRY, load=read.get)
    assert (result.failure, result.changed) == (None, False)


@pytest.mark.parametrize("made", ["C().f", "functools.partial(C.f, C())", "functools.partial(C().f)"])
def test_a_method_is_followed_from_where_it_was_read_into_other_files(made: str) -> None:
    sources = {
        "a.py": b"class C:\n    def f(self, variable):\n        variable += 1\n",
        "b.py": f"import functools\nfrom a import C\n\ng = {made}\n".encode(),
        "c.py": b"from flax import nnx\nfrom b import g\n\ng(nnx.Param(1))\n",
    }
    load = {f"./{path}": data for path, data in sources.items()}
    found = {each.path: each for each in modernize_project(source_files(sources), REGISTRY, load=load.get)}
    assert [each.failure for each in found.values()] == [None] * 3
    assert found["a.py"].changed or [each.line for each in found["a.py"].left] == [3]
