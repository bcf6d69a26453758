"""What may be a mesh context: a refusal names it and what to write, and what is written settles it."""

from __future__ import annotations

import re

import pytest
from fixture_files import modernize_text, source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.results import Rewrite

REGISTRY = ModernizeRegistry()
# `haliax` finds the mesh of `with mesh:` alone, so a context that may be a mesh cannot become another one.
HEAD = """\
import contextlib, dataclasses, threading
from haliax import partitioning
from jax.experimental.maps import Mesh
from jax.experimental.pjit import pjit
from jax.sharding import PartitionSpec as P
from somelib import Channel, MeshContext, get_lock, make
import apache_beam as beam, grpc, somelib
from concurrent import futures
from unittest import mock

class Own:
    def __enter__(self): ...
    def __exit__(self, *args): ...

def build(f):
    partitioning.shard(1)
    return pjit(f, in_axis_resources=(P("x"), None), out_axis_resources=P("x"))
"""
PARAMETER = "def g(f, m{}):\n    with m:\n        build(f)\n"
NAMED = "def g(f):\n    m: {} = make(1)\n    with m:\n        build(f)\n"
# The class by what a program may write of it: whether that is a mesh, None where it may be one.
CLASSES = {
    "threading.Lock": False,
    "'threading.Lock'": False,
    "threading.Lock | None": False,
    "Own": False,
    "'Own'": False,
    "Channel": False,
    "somelib.Channel": False,
    "contextlib.AbstractContextManager[None]": False,
    "contextlib.AbstractContextManager": None,
    "MeshContext": None,
    "somelib.mesh.Any": None,
    "object": None,
    "Mesh": True,
    "'Mesh'": True,
    "Mesh | None": True,
}
# Programs that enter something, with `C` where its class is written, and the advice where it is not.
PLACES = {
    "class A:\n    def __init__(self, m):\n        self.m: C = m\n    def g(self, f):\n        with self.m:\n"
    "            build(f)\n": "annotate `self.m` where it is set",
    "class A:\n    m: C\n    def __init__(self, m):\n        self.m = m\n    def g(self, f):\n        with self.m:\n"
    "            build(f)\n": "annotate `self.m` where it is set",
    "class B:\n    m: C\nclass A(B):\n    def g(self, f):\n        with self.m:\n"
    "            build(f)\n": "annotate `self.m` where it is set",
    "@dataclasses.dataclass\nclass A:\n    m: C\ndef g(f, a: A):\n    with a.m:\n"
    "        build(f)\n": "`entered: Class = a.m`",
    "m: C = make(1)\ndef g(f):\n    with m:\n        build(f)\n": "annotate `m` where it is assigned",
    "def g(f, m: C):\n    with m:\n        build(f)\n": "annotate the parameter `m`",
    "def g(f):\n    m: C = make(1)\n    with contextlib.ExitStack() as s:\n        s.enter_context(m)\n"
    "        build(f)\n": "annotate `m` where it is assigned",
    "def h() -> C:\n    return make(1)\ndef g(f):\n    with h():\n        build(f)\n": "`entered: Class = h()`",
}
# What a parameter `v` is declared as, and what is entered of it. `Item`, `Many` and `Kept` are below.
PARTS = {
    "dict[str, C]": ("v[f]", "v.get(f)", "v.get(f, None)", "[*v.values()][0]", "next(iter(v.values()))", "v.pop(f)"),
    "'Mapping[str, C]'": ("v[f]",),
    "Mapping['str', 'C | None']": ("v[f]",),
    "typing.Dict[str, typing.Optional[C]]": ("v[f]",),
    "dict[str, dict[str, C]]": ("v[f][f]",),
    "list[C]": ("v[0]", "v[-1]", "v.pop()", "[m for m in v][0]", "v[1:][0]"),
    "Sequence[C] | None": ("v[0]",),
    "list[C] | tuple[C, ...]": ("v[0]",),
    "tuple[C, ...]": ("v[0]", "v[f]"),
    "tuple[int, C]": ("v[1]", "v[-1]"),
    "typing.Annotated[list[C], 'meshes']": ("v[0]",),
    "Many": ("v[f]",),
    "Optional[Many]": ("v[f]",),
    "Kept": ("v.many[f]", "v.one", "v.made()", "v.computed", "v.items[0].one"),
    "list[Kept]": ("v[0].one", "v[0].many[f]"),
    "Callable[[], C]": ("v()",),
    "Callable[..., dict[str, C]]": ("v()[f]",),
}
LOOPS = {
    "dict[str, C]": ("for m in v.values()", "for _, m in v.items()"),
    "Iterable[C]": ("for m in v", "for _, m in enumerate(v)"),
    "list[tuple[str, C]]": ("for _, m in v",),
}
HOLDERS = """\
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Optional
Many = dict[str, C]
@dataclasses.dataclass
class Item:
    one: C
@dataclasses.dataclass
class Kept(Item):
    many: dict[str, C]
    items: "list[Item]"
    def made(self) -> C: ...
    @property
    def computed(self) -> C: ...
"""
NO_MESHES = (
    "threading.Lock()",
    "grpc.insecure_channel(f)",
    "get_lock(f)",
    "somelib.file_lock(f)",
    "open(f)",
    "Own()",
    "contextlib.nullcontext()",
    "contextlib.closing(f)",
    "mock.patch.object(f, 'name', autospec=True)",
    "futures.ThreadPoolExecutor(2)",
    "beam.Pipeline(options=f)",
)


def modernized(text: str) -> Rewrite:
    return modernize_text(HEAD + text)


def is_mesh(result: Rewrite) -> bool | None:
    """What a context is taken for: what may be a mesh is refused, and what is one depends on `haliax`."""
    refused = [each.reason for each in result.refusals if each.codemod == "replace_mesh_context"]
    return (
        None
        if any("may be a mesh" in reason for reason in refused)
        else bool(refused) or b"mesh_context(" in result.result
    )


@pytest.mark.parametrize("program", PLACES, ids=list(PLACES.values()))
def test_a_refusal_names_the_context_and_what_settles_it(program: str) -> None:
    plain = program.replace("m: C\n", "m: object\n").replace(": C", "").replace(" -> C", "")
    (refusal,) = [each for each in modernized(plain).refusals if "may be a mesh" in each.reason]
    assert PLACES[program] in refusal.reason
    assert is_mesh(modernized(program.replace(": C", ": Channel").replace("-> C", "-> Channel"))) is False
    assert is_mesh(modernized(program.replace(": C", ": Mesh").replace("-> C", "-> Mesh"))) is True


def test_a_class_in_an_annotation_says_whether_it_is_a_mesh() -> None:
    found = {written: is_mesh(modernized(PARAMETER.format(f": {written}"))) for written in CLASSES}
    assert found == CLASSES
    assert {written: is_mesh(modernized(NAMED.format(written))) for written in CLASSES} == CLASSES


@pytest.mark.parametrize("kind", ["Mesh", "Channel", "object"])
def test_an_annotation_says_what_parts_are(kind: str) -> None:
    expected = {"Mesh": True, "Channel": False, "object": None}[kind]
    programs = [f"def g(f, v: {of}):\n    with {part}:\n        build(f)\n" for of in PARTS for part in PARTS[of]]
    programs += [
        f"def g(f, v: {of}):\n    {loop}:\n        with m:\n            build(f)\n"
        for of in LOOPS
        for loop in LOOPS[of]
    ]
    programs += [
        "def g(f, *v: C):\n    with v[0]:\n        build(f)\n",
        "def g(f, **v: C):\n    with v[f]:\n        build(f)\n",
        "def g(f, v: list[C]):\n    first, *m = v\n    with m[0]:\n        build(f)\n",
        "class A:\n    def __init__(self, v):\n        self.v: dict[str, C] = v\n    def g(self, f):\n"
        "        with self.v[f]:\n            build(f)\n",
        "def g(f):\n    v: list[C] = make(1)\n    with v[0]:\n        build(f)\n",
        "def h() -> dict[str, C]:\n    return make(1)\ndef g(f):\n    with h()[f]:\n        build(f)\n",
    ]
    texts = {f"a{i}.py": re.sub(r"\bC\b", kind, HEAD + HOLDERS + each).encode() for i, each in enumerate(programs)}
    found = modernize_project(source_files(texts), REGISTRY, load=lambda path: None)
    assert {each.failure for each in found} == {None}
    told = {programs[int(each.path[1:-3])]: is_mesh(each) for each in found}
    assert told == dict.fromkeys(programs, expected)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        # The keys are meshes, the values are not seen.
        ("dict[Mesh, object]", "v[f]"),
        ("dict[str, Mesh]", "v.get(f, make(1))"),
        ("dict", "v[f]"),
        ("list", "v[0]"),
        ("tuple[Mesh, object]", "v[f]"),
        ("list[Mesh | Channel]", "v[0]"),
        ("list[Mesh] | object", "v[0]"),
        ("somelib.Box[Mesh]", "v[0]"),
    ],
)
def test_a_part_of_which_no_annotation_says_all_may_be_a_mesh(kind: str, part: str) -> None:
    assert is_mesh(modernized(f"def g(f, v: {kind}):\n    with {part}:\n        build(f)\n")) is None


def test_a_mesh_that_is_computed_is_named_where_its_context_goes() -> None:
    text = (
        "import jax\nfrom jax.experimental.pjit import pjit\nfrom jax.sharding import Mesh, PartitionSpec as P\n"
        "meshes = [Mesh(jax.devices(), ('x',))]\ndef f(x):\n    return x\ndef g(x):\n    with {}:\n"
        "        return pjit(f, in_axis_resources=P('x'), out_axis_resources=P())(x)\n"
    )
    for entered, expected in {
        "meshes[0]": "    mesh = meshes[0]\n    return jax.jit(",
        "meshes[0], open(x)": "    mesh = meshes[0]\n    with open(x):\n",
        "open(x), meshes[0]": "    with open(x), jax.set_mesh(meshes[0]):\n",
        "(m := meshes[0])": "    with (jax.set_mesh(m := meshes[0])):\n",
    }.items():
        files = source_files({"a.py": text.format(entered).encode()})
        (result,) = modernize_project(files, REGISTRY, load=lambda path: None)
        assert result.failure is None
        assert expected in result.result.decode()


def test_what_is_seen_to_be_no_mesh_holds_nothing_back() -> None:
    for text in NO_MESHES:
        assert is_mesh(modernized(f"def g(f):\n    with {text}:\n        build(f)\n")) is False, text


@pytest.mark.parametrize(
    "write", ["vars(other).update(words)", "other.__dict__.update(words)", "setattr(other, *words)"]
)
def test_what_other_code_sets_by_computed_names_makes_no_lock_a_mesh(write: str) -> None:
    text = (
        f"def fill(other, words):\n    words.pop('x')\n    {write}\n"
        "class A:\n    def __init__(self):\n        self.entered = threading.Condition()\n"
        "    def g(self, f):\n        with self.entered:\n            build(f)\n"
    )
    assert is_mesh(modernized(text)) is False


def test_each_context_that_may_be_a_mesh_is_named_once() -> None:
    text = "".join(f"def g{number}(f, m):\n    with m:\n        build(f)\n" for number in range(3))
    told = [each.line for each in modernized(text).refusals if "may be a mesh" in each.reason]
    first = len(HEAD.splitlines()) + 2
    assert told == [first, first + 3, first + 6]


def test_what_is_exact_all_the_same_is_done_where_a_context_stays() -> None:
    result = modernized(PARAMETER.format("")).result.decode()
    assert '    return pjit(f, in_shardings=(P("x"), None), out_shardings=P("x"))' in result
    assert "from jax.sharding import Mesh, PartitionSpec as P\n" in result
    assert "    with m:\n" in result


@pytest.mark.parametrize("again", ["tuple(parts)", "sorted(parts)", "dict(zip(parts, parts))", "sum(parts, ())"])
def test_what_is_gone_through_may_come_of_such_a_call(again: str) -> None:
    text = (
        "from jax.experimental.pjit import pjit\ndef take(xs):\n    parts = list(xs)\n"
        f"    return {again}\ndef run(mesh: Mesh, xs: list[int]):\n    with mesh:\n"
        "        return take(xs), pjit(f)(1)\n"
    )
    result = modernize_text(f"from jax.sharding import Mesh\n{text}")
    assert result.changed


def test_what_is_walked_after_a_question_has_an_answer_too() -> None:
    program = """\
from jax.experimental.pjit import with_sharding_constraint
import jax
def second():
    with mesh:
        return pjit(place, in_shardings=P("d"), out_shardings=P())(jnp.zeros(8))
def place(x):
    return jax.lax.with_sharding_constraint(x + 1, P("d"))
def run(devices):
    with mesh(devices, ("d",)):
        return jax.jit(raises_another)(asks(returns_before_it_raises(raises_it_again(x))))
try:
    jax.jit(raises_another)(asks(returns_before_it_raises(raises_it_again(x))))
except ImportError:
    pass
def raises_another(x):
    try:
        return with_sharding_constraint(x, P("d"))
    except ValueError as error:
        raise NoMesh() from error
"""
    modernize_text(program)
