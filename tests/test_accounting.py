"""No hint in a file that is read goes without an outcome; the tests of fixtures and of fuzzing ask for this as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from accounting import directives, without_outcome
from fixture_files import source_files, tree

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project, rewrite_source

REGISTRY = Registry()
# `cluster` is written for the runtime and has no hints.
EXAMPLES = sorted(path for path in (Path(__file__).parents[1] / "examples").iterdir() if path.name != "cluster")


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_every_hint_of_an_example_has_an_outcome(folder: Path) -> None:
    files = tree(folder)
    load = {f"./{path}": data for path, data in files.items()}
    results = rewrite_project(source_files(files), REGISTRY, load=load.get)
    assert [line for result in results for line in without_outcome(result)] == []
    assert any(result.edits for result in results)


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
