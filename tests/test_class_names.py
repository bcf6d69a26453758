"""One class name, one thing: no two classes of the four packages share a name, leading underscores aside."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from layers import tree_of

pytestmark = pytest.mark.quick

# The reason why a name may stand for two things.
SHARED: dict[str, str] = {}


def classes_by_name(sources: dict[str, str]) -> dict[str, list[str]]:
    """Where each class is, by its name without leading underscores."""
    found = defaultdict(list)
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
    return found


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    return {name: places for name, places in classes_by_name(sources).items() if len(places) > 1}


def test_every_class_name_stands_for_one_thing() -> None:
    found = shared_names(tree_of())
    assert {name: places for name, places in found.items() if name not in SHARED} == {}
    assert set(SHARED) <= set(found), "a reason for a name that is no longer shared"


def test_a_second_class_of_a_name_is_found() -> None:
    sources = {
        "mmrewrite/a.py": "class Plan: ...\nclass Only: ...",
        "runtime/mmruntime/b.py": "def f():\n    class _Plan: ...",
    }
    assert shared_names(sources) == {"Plan": ["mmrewrite/a.py:1", "runtime/mmruntime/b.py:2"]}
