"""Programs with several statements to a line are modernized like any other, or refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_modernize import CASES, modernize, read_case

pytestmark = pytest.mark.family

_BLOCKS = ast.With | ast.For | ast.While | ast.If | ast.FunctionDef | ast.ClassDef


def squeezed(body: list[ast.stmt], indent: str, gap: str, *, is_module_joined: bool) -> Iterator[str]:
    """The lines of a block with its simple statements joined by `;` and `gap`, and bodies of these behind their `:`."""
    joined: list[str] = []
    for statement in body:
        text = ast.unparse(statement)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not hasattr(statement, "body") and "\n" not in text and not is_future:
            joined.append(text)
            continue
        yield from _lines(joined, indent, gap, is_module_joined=is_module_joined)
        joined = []
        if isinstance(statement, _BLOCKS) and not getattr(statement, "orelse", None):
            yield from _block(statement, indent, gap)
        else:
            yield from (indent + line for line in text.splitlines())
    yield from _lines(joined, indent, gap, is_module_joined=is_module_joined)


def _block(statement: _BLOCKS, indent: str, gap: str) -> Iterator[str]:
    body, statement.body = statement.body, [ast.Pass()]
    *head, last = [indent + line for line in ast.unparse(statement).splitlines()[:-1]]
    statement.body = body
    inner = list(squeezed(body, indent + "    ", gap, is_module_joined=True))
    yield from head
    if len(inner) == 1 and not any(hasattr(part, "body") for part in body):
        yield f"{last}{gap}{inner[0].strip()}"
    else:
        yield last
        yield from inner


def _lines(statements: list[str], indent: str, gap: str, *, is_module_joined: bool) -> list[str]:
    if not is_module_joined and not indent:
        return statements
    return [indent + f";{gap}".join(statements)] if statements else []


PYTHON = [folder for folder in CASES if all(path.endswith(".py") for path in read_case(folder).before)]


@pytest.mark.parametrize(
    ("is_module_joined", "gap"),
    [(False, " "), (True, " "), (True, " \\\n        ")],
    ids=["blocks", "everything", "carried on"],
)
@pytest.mark.parametrize("folder", PYTHON, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_several_statements_to_a_line(folder: Path, is_module_joined: bool, gap: str) -> None:
    case = read_case(folder)
    files = {}
    for path, data in case.before.items():
        lines = squeezed(ast.parse(data).body, "", gap, is_module_joined=is_module_joined)
        files[path] = ("\n".join(lines) + "\n").encode()
    results = modernize(files, case.settings)
    # What does not parse, or what a second run would change, is a failure.
    assert [result.failure for result in results.values() if result.failure is not None] == []
    assert [len(result.refusals) for result in results.values()] == [
        sum(1 for refusal in case.refusals if case.is_single or refusal.startswith(f"{path}:")) for path in results
    ]
    assert any(result.changed for result in results.values()) == (case.before != case.after)
