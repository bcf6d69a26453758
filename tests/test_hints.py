"""Reading hints: what is one, what it belongs to, and what is said about one that cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.collect import Collected
from mmrewrite.directives.vocabulary import DIRECTIVES, kind_of
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.project.facts import Facts, SourceFile, read_facts

pytestmark = pytest.mark.quick

REGISTRY = Registry()


def collect(text: str) -> Collected:
    facts = read_facts(SourceFile("module.py", text.encode(), "module"), tuple(REGISTRY))
    assert isinstance(facts, Facts)
    return facts.hints


def test_an_error_shows_the_line_a_caret_and_the_nearest_spelling() -> None:
    text = "def f(x):\n    return x\n\n\nif 1:\n\ty = f(1)  # mm: tsak(stage=0)\n"
    (error,) = rewrite_source(text, REGISTRY, path="pkg/model.py").errors
    assert str(error) == (
        "pkg/model.py:6:18: unknown directive `tsak`; did you mean `task`?\n"
        "  \ty = f(1)  # mm: tsak(stage=0)\n"
        "  \t                ^^^^"
    )


def test_a_file_with_an_error_is_left_untouched() -> None:
    text = "def f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\nz = f(1)  # mm: taks(stage=0)\n"
    result = rewrite_source(text, REGISTRY)
    assert not result.changed
    assert result.failed


def test_a_hint_knows_its_statement_arguments_and_place() -> None:
    (hint,) = collect("x = 1\n# mm: task('a', stage=x // 2)\nfor y in z:\n    f(y)\n").hints
    assert (hint.directive, hint.kind, hint.statement.lineno) == ("task", "for", 3)
    assert [(argument.name, argument.text) for argument in hint.arguments] == [("name", "'a'"), ("stage", "x // 2")]
    assert (hint.reference.line, hint.reference.column, hint.reference.text) == (2, 7, "task('a', stage=x // 2)")


def test_several_directives_in_one_comment_and_several_comments() -> None:
    hints = list(collect('# mm: mesh(a=1); axes(b="a")\n# mm: task(a=0)\ny = f(x)  # mm: shard("b")\n').hints)
    assert [hint.directive for hint in hints] == ["mesh", "axes", "task", "shard"]
    assert len({hint.statement for hint in hints}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "'# mm: task(stage=0)'\n",
        "x = '''\n# mm: task(stage=0)\n'''\n",
        'x = f"{y}# mm: task(stage=0)"\n',
        "x = b'# mm: task(stage=0)'\n",
        "x = ('a'  # one\n     '# mm: task(stage=0)')\n",
        "# x = f(y)  # mm: task(stage=0)\n",
        "x = 1  # a (# mm: task(stage=0))\n",
        "x = 1  # see `# mm: task(stage=0)`\n",
        "#mm: of wire\nx = 1\n",
    ],
)
def test_not_a_hint(text: str) -> None:
    found = collect(text)
    assert not list(found.hints)
    assert not found.errors


@pytest.mark.parametrize(
    "text",
    [
        "x = ('a'  # mm: shard('b')\n     'c')\n",
        "x = f('#')  # mm: shard('b')\n",
        "x = f(1)  # noqa  # mm: shard('b')\n",
        "x = f(1) # noqa # mm: shard('b')\n",
        "x = f(\n    1,  # mm: shard('b')\n)\n",
        "def f(\n    x,  # mm: shard(x=('b',))\n): return x\n",
        "@a\n@b  # mm: shard(out=('b',))\nclass_ = 1\n".replace("class_ = 1", "def f(): return 1"),
        "# mm: shard('b')\n\n# another\nx = 1\n",
    ],
)
def test_a_hint(text: str) -> None:
    found = collect(text)
    assert not found.errors
    assert len(list(found.hints)) == 1


def test_warnings_about_the_users_strings_are_not_ours() -> None:
    text = "x = '\\('\ny = f('\\(')  # mm: task(stage=0)\n"
    assert rewrite_source(text, REGISTRY).changed


@pytest.mark.parametrize("statement", ["match x:\n    case 1:\n        pass", "try:\n    pass\nfinally:\n    pass"])
def test_compound_statements_are_no_place_for_a_task(statement: str) -> None:
    (error,) = collect(f"# mm: task(stage=0)\n{statement}\n").errors
    assert error.message.startswith("`task` cannot stand on a compound statement")


def test_the_example_of_every_directive_can_be_read() -> None:
    places = {
        "statement": "x = f(x)",
        "for": "for x in y:\n    x()",
    }
    for directive in DIRECTIVES.values():
        kind = "statement" if "statement" in directive.kinds else "for"
        found = collect(f"# mm: {directive.example}\n{places[kind]}\n")
        assert not found.errors
        (hint,) = found.hints
        assert kind_of(hint.statement) == kind


@given(st.text(alphabet="abtaskstage=(),;0\"' #*[]{}:", max_size=40))
def test_no_comment_is_a_crash(body: str) -> None:
    text = f"y = f(1)  # mm: {body}\n"
    found = collect(text)
    for error in found.errors:
        assert error.line == 1
        assert 1 <= error.column <= len(text)
    result = rewrite_source(text, REGISTRY)
    assert result.failure is None


@given(
    st.lists(
        st.sampled_from(
            [
                "x = 1",
                "# mm: task(stage=0)",
                "y = f(x)",
                "def g():",
                "    z = f(x)",
                "    # mm: shard('b')",
                "",
                "  # mm: on",
            ]
        ),
        max_size=8,
    )
)
def test_every_hint_is_accounted_for(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    facts = read_facts(SourceFile("module.py", text.encode(), "module"), tuple(REGISTRY))
    if not isinstance(facts, Facts):
        return
    marks = sum("# mm:" in line for line in lines)
    switches = sum(line.strip() == "# mm: on" for line in lines)
    assert len(list(facts.hints.hints)) + len(facts.hints.errors) >= marks - switches
