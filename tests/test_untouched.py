"""Files without hints go through untouched, byte for byte: those of the installed libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.files.select import Rules, select_files, source_file
from mmrewrite.files.walk import load_file, walk
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.source.text import SourceText

REGISTRY = Registry()
MESH = "# mm: mesh(stage=4)\n"


def sources(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return [Path(path) for path in walk(str(Path(spec.origin).parent)) if path.endswith(".py")]


@pytest.mark.parametrize("package", ["flax", "jax", "optax"])
def test_every_file_goes_through_untouched(package: str) -> None:
    paths = sources(package)
    files = [source_file(str(path), path.read_bytes()) for path in paths]
    results = rewrite_project(files, REGISTRY, load=load_file)
    assert len(results) == len(files) > 50
    for file, result in zip(files, results, strict=True):
        assert result.result == file.data
        assert not (result.edits or result.errors or result.refusals or result.failure)
    assert not select_files([str(paths[0].parent)], Rules(paths[0].parent)).files


@pytest.mark.parametrize("package", ["flax", "jax", "optax"])
def test_the_same_with_a_hint_beside_them(package: str) -> None:
    """Every twentieth file past the byte search and through the syntax tree: no call in it is taken for a hint."""
    check([path for path in sources(package)[::20] if path.read_bytes().strip()])


@pytest.mark.slow
@pytest.mark.parametrize("package", ["flax", "jax", "optax"])
def test_every_file_with_a_hint_beside_it(package: str) -> None:
    check([path for path in sources(package) if path.read_bytes().strip()])


def check(paths: list[Path]) -> None:
    for path in paths:
        data = path.read_bytes()
        file = SourceFile(str(path), data + b"\n\n" + MESH.encode() + b"x = 1\n", "module")
        facts = read_facts(file, tuple(REGISTRY))
        if not isinstance(facts, Facts):
            # Newer syntax than this Python's, which other tests are about.
            continue
        assert [hint.directive for hint in facts.hints.hints] == ["mesh"]
        assert not facts.hints.errors
        (result,) = rewrite_project([file], REGISTRY)
        assert result.failure is None
        assert result.changed
        length = len(SourceText.decode(data).text)
        for edit in result.edits:
            replaced = facts.source.text[edit.start : edit.end] if edit.start < length else ""
            # A mesh makes hints of calls that constrain by logical names or give types; all else is an import.
            named = "_constraint" in replaced or "reshard" in replaced or "_sharding=" in replaced
            assert named if replaced else edit.start >= length or "import" in edit.text
