"""`mmrewrite modernize --check --upgrade-to`: one report of what an upgrade needs, by release."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command import run
from test_formats import SCHEMAS, validate
from test_modernize import CASES as FIXTURES
from test_modernize import modernize, read_case

from mmmodernize.doubts.newer_uses import uses_of_newer
from mmmodernize.names.advice import PART_ADVICE
from mmmodernize.names.changed_meanings import CHANGED_MEANINGS
from mmmodernize.names.name_index import TITLES, last_releases, old_names
from mmmodernize.names.newer_index import Lacking, newer_names
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.settings import DEFAULT_TARGET, ModernizeSettings
from mmmodernize.upgrade import UpgradeItem, numbers, upgrade_of, with_releases
from mmrewrite.project.facts import SourceFile

PROGRAM = """\
import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import ConcreteArray, Jaxpr
from jax.experimental import maps
from jax.experimental.pjit import pjit

mesh = maps.Mesh(jax.devices(), ("data",))
grid = jax.make_mesh((1,), ("data",))
known = isinstance(1, ConcreteArray)
tree = jax.tree_map(abs, {})
older = jax.tree_multimap(abs, {})
fixed = jnp.fix(1.5)
blank = jnp.empty(3)
f = pjit(abs)
kernel = nnx.Param(1, sharding=("data",))
if jax.__version__ < "0.5":
    tree = jax.tree_map(abs, tree)
"""


@pytest.fixture(autouse=True)
def program(folder: Path) -> Path:
    (folder / "train.py").write_text(PROGRAM)
    return folder


def upgrade(*options: str) -> Result:
    return run("modernize", "--check", *options)


def report(*options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(upgrade("--format", "json", *options).stdout)
    validate(document, SCHEMAS / "upgrade.json")
    return document


def names(groups: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[str]]:
    return {
        (group["package"], group["release"], group["change"]): [item["name"] for item in group["items"]]
        for group in groups
    }


def test_groups_by_the_release_that_matters() -> None:
    found = report("--upgrade-to", "0.8.0", "--upgrade-to", "flax==0.11")
    assert found["target"] == {"jax": "0.8.0", "flax": "0.11"}
    assert names(found["needed"]) == {
        ("jax", "0.3.16", "stops"): ["jax.tree_multimap"],
        ("jax", "0.4.31", "stops"): ["jax.experimental.maps.Mesh"],
        ("jax", "0.4.36", "stops"): ["jax.core.ConcreteArray"],
        ("jax", "0.6.0", "stops"): ["jax.core.Jaxpr", "jax.tree_map", "jax.tree_map"],
    }
    assert names(found["warned"]) == {("jax", "0.8.0", "warns"): ["jax.experimental.pjit.pjit"]}
    assert names(found["later"]) == {
        ("jax", "0.9.0", "changes"): ["jax.make_mesh"],
        ("jax", "0.9.0", "warns"): ["jax.numpy.fix"],
        ("jax", "0.11.0", "changes"): ["jax.numpy.empty"],
        ("flax", "0.12.0", "changes"): ["flax.nnx.Param"],
    }
    items = [item for group in found["needed"] for item in group["items"]]
    outcomes = {(item["name"], item["line"]): item["outcome"] for item in items}
    assert outcomes["jax.core.ConcreteArray", 10] == "by hand"
    assert (outcomes["jax.tree_map", 11], outcomes["jax.tree_map", 18]) == ("rewritten", "by hand")


def test_text_and_markdown_say_the_same() -> None:
    text = upgrade("--upgrade-to", "0.8.0").stdout
    assert text.startswith("To run on JAX 0.8.0, Flax ")
    assert "\n\nWhat stops working, for a person (2)\n  train.py:10:23: `jax.core.ConcreteArray` is gone" in text
    assert "is gone since 0.9.0, and runs today: the `if` of line 17 compares versions as text, by which" in text
    assert "  train.py:4:1: `jax.core.Jaxpr` warns since JAX 0.4.38, raises since 0.6.0" in text
    markdown = upgrade("--upgrade-to", "0.8.0", "--format", "markdown").stdout
    assert "#### What stops working, for a person (2)\n\n- `train.py:10:23`: `jax.core.ConcreteArray` is" in markdown
    titles = [line for line in text.splitlines() if re.fullmatch(r"What .* \(\d+\)", line)]
    assert [re.split(r",| \(", title)[0] for title in titles] == [
        "What means something else",
        "What stops working",
        "What `mmrewrite modernize --upgrade-to 0.8.0` rewrites",
        "What warns",
        "What matters after this upgrade",
    ]


def test_an_overview_of_at_most_20_lines_comes_first(folder: Path) -> None:
    names = [name for name, row in old_names().items() if row.is_gone and name.startswith("jax.")][::4]
    uses = "".join(f"import {name.rpartition('.')[0]}\n{name}\n" for name in names)
    (folder / "train.py").write_text(uses)
    text = upgrade("--upgrade-to", "0.12.0").stdout
    head = text.partition("\n\n")[0].splitlines()
    assert 15 < len(head) <= 20
    assert " releases before these: see below" in head[1]
    assert all(re.fullmatch(r"  JAX [\d.]+ +(\d+ by itself)?(, )?(\d+ for a person)?", line) for line in head[2:])
    assert "report_old_names" not in text
    assert "move_names" not in text


def test_a_reason_is_told_once_with_its_places_the_worst_first(folder: Path) -> None:
    (folder / "train.py").write_text("import jax\n" + "jax.tree_transpose\n" * 3 + "jax.xla_computation(1)\n" * 7)
    (folder / "other.py").write_text("from jax.sharding import Mesh\nMesh(d, (0,))\nimport jax\njax.spmd_mode\n")
    result = run("modernize", "--diff")
    told = result.stderr.splitlines()
    (first,) = [number for number, line in enumerate(told) if "jax.xla_computation" in line]
    assert told[first].startswith("train.py:5:1: `jax.xla_computation` warns since")
    assert told[first + 1] == "  also at train.py:6:1, train.py:7:1, train.py:8:1, train.py:9:1 and 2 more"
    assert not re.search(r"\[\w+\]$", result.stderr, re.M)
    files = json.loads(run("modernize", "--diff", "--format", "json").stdout)["files"]
    assert sum(len(each["refusals"]) for each in files) == 9
    markdown = run("modernize", "--diff", "--format", "markdown").stdout
    assert "(also at train.py:6:1, train.py:7:1, train.py:8:1, train.py:9:1 and 2 more)" in markdown
    # All places, with the codemod that `mmrewrite explain` takes.
    assert run("modernize", "--diff", "-v").stderr.count("`jax.xla_computation` warns since") == 7


def test_one_reason_for_several_names_is_told_once(folder: Path) -> None:
    (folder / "keys.py").write_text("import jax\njax.random.split(key)\n")
    (folder / "train.py").write_text(
        "import jax\nfrom flax import nnx\njax.random.normal(key)\n"
        "def train(optimizer: nnx.Optimizer, grads):\n    optimizer.update(grads)\n"
    )
    told = run("modernize", "--diff", "--upgrade-to", "0.12").stderr
    assert "keys.py:2:1: `jax.random.split` left alone: since JAX 0.5.0 it gives other numbers" in told
    assert "\n  also at train.py:3:1 (`jax.random.normal`)\n" in told
    assert told.count("train.py:5:") == 1


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("jax.tree.map(f, x)\n", True),
        ("jax.set_mesh(mesh)\n", False),
        ("if hasattr(jax, 'set_mesh'):\n    jax.set_mesh(mesh)\n", True),
        ("if jax.__version_info__ >= (0, 7):\n    jax.set_mesh(mesh)\n", True),
        ("jax.set_mesh(mesh)\njax.experimental.maps.Mesh\n", True),
    ],
)
def test_a_project_that_runs_on_a_release_is_not_told_what_that_changed(folder: Path, text: str, is_told: bool) -> None:
    (folder / "train.py").write_text(f"import jax\njax.random.split(key)\n{text}")
    told = run("modernize", "--diff", "--upgrade-to", "0.12").stderr
    assert ("`jax.random.split` left alone: since JAX 0.5.0" in told) is is_told


def test_a_module_that_is_left_over_is_told_what_changed_in_all_forms(folder: Path) -> None:
    (folder / "train.py").write_text("import jax\njax.set_mesh(mesh)\n")
    (folder / "old.py").write_text(
        "import jax\njax.experimental.maps.Mesh\ndef f(module):\n    module.split(key)\nf(jax.random)\n"
        "for name in ('split',):\n    getattr(jax.random, name)(key)\njax.random.uniform(key)\n"
    )
    told = run("modernize", "--diff").stderr
    assert {"old.py:4:5: `module.split`", "old.py:6:14: `'split'`", "old.py:8:1: `jax.random.uniform`"} <= {
        line.partition(" left alone")[0] for line in told.splitlines()
    }


def test_exit_status_is_whether_anything_is_needed(folder: Path) -> None:
    assert upgrade("--upgrade-to", "0.8.0").exit_code == 1
    (folder / "train.py").write_text("import jax.numpy as jnp\nx = jnp.fix(1.5)\n")
    result = upgrade("--upgrade-to", "0.9.2")
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing in these files keeps them from JAX 0.9.2.\n\nWhat warns, and still works")
    assert upgrade("--upgrade-to", "0.10").exit_code == 1
    (folder / "broken.py").write_text("import jax\nx = jax.tree_map((\n")
    result = upgrade("--upgrade-to", "0.9.2")
    assert result.exit_code == 2
    assert "broken.py" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--upgrade-to", "newest"], "must be a release such as 0.11.0 or flax==0.12.0, not 'newest'"),
        (["--upgrade-to", "numpy==2.0"], "knows releases of jax, flax, optax, chex, orbax-checkpoint, not of 'numpy'"),
        (["--upgrade-to", "0.8.0", "--format", "sarif"], "--format is one of text, json, markdown"),
    ],
)
def test_mistakes(options: list[str], message: str) -> None:
    result = upgrade(*options)
    assert result.exit_code == 2
    assert message in result.stderr


OF_FLAX = """\
import jax
import optax
from flax import nnx
from optax import global_norm


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = [nnx.Linear(1, 1, rngs=rngs)]


print(jax.tree_map(abs, global_norm({})))
tx = optax.sgd(optax.global_norm({}))
kernel = nnx.Param(1, sharding=("data",))
optimizer = nnx.Optimizer(Model(nnx.Rngs(0)), tx)
"""


def test_what_is_written_runs_on_the_upgrade(folder: Path) -> None:
    (folder / "train.py").write_text(OF_FLAX)
    releases = ("--upgrade-to", "flax==0.10.2", "--upgrade-to", "optax==0.2.0")
    result = run("modernize", "--diff", *releases)
    added = [line for line in result.stdout.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == ["+print(jax.tree.map(abs, global_norm({})))"]
    needs = "needs {0}, and the upgrade leads to {1}; raise it, or keep the old name"
    for line, name, release, wanted in (
        (12, "`optax.tree.norm`", "optax 0.2.5", "optax 0.2.0"),
        (9, "`nnx.data`", "Flax 0.11", "Flax 0.10.2"),
        (14, "`out_sharding=`", "Flax 0.12", "Flax 0.10.2"),
        (15, "`nnx.ModelAndOptimizer`", "Flax 0.11", "Flax 0.10.2"),
    ):
        assert re.search(
            rf"^train\.py:{line}:\d+: {re.escape(f'{name} {needs.format(release, wanted)}')}", result.stderr, re.M
        )
    # The place of another use stands with the first.
    assert "or keep the old name\n  also at train.py:13:16\n" in result.stderr
    run("modernize", *releases)
    assert (folder / "train.py").read_text() == OF_FLAX.replace("tree_map", "tree.map")
    # Of Flax that has them, they are written, on any JAX: who asks for that Flax has a JAX for it.
    result = run("modernize", "--diff", "--upgrade-to", "flax==0.12.0", "--upgrade-to", "jax==0.8.0")
    for text in ("optax.tree import norm as global_norm", "nnx.data(", "ModelAndOptimizer(", "out_sharding="):
        assert text in result.stdout


def test_the_report_says_what_the_upgrade_rewrites(folder: Path) -> None:
    (folder / "train.py").write_text(OF_FLAX)
    text = upgrade("--upgrade-to", "flax==0.11.0").stdout
    assert "`mmrewrite modernize --upgrade-to flax==0.11.0` rewrites 2, and 0 are for a person." in text
    text = upgrade("--upgrade-to", "0.6.0", "--target-jax", "0.4.30").stdout
    assert "`mmrewrite modernize --upgrade-to 0.6.0 --target-jax 0.4.30` rewrites" in text
    (folder / "train.py").write_text("import jax\n\nprint(jax.shard_map, jax.experimental.shard_map.shard_map)\n")
    text = upgrade("--upgrade-to", "0.6.0").stdout
    assert "`mmruntime.compat.shard_map` needs JAX 0.10, and the upgrade leads to JAX 0.6.0" in text


_OLD = {"flax": "0.9.0", "optax": "0.1.9", "chex": "0.1.5", "orbax.checkpoint": "0.4.0"}


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param({"jax": "0.6.0", **_OLD}, id="old"),
        pytest.param({"jax": "0.8.0", "flax": "0.11.0"}, id="newer", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_written_that_the_upgrade_lacks(wanted: dict[str, str]) -> None:
    """Every fixture of every codemod: what is lacking in a result was there before."""
    lacking = Lacking.of(wanted)

    def missing(data: bytes) -> set[str]:
        (*found,) = uses_of_newer([SourceFile("a.py", data)], lambda _: None, lacking)
        return {item.name for uses in found for item in uses.missing.left}

    changed = 0
    for folder in FIXTURES:
        case = read_case(folder)
        settings = ModernizeSettings(
            selected=frozenset(case.select) or None,
            target=min(DEFAULT_TARGET, numbers(wanted["jax"])),
            releases=tuple(sorted(wanted.items())),
        )
        for path, result in modernize(case.before, settings).items():
            if path.endswith(".py") and result.changed:
                changed += 1
                assert missing(result.result) <= missing(case.before[path]), folder
    assert changed > 100


def test_a_name_of_which_no_release_is_known_is_told_apart(folder: Path) -> None:
    (folder / "train.py").write_text(
        "from jax._src.mesh import thread_resources\n\nprint(thread_resources.env.physical_mesh)\n"
    )
    assert names(report("--upgrade-to", "0.8.0")["needed"]) == {("", "", "unknown"): ["jax._src.mesh.thread_resources"]}


def test_a_private_name_is_in_the_group_of_its_release(folder: Path) -> None:
    (folder / "train.py").write_text(
        "from jax._src import checkify, core\nfrom jax._src.maps import xmap\n\n"
        "print(core.ConcreteArray, checkify.Out)\n"
        "try:\n    from jax._src.core import thread_local_state\nexcept ImportError:\n    thread_local_state = None\n"
    )
    found = report("--upgrade-to", "0.8.0")
    assert names(found["needed"]) == {
        ("jax", "0.4.31", "stops"): ["jax._src.maps.xmap"],
        ("jax", "0.4.36", "stops"): ["jax._src.core.ConcreteArray"],
    }
    assert names(found["later"]) == {("jax", "0.11.2", "stops"): ["jax._src.checkify.Out"]}
    assert not found["unknown"]
    assert names(found["settled"]) == {("jax", "0.4.36", "stops"): ["jax._src.core.thread_local_state"]}


def test_every_name_of_the_index_is_in_its_group(folder: Path) -> None:
    uses = [name for name in old_names() if not any(other.startswith(f"{name}.") for other in old_names())]
    imports = "".join(f"import {package}\n" for package in (*TITLES, "jaxlib"))
    (folder / "train.py").write_text(imports + "".join(f"{name}\n" for name in uses))
    found = report("--upgrade-to", last_releases()["jax"])
    assert not found["later"]
    places = {
        item["name"]: (group["change"], group["release"])
        for part in ("needed", "warned", "unknown")
        for group in found[part]
        for item in group["items"]
    }
    assert set(uses) <= places.keys()
    for name in uses:
        row = old_names()[name]
        change, release = places[name]
        assert change == ("stops" if row.is_gone else "warns"), name
        assert release == (row.gone_since if row.is_gone else row.changes[-1][0]) or change == "warns", name
        assert numbers(release) <= numbers(last_releases()[row.package]), name


@pytest.mark.parametrize("wanted", ["0.4.30", "0.8.2", "0.10.0", "0.11.2"])
def test_a_name_that_is_gone_in_a_release_is_needed_for_it(folder: Path, wanted: str) -> None:
    """Whatever later releases made of it: some names are there again."""
    draw = random.Random(wanted)
    of_jax = [row for row in old_names().values() if row.package == "jax" and row.changes]
    back = [row for row in of_jax if row.changes[-1][1] == "there"]
    uses = {row.name: row for row in (*back, *draw.sample(of_jax, 150))}
    (folder / "train.py").write_text("import jax, jaxlib\n" + "".join(f"{name}\n" for name in uses))
    found = report("--upgrade-to", wanted)
    needed = {item["line"] for group in found["needed"] if group["change"] == "stops" for item in group["items"]}
    assert len(back) > 10
    for line, row in enumerate(uses.values(), 2):
        states = [state for release, state in row.changes if numbers(release) <= numbers(wanted)]
        assert (line in needed) == (states[-1:] in (["raises"], ["gone"])), (row.name, row.changes)


def test_parts_and_meanings_have_their_release(program: Path) -> None:
    (program / "train.py").write_text(
        "import jax\nfrom flax import nnx\n\n\ndef f(key):\n"
        "    return jax.random.normal(key, (2,)), nnx.scan(f, state_axes={})\n"
    )
    text = run("modernize", "--check", "--upgrade-to", "0.8.0", "train.py").stdout
    assert "train.py:6:12: `jax.random.normal`: since JAX 0.5.0 it gives" in text.partition("What stops working")[0]
    assert "is gone since Flax 0.9.0" in text.partition("What stops working, for a person (1)")[2]


# Codemods of what was gone or changed before JAX 0.4.13, where the index begins, or changes by choice.
_HAVE_NONE = {
    "keep_spec_tuples",
    "move_partition_spec",
    "rename_host_functions",
    "rename_multimesh",
    "replace_constraint",
    "replace_first_register_task",
    "replace_multimesh_jit",
    "replace_old_mesh",
    "replace_pjit",
    "replace_pmap",
    "replace_pmap_sharding",
    "replace_tree_functions",
    "replace_use_mesh",
    "report_pjit_names",
}


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_whatever_is_rewritten_has_a_release(fixture: Path) -> None:
    """Of names that were gone before the index begins, and of programs for MultiMesh, none is known."""
    registry = ModernizeRegistry()
    results = read_case(fixture).results.values()
    found = upgrade_of(results, {}, lambda codemod, name: registry[codemod].change_of(name))
    assert {
        (item.name, item.detail, item.text)
        for group in (*found.needed, *found.unknown)
        if not group.package
        for item in group.items
        # Modules that became values long ago.
        if item.name not in ("jax.config", "flax.config")
        if item.outcome == "rewritten" and not _HAVE_NONE.issuperset(item.detail.split(", "))
    } == set()


NEWER = """\
import flax
import jax
from flax import nnx
from flax.nnx import List as Layers

layers = nnx.List([nnx.Dict(x=1), Layers([])])
spec = jax.P("x")
found = getattr(nnx, "List")
if hasattr(nnx, "List"):
    layers = nnx.List([])
if flax.__version__ >= "0.12":
    layers = nnx.List([])
try:
    from flax.nnx import Dict
except ImportError:
    Dict = dict
other = getattr(nnx, "List", list)
"""


def newer(*options: str, part: str = "newer") -> dict[str, tuple[str, str]]:
    groups = report(*options)[part]
    return {
        f"{item['path']}:{item['line']}:{item['column']}": (item["name"], item["outcome"])
        for group in groups
        for item in group["items"]
    }


def test_names_that_the_target_lacks_are_told(folder: Path) -> None:
    """In a file that has no old name; some were there before, and came back."""
    (folder / "train.py").write_text(NEWER)
    found = newer("--upgrade-to", "0.6.0", "--upgrade-to", "flax==0.11.0")
    assert found == {
        "train.py:4:22": ("flax.nnx.List", "by hand"),
        "train.py:6:10": ("flax.nnx.List", "by hand"),
        "train.py:6:20": ("flax.nnx.Dict", "by hand"),
        "train.py:6:35": ("flax.nnx.List", "by hand"),
        "train.py:7:8": ("jax.P", "by hand"),
        "train.py:8:22": ("flax.nnx.List", "by hand"),
    }
    settled = newer("--upgrade-to", "0.6.0", "--upgrade-to", "flax==0.11.0", part="settled")
    assert settled == {
        "train.py:10:14": ("flax.nnx.List", "left"),
        "train.py:12:14": ("flax.nnx.List", "left"),
        "train.py:14:26": ("flax.nnx.Dict", "left"),
    }
    result = upgrade("--upgrade-to", "0.6.0", "--upgrade-to", "flax==0.11.0")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "To run on JAX 0.6.0, Flax 0.11.0, 6 uses of names that came later are for a person."
    )
    assert "  train.py:4:22: `flax.nnx.List` came back with Flax 0.12.0; upgrade to Flax 0.12.0, or do" in result.stdout
    assert (
        "    also at train.py:6:10 (`nnx.List`), train.py:6:20 (`nnx.Dict`), train.py:6:35 (`Layers`)" in result.stdout
    )
    assert "  train.py:7:8: `jax.P` came with JAX 0.7.0; upgrade to" in result.stdout
    markdown = upgrade("--upgrade-to", "flax==0.11.0", "--format", "markdown").stdout
    assert "- `train.py:4:22`: `flax.nnx.List` came back with Flax 0.12.0" in markdown
    assert upgrade("--upgrade-to", "flax==0.12.0").stdout == "Nothing in these files keeps them from Flax 0.12.0.\n"


def test_names_that_are_guarded_need_nothing(folder: Path) -> None:
    (folder / "train.py").write_text("from flax import nnx\nif hasattr(nnx, 'List'):\n    nnx.List([])\n")
    result = upgrade("--upgrade-to", "flax==0.11.0")
    assert result.exit_code == 0
    assert (
        "`nnx.List` came back with Flax 0.12.0; the `if` of line 2 already chooses by the version of Flax"
        in result.stdout
    )


def test_names_that_the_target_lacks_are_found_by_way_of_the_project(folder: Path) -> None:
    (folder / "compat.py").write_text("from flax import nnx as modules\n")
    (folder / "stars.py").write_text("from flax.nnx import *\nx = List([])\n")
    (folder / "train.py").write_text("from compat import modules\nx = modules.List([])\n")
    cell = {"cell_type": "code", "metadata": {}, "source": "from flax import nnx\nnnx.List([])"}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (folder / "book.ipynb").write_text(json.dumps(book))
    assert newer("--upgrade-to", "flax==0.11.0") == {
        "book.ipynb, cell 1:2:1": ("flax.nnx.List", "by hand"),
        "stars.py:2:5": ("flax.nnx.List", "by hand"),
        "train.py:2:5": ("flax.nnx.List", "by hand"),
    }


def test_a_file_of_newer_names_that_cannot_be_read_is_told(folder: Path) -> None:
    (folder / "train.py").write_text("from flax import nnx\nnnx.List((\n")
    result = upgrade("--upgrade-to", "flax==0.11.0")
    assert result.exit_code == 2
    assert "train.py" in result.stderr


@pytest.mark.parametrize(
    ("wanted", "told"),
    [("0.5.3", "came after Orbax 0.5.0, with 0.5.23 at the latest"), ("0.4.8", "came with Orbax 0.5.0")],
)
def test_a_release_is_as_certain_as_what_was_read(folder: Path, wanted: str, told: str) -> None:
    """Of Orbax not every release is read."""
    rows = [row for row in newer_names().values() if row.package == "orbax.checkpoint"]
    release = told.split()[-1] if "latest" not in told else "0.5.23"
    row = next(row for row in rows if row.changes == ((release, "came"),))
    (folder / "train.py").write_text(f"import orbax.checkpoint\n{row.name}\n")
    assert told in upgrade("--upgrade-to", f"orbax-checkpoint=={wanted}").stdout


@pytest.mark.parametrize(
    "wanted", [{"jax": "0.4.30", "flax": "0.9.0", "optax": "0.2.0"}, {"jax": "0.8.0", "flax": "0.11.0"}]
)
def test_every_name_that_a_release_lacks_is_told(folder: Path, wanted: dict[str, str]) -> None:
    """Each in a file of its own kind: the first gate must let it through."""
    lacking = Lacking.of(wanted)
    draw = random.Random(str(wanted))
    uses = draw.sample(sorted(lacking.names), 60)
    for place, name in enumerate(uses):
        home, _, own = name.rpartition(".")
        (folder / f"use{place}.py").write_text(f"from {home} import {own} as it\n")
    (folder / "train.py").unlink()
    found = newer(
        *(option for package, release in wanted.items() for option in ("--upgrade-to", f"{package}=={release}"))
    )
    assert {name for name, _ in found.values()} == set(uses)
    assert len(found) == len(uses)


def test_nothing_but_an_upgrade_reads_the_newer_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the index nor the search for it costs anything in a plain run."""

    def fail() -> None:
        raise AssertionError("the index of newer names was read")

    monkeypatch.setattr("mmmodernize.names.newer_index.newer_names", fail)
    (folder / "train.py").write_text(NEWER)
    assert run("modernize", "--check", "--no-cache").exit_code == 0
    with pytest.raises(AssertionError, match="was read"):
        run("modernize", "--check", "--upgrade-to", "flax==0.11.0", "--no-cache")


def test_names_come_and_go_in_turn() -> None:
    """The changes of each name alternate, in the order of releases."""
    assert len(newer_names()) > 2000
    for row in newer_names().values():
        places = [row.releases.index(release) for release, _ in row.changes]
        assert places == sorted(set(places))
        kinds = [change for _, change in row.changes]
        assert all(one != other for one, other in itertools.pairwise(kinds)), row


OLDEST = {"jax": "0.4.30", "flax": "0.8.0", "optax": "0.2.0", "chex": "0.1.85", "orbax.checkpoint": "0.5.0"}


def advice() -> dict[str, str]:
    """All that is advised, by the old name."""
    changed = {f"{row.names[0]} {row.told}": row.told for row in CHANGED_MEANINGS}
    return {**{name: row.advice for name, row in old_names().items()}, **PART_ADVICE, **changed}


def test_advice_says_of_names_that_the_target_lacks_when_they_came() -> None:
    """Whatever is advised: each dotted name of a package in it exists at the target, or is told with its release."""
    lacking = Lacking.of(OLDEST)
    told = 0
    for name, text in advice().items():
        item = with_releases(UpgradeItem("a.py", 1, 1, "", name, "", "by hand", text), lacking)
        for word in re.findall(
            r"(?:jax|flax|optax|chex|orbax|jnp|nnx|nn)(?:\.\w+)+", " ".join(re.findall("`[^`]*`", text))
        ):
            full = (
                word.replace("jnp.", "jax.numpy.").replace("nnx.", "flax.nnx.") if word[:3] in ("jnp", "nnx") else word
            )
            if word != name and lacking.of_name(full) is not None:
                told += 1
                assert re.search(rf"`{re.escape(word)}` came (back )?(with|after) ", item.detail), (name, item.detail)
    assert told > 100


def test_advice_of_an_upgrade_says_when_the_names_in_it_came(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import jax\nx = jax.sharding.use_mesh\nfrom jax.experimental import attrs\nattrs.jax_getattr\n"
    )
    text = upgrade("--upgrade-to", "0.6.0").stdout
    assert "`jax.new_ref` came with JAX 0.7.2" in text
    text = upgrade("--upgrade-to", "0.8.0").stdout
    assert "came with" not in text
