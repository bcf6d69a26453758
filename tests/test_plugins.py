"""Codemods of other packages: found by entry points, tested with `mmrewrite.testing`, and ours under LibCST's tool."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mmmodernize.codemod import ModernizeCodemod
from mmrewrite import testing
from mmrewrite.cli import cache
from mmrewrite.cli.commands import cli
from mmrewrite.codemod import plugins
from mmrewrite.directives.vocabulary import DIRECTIVES
from mmrewrite.modernize.codemod import ModernizeCodemod as by_first_path

ROOT = Path(__file__).parents[1]

PACKAGE = ROOT / "examples" / "third_party"
WAIT = (PACKAGE / "acme_codemods" / "wait.py").read_text(encoding="utf-8")
POINTS = """[mmrewrite.modernize]
move_frobnicate = acme_codemods.move:MoveFrobnicate

[mmrewrite.codemods]
wait_for_value = acme_codemods.wait:WaitForValue

[mmrewrite.directives]
wait = acme_codemods.wait:DIRECTIVE

[console_scripts]
acme = acme:main
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package `acme` with the entry points given, for this test."""
    monkeypatch.setattr("mmrewrite.directives.vocabulary.DIRECTIVES", DIRECTIVES)
    for name in [name for name in sys.modules if name.startswith("acme")]:
        monkeypatch.delitem(sys.modules, name)

    def done(points: str = POINTS, package: str = "acme") -> None:
        folder = tmp_path / package
        code = folder / "acme_codemods"
        shutil.copytree(PACKAGE / "acme_codemods", code, ignore=shutil.ignore_patterns("__pycache__"))
        information = folder / f"{package}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(folder))

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield done  # type: ignore[misc]
    DIRECTIVES.pop("wait", None)
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]


def test_the_package_of_the_example(install: Install) -> None:
    """Its entry points are those of its pyproject.toml, and its fixtures hold."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shown = project["entry-points"]
    install(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in shown.items()
        )
    )
    found = testing.cases(PACKAGE / "fixtures")
    assert len(found) == 3
    for case in found:
        testing.check_case(case, engine="modernize" if case.parent.name == "move_frobnicate" else "hints")


def test_the_base_class_by_its_first_path() -> None:
    assert by_first_path is ModernizeCodemod


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def put(name: str, text: str) -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def test_both_kinds_run_and_are_listed(install: Install) -> None:
    put("old.py", "import acme\ny = acme.frobnicate(1)\n")
    hinted = put("new.py", "import jax\n\n\ny = f(1)  # mm: wait\nz = w = f(1)  # mm: wait\n")
    assert run("modernize", "--diff").stdout == ""
    assert "unknown directive `wait`" in run("diff").stderr
    install()
    assert "+y = acme.fast.frobnicate(1)\n" in run("modernize", "--diff").stdout
    result = run("diff", "--format", "markdown")
    assert "+y = jax.block_until_ready(f(1))\n" in result.stdout
    assert "- `wait_for_value`, because of line 4: `wait`" in result.stdout
    assert "new.py:5:1: several names wait for one value; write one [wait_for_value]" in result.stderr
    assert run("diff", "--ignore", "wait_for_value").stdout == ""
    listed = run("codemods").stdout
    assert "move_frobnicate" in listed
    assert "Wait for a value." in listed
    assert run("explain", "wait_for_value").stdout == WAIT.split('"""')[1]
    assert run("apply").exit_code == 0
    assert "jax.block_until_ready" in hinted.read_text()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            "[mmrewrite.modernize]\nx = nowhere:X\n",
            "`x` of the package acme cannot be imported from nowhere:X (ModuleNot",
        ),
        (
            "[mmrewrite.modernize]\nx = acme_codemods.move:Y\n",
            "cannot be imported from acme_codemods.move:Y (Attribute",
        ),
        ("[mmrewrite.modernize]\nx = acme_codemods.wait:WaitForValue\n", "is no subclass of ModernizeCodemod"),
        (
            "[mmrewrite.modernize]\nreplace_pjit = a:B\n",
            "the package acme has a codemod `replace_pjit`, and so has mmrew",
        ),
        ("[mmrewrite.directives]\ntask = acme_codemods.wait:DIRECTIVE\n", "is no Directive with the name `task`"),
    ],
)
def test_one_that_is_wrong_is_one_sentence(install: Install, points: str, message: str) -> None:
    install(points)
    file = put("a.py", "import jax\nx = jax.tree_map(len, [])\ny = f(1)  # mm: task(stage=0)\n")
    result = run("apply" if "directives" in points else "modernize")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert message in result.stderr
    assert "mm.task" not in file.read_text()


def test_two_packages_with_one_name(install: Install) -> None:
    install()
    install(POINTS.replace("move:MoveFrobnicate", "other:Other"), "bolt")
    result = run("codemods")
    assert result.exit_code == 2
    assert "both have a `move_frobnicate` in the entry points mmrewrite.modernize; uninstall one" in result.stderr


def test_nothing_is_imported_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def distributions(**_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("importlib.metadata.distributions", distributions)
    plugins._installed.cache_clear()
    assert plugins.plugins(plugins.HINTS) == {}


def test_their_code_is_part_of_the_cache_key(install: Install, tmp_path: Path) -> None:
    install()
    before = list(cache._code())
    (tmp_path / "acme" / "acme_codemods" / "helper.py").write_text("x = 1\n")
    assert list(cache._code()) != before


class TestTesting:
    def case(self, engine: testing.Engine = "modernize", **files: str) -> None:
        folder = Path("fixtures/case")
        for name, text in files.items():
            put(str(folder / name.replace("_", ".")), text)
        testing.check_case(folder, engine=engine)

    def test_a_case_that_holds(self, install: Install) -> None:
        install()
        before = "import acme\ny = acme.frobnicate(1)\n"
        self.case(before_py=before, after_py=before.replace("acme.f", "acme.fast.f"))
        put("fixtures/several/before/pkg/__init__.py", before)
        put("fixtures/several/before/other.py", "import pkg\n")
        put("fixtures/several/after/pkg/__init__.py", before.replace("acme.f", "acme.fast.f"))
        assert testing.cases("fixtures") == [Path("fixtures/case"), Path("fixtures/several")]
        for case in testing.cases("fixtures"):
            testing.check_case(case, engine="modernize")

    def test_hints_and_messages(self, install: Install) -> None:
        install()
        before = "import jax\n\n\nz = w = f(1)  # mm: wait\n"
        self.case("hints", before_py=before, case_toml='refusals = ["4:1: several names wait"]\n')
        with pytest.raises(AssertionError, match="refusals: expected\nfound\n4:1: several"):
            self.case("hints", case_toml="")
        with pytest.raises(AssertionError, match="refusals: expected"):
            self.case("hints", case_toml='refusals = ["4:2: several"]\n')

    def test_what_does_not_hold(self, install: Install) -> None:
        install()
        with pytest.raises(AssertionError, match=r"\+y = acme.fast.frobnicate"):
            self.case(before_py="import acme\ny = acme.frobnicate(1)\n")
        with pytest.raises(ValueError, match="unknown key `refusal`"):
            self.case(case_toml="refusal = []\n")
        with pytest.raises(ValueError, match=r"no before\.py"):
            testing.check_case("nowhere")

    def test_ours_pass_as_well(self) -> None:
        ours = ROOT / "fixtures" / "modernize" / "move_checkpoint"
        checked = 0
        for case in testing.cases(ours):
            if (case / "before.py").is_file() and not (case / "case.toml").exists():
                testing.check_case(case, engine="modernize")
                checked += 1
        assert checked


class TestLibcstTool:
    def tool(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = ["--no-format", "--hide-progress", "-j", "1"]
        name = f"mmrewrite.cli.libcst_tool.{command}"
        return subprocess.run(
            [sys.executable, "-m", "libcst.tool", "codemod", "-x", name, *options, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ,
        )

    def test_old_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        file = put("a.py", "import jax\nx = jax.tree_map(len, [])\n")
        done = self.tool("Modernize", "--select", "move_checkpoint", "a.py")
        assert (done.returncode, "tree_map" in file.read_text()) == (0, True), done.stderr
        done = self.tool("Modernize", "a.py")
        assert (done.returncode, file.read_text()) == (0, "import jax\nx = jax.tree.map(len, [])\n"), done.stderr

    def test_hints_refusals_and_errors(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        texts = {
            "a.py": "# coding: latin-1\ndef f(x):\n    return 'ü'\n\n\ny = f(1)  # mm: task(stage=0)\n",
            "b.py": "y = f(1) + f(2)  # mm: task(stage=0)\n",
            "c.py": "y = f(1)  # mm: tsak(stage=0)\n",
        }
        for name, text in texts.items():
            Path(name).write_bytes(text.encode("latin-1"))
        done = self.tool("RewriteHints", *texts)
        assert "more than one call could be the task" in done.stderr
        assert "unknown directive `tsak`" in done.stderr
        assert Path("c.py").read_text() == texts["c.py"]
        direct = CliRunner().invoke(
            cli, ["apply", "-", "--stdin-filename", "a.py"], input=texts["a.py"].encode("latin-1")
        )
        assert Path("a.py").read_bytes() == direct.stdout_bytes
