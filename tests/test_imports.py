"""Which module may import which: by the table of `layers.py`, and in fresh interpreters. Both are shown to fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from layers import MAY_IMPORT, ORDER, ROOT, allowed_by, imports, row_of_file, row_of_name, tree_of, violations

from mmrewrite.codemod.registry import Registry

pytestmark = pytest.mark.quick

SOURCES = tree_of()
PATH = os.pathsep.join(str(ROOT / part) for part in (".", "codemods", "runtime"))

HEAVY = ("libcst", "click", "jax", "numpy", "pathspec", "mmcodemods", "mmmodernize", "mmruntime")


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": PATH, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout


def loaded(code: str) -> set[str]:
    """Top-level packages that are imported once `code` has run."""
    output = run(f"{code}\nimport sys\nprint('\\n'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))")
    return set(output.splitlines())


VERSION = "import sys\nsys.argv = ['mmrewrite', '--version']\nfrom mmrewrite.__main__ import main\nmain()"


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import mmrewrite", HEAVY),
        (VERSION, HEAVY),
        ("import mmrewrite.engine.rewrite", HEAVY),
        ("import mmrewrite.project.project, mmrewrite.directives.collect, mmrewrite.source.names", HEAVY),
        (
            "import mmrewrite.cli.commands",
            ("libcst", "jax", "numpy", "pathspec", "mmcodemods", "mmmodernize", "mmruntime"),
        ),
        (
            "from mmrewrite.codemod.registry import Registry\nRegistry().summary('stage_loop')",
            ("libcst", "jax", "mmruntime"),
        ),
        ("from mmrewrite.codemod.registry import Registry\ndict(Registry())", ("click", "jax", "numpy", "mmruntime")),
        ("import mmrewrite.codemod.base", ("click", "jax", "numpy", "mmcodemods", "mmmodernize", "mmruntime")),
    ],
)
def test_what_is_not_imported(code: str, forbidden: tuple[str, ...]) -> None:
    assert loaded(code).isdisjoint(forbidden)


def test_the_check_can_fail() -> None:
    assert "libcst" in loaded("import mmrewrite.codemod.base")
    assert "mmcodemods" in loaded("from mmrewrite.codemod.registry import Registry\ndict(Registry())")
    assert "click" in loaded("import mmrewrite.cli.commands")


def test_the_slow_parts_of_libcst_are_not_imported() -> None:
    code = (
        "from mmrewrite.codemod.registry import Registry\ndict(Registry())\nimport sys\nprint('\\n'.join(sys.modules))"
    )
    modules = run(code).splitlines()
    assert "libcst" in modules
    assert not {"libcst.codemod", "libcst.matchers", "libcst.tool"} & set(modules)


def test_an_unhinted_run_does_not_import_libcst(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('x = "# mm: task(stage=0)"\n')
    code = (
        f"import sys\nsys.argv = ['mmrewrite', 'diff', {str(tmp_path)!r}]\n"
        "from mmrewrite.__main__ import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert loaded(code).isdisjoint(("libcst", "jax", "mmcodemods.tasks.place_task"))


def test_imports_keep_to_the_table() -> None:
    assert violations(SOURCES) == []


def test_the_table_is_of_this_tree() -> None:
    """No row without a file, and none that allows a row below itself or something that nothing in it imports."""
    assert set(MAY_IMPORT) == {row_of_file(path) for path in SOURCES}
    for row in MAY_IMPORT:
        allowed = allowed_by(row)
        assert [other for other in allowed if ORDER.get(other, -1) >= ORDER[row]] == []
        files = [path for path in SOURCES if row_of_file(path) == row]
        assert allowed <= {row_of_name(name) for path in files for _, name in imports(SOURCES[path], path)}, row


def test_the_tool_names_packages_of_codemods_in_one_table() -> None:
    ours = {path: text for path, text in SOURCES.items() if path.startswith("mmrewrite/")}
    named = {path for path, text in ours.items() if re.search(r"\bmm(codemods|modernize)\b", text)}
    first_paths = {path for path in ours if path.startswith("mmrewrite/modernize/")}
    assert named == {"mmrewrite/codemod/products.py", *first_paths}


def test_few_files_stand_outside_of_folders() -> None:
    folders = Counter(path.rpartition("/")[0] for path in SOURCES)
    assert folders["mmrewrite"] <= 6
    assert folders["runtime/mmruntime"] <= 5


# A file of each row, in which imports are planted: a rule asks about the place of a file, not about what else is in it.
FILES = {row_of_file(path): path for path in SOURCES}
TOOL = [row for row in MAY_IMPORT if not row.startswith("mmruntime")]
RUNTIME = [row for row in MAY_IMPORT if row.startswith("mmruntime")]


def planted(row: str, statement: str) -> list[str]:
    """The violations of a statement in a file of this row."""
    path = FILES[row]
    where = f"{path}:{statement.count(chr(10)) + 1}: "
    found = violations({path: statement})
    assert all(line.startswith(where) for line in found)
    return [line.removeprefix(where) for line in found]


def everywhere(statement: str) -> list[str]:
    """An import in the places in which one can stand."""
    return [statement, f"def f():\n    {statement}", f"if TYPE_CHECKING:\n    {statement}"]


@pytest.mark.parametrize("row", TOOL)
def test_jax_planted_in_the_tool_is_found(row: str) -> None:
    for statement in (
        "import jax",
        "import jax.numpy as jnp",
        "from jax import grad",
        "importlib.import_module('jax')",
    ):
        for text in everywhere(statement):
            (message,) = planted(row, text)
            assert re.fullmatch(rf"imports jax[.\w]*, but {row} may not import jax", message)


@pytest.mark.parametrize("row", TOOL)
def test_the_runtime_planted_in_the_tool_is_found(row: str) -> None:
    schedules = (
        "from mmruntime import schedules",
        "from mmruntime.schedules import make",
        "import mmruntime.schedules",
    )
    for statement in schedules:
        for text in everywhere(statement):
            found = planted(row, text)
            if row in ("mmrewrite.plan", "mmrewrite.suggest"):
                assert found == []
            else:
                (message,) = found
                assert message.endswith(f"but {row} may not import mmruntime.schedules")
    for statement in ("import mmruntime", "import mmruntime as mm", "from mmruntime import mjit"):
        (message,) = planted(row, statement)
        assert message.endswith(f"but {row} may not import mmruntime")


@pytest.mark.parametrize("row", RUNTIME)
def test_the_tool_planted_in_the_runtime_is_found(row: str) -> None:
    for package in ("libcst", "mmrewrite", "mmcodemods", "mmmodernize"):
        for text in everywhere(f"import {package}"):
            assert planted(row, text) == [f"imports {package}, but {row} may not import {package}"]


@pytest.mark.parametrize("low", MAY_IMPORT)
def test_an_arrow_upward_is_found(low: str) -> None:
    """An import of every row above it in its package, and of everything from its own package's name."""
    package = low.partition(".")[0]
    for high in list(MAY_IMPORT)[ORDER[low] + 1 :]:
        if high.partition(".")[0] == package:
            assert planted(low, f"import {high}") == [f"imports {high}, but {high} is above {low}"]
            if high != package:
                parent, _, name = high.rpartition(".")
                statement = f"from {parent} import {name}"
                assert planted(low, statement) == [f"imports {high}, but {high} is above {low}"]


@pytest.mark.parametrize("row", ["mmrewrite.project", "mmruntime._jaxpr"])
def test_relative_imports_are_read_as_well(row: str) -> None:
    package = row.partition(".")[0]
    high = {"mmrewrite": "engine", "mmruntime": "_step"}[package]
    for statement in (f"from .. import {high}", f"from ..{high} import *", f"from ..{high} import x"):
        (message,) = planted(row, statement)
        assert message.endswith(f"but {package}.{high} is above {row}")


@pytest.mark.parametrize("row", ["mmcodemods", "mmmodernize.rewrites"])
def test_a_codemod_that_imports_another_one_is_found(row: str) -> None:
    (message,) = planted(row, f"from {row}.another import Another")
    assert message == f"imports {row}.another.Another, but codemods never import one another"


@pytest.mark.parametrize("row", [row for row in RUNTIME if row not in ("mmruntime._compat", "mmruntime.schedules")])
def test_private_jax_planted_in_the_runtime_is_found(row: str) -> None:
    for statement, name in {
        "from jax._src import core": "jax._src.core",
        "from jax import _src": "jax._src",
        "from jax.interpreters import mlir": "jax.interpreters.mlir",
        "import jaxlib": "jaxlib",
        "x = jax._src.core": "jax._src",
        "x = jax.interpreters.ad": "jax.interpreters",
        "x = jax.__version__": "jax.__version__",
        "x = importlib.metadata.version('jax')": "importlib.metadata.version('jax')",
    }.items():
        for text in everywhere(statement):
            assert f"{name} is private or a version of JAX, and belongs in mmruntime._compat" in planted(row, text)


@pytest.mark.parametrize("path", ["mmrewrite/extra.py", "mmrewrite/extra/a.py", "runtime/mmruntime/_extra/a.py"])
def test_a_file_without_a_row_is_found(path: str) -> None:
    found = violations({**SOURCES, path: "x = 1\n"})
    assert f"{path}:1: neither this file nor its folder has a row in the table of tests/layers.py" in found


def test_the_tool_names_no_codemod() -> None:
    # These are functions of the runtime as well, which the vocabulary, plans and an analysis name.
    names = set(Registry()) - {"microbatch_loop", "parallelize_step", "stage_scan"}
    for path, text in SOURCES.items():
        if path.startswith("mmrewrite/"):
            assert [name for name in names if f'"{name}"' in text] == [], path


def _cpu(command: list[str]) -> float:
    """CPU seconds of a child process, the least of several runs."""
    environment = {**os.environ, "PYTHONPATH": PATH}
    least = float("inf")
    for _ in range(5):
        before = os.times()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        least = min(least, used)
        time.sleep(0.01)
    return least


def test_version_costs_at_most_five_bare_interpreters() -> None:
    bare = _cpu([sys.executable, "-c", "pass"])
    version = _cpu([sys.executable, "-m", "mmrewrite", "--version"])
    assert version <= 5 * max(bare, 0.01)
