"""No hint in a file that is read goes without an outcome; the tests of fixtures and of fuzzing ask for this as well."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from accounting import directives, folder_without_outcome, without_outcome

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

REGISTRY = Registry()
ROOT = Path(__file__).parents[1]
WRITTEN = [
    path
    for folder, pattern in (
        ("tests", "**/*.py"),
        ("validation", "**/*.py"),
        ("benchmarks", "*.py"),
        ("docs", "*.md"),
        (".", "README.md"),
    )
    for path in sorted((ROOT / folder).glob(pattern))
]
# These are written for the runtime and have no hints.
UNHINTED = ("cluster", "recipes")
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.name not in UNHINTED)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_every_hint_of_an_example_has_an_outcome(folder: Path) -> None:
    assert folder_without_outcome(folder) == []
    assert any(list(directives(path.read_text())) for path in folder.rglob("*.py"))


def test_every_hint_of_a_program_in_tests_and_pages_has_an_outcome() -> None:
    programs = {program for path in WRITTEN for program in programs_in(path) if list(directives(program))}
    assert len(programs) > 200
    silent = {program: left for program in programs if (left := without_outcome(rewrite_source(program, REGISTRY)))}
    assert silent == {}


def programs_in(path: Path) -> Iterator[str]:
    """The texts of a file that may be programs: a module's strings, a page's blocks of Python."""
    text = path.read_text()
    if path.suffix == ".md":
        found = re.findall(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    else:
        strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        found = [value for value in strings if isinstance(value, str) and "mm" in value]
    yield from (textwrap.dedent(each).strip("\n") + "\n" for each in found)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("x = f(1)  # mm: task(stage=0)\n", ["task(stage=0)"]),
        ("x = f(1)  # noqa  # mm: task(stage=0); shard('a')\n", ["task(stage=0)", "shard('a')"]),
        ("# MM: task(stage=0)\nx = f(1)\n", ["task(stage=0)"]),
        ("# mm is for millimetres\nx = '# mm: task(stage=0)'\n", []),
        ("# mm: off\nx = f(1)  # mm: ignore[place_task]\n", []),
    ],
)
def test_the_hints_of_a_program_are_found(program: str, found: list[str]) -> None:
    assert [text for *_, text in directives(program)] == found


def test_a_hint_without_an_outcome_is_found() -> None:
    result = rewrite_source("x = f(1)  # mm: task(stage=0)\ny = g(1)  # mm: task(stage=1)\n", REGISTRY)
    assert without_outcome(result) == []
    assert without_outcome(replace(result, edits=())) == ["1: task(stage=0)", "2: task(stage=1)"]
    refused = rewrite_source("x = 1  # mm: task(stage=0)\n", REGISTRY)
    assert without_outcome(refused) == []
    assert without_outcome(replace(refused, refusals=())) == ["1: task(stage=0)"]
    left = rewrite_source("# mm: off\nx = f(1)  # mm: task(stage=0)\n", REGISTRY)
    assert without_outcome(left) == []
    assert without_outcome(replace(left, left=())) == ["2: task(stage=0)"]
