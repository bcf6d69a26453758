"""Runs that are answered before slow imports: what they leave out has nothing to say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from command import HINTED, OLD, put, run
from scripts import ROOT

from mmmodernize.names import markers
from mmmodernize.names.gate import may_have_old_names
from mmmodernize.registry import ModernizeRegistry
from mmrewrite.cli.quick import has_nothing_to_say

PLAIN = "import jax.numpy as jnp\n\n\ndef f(x):\n    return jnp.einsum('ab,bc', x, x)\n"
COMMANDS = (("diff",), ("check",), ("modernize", "--diff"), ("modernize", "--check"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("files", "paths"),
    (
        ({}, ()),
        ({"a.py": PLAIN, "b/c.py": PLAIN, "d.txt": HINTED + OLD}, ()),
        ({"a.py": PLAIN, ".hidden/b.py": HINTED, "node_modules/c.py": OLD}, ()),
        ({"a.py": PLAIN, "b.py": HINTED + OLD}, ("a.py",)),
        ({"a.py": PLAIN, "b/c.py": PLAIN, "d.py": HINTED + OLD}, ("a.py", "b")),
        ({"a.py": PLAIN, "pyproject.toml": "[project]\nname = 'mmrewrite'\n[tool.ruff]\n[tool.pyright]\n"}, ()),
        ({"a.py": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "b.py": "def f(:\n"}, ()),
    ),
)
def test_what_is_left_out_has_nothing_to_say(files: Mapping[str, str], paths: tuple[str, ...]) -> None:
    for path, text in files.items():
        put(path, text)
    for command in COMMANDS:
        assert has_nothing_to_say((*command, *paths))
        result = run(*command, *paths)
        assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("files", "paths"),
    (
        ({"a.py": PLAIN}, ("missing",)),
        ({"a.py": PLAIN}, ("-v",)),
        ({"a.py": PLAIN}, (".", "--strict")),
        ({"a.py": HINTED + OLD}, ()),
        ({"a.ipynb": HINTED + OLD}, ()),
        ({"a.py": PLAIN, "venv/pyvenv.cfg": ""}, ()),
        ({"a.py": PLAIN, "mmrewrite.toml": "nonsense = 1\n"}, ()),
        ({"a.py": PLAIN, "pyproject.toml": "[tool.mmrewrite]\nexclude = ['a.py']\n"}, ()),
        ({"a.py": PLAIN, "pyproject.toml": "[tool.mmrewrit]\n"}, ()),
        ({"a.py": PLAIN, "pyproject.toml": "[tool\n"}, ()),
        ({"a.py": PLAIN, "pyproject.toml": "tool = 1\n"}, ()),
    ),
)
def test_all_else_is_left_to_the_command_line(files: Mapping[str, str], paths: tuple[str, ...]) -> None:
    for path, text in files.items():
        put(path, text)
    for command in COMMANDS:
        assert not has_nothing_to_say((*command, *paths))


@pytest.mark.parametrize(
    "arguments", ((), ("apply",), ("modernize",), ("modernize", "a.py"), ("diff", "--help"), ("x",))
)
def test_other_commands_are_left_to_the_command_line(arguments: tuple[str, ...]) -> None:
    assert not has_nothing_to_say(arguments)


def test_a_run_without_hints_imports_nothing_that_is_slow() -> None:
    put("a.py", PLAIN)
    # In a fresh checkout they are not made yet; in a wheel they always are.
    markers.markers.cache_clear()
    Path(markers._KEPT).parent.mkdir(exist_ok=True)
    markers.markers()
    for command in COMMANDS:
        script = (
            f"import sys\nsys.argv = ['mmrewrite', *{command!r}]\nfrom mmrewrite.__main__ import main\nmain()\n"
            "print(sorted({'click', 'libcst', 'ast', 'dataclasses', 'pathlib', 'json'} & sys.modules.keys()))"
        )
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert done.stdout == "[]\n"


def test_modernize_edits_without_libcst() -> None:
    put("a.py", "import jax\n\nprint(jax.tree_map(len, []))\n")
    script = (
        "import sys\nsys.argv = ['mmrewrite', 'modernize', '--check', '--no-cache']\n"
        "from mmrewrite.__main__ import main\ntry:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'libcst' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "1 False"


def test_the_markers_are_those_of_the_codemods() -> None:
    kept = markers.markers()
    assert (kept.anywhere, kept.packages, kept.homes, kept.held) == markers.made()


def test_the_markers_are_made_again_when_the_package_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[int] = []

    def tables() -> tuple[object, ...]:
        made.append(1)
        return {}, (b"jax",), {b"x%d" % len(made): b"jax"}, {}

    package = tmp_path / "package"
    put("package/names/__pycache__/damaged.py", "")
    put("package/a.py", "x = 1\n")
    monkeypatch.setattr(markers, "_HERE", str(package / "names"))
    monkeypatch.setattr(markers, "_KEPT", str(package / "names" / "__pycache__" / "markers.bin"))
    monkeypatch.setattr(markers, "made", tables)
    for change, number in (("", 1), ("", 1), ("x = 22\n", 2), ("damage", 3), ("", 3)):
        if change == "damage":
            Path(markers._KEPT).write_bytes(b"nonsense")
        elif change:
            put("package/a.py", change)
        found = markers.markers.__wrapped__()
        assert list(found.homes) == [b"x%d" % number]
        assert len(made) == number
    # The build's own comes before any of that.
    Path(markers._HERE, markers.BUILT).write_bytes(markers.built())
    assert list(markers.markers.__wrapped__().homes) == [b"x4"]


def test_the_gate_passes_what_a_codemod_passes() -> None:
    codemods = dict(ModernizeRegistry())
    words = [marker for codemod in codemods.values() for marker in codemod.markers()]
    texts = [path.read_bytes() for path in (ROOT / "fixtures" / "modernize").rglob("before*.py")]
    for data in (*texts, *(b"import jax\njax.%s(a_min=1)\n" % word for word in words)):
        assert may_have_old_names(data) or not any(codemod.may_be_in(data) for codemod in codemods.values())
