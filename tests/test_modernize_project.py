"""`modernize_oracle.py --project`: what it finds in a project, and that it can fail."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project() -> ModuleType:
    return load_script("validation/modernize_project.py")


def notebook(*lines: str) -> dict[str, object]:
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": [*lines]}
    return {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_counts_what_is_changed_and_refused(project: ModuleType, tmp_path: Path) -> None:
    given, work = tmp_path / "given", tmp_path / "work"
    (given / "pkg").mkdir(parents=True)
    (given / "pkg" / "a.py").write_text("import jax\nx = jax.tree_map(len, [])\n")
    (given / "b.py").write_text("from jax.experimental.maps import xmap\nf = xmap(len)\n")
    (given / "c.py").write_text("x = 1\n")
    (given / "broken.py").write_text("import jax\njax.tree_map(\n")
    (given / "d.ipynb").write_text(json.dumps(notebook("import jax\n", "jax.tree_map(len, [])")))
    found = project.score(given, work)
    assert (found.changed, found.edits, found.refused, found.compat) == (2, 2, 1, 0)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("broken.py: ")
    assert (given / "pkg" / "a.py").read_text() == "import jax\nx = jax.tree_map(len, [])\n"


def test_follows_imports_to_old_names(project: ModuleType) -> None:
    lines = (
        b"import jax as j, optax\n"
        b"from jax.experimental import pjit\n"
        b"from jax.experimental.shard_map import shard_map as sm\n"
        b"j.tree_map(len, [])\n"
        b"optax.tree_map(len, [])\n"
        b"pjit.pjit(len, in_axis_resources=None)\n"
        b"sm(len, check_rep=False)\n"
        b"def tree_map(check_rep): ...\n"
        b"tree_map(check_rep=1)\n"
        b"'an escape that Python warns of: \\d'\n"
    )
    assert sorted(project.old_names(lines)) == [
        (4, "jax.tree_map"),
        (6, "in_axis_resources"),
        (6, "jax.experimental.pjit.pjit"),
        (7, "check_rep"),
        (7, "jax.experimental.shard_map.shard_map"),
    ]


def test_texts_that_break_a_promise(project: ModuleType) -> None:
    edit = {"line": 1, "column": 1, "end_line": 1, "end_column": 2, "old": "x", "new": "y"}
    problems = project.text_problems
    assert list(problems(Path("a.py"), b"x = 1\n", b"y = 1\n", [edit])) == []
    for new, edits, words in (
        (b"y = 1\n", [], "changed without an edit that says so"),
        (b"y = 2\n", [edit], "the edits listed do not give the file"),
        (b"y = = 1\n", [{**edit, "new": "y ="}], "does not parse"),
    ):
        assert list(problems(Path("a.py"), b"x = 1\n", new, edits)) == [words]


def test_notebooks_that_break_a_promise(project: ModuleType) -> None:
    old = notebook("x = 1")
    assert list(project.notebook_problems(old, notebook("x = 2"))) == []
    changed = notebook("x = 1")
    changed["cells"][0]["outputs"] = [1]  # type: ignore[index]
    assert list(project.notebook_problems(old, changed)) == ["cell 0 has changed in more than its source"]
    assert list(project.notebook_problems(old, {**old, "metadata": 1})) == ["something outside the cells changed"]
