"""`mmrewrite modernize` on files: modes, exit status, formats, configuration, notebooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mmrewrite.cli.commands import cli
from mmrewrite.engine.notebook import masked

OLD = "import jax\nx = jax.tree_map(len, [])\n"
NEW = "import jax\nx = jax.tree.map(len, [])\n"
REFUSED = "from jax.experimental.maps import xmap\n\nxmap(len)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(OLD)
    return tmp_path


def modernize(*options: str) -> Result:
    return CliRunner().invoke(cli, ["modernize", *options])


def test_writes_in_place(folder: Path) -> None:
    (folder / "other.py").write_text("print('nothing to do')\n")
    result = modernize()
    assert (folder / "a.py").read_text() == NEW
    assert result.exit_code == 0
    assert result.stderr == "1 file changed\n"
    assert modernize().stderr == ""


def test_diff_writes_nothing(folder: Path) -> None:
    result = modernize("--diff")
    assert result.exit_code == 0
    assert "-x = jax.tree_map(len, [])\n+x = jax.tree.map(len, [])\n" in result.stdout
    assert (folder / "a.py").read_text() == OLD


def test_check_fails_for_changes_and_for_refusals(folder: Path) -> None:
    assert modernize("--check").exit_code == 1
    (folder / "a.py").write_text(NEW)
    assert modernize("--check").exit_code == 0
    (folder / "b.py").write_text(REFUSED)
    assert modernize("--check").exit_code == 1


@pytest.mark.parametrize("options", [("--check", "--diff"), ("--diff", "--check")])
def test_check_and_diff_together_are_a_check(folder: Path, options: tuple[str, ...]) -> None:
    """As with other formatters; the last one alone would count, and a check would pass."""
    result = modernize(*options)
    assert result.exit_code == 1 and "+x = jax.tree.map(len, [])" in result.stdout
    assert (folder / "a.py").read_text() == OLD


def test_calls_that_grow_are_broken_at_the_projects_line_length(folder: Path) -> None:
    (folder / "a.py").write_text("import jax\nx = jax.tree_map(len, (1, 2))\ny = jax.tree_map(len, ())\n")
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 36\n")
    modernize("--target-jax", "0.4.13")
    assert (folder / "a.py").read_text() == (
        "import jax\nx = jax.tree_util.tree_map(\n    len, (1, 2)\n)\ny = jax.tree_util.tree_map(len, ())\n"
    )


def test_strict_fails_for_refusals(folder: Path) -> None:
    assert modernize("--strict").exit_code == 0
    (folder / "b.py").write_text(REFUSED)
    assert modernize("--diff").exit_code == 0
    result = modernize("--strict")
    assert result.exit_code == 1
    assert "b.py:3:1: `xmap` has no exact replacement" in result.stderr
    assert (folder / "b.py").read_text() == REFUSED


def test_json_lists_edits_refusals_and_what_is_left(folder: Path) -> None:
    (folder / "b.py").write_text(f'"""About jax.tree_map."""\n{REFUSED}')
    first, second = json.loads(modernize("--diff", "--format", "json").stdout)["files"]
    (edit,) = first["edits"]
    assert (edit["codemods"], edit["old"], edit["new"]) == (["replace_tree_functions"], "jax.tree_map", "jax.tree.map")
    assert (edit["line"], edit["column"], edit["end_line"], edit["end_column"]) == (2, 5, 2, 17)
    assert edit["because"] == [{"line": 2, "column": 5, "text": "jax.tree_map", "name": "jax.tree_map"}]
    assert [(item["line"], item["codemod"]) for item in second["refusals"]] == [(4, "report_xmap")]
    assert [(item["line"], item["text"]) for item in second["left"]] == [(1, "jax.tree_map")]


def test_imports_are_for_the_edits_that_need_them(folder: Path) -> None:
    (folder / "a.py").write_text(
        "import jax\nfrom jax.core import Jaxpr\nfrom jax.experimental import maps\n"
        "from jax.experimental.pjit import pjit\n\n"
        "mesh = maps.Mesh(jax.devices(), ('data',))\ntree = jax.tree_map(abs, {})\n"
        "f = pjit(abs, in_shardings=jax.P())\n"
    )
    (file,) = json.loads(modernize("--diff", "--format", "json").stdout)["files"]
    found = {edit["old"].strip() or edit["new"].strip(): edit for edit in file["edits"]}
    assert found["from jax.core import Jaxpr"]["codemods"] == ["move_names"]
    assert found["from jax.experimental import maps"]["codemods"] == ["replace_old_mesh"]
    assert found["from jax.experimental.pjit import pjit"]["codemods"] == ["replace_pjit"]
    added = found["from jax.sharding import Mesh\nfrom mmruntime import compat"]
    assert added["codemods"] == ["replace_old_mesh", "replace_pjit"]
    assert [(use["line"], use["name"]) for use in added["because"]] == [
        (6, "jax.experimental.maps.Mesh"),
        (8, "jax.experimental.pjit.pjit"),
    ]


def test_explains_compat(folder: Path) -> None:
    (folder / "a.py").write_text(
        "from jax.experimental.pjit import pjit\nfrom jax.sharding import PartitionSpec as P\n\n"
        "f = pjit(abs, in_shardings=(P('data'),))\n"
    )
    result = modernize("--diff", "--explain-compat")
    assert "a.py:4:5: `pjit` becomes `compat.pjit`: no mesh context in view reaches it" in result.stderr
    (file,) = json.loads(modernize("--diff", "--format", "json").stdout)["files"]
    assert [(use["line"], use["function"]) for use in file["compat"]] == [(4, "pjit")]
    (folder / "a.py").write_text(OLD)
    assert "no use of mmruntime.compat" in modernize("--diff", "--explain-compat").stderr


def test_target_and_selection(folder: Path) -> None:
    assert "jax.tree_util.tree_map" in modernize("--diff", "--target-jax", "0.4.20").stdout
    (folder / "pyproject.toml").write_text('[tool.mmrewrite]\ntarget-jax = "0.4.20"\n')
    assert "jax.tree_util.tree_map" in modernize("--diff").stdout
    assert "jax.tree.map" in modernize("--diff", "--target-jax", "0.10").stdout
    assert modernize("--diff", "--ignore", "replace_tree_functions").stdout == ""
    assert modernize("--diff", "--select", "replace_pjit").stdout == ""
    assert "jax.tree_util" in modernize("--diff", "--select", "replace_tree_functions").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target-jax", "new"), "must be a version of JAX such as 0.10 or 0.4.30, not 'new'"),
        (("--select", "replace_pjt"), "There is no codemod `replace_pjt`; did you mean `replace_pjit`?"),
    ],
)
def test_mistakes(options: tuple[str, ...], message: str) -> None:
    result = modernize(*options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(("target", "shown"), [("0.10", "0.1"), ("'new'", "'new'")])
def test_a_target_that_is_no_version_is_a_mistake(folder: Path, target: str, shown: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.mmrewrite]\ntarget-jax = {target}\n")
    for command in ("modernize", "diff"):
        result = CliRunner().invoke(cli, [command])
        assert result.exit_code == 2
        assert f'`target-jax` must be a version in quotes such as "0.10", not {shown}' in result.stderr


def test_what_does_not_parse_does_not_stop_the_others(folder: Path) -> None:
    (folder / "b.py").write_text("jax.tree_map(\n")
    (folder / "c.ipynb").write_text('{"nbformat": 3, "worksheets": ["jax.tree_map"]}')
    (folder / "d.ipynb").write_text("jax.tree_map")
    result = modernize()
    assert result.exit_code == 2
    assert "b.py: Python" in result.stderr
    assert "c.ipynb: not a notebook of format 4" in result.stderr
    assert "d.ipynb: not a notebook: " in result.stderr
    assert (folder / "a.py").read_text() == NEW


def test_messages_about_notebooks_name_the_cell(folder: Path) -> None:
    cells = [{"cell_type": "code", "source": [line]} for line in ("import jax", "from jax.experimental import maps\n")]
    cells.append({"cell_type": "code", "source": ["# first\n", "maps.xmap(len)"]})
    (folder / "b.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 2}))
    assert "b.ipynb, cell 3:2:1: `xmap` has no exact replacement" in modernize("--diff").stderr


def test_notebooks_of_other_languages_are_left_alone(folder: Path) -> None:
    cells = [{"cell_type": "code", "source": ["jax.tree_map"]}]
    kernel = {"kernelspec": {"language": "julia"}}
    (folder / "b.ipynb").write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4}))
    assert modernize("--diff", "b.ipynb").stdout == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%time\nf(1)", "...#me\nf(1)"),
        ("%%html\n<b>\n\n", "#%html\n#b>\n\n"),
        ("for x in y:\n    !ls", "for x in y:\n    ..."),
        ("%%capture out\na, b = %pwd\nx = !ls -l", "...#pture out\na, b = ...#\nx = ...#-l"),
        ("f.g??", "...#?"),
        ("%x\ny = 1", "#x\ny = 1"),
        ("x = 5 %3", "x = 5 %3"),
        ("    stray", "#   stray"),
    ],
)
def test_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert len(masked(text)) == len(text)


def test_relative_imports_in_folders_without_an_init(folder: Path) -> None:
    parts = folder / "parts" / "inner"
    parts.mkdir(parents=True)
    files = {
        "inner/steps.py": (
            "import jax\nfrom .helpers import *\nfrom ..jax import tree_map\nfrom . import names\n"
            "x = jax.tree_map(len, shift)\ny = tree_map(len, [])\nz = names.own(len, [])\nw = leaves([])\n"
        ),
        "inner/helpers.py": "from ..old import mapped, leaves\n\nshift = []\n",
        "inner/names.py": "from ..jax import tree_map as own\n",
        "jax.py": "def tree_map(function, tree):\n    return function(tree)\n",
        "old.py": "import jax\n\nmapped = jax.tree_map\nleaves = jax.tree_leaves\n",
        "inner/unknown.py": "import jax\nfrom ..missing import *\nfrom ...above import *\njax.tree_map(len, [])\n",
    }
    for path, text in files.items():
        (folder / "parts" / path).write_text(text)
    result = modernize("parts")
    assert (parts / "steps.py").read_text() == (
        "import jax\nfrom .helpers import *\nfrom ..jax import tree_map\nfrom . import names\n"
        "x = jax.tree.map(len, shift)\ny = tree_map(len, [])\nz = names.own(len, [])\nw = leaves([])\n"
    )
    assert (folder / "parts" / "old.py").read_text() == (
        "import jax\n\nmapped = jax.tree.map\nleaves = jax.tree.leaves\n"
    )
    for kept in ("inner/helpers.py", "inner/names.py", "jax.py", "inner/unknown.py"):
        assert (folder / "parts" / kept).read_text() == files[kept]
    assert "unless `from ..missing import *` on line 2 gives `jax` another meaning" in result.stderr
    assert modernize("parts").stderr.count("file changed") == 0
