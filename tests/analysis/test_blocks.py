"""Statements in blocks, what they assign, and who reads it beside the loop."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import facts_of, loop_in, refusal_of, site_of

from mmrewrite.analysis.loops.dataflow import (
    all_statements,
    assigned_in,
    first_place,
    late_readers,
    leaving,
    refuse_shape,
    refuse_unclear_reader,
    root,
    targets,
)

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("if a:\n  b\nelse:\n  c\nd\n", [1, 2, 4, 5], id="branches"),
        pytest.param("try:\n  a\nexcept E:\n  b\nfinally:\n  c\n", [1, 2, 4, 6], id="handlers"),
        pytest.param("match a:\n  case 1:\n    b\n  case 2:\n    c\n", [1, 3, 5], id="cases"),
        pytest.param("def f():\n  for i in a:\n    b\n", [1, 2, 3], id="at any depth"),
    ],
)
def test_statements_in_the_order_of_the_text(text: str, lines: list[int]) -> None:
    assert [statement.lineno for statement in all_statements(ast.parse(text).body)] == lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b.c = 1", ["a", "b.c"]),
        ("a, (b[0], *c) = d", ["a", "b[0]", "c"]),
        ("a += 1", ["a"]),
        ("a: int = 1", ["a"]),
        ("del a, b[0]", ["a", "b[0]"]),
        ("for a, b in c: pass", ["a", "b"]),
        ("with a as b, c: pass", ["b"]),
        ("f(a)", []),
    ],
)
def test_what_a_statement_assigns(text: str, expected: list[str]) -> None:
    assert [ast.unparse(target) for target in targets(ast.parse(text).body[0])] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a", "a"), ("a.b[0].c", "a"), ("f(x).y", "f(x)"), ("(a + b)[0]", "a + b")]
)
def test_what_an_expression_is_a_part_of(text: str, expected: str) -> None:
    assert ast.unparse(root(ast.parse(text, mode="eval").body)) == expected


def test_names_that_statements_bind() -> None:
    facts = facts_of("a = 1\nfor i in x:\n  b = 1\n  def f(): ...\n  import c.d\n  (e := 2)\nz = 1\n")
    loop = loop_in(facts.tree)
    assert assigned_in(facts.names.scope, all_statements(loop.body)) == {"b", "f", "c", "e"}
    assert first_place(loop, "b") == (3, 2)
    assert first_place(loop, "z") == (0, 0)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        pytest.param("if a:\n    break\n  continue", [3, 4], id="in branches"),
        pytest.param("for j in a:\n    break\n  else:\n    continue", [5], id="of an inner loop only its `else`"),
        pytest.param("while a:\n    continue", [], id="of an inner `while`"),
        pytest.param("try:\n    a\n  except E:\n    break", [5], id="in a handler"),
    ],
)
def test_jumps_out_of_an_iteration(body: str, lines: list[int]) -> None:
    loop = loop_in(ast.parse(f"for i in x:\n  {body}\n"))
    assert [jump.lineno for jump in leaving(loop.body)] == lines


READERS = """
def f(xs):
    {above}
    for x in xs:  # mm: stages
        h = x
    {below}
"""


@pytest.mark.parametrize(
    ("above", "below", "reason"),
    [
        pytest.param("pass", "pass", None, id="no function"),
        pytest.param(
            "g = lambda: h",
            "pass",
            "a function above the loop reads `h`, which the loop assigns; give it that as an argument",
            id="a function above",
        ),
        pytest.param("g = lambda h: h", "pass", None, id="a parameter of the function"),
        pytest.param("pass", "g = lambda: h", None, id="a function below, made after the loop"),
        pytest.param("g = [h for y in xs]", "pass", None, id="a comprehension runs at once"),
        pytest.param(
            "g = (h for y in xs)",
            "pass",
            "a function above the loop reads `h`, which the loop assigns; give it that as an argument",
            id="a generator runs later",
        ),
    ],
)
def test_functions_beside_the_loop_that_read_its_names(above: str, below: str, reason: str | None) -> None:
    site = site_of(READERS.format(above=above, below=below))
    loop = loop_in(site.facts.tree)
    if reason is None:
        refuse_unclear_reader(site, loop, ["h"])
    else:
        assert refusal_of(lambda: refuse_unclear_reader(site, loop, ["h"])) == (loop.lineno, reason)


def test_in_an_outer_loop_a_function_below_runs_before_the_next_iteration() -> None:
    site = site_of("for k in ks:\n    for x in xs:  # mm: task(stage=0)\n        h = x\n    g = lambda: h\n")
    inner = site.statement
    assert isinstance(inner, ast.For)
    assert [reader.kind for reader in late_readers(site, inner)] == ["function"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "class A:\n    for x in xs:  # mm: stages\n        pass\n",
            "a loop in the body of a class; move it into a function",
            id="in a class",
        ),
        pytest.param(
            "for x in xs:  # mm: stages\n    pass\nelse:\n    pass\n",
            "`else` after a loop over layers; put its lines below the loop",
            id="with `else`",
        ),
        pytest.param(
            "# mm: task(stage=0)\nfor x in xs: f(x)\n",
            "the loop and what it does share a line; give each a line of its own",
            id="on one line",
        ),
    ],
)
def test_shapes_of_which_no_function_can_be_made(text: str, reason: str) -> None:
    site = site_of(text)
    assert refusal_of(lambda: refuse_shape(site, loop_in(site.facts.tree), "over layers"))[1] == reason
