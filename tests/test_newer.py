"""Source that is newer than the Python that runs the tool: the same result on every Python."""

from __future__ import annotations

import ast

import pytest
from fixture_files import source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.source import newer_syntax
from mmrewrite.source.newer_syntax import parse_any, without_newer_nodes
from mmrewrite.source.walk import walk

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
    except ValueError, TypeError:
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
        return y, t"{i}", z


step = jax.jit(Model())  # mm: mjit
"""


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
    # `i`, which only the strings read, is no name for the loop's index.
    assert len(after.splitlines()) == len(BEFORE.splitlines()) + 4
    assert not rewrite_source(after, Registry()).changed


TASK = 'mm.task(g, task=mm.Task(name="g", mesh_slice={"stage": 0}))'


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


@pytest.mark.parametrize(
    "head", ["def f[T](x):", "def f [T] (x: T, y):", "class F[T: int](Base):", "class F[T]:", "def f[\n  T\n](x):"]
)
def test_a_hint_on_a_generic_definition(head: str) -> None:
    """What is written in its place is compared with what was meant, in a layout of its own."""
    text = f"import mmruntime as mm\n\n\n# mm: task(stage=0)\n{head}\n    pass\n"
    result = rewrite_source(text, Registry())
    assert not (result.failure or result.errors) and (result.changed or result.refusals)
    assert f"{head}\n    pass\n" in result.result.decode()


def test_a_hint_in_a_string() -> None:
    text = "from mmrewrite import hints\n\nx = f'{hints.shard(a['b'], 'c')}'\n"
    (error,) = rewrite_source(text, Registry()).errors
    assert (error.line, error.column, error.message[:25]) == (3, 8, "a hint inside an f-string")


FORMS = [
    "try:\n    x\nexcept A, B:\n    pass\n",
    "try:\n    x\nexcept* A, b.C:\n    pass\n",
    "def f[T: int, **P](x: T) -> T: return x\n",
    "class A[\n    T,  # one\n    *U,\n](B): pass\n",
    "def f[T = int](x): pass\n",
    "type X = int\n",
    "type X[T] = list[T]\n",
    "type \\\n X=int\n",
    "type X[\n\n  É: int  # é\n] = É.a\n",
    "class A[\n\nT]: x = 'é', b(c)\n",
    "def f[\n\nT: É](x, y = a(b)): pass\n",
    "x = f'{a['b']} {f'{1}'}'\n",
    "x = f'{\n    a\n}' 'rest'\n",
    'x = f"""{a["b"]}\n{c}"""\n',
    "x = rt'\\d {a!r:>{w}}'\n",
    "x = f'{\n\na\n}'\n",
    "x = f'é{a['é']}{\nb.c}', k(c)\n",
    "if f'{\n\n  a['b:c']  # {\n}' 'é' \\\n  f'{c!r:>{d(e)}.{p}}{*g, h,}': e\n",
    "x = f'{f'{f'{\na.b['c']\n}'}'}'\n",
]


@pytest.mark.parametrize("syntax", FORMS)
def test_positions_are_those_of_the_source(syntax: str) -> None:
    last = "é = g(h)\n"
    tree = parse_any(syntax + last)
    assert len(tree.body) == 2
    assert ast.dump(tree.body[1]) == ast.dump(ast.parse(last).body[0])
    assert tree.body[1].lineno == syntax.count("\n") + 1
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute):
            assert ast.get_source_segment(syntax + last, node) == ast.unparse(node)


@pytest.mark.parametrize("syntax", FORMS)
def test_code_before_newer_syntax(syntax: str) -> None:
    before = [
        "'''It's\n  so\n'''\n",
        "x = (a,\n  'b')  # it's\n",
        "if x:\n    y\n",
        "try:\n    y\nexcept A: z\n",
        "\n\f\n",
    ]
    before += ["@a\n\n# b\n"] if syntax.startswith(("def", "class")) else []
    for text in before:
        tree = parse_any(text + syntax)
        assert ast.dump(tree.body[-1]) == ast.dump(parse_any(syntax).body[0]) or text.startswith("@")


def test_strings_keep_the_expressions_in_them() -> None:
    (statement,) = parse_any("x = f'{f'{\na['b']}'}' 'c' f'{\n\nd(e)!r:>{w}}'\n").body
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.JoinedStr)
    values = [each.value for each in ast.walk(statement) if isinstance(each, ast.FormattedValue)]
    assert {"a['b']", "d(e)", "w"} <= {ast.unparse(value) for value in values}


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


@pytest.mark.parametrize("text", ["x = (\n", "print 'old'\n", "f'{a['\n"])
def test_what_nobody_can_parse(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse_any(text)


@pytest.mark.parametrize("quoted", [*FORMS, "`x` may be `f`, the type of a class[1] but for `'F'`.\n"])
@pytest.mark.parametrize(
    "prose", ["Returns the type:\n\n", "It's so:\n", "1 of 2nd\n", "  a\n b\n c\n", "Writes “a”.\n"]
)
def test_prose_is_not_tried_again(prose: str, quoted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Docstrings are read as code by the thousand, and may quote some.
    monkeypatch.setattr(newer_syntax, "parse_module", pytest.fail)
    with pytest.raises(SyntaxError):
        parse_any(prose + quoted)


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


class B[T: (jax.random.KeyArray, int) = jax.random.KeyArray](list[T]):
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


class B[T: (jax.Array, int) = jax.Array](list[T]):
    def h[U](self: U, x: "list['jax.Array']") -> None: ...


print(f"{x['a']} {jax.tree.map(abs, x['a'])=}")
"""


def test_old_names_beside_type_parameters() -> None:
    (result,) = modernize_project(source_files({"a.py": GENERIC.encode()}), ModernizeRegistry())
    assert result.result.decode() == GENERIC_AFTER
    assert [left.line for left in result.left] == [23]


def test_type_parameters_are_read_on_every_python() -> None:
    """What an older Python gets is where that of a newer one is."""
    tree = parse_any("class A[\n    É: (int, b.c) = d.e(f), *U\n]: pass\ntype X[T: g] = h\n")
    found = [type(each).__name__ for each in tree.body]
    assert found == ["ClassDef", "TypeAlias"]
    compile(without_newer_nodes(tree), "a.py", "exec")
    places = {each.id: (each.lineno, each.col_offset) for each in walk(tree) if isinstance(each, ast.Name)}
    assert places == {"int": (2, 9), "b": (2, 14), "d": (2, 21), "f": (2, 25), "X": (4, 5), "g": (4, 10), "h": (4, 15)}
