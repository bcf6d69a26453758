"""The index of private names that are gone: each use is reported at its line, and files without any cost nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_files import source_files, told_lines
from test_old_names import FORMS, program
from wheels import write_wheel

from mmmodernize.names.name_index import last_releases
from mmmodernize.names.private_index import PRIVATE_FILE, is_private, private_name, private_names
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.results import Rewrite

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = ModernizeRegistry()


def modernized(files: Mapping[str, str]) -> tuple[Rewrite, ...]:
    data = {path: text.encode() for path, text in files.items()}
    return modernize_project(source_files(data), REGISTRY, load=lambda path: data.get(path.removeprefix("./")))


def test_no_name_is_passed_over() -> None:
    """Each by its import and by attributes: a program for each row would take minutes."""
    names = list(private_names())
    assert len(names) > 1000
    imports = "".join(f"from {name.rpartition('.')[0]} import {name.rpartition('.')[2]}\n" for name in names)
    packages = sorted({row.package for row in private_names().values()})
    attributes = "".join(f"import {package}\n" for package in packages) + "".join(f"{name}\n" for name in names)
    imported, read = modernized({"a.py": imports, "b.py": attributes})
    for result, first in ((imported, 1), (read, len(packages) + 1)):
        assert not result.failure
        told = told_lines(result)
        assert [name for line, name in enumerate(names, first) if line not in told] == []


@pytest.mark.parametrize(
    "name", ["jax._src.core.Sublevel", "jax._src.maps.xmap", "jax._src.lib.xla_bridge.get_backend"]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_use_is_said_once_in_each_form(name: str, form: str) -> None:
    assert private_name(name) is not None
    text, _ = program(form, [name])
    if text.strip():
        (result,) = modernized({"a.py": text})
        assert len(result.refusals) == 1
        assert not result.changed


# Programs, and the lines that are told.
TOLD: dict[str, tuple[dict[str, str], set[tuple[str, int]]]] = {
    "unused": ({"a.py": "from jax._src.core import Sublevel\n"}, {("a.py", 1)}),
    "of a gone module": ({"a.py": "import jax._src.maps\nx = jax._src.maps.xmap\n"}, {("a.py", 1), ("a.py", 2)}),
    "in a gone module": ({"a.py": "from jax._src.maps import anything\nanything()\n"}, {("a.py", 1)}),
    "star of a gone module": ({"a.py": "from jax._src.maps import *\n"}, {("a.py", 1)}),
    "by star": ({"a.py": "from jax._src.core import *\nx = Sublevel\n"}, {("a.py", 2)}),
    "in a function": (
        {"a.py": "def f():\n    from jax._src import core\n    return core.Sublevel(1)\n"},
        {("a.py", 3)},
    ),
    "another file": (
        {
            "compat.py": "from jax._src import core\n",
            "a.py": "from compat import core  # jax._src\nx = core.Sublevel\n",
        },
        {("a.py", 2)},
    ),
    "getattr": ({"a.py": "from jax._src import core\nx = getattr(core, 'Sublevel')\n"}, {("a.py", 2)}),
    "patched": ({"a.py": "from unittest import mock\nmock.patch('jax._src.core.Sublevel')\n"}, {("a.py", 2)}),
    "imported by text": ({"a.py": "import importlib\nimportlib.import_module('jax._src.maps')\n"}, {("a.py", 2)}),
    "annotation": ({"a.py": "from jax._src import core\ndef f(x: 'core.Sublevel'): pass\n"}, {("a.py", 2)}),
    # What the last release has.
    "there": ({"a.py": "from jax._src.core import Jaxpr\nfrom jax._src import core, util\nx = core.Tracer\n"}, set()),
    "with a default": ({"a.py": "from jax._src import core\nx = getattr(core, 'Sublevel', None)\n"}, set()),
    # A copy of JAX has its own.
    "own": (
        {
            "jax/__init__.py": "",
            "jax/_src/__init__.py": "",
            "jax/_src/core.py": "class Sublevel: pass\n",
            "jax/a.py": "from jax._src.core import Sublevel\n",
        },
        set(),
    ),
    "another package": ({"a.py": "import jax\nfrom data._src.core import Sublevel\n"}, set()),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told(case: str) -> None:
    files, places = TOLD[case]
    results = modernized(files)
    assert {(item.path, item.line) for result in results for item in result.refusals} == places
    assert not any(result.changed for result in results)


def test_code_that_chooses_by_the_version_is_left() -> None:
    text = "try:\n    from jax._src.core import Sublevel\nexcept ImportError:\n    Sublevel = int\nx = Sublevel(1)\n"
    (result,) = modernized({"a.py": text})
    assert not result.refusals
    assert [(item.line, item.name) for item in result.left] == [(2, "jax._src.core.Sublevel")]


def test_a_use_behind_a_guarded_import_is_told() -> None:
    text = "try:\n    from jax._src.core import Sublevel\nexcept ImportError:\n    pass\nx = Sublevel(1)\n"
    (result,) = modernized({"a.py": text})
    assert [item.line for item in result.refusals] == [5]
    assert [item.line for item in result.left] == [2]


def test_a_guard_that_is_never_reached_guards_nothing() -> None:
    text = "from jax._src.maps import xmap\ntry:\n    f = xmap.jit\nexcept AttributeError:\n    f = None\n"
    (result,) = modernized({"a.py": text})
    assert [item.line for item in result.refusals] == [1]


def test_names_of_other_codemods_stay_theirs() -> None:
    for codemod in REGISTRY.values():
        for name in filter(is_private, (*codemod.names, *codemod.moved)):
            home, _, own = name.rpartition(".")
            (result,) = modernized({"a.py": f"from {home} import {own}\nx = {own}\n"})
            assert "report_private_names" not in {item.codemod for item in result.refusals}, name


def test_only_files_with_the_word_are_asked() -> None:
    codemod = REGISTRY["report_private_names"]
    assert codemod.may_be_in(b"from jax._src import core\n")
    assert not codemod.may_be_in(b"import jax\nx = data_src\n")
    assert not codemod.may_be_in(b"from data import _src\n")


def test_the_index_is_what_the_script_writes() -> None:
    lines = PRIVATE_FILE.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert lines == [json.dumps(row, ensure_ascii=False) for row in rows]
    assert {row["package"]: row["releases"][-1] for row in rows if "releases" in row} == last_releases()
    for row in private_names().values():
        assert len(row.advice) > 5
        assert row.name.startswith(f"{row.package}.")
        assert is_private(row.name)


def test_releases_are_compared_without_importing_them(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from index_names import Release
        from index_private import private_of, private_rows
    finally:
        sys.path.remove(str(ROOT / "tools"))
    first = {
        "jax/__init__.py": "from jax._src.a import kept as kept\n",
        "jax/_src/__init__.py": "",
        "jax/_src/a.py": (
            "import itertools\nfrom typing import Any\nfrom jaxlib import xla\nfrom jax._src.b import helper\n"
            "T = Any\ndef kept(): pass\ndef moved(): return 1\ndef _own(): pass\n"
            "if T:\n  def chosen(): pass\nelse:\n  chosen = None\ndef altered(x): return x\n"
        ),
        "jax/_src/b.py": "def helper(): return 2\ndef early(): pass\n",
        "jax/_src/gone.py": "def f(): pass\nfrom jax._src.b import helper\nraise SystemExit('imported')\n",
    }
    second = {**first, "jax/_src/b.py": "def helper(): return 2\n"}
    last = {
        "jax/__init__.py": "from jax._src.new import moved as moved\n",
        "jax/_src/__init__.py": "",
        "jax/_src/a.py": "from jax._src.c import *\nif 1:\n  from jax._src.d import chosen\n",
        "jax/_src/b.py": "def helper(): return 2\n",
        "jax/_src/c.py": "def kept(): pass\n",
        "jax/_src/d.py": "def chosen(): pass\n",
        "jax/_src/new.py": "def moved(): return 1\ndef altered(x): return x + 1\n",
    }
    wheels = {
        version: write_wheel(tmp_path, version, files)
        for version, files in zip("123", (first, second, last), strict=True)
    }
    private = {version: private_of(Release(wheel, "jax")) for version, wheel in wheels.items()}
    assert list(private_rows(private, Release(wheels["3"], "jax").names)) == [
        {"gone": "2", "in": "jax._src.b", "names": ["early"]},
        {"gone": "3", "in": "jax._src", "names": ["gone"]},
        {"gone": "3", "in": "jax._src.a", "names": ["_own", "xla"]},
        {"gone": "3", "in": "jax._src.a", "names": ["altered"], "like": "jax._src.new"},
        {"gone": "3", "in": "jax._src.a", "names": ["moved"], "same": "jax"},
        {"gone": "3", "in": "jax._src.a", "names": ["helper"], "same": "jax._src.b"},
        {"gone": "3", "in": "jax._src.gone", "names": ["helper"], "same": "jax._src.b"},
    ]
