"""Which module may import which, asked of fresh interpreters, and that the asking can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join(str(ROOT / part) for part in (".", "codemods", "runtime"))

HEAVY = ("libcst", "click", "jax", "numpy", "pathspec", "mmcodemods", "mmruntime")


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
        ("import mmrewrite.cli.commands", ("libcst", "jax", "numpy", "pathspec", "mmcodemods", "mmruntime")),
        (
            "from mmrewrite.codemod.registry import Registry\nRegistry().summary('stage_loop')",
            ("libcst", "jax", "mmruntime"),
        ),
        ("from mmrewrite.codemod.registry import Registry\ndict(Registry())", ("click", "jax", "numpy", "mmruntime")),
        ("import mmrewrite.codemod.base", ("click", "jax", "numpy", "mmcodemods", "mmruntime")),
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
    assert loaded(code).isdisjoint(("libcst", "jax", "mmcodemods.place_task"))


def test_the_engine_names_no_codemod_and_codemods_do_not_import_the_runtime() -> None:
    from mmrewrite.codemod.registry import Registry

    for path in (ROOT / "mmrewrite").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import jax" not in text
        assert "import mmruntime" not in text
        for name in Registry():
            # `ignore[...]` in a message shows one of them.
            assert f'"{name}"' not in text, (path.name, name)
    for path in (ROOT / "codemods" / "mmcodemods").glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("import mmruntime", "from mmruntime", "import jax"))]


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
