"""What a directive is, is its record in the vocabulary: one that is made up here works everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import libcst as cst
import pytest

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import (
    CALL,
    DEF,
    DIRECTIVES,
    STATEMENT,
    Directive,
    Parameter,
    Requirement,
    Role,
)
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.results import Rewrite

pytestmark = pytest.mark.quick

OFFLOAD = Directive(
    "offload",
    Role.LAYOUT,
    frozenset((STATEMENT, CALL)),
    'offload("host")',
    (Parameter("memory", (str,), "a string", ("host", "disk")),),
    positional=1,
    requirements=(Requirement(lambda names: "memory" in names, "`{0.name}` does not say where to; `{0.example}`"),),
    excludes={"prefetch": "`offload` and `prefetch` contradict each other"},
)
PREFETCH = Directive(
    "prefetch",
    Role.LAYOUT,
    frozenset((STATEMENT, DEF)),
    "prefetch",
    part_of="ring",
    excludes={"offload": "`offload` and `prefetch` contradict each other"},
)
RING = Directive(
    "ring",
    Role.AXES,
    frozenset((STATEMENT, DEF)),
    "ring(size=2)",
    (Parameter("size", (int,), "a whole number", minimum=2, too_small="a ring of {value} is none"),),
    whole_module=True,
)


ROOT = Path(__file__).resolve().parents[1]


def test_reductions_are_those_of_the_runtime() -> None:
    pytest.importorskip("jax")
    import mmruntime as mm

    reduce = DIRECTIVES["microbatch"].parameter("reduce")
    assert reduce is not None
    assert reduce.is_tree
    for how in (*reduce.choices, reduce.choices):
        mm.microbatch(len, size=1, reduce=how)
    with pytest.raises(ValueError, match="reduce must be") as known:
        mm.microbatch(len, size=1, reduce="first")
    assert set(re.findall(r'"(\w+)"', str(known.value))) == set(reduce.choices)


class OffloadValue(MeshCodemod):
    """Names where a value is kept."""

    directive = "offload"
    kinds = frozenset((STATEMENT, CALL))

    def rewrite(self) -> None:
        (argument,) = self.hint.arguments
        self.memory = argument.text
        self.site.transform(self.site.statement, self)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        return updated_node.with_changes(value=self.generated("keep", updated_node.value, memory=self.memory))


class CloseRing(MeshCodemod):
    """Uses up the hints about the ring."""

    directive = "ring"
    takes = ("prefetch",)
    kinds = frozenset((STATEMENT, DEF))

    def rewrite(self) -> None:
        for hint in self.site.facts.hints.hints:
            if hint.directive in self.takes:
                self.site.draft.done.add(hint)


CODEMODS = {"offload_value": OffloadValue, "close_ring": CloseRing}


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    for directive in (OFFLOAD, PREFETCH, RING):
        monkeypatch.setitem(DIRECTIVES, directive.name, directive)


def rewrite(text: str) -> Rewrite:
    return rewrite_source(text, CODEMODS)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('y = f(1)  # mm: offload("host")\n', id="a comment"),
        pytest.param('# mm: offload(memory="host")\ny = f(1)\n', id="a comment above, with a keyword"),
        pytest.param(
            'from mmrewrite import hints\n\ny = hints.offload(f(1), "host")\n', id="a call, rewritten in place"
        ),
    ],
)
def test_every_carrier_knows_it(text: str) -> None:
    result = rewrite(text)
    assert (result.errors, result.refusals, result.failure) == ((), (), None)
    assert 'memory="host")' in result.result.decode()
    assert [edit.codemods for edit in result.edits if "keep" in edit.text] == [("offload_value",)]


def test_one_that_is_about_the_whole_module_is_a_statement_of_its_own() -> None:
    result = rewrite("from mmrewrite import hints\n\nhints.ring(size=2)\n\ny = f(1)  # mm: prefetch\n")
    assert (result.errors, result.refusals, result.failure) == ((), (), None)
    assert result.result == b"\ny = f(1)\n"
    (error,) = rewrite("from mmrewrite import hints\n\ny = hints.ring(f, size=2)\n").errors
    assert error.message == "`ring` is a statement of its own: `hints.ring(size=2)`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            'y = f(1)  # mm: ofload("host")\n', "unknown directive `ofload`; did you mean `offload`?", id="its spelling"
        ),
        pytest.param(
            '@g  # mm: offload("host")\ndef f(x):\n    return x\n',
            "`offload` cannot stand on a `def`; it belongs to a simple statement",
            id="its position",
        ),
        pytest.param(
            'y = f(1)  # mm: offload(memroy="host")\n',
            "`offload` has no argument `memroy`; did you mean `memory`?",
            id="its argument's name",
        ),
        pytest.param(
            "g = jit(f)  # mm: mjit(verify=make)\n",
            "`mjit` has no argument `verify`; `verify` is a hint of its own: `verify(args=make_example_args)`",
            id="another hint as its argument",
        ),
        pytest.param(
            'g = jit(f)  # mm: mjit(schedule="1f1b")\n',
            "`mjit` has no argument `schedule`; it is an argument of `microbatch`",
            id="another hint's argument",
        ),
        pytest.param(
            'y = f(1)  # mm: offload("disc")\n',
            '`memory` must be "host" or "disk", not \'disc\'; did you mean `disk`?',
            id="its argument's choices",
        ),
        pytest.param(
            "y = f(1)  # mm: offload(3)\n", "`offload(memory=3)`: `memory` must be a string", id="its argument's type"
        ),
        pytest.param("y = f(1)  # mm: ring(size=1)\n", "a ring of 1 is none", id="its argument's range"),
        pytest.param(
            "y = f(1)  # mm: offload\n", '`offload` does not say where to; `offload("host")`', id="what it needs"
        ),
        pytest.param(
            'y = f(1)  # mm: ring(size=2); offload("host"); prefetch\n',
            "`offload` and `prefetch` contradict each other",
            id="what it excludes",
        ),
        pytest.param(
            'y = f(1)  # mm: offload("host"); offload("disk")\n',
            "`offload` is said twice about one statement; the first is on line 1",
            id="whether it may be repeated",
        ),
        pytest.param(
            "y = f(1)  # mm: prefetch\n",
            "`prefetch` belongs to a `ring(...)` hint, and this module has none",
            id="what it is part of",
        ),
    ],
)
def test_the_messages_come_from_its_record(text: str, message: str) -> None:
    assert [error.message for error in rewrite(text).errors] == [message]


@pytest.mark.parametrize("first", ["stages", "task(stage=i)", "microbatch(count=2)"])
@pytest.mark.parametrize("second", ["stages", "task(stage=i)", "microbatch(count=2)"])
@pytest.mark.parametrize("between", ["; ", "\n# mm: "])
def test_a_loop_becomes_one_call(first: str, second: str, between: str) -> None:
    body = "    grads = grads + jax.grad(f)(params, batch[i : i + 2])\n"
    result = rewrite(f"import jax\ngrads = 0\n# mm: {first}{between}{second}\nfor i in range(0, 8, 2):\n{body}")
    assert result.failure is None
    said = "is said twice about one statement" if first == second else "about one loop contradict each other; keep one"
    assert [said in error.message for error in result.errors] == [True]


def compared_names(source: str) -> list[str]:
    """Directives with whose names `source` compares something, be it by `==` or by `in`."""
    sides = [
        side
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for operand in (node.left, *node.comparators)
        for side in getattr(operand, "elts", [operand])
    ]
    return [side.value for side in sides if isinstance(side, ast.Constant) and side.value in list(DIRECTIVES)]


@pytest.mark.parametrize("folder", ["mmrewrite", "codemods/mmcodemods", "codemods/mmmodernize"])
def test_no_code_compares_directives_by_name(folder: str) -> None:
    found = {str(path): compared_names(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")}
    assert found
    assert {name: names for name, names in found.items() if names} == {}


def test_a_comparison_by_name_is_found() -> None:
    assert compared_names('if hint.directive in ("task", "stages"):\n    pass\n') == ["task", "stages"]
    assert compared_names('if call.name != "mesh":\n    pass\n') == ["mesh"]
