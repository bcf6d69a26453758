"""Source that is newer than the Python that runs the tool is told; what that Python can parse is rewritten."""

from __future__ import annotations

import sys

import pytest
from fixture_files import modernize_text, source_files

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source
from mmrewrite.project.facts import Facts, SourceFile, read_facts

# In which the syntax of the programs below came.
with_newer_syntax = pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no such syntax")


@pytest.mark.parametrize(
    ("text", "version"),
    [("type X = int\n", (3, 12)), ("print(f'{a['b']}')\n", (3, 12)), ("try:\n    x\nexcept A, B:\n    y\n", (3, 14))],
)
def test_what_an_older_python_cannot_parse(text: str, version: tuple[int, int]) -> None:
    """Nothing of it is written, nor of what imports it, and both are told."""
    model = f"def encode(x):\n    return x\n\n\n{text}"
    train = "import jax\n\nimport model\n\n\ndef f(x):\n    return model.encode(x)  # mm: task(stage=0)\n"
    (result,) = rewrite_project(source_files({"train.py": train.encode()}), Registry(), load={".": b""}.get)
    assert result.changed
    files = {"./model.py": model.encode()}
    (result,) = rewrite_project(source_files({"train.py": train.encode()}), Registry(), load=files.get)
    told = "cannot parse this file"
    assert result.changed is (sys.version_info >= version) is not (told in f"{result.failure}")
    result = rewrite_source(f"{train}{text}", Registry())
    assert result.changed is (sys.version_info >= version) is not (told in f"{result.failure}")


@pytest.mark.parametrize(
    "line", ["import model", "from model import encode", "from . import model", "from .model import encode"]
)
def test_whose_module_cannot_be_parsed(line: str) -> None:
    """That of the folder is imported, by a relative import, too; one of its name elsewhere is none of it."""
    text = f"import jax\n\n{line}\n\n\ndef f(x):\n    return jax.nn.relu(x)  # mm: task(stage=0)\n"
    modules = {"p/model.py": b"def encode(x) = x\n", "q/model.py": b"def encode(x):\n    return x\n"}
    for names in (("p/train.py", "q/train.py"), ("q/train.py", "p/train.py")):
        files = [SourceFile(name, text.encode(), "train", root=name[0]) for name in names]
        found = {each.path: each for each in rewrite_project(files, Registry(), load=modules.get)}
        assert f"{found['p/train.py'].failure}".startswith("it imports `model`: Python ")
        assert found["q/train.py"].changed and found["q/train.py"].failure is None


BEFORE = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=4)
type Array[
    T
] = jax.Array


def encode[T: jax.Array, *U](x: T, names=()) -> T:
    try:
        y = jnp.tanh(x)
    except (ValueError, TypeError):
        y = x
    return y


class Model[T]:
    def __call__(self, x, a):
        y = encode(x, (f'{len(a['b'])} {

x}', 1))  # mm: task(stage=0)
        z = f'é {a['b']} {
            i:{y}}'
        for block in self.blocks:  # mm: stages(axis="stage")
            y = block(y)
        return y, i, z


step = jax.jit(Model())  # mm: mjit
"""


@with_newer_syntax
def test_a_hinted_module() -> None:
    result = rewrite_source(BEFORE, Registry())
    assert not (result.failure or result.errors or result.refusals)
    after = result.result.decode()
    changed = sorted(set(after.splitlines()) - set(BEFORE.splitlines()))
    assert changed == [
        "            (f'{len(a['b'])} {",
        "            x,",
        '            y = mm.task(block, task=mm.stage(layer, len(self.blocks), axis="stage"))(y)',
        "        )",
        "        for layer, block in enumerate(self.blocks):",
        '        y = mm.task(encode, task=mm.Task(name="encode", mesh_slice={"stage": 0}))(',
        "import mmruntime as mm",
        'mesh = mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",))',
        "step = mm.mjit(Model(), mesh=mesh)",
        "x}', 1),",
    ]
    assert len(after.splitlines()) == len(BEFORE.splitlines()) + 4
    assert not rewrite_source(after, Registry()).changed


TASK = 'mm.task(g, task=mm.Task(name="g", mesh_slice={"stage": 0}))'


@with_newer_syntax
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "for b in f'{\n\na['b:c']}':  # mm: task(stage=0)\n        x = g(x)",
            f"for b in f'{{\n\na['b:c']}}':\n        x = {TASK}(x)",
        ),
        ("x = hints.task(g, stage=0)(x, f'{a['b,(c']}')", f"x = {TASK}(x, f'{{a['b,(c']}}')"),
        ("x = hints.shard(g(f'{a['b,(c']}'), 'b')", "x = mm.with_sharding_constraint(g(f'{a['b,(c']}'), P('b'))"),
        ("x = g(x, hints.shard(x, f'{a['b']}'))", "x = g(x, mm.with_sharding_constraint(x, P(f'{a['b']}')))"),
        (
            "for b in hints.task(a(f'{a['b:)c']}'), stage=0):\n        x = g(x)",
            f"for b in a(f'{{a['b:)c']}}'):\n        x = {TASK}(x)",
        ),
    ],
)
def test_brackets_and_colons_in_strings(body: str, expected: str) -> None:
    head = "import mmruntime as mm\n{}from jax.sharding import PartitionSpec as P\n\n\ndef f(x, a, g):\n    "
    hints = "from mmrewrite import hints\n"
    result = rewrite_source(f"{head.format(hints)}{body}\n", Registry())
    assert not (result.failure or result.errors or result.refusals)
    assert result.result.decode() == f"{head.format('' if 'hints.' in body else hints)}{expected}\n"


@with_newer_syntax
@pytest.mark.parametrize(
    "head", ["def f[T](x):", "def f [T] (x: T, y):", "class F[T: int](Base):", "class F[T]:", "def f[\n  T\n](x):"]
)
def test_a_hint_on_a_generic_definition(head: str) -> None:
    """What is written in its place is compared with what was meant, in a layout of its own."""
    text = f"import mmruntime as mm\n\n\n# mm: task(stage=0)\n{head}\n    pass\n"
    result = rewrite_source(text, Registry())
    assert not (result.failure or result.errors) and (result.changed or result.refusals)
    assert f"{head}\n    pass\n" in result.result.decode()


@with_newer_syntax
def test_a_hint_in_a_string() -> None:
    text = "from mmrewrite import hints\n\nx = f'{hints.shard(a['b'], 'c')}'\n"
    (error,) = rewrite_source(text, Registry()).errors
    assert (error.line, error.column, error.message[:25]) == (3, 8, "a hint inside an f-string")


@with_newer_syntax
@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("y = f(f'{d['k # mm: stages']}')\n", 0),
        ("y = f(f'{d['k']} # mm: stages')\n", 0),
        ("y = (f'{d['k']}'  # mm: task(stage=0)\n    f'# mm: {\n\nk(d)}')\n", 1),
        ("y = f'{\n    k(d)  # mm: task(stage=0)\n}'\n", 1),
    ],
)
def test_what_is_a_comment_next_to_strings(text: str, hints: int) -> None:
    read = read_facts(SourceFile("m.py", text.encode(), "m"), ())
    assert isinstance(read, Facts)
    assert (len(list(read.hints.hints)), list(read.hints.errors)) == (hints, [])


GENERIC = """\
import jax

type Y[jax] = list[jax.random.KeyArray]
type Z[T: jax.random.KeyArray] = dict[T, "jax.random.KeyArray"]


def f[T: jax.random.KeyArray](x: T) -> "jax.random.KeyArray":
    return jax.tree_map(abs, x)


def g[jax: int](x: jax.random.KeyArray, y=jax.tree_map) -> jax.random.KeyArray:
    return jax.tree_map(abs, x)


class A[jax](list[jax.random.KeyArray]):
    y = jax.tree_map


class B[T: (jax.random.KeyArray, int)](list[T]):
    def h[U](self: U, x: "list['jax.random.KeyArray']") -> None: ...


print(f"{x['a']} {jax.tree_map(abs, x['a'])=}")
"""
GENERIC_AFTER = """\
import jax

type Y[jax] = list[jax.random.KeyArray]
type Z[T: jax.Array] = dict[T, "jax.Array"]


def f[T: jax.Array](x: T) -> "jax.Array":
    return jax.tree.map(abs, x)


def g[jax: int](x: jax.random.KeyArray, y=jax.tree.map) -> jax.random.KeyArray:
    return jax.tree_map(abs, x)


class A[jax](list[jax.random.KeyArray]):
    y = jax.tree_map


class B[T: (jax.Array, int)](list[T]):
    def h[U](self: U, x: "list['jax.Array']") -> None: ...


print(f"{x['a']} {jax.tree.map(abs, x['a'])=}")
"""


@with_newer_syntax
def test_old_names_beside_type_parameters() -> None:
    result = modernize_text(GENERIC)
    assert result.result.decode() == GENERIC_AFTER
    assert [left.line for left in result.left] == [23]
