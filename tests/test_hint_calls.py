"""Hints as decorators, blocks and calls: they do nothing, keep types, and are read under any name."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_overloads

import pytest

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite import hints
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.calls import find_calls
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source
from mmrewrite.engine.settings import HintSettings
from mmrewrite.project.facts import Facts, SourceFile, has_mark, read_facts
from mmrewrite.source.names import read_names
from mmrewrite.source.text import SourceText

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = Registry()
MESH_AND_MODEL = """\
import jax
import mmrewrite.hints as marks

marks.mesh(stage=2, data=4)


@marks.task(stage=0)
def forward(params, x):
    return x @ params
"""


class TestFunctions:
    def test_every_directive_has_one(self) -> None:
        assert {*DIRECTIVES, *SWITCHES, IGNORE} <= set(hints.__all__)
        assert all(callable(getattr(hints, name)) for name in hints.__all__)

    def test_subjects_come_back_as_they_were(self) -> None:
        subject = lambda x: x  # noqa: E731
        value = object()
        assert hints.task(subject, stage=0) is subject
        assert hints.task(subject, "name", stage=0) is subject
        assert hints.stages(value, "stage", weights=[1, 2]) is value
        assert hints.microbatch(subject, size=8, schedule="1f1b", rng=None) is subject
        assert hints.shard(value, "batch", None, ("heads", "mlp")) is value
        assert hints.mjit(subject) is subject
        assert hints.parallelize(subject, init_params=subject) is subject
        assert hints.verify(subject, args=subject) is subject

    def test_definitions_come_back_as_they_were(self) -> None:
        def function(x: int) -> int:
            return x

        marks = [
            hints.task(stage=0),
            hints.task("name", stage=0),
            hints.task(name="name", stage=0),
            hints.microbatch(count=4),
            hints.shard(x=("batch",), out=("batch",)),
            hints.mjit(),
            hints.parallelize(init_params=function),
            hints.verify(args=function),
            hints.off(),
            hints.ignore("place_task"),
        ]
        assert all(mark(function) is function and mark(hints.Mark) is hints.Mark for mark in marks)

    def test_blocks_hide_no_exception(self) -> None:
        with pytest.raises(ValueError, match="mine"), hints.task("name", stage=0), hints.off(), hints.ignore("x"):
            raise ValueError("mine")

    def test_statements_say_nothing(self) -> None:
        results = [hints.mesh(stage=4), hints.axes(("a", "b"), c=None), hints.register("h", stage="{0}"), hints.on()]
        assert results == [None] * 4

    def test_arguments_are_those_of_the_vocabulary(self) -> None:
        for directive in DIRECTIVES.values():
            forms = get_overloads(getattr(hints, directive.name)) or [getattr(hints, directive.name)]
            for parameter in directive.parameters:
                names = [inspect.signature(form).parameters for form in forms]
                kinds = [each.kind for known in names for each in known.values()]
                assert any(parameter.name in known for known in names) or inspect.Parameter.VAR_KEYWORD in kinds

    def test_importing_them_imports_the_standard_library_only(self) -> None:
        code = (
            "import sys; before = set(sys.modules); import mmrewrite.hints; "
            "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
            "print(sorted(new - sys.stdlib_module_names))"
        )
        out = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == "['mmrewrite']"

    def test_types_are_kept(self, tmp_path: Path) -> None:
        api = pytest.importorskip("mypy.api")
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(
                """
                from collections.abc import Callable
                from mmrewrite import hints

                hints.mesh(stage=4, data=2)
                hints.axes(batch="data", embed=None)

                @hints.task(stage=0)
                def encode(x: int, *, scale: float = 1.0) -> str:
                    return str(x * scale)

                @hints.mjit
                @hints.shard(x=("batch", None), out=("batch",))
                def step(x: float) -> float:
                    return x

                @hints.task("decoder", stage=1)
                class Decoder:
                    width: int = 3

                def f(x: float) -> float: return x
                a: str = encode(1, scale=2.0)
                b: float = hints.mjit(f)(step(1.0))
                c: list[int] = [n for n in hints.stages([1, 2], weights=[1.0, 2.0])]
                d: int = hints.shard(Decoder().width, "batch", ("a", "b"), None)
                e: Callable[[float], float] = hints.microbatch(f, size=8, schedule="1f1b")
                g: str = hints.task(encode, "name", stage=1)(3)
                with hints.task("head", stage=3), hints.off(), hints.ignore("place_task"):
                    h: int = d
                reveal_type(hints.task(encode, stage=0))
                encode("1")
                hints.shard(1, 2)
                """
            ),
            encoding="utf-8",
        )
        out, problems, _ = api.run(["--strict", "--no-incremental", "--cache-dir", str(tmp_path), str(program)])
        found = [line.partition(": ")[2] for line in out.splitlines() if "program.py" in line]
        assert "def (x: " in found[0]
        assert "scale: " in found[0]
        assert [line.rpartition("[")[2] for line in found[1:] if "error" in line] == ["arg-type]", "call-overload]"]
        assert not problems


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from mmrewrite import hints", "hints.task"),
        ("from mmrewrite import hints as H", "H.task"),
        ("import mmrewrite.hints", "mmrewrite.hints.task"),
        ("import mmrewrite.hints as h", "h.task"),
        ("import mmrewrite", "mmrewrite.hints.task"),
        ("from mmrewrite.hints import task", "task"),
        ("from mmrewrite.hints import task as t", "t"),
        ("from mmrewrite.hints import (\n    task as t\n)", "t"),
        ("import os; from mmrewrite.hints import task", "task"),
        ("from mmrewrite.hints import task; import os", "task"),
        ("import \\\n    mmrewrite.hints", "mmrewrite.hints.task"),
    ],
)
def test_hints_have_any_name_and_their_import_goes_with_them(imports: str, call: str) -> None:
    text = f"{imports}\n\n\ndef f(x):\n    return x\n\n\ny = {call}(f, stage=0)(1)\n"
    result = rewrite_source(text, REGISTRY)
    assert not result.failed
    assert 'y = mm.task(f, task=mm.Task(name="f", mesh_slice={"stage": 0}))(1)' in result.result.decode()
    assert "mmrewrite" not in result.result.decode()
    assert ("import os" in text) == ("import os" in result.result.decode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import jax\n\nfrom mmrewrite import hints\n\n\n", "import jax\nimport mmruntime as mm\n\n\n"),
        ("import jax\nfrom mmrewrite import hints\n\n\n", "import jax\nimport mmruntime as mm\n\n\n"),
        ("import os\n\nfrom mmrewrite import hints\n\n\n", "import os\n\nimport mmruntime as mm\n\n\n"),
        ("from mmrewrite import hints\n\n\n", "import mmruntime as mm\n\n\n"),
        ('"""Doc."""\n\nfrom mmrewrite import hints\n\n\n', '"""Doc."""\n\nimport mmruntime as mm\n\n\n'),
        (
            "import jax\nfrom mmrewrite import __version__, hints\n\n\nprint(__version__)\n",
            "import jax\nimport mmruntime as mm\nfrom mmrewrite import __version__\n\n\nprint(__version__)\n",
        ),
        (
            "try:\n    from mmrewrite import hints\nfinally:\n    pass\n",
            "import mmruntime as mm\n\ntry:\n    pass\nfinally:\n    pass\n",
        ),
    ],
)
def test_what_stays_of_the_imports(before: str, after: str) -> None:
    result = rewrite_source(f"{before}def f(x):\n    return x\n\n\ny = hints.task(f, stage=0)(1)\n", REGISTRY)
    assert result.result.decode().startswith(f"{after}def f(x):")


def test_an_import_that_something_else_uses_stays() -> None:
    text = "from mmrewrite import hints\n\n__all__ = [hints]\n\n\ny = hints.task(print, stage=0)(1)\n"
    result = rewrite_source(text, REGISTRY).result.decode()
    assert "from mmrewrite import hints\n\n__all__ = [hints]\n" in result
    assert "mm.task(print" in result


def test_the_hints_that_codemods_see_are_those_of_comments() -> None:
    comments = "# mm: mesh(stage=4)\nfor f in fs:  # mm: stages(axis='pipe')\n    x = f(x)\n"
    calls = "from mmrewrite import hints as h\nh.mesh(stage=4)\nfor f in h.stages(fs, 'pipe'):\n    x = f(x)\n"
    found = []
    for text in (comments, calls):
        facts = read_facts(SourceFile("m.py", text.encode(), "m"), tuple(REGISTRY))
        assert isinstance(facts, Facts)
        assert ast.unparse(facts.tree.body[-1]) == "for f in fs:\n    x = f(x)"
        hints_of = list(facts.hints.hints)
        assert hints_of[1].statement is facts.tree.body[-1]
        assert hints_of[1].kind == "for"
        found.append([(hint.reference.text, [(each.name, each.text) for each in hint.arguments]) for hint in hints_of])
    assert found[0] == found[1]


def test_codemods_that_are_not_selected_leave_calls() -> None:
    text = (
        "from mmrewrite import hints\n\n\n@hints.task(stage=0)\n@hints.shard(x=('a',))\ndef f(x):\n    return x\n\n\n"
        "y = hints.shard(f(1), 'a')\n"
    )
    settings = HintSettings(selected=frozenset(("constrain_function",)))
    (result,) = rewrite_project([SourceFile("m.py", text.encode(), "m")], REGISTRY, settings=settings)
    assert "@hints.task(stage=0)\ndef f(x):\n    x = mm.with_sharding_constraint(" in result.result.decode()
    assert "y = hints.shard(f(1), 'a')" in result.result.decode()
    assert {left.reason for left in result.left} == {
        "place_function_task is not selected",
        "constrain_call is not selected",
    }


def test_the_byte_gate_knows_the_package() -> None:
    assert may_have_hints(b"from mmrewrite import hints")
    assert has_mark(SourceFile("m.py", "\ufefffrom mmrewrite import hints".encode()))
    assert not has_mark(SourceFile("m.py", b'"""About mmrewrite."""'))


def test_a_file_that_only_mentions_the_package_is_not_parsed() -> None:
    (result,) = rewrite_project([SourceFile("m.py", b"mmrewrite is not Python (", "m")], REGISTRY)
    assert not result.failed


def test_removals_keep_what_binds() -> None:
    texts = {
        "a = h.mjit(x + y).z": "a = (x + y).z",
        "a = h.mjit((x + y)).z": "a = (x + y).z",
        "a = h.mjit(x + y)": "a = x + y",
        "a = h.mjit(lambda: 1)()": "a = (lambda: 1)()",
        "a = h.mjit(\n    x\n    + y\n)": "a = (x\n    + y)",
        "a = h.mjit(f(\n    x))": "a = f(\n    x)",
        "a = h.mjit((x, y))[0]": "a = (x, y)[0]",
        "a = h.mjit((x + y) * (z), )": "a = (x + y) * (z)",
        "for a in h.stages(b for b in c): f(a)": "for a in (b for b in c): f(a)",
        "for a in h.stages((b for b in c), 'x'): f(a)": "for a in (b for b in c): f(a)",
        "a = h.mjit(b := c)": "a = (b := c)",
        "a = h.mjit(x)  # h.mjit(x)": "a = x  # h.mjit(x)",
        "ä = h.mjit('ü' + x)": "ä = 'ü' + x",
    }
    for before, after in texts.items():
        text = f"import mmrewrite.hints as h\n{before}\n"
        source = SourceText.decode(text.encode())
        (call,) = find_calls(source, read_names(ast.parse(text), "m", is_package=False)).calls
        result, position = "", 0
        for removal in call.removals:
            result += text[position : removal.start] + removal.text
            position = removal.end
        assert (result + text[position:]).splitlines()[1:] == after.splitlines()


@pytest.mark.parametrize("call", ["(hints.task)(f", "(hints).task(f", "(hints.task) ((f)"])
def test_a_function_in_parentheses_is_a_hint_all_the_same(call: str) -> None:
    text = f"from mmrewrite import hints\n\n\ndef f(x):\n    return x\n\n\ny = {call}, stage=0)(1)\n"
    result = rewrite_source(text, REGISTRY)
    assert not result.failed
    assert b"y = mm.task(" in result.result and b"hints" not in result.result


def test_a_file_that_takes_hints_from_another_and_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise ValueError("unreadable")

    monkeypatch.setattr("mmrewrite.directives.calls._Finder.around", fail)
    compat = SourceFile("a.py", b"from mmrewrite import hints\n", "a")
    program = SourceFile("b.py", b"from a import hints\nx = hints.shard(1, None)\n", "b")
    results = {result.path: result for result in rewrite_project([compat, program], REGISTRY)}
    assert results["b.py"].failure is not None


@pytest.mark.parametrize("hints_are", ["calls", "above", "behind"])
@pytest.mark.parametrize("indent", ["", "    "], ids=["function", "method"])
def test_a_decorator_begins_where_its_sign_does(hints_are: str, indent: str) -> None:
    def rewritten(between: str, before_colon: str) -> str:
        end = ")" * between.count("(")
        lines = [f"@{between}marks.mjit{end}", f"@{between}jax.jit{end}", f"def step(params, x){before_colon}:"]
        if hints_are == "above":
            lines[0] = "# mm: mjit"
        if hints_are == "behind":
            lines = [f"{lines[1]}  # mm: mjit", *lines[2:]]
        step = textwrap.indent("\n".join([*lines, "    return forward(params, x)"]), indent)
        holder = "class Trainer:\n" if indent else ""
        text = f"{MESH_AND_MODEL}\n\n{holder}{step}\n"
        result = rewrite_source(text, REGISTRY)
        assert (result.failure, result.errors, result.refusals) == (None, (), ())
        return ast.dump(ast.parse(result.result))

    plain = rewritten("", "")
    assert "mjit" in plain and "marks" not in plain
    for between in (" \\\n", "(\n", "(  # @one\n    ", " \\\n  ( \n\n"):
        assert rewritten(between, " \\\n") == plain


@pytest.mark.parametrize("imported", ["import mmrewrite.hints", "import mmrewrite.hints as hints, os"])
def test_they_stay_where_old_names_are_replaced(imported: str) -> None:
    """On the same statements, and beside imports that change."""
    name = "hints" if " as " in imported else "mmrewrite.hints"
    text = f"""\
import jax; from jax.experimental.pjit import pjit; {imported}
from jax import tree_map; from mmrewrite.hints import mesh, task as t

c = {name}.mjit(pjit(t(f, stage=1)))
mesh(a=2); y = tree_map(f, 1)
@{name}.mjit
@pjit
def step(x=tree_map(f, 1)):
    return x
z = {name}.shard(t(tree_map(f, 1), stage=1), "a")
for z in {name}.stages(tree_map(f, 1)):
    {name}.off(); x = pjit(z)
with {name}.task(stage=tree_map(f, 1)):
    pass
"""
    (result,) = modernize_project([SourceFile("module.py", text.encode(), "module")], ModernizeRegistry())
    assert result.failure is None and not result.refusals
    expected = text.replace("from jax.experimental.pjit import pjit; ", "").replace("pjit", "jax.jit")
    assert result.result.decode() == expected.replace("from jax import", "from jax.tree_util import")


@pytest.mark.parametrize("hint", ["ignore[()]", "ignore", "task(stage=0); ignore[()]"])
def test_a_wrong_hint_is_no_matter_where_old_names_are_replaced(hint: str) -> None:
    text = f"import jax\nz = jax.tree_map(f, x)  # mm: {hint}\n"
    (result,) = modernize_project([SourceFile("module.py", text.encode(), "module")], ModernizeRegistry())
    assert (result.failure, result.result.decode()) == (None, text.replace("tree_map", "tree.map"))
