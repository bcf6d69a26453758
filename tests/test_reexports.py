"""Names of the packages that files take from other files of the project: none is passed over, and none goes missing."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command import put, run
from fixture_files import source_files, told_lines

from mmmodernize.names.reexports import TakenNames
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.cli.quick import has_nothing_to_say
from mmrewrite.results import Rewrite

REGISTRY = ModernizeRegistry()
COMPAT = "import jax.numpy as xp\n"
# What gives `xp`, and what reads an old name of it, without a word of JAX.
PROJECTS: Mapping[str, Mapping[str, str]] = {
    "import": {"compat.py": COMPAT, "main.py": "from compat import xp\nxp.product(2)\n"},
    "another name": {"compat.py": COMPAT, "main.py": "from compat import xp as q\nq.product(2)\n"},
    "attribute": {"compat.py": COMPAT, "main.py": "import compat as c\n\nc.xp.product(2)\n"},
    "in a function": {"compat.py": COMPAT, "main.py": "def f():\n    from compat import xp\n    xp.product(2)\n"},
    "on two lines": {"compat.py": COMPAT, "main.py": "from \\\n    compat import (\n    xp,  # (\n)\nxp.product(2)\n"},
    "two files": {
        "compat.py": COMPAT,
        "two.py": "from compat import xp as q\n",
        "main.py": "from two import q\nq.product(2)\n",
    },
    "a module of a module": {
        "compat.py": COMPAT,
        "two.py": "import compat as c\n",
        "main.py": "import two\ntwo.c.xp.product(2)\n",
    },
    "a module by name": {
        "compat.py": COMPAT,
        "two.py": "import compat as c\n",
        "main.py": "from two import c\nc.xp.product(2)\n",
    },
    "assignment": {
        "compat.py": COMPAT,
        "two.py": "import compat\nq = compat.xp\n",
        "main.py": "from two import q\nq.product(2)\n",
    },
    "choice": {
        "compat.py": "import numpy\nimport jax.numpy\nxp = jax.numpy if FLAG else numpy\n",
        "main.py": "from compat import xp\nxp.product(2)\n",
    },
    "class": {
        "compat.py": "import jax.numpy as xp\n\n\nclass A:\n    np = xp\n",
        "main.py": "from compat import A\nA.np.product(2)\n",
    },
    "star": {"compat.py": COMPAT, "main.py": "from compat import *\nxp.product(2)\n"},
    "star of a star": {
        "compat.py": COMPAT,
        "two.py": "from compat import *\n",
        "main.py": "from two import xp\nxp.product(2)\n",
    },
    "attribute by star": {
        "compat.py": COMPAT,
        "two.py": "from compat import *\n",
        "main.py": "import two\ntwo.xp.product(2)\n",
    },
    "names by star": {"compat.py": "from jax import *\n", "main.py": "from compat import tree_map\ntree_map(abs, 1)\n"},
    "package": {
        "p/__init__.py": "from .compat import xp\n",
        "p/compat.py": COMPAT,
        "main.py": "from p import xp\nxp.product(2)\n",
    },
    "module of a package": {
        "p/__init__.py": "",
        "p/compat.py": COMPAT,
        "main.py": "import p.compat\np.compat.xp.product(2)\n",
    },
    "in a package": {"p/__init__.py": COMPAT, "p/main.py": "from . import xp\nxp.product(2)\n"},
    "module beside": {"p/__init__.py": "", "p/a.py": COMPAT, "p/main.py": "from . import a\na.xp.product(2)\n"},
    "folder above": {
        "p/__init__.py": "",
        "p/a.py": COMPAT,
        "p/q/__init__.py": "",
        "p/q/main.py": "from ..a import xp\nxp.product(2)\n",
    },
    "type checking": {
        "compat.py": COMPAT,
        "main.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from compat import xp\nx: 'xp.product'\n",
    },
    "only for type checking": {
        "compat.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax.numpy as xp\n",
        "main.py": "from compat import xp\nxp.product(2)\n",
    },
    "one of two modules": {
        "compat.py": "try:\n    import jax.numpy as xp\nexcept ImportError:\n    import numpy as xp\n",
        "main.py": "from compat import xp\nxp.product(2)\n",
    },
    "one of two imports": {
        "compat.py": COMPAT,
        "main.py": "try:\n    from compat import xp\nexcept ImportError:\n    import numpy as xp\nxp.product(2)\n",
    },
    "looked up by a module": {
        "compat.py": "import jax.numpy\n\n\ndef __getattr__(name):\n    return getattr(jax.numpy, name)\n",
        "main.py": "from compat import product\n",
    },
    "keyword of a function": {
        "compat.py": "from jax.numpy import clip\n",
        "main.py": "from compat import clip\nclip(2, a_min=3)\n",
    },
}


def modernized(files: Mapping[str, str]) -> dict[str, Rewrite]:
    data = {path: text.encode() for path, text in files.items()}
    results = modernize_project(source_files(data), REGISTRY, load=lambda path: data.get(path.removeprefix("./")))
    assert [result.failure for result in results if result.failure] == []
    return {result.path: result for result in results}


def is_told(result: Rewrite, line: int) -> bool:
    """Whether a line is changed, or anything is said about it."""
    lines = {item.line for item in (*result.left, *result.refusals)}
    return line in lines or any(hint.line == line for edit in result.edits for hint in edit.hints)


@pytest.mark.parametrize("files", PROJECTS.values(), ids=PROJECTS)
def test_an_old_name_of_what_another_file_gives_is_told(files: Mapping[str, str]) -> None:
    path = next(path for path in files if path.endswith("main.py"))
    assert is_told(modernized(files)[path], files[path].count("\n"))


@pytest.mark.parametrize("files", PROJECTS.values(), ids=PROJECTS)
def test_the_command_says_it_too(files: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, text in files.items():
        Path(path).parent.mkdir(exist_ok=True, parents=True)
        put(path, text)
    main = next(path for path in files if path.endswith("main.py"))
    # Also where the file that gives the name is not of the run.
    for paths in ((".",), (main,)):
        assert not has_nothing_to_say(("modernize", "--check", *paths))
        assert main in run("modernize", "--diff", *paths).output


# Names that lead to each other in a circle, and `xp` by one of them; the last makes longer and longer names.
CIRCLES: Mapping[str, Mapping[str, str]] = {
    "in a loop": {
        "main.py": f"{COMPAT}def f(a, b):\n    for _ in (1, 2):\n        a = b\n        b = a\n        b = xp\n"
        "    a.product(2)\n"
    },
    "defaults": {"main.py": f"{COMPAT}class A:\n    def f(self, xp=xp):\n        xp = xp\n        xp.product(2)\n"},
    "assignments": {
        "one.py": "import two\nfrom two import b\na = b\n",
        "two.py": "import one\nfrom one import a\nb = a\nimport jax.numpy as b\n",
        "main.py": "from one import a\na.product(2)\n",
    },
    "another way round": {
        "one.py": "from two import b\na = b\n",
        "two.py": "from one import a\nb = a\nimport jax.numpy as b\n",
        "three.py": "from two import b\nb.product(2)\n",
        "main.py": "from one import a\na.product(2)\n",
    },
    "longer names": {
        "one.py": "from two import b\na = b.x\nimport jax.numpy as a\n",
        "two.py": "from one import a\nb = a.y\n",
        "main.py": "from one import a\na.product(2)\n",
    },
    # Four to the power of the depth, which no run would end.
    "choices of longer names": {
        "main.py": f"{COMPAT}def f(a, k):\n"
        "    a = (a.b if k else a.c) or (a.d if k > 1 else a.e)\n"
        "    a = a.update(a.b) if k else xp\n    a.product(2)\n"
    },
}


@pytest.mark.parametrize("files", CIRCLES.values(), ids=CIRCLES)
def test_names_in_a_circle_are_followed(files: Mapping[str, str]) -> None:
    results = modernized(files)
    assert all(each.failure is None for each in results.values())
    assert is_told(results["main.py"], files["main.py"].count("\n"))


def test_a_notebook_takes_names_too() -> None:
    cell = '{"cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null, "source": [%s]}], '
    source = '"from compat import xp\\n", "xp.product(2)"'
    notebook = (cell % source) + '"metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    assert modernized({"compat.py": COMPAT, "main.ipynb": notebook})["main.ipynb"].changed


@pytest.mark.parametrize(
    "files",
    [
        {
            "utils.py": "import jax\n\n\ndef f(x):\n    return jax.vmap(x)\n",
            "main.py": "from utils import f\nf(product)\n",
        },
        {"utils.py": COMPAT, "main.py": "import utils\nimport numpy\nnumpy.product(utils.f)\n"},
        {"utils.py": COMPAT, "main.py": "import numpy as xp\nxp.product(2)\n"},
        {"utils.py": "import jax\nSIZE = jax.devices()\n", "main.py": "from utils import SIZE\nproduct(SIZE)\n"},
    ],
)
def test_what_takes_no_name_of_a_package_is_not_read(
    files: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, text in files.items():
        put(path, text)
    assert has_nothing_to_say(("modernize", "--check"))


# An import that nothing in its file uses any more, and what another file does with it.
USED = "from jax import core\n\n\ndef f(x):\n    return core.get_aval(x)\n"


@pytest.mark.parametrize(
    "others",
    [
        {"main.py": "from compat import core\nprint(core)\n"},
        {"main.py": "import compat\nprint(compat.core)\n"},
        {"main.py": "import compat\nprint(getattr(compat, 'core'))\n"},
        {"two.py": "from compat import *\n", "main.py": "from two import core\nprint(core)\n"},
        {"two.py": "from compat import *\n", "main.py": "from two import *\nprint(core)\n"},
        {"two.py": "from compat import *\n", "main.py": "import two\nprint(two.core)\n"},
        {"two.py": "import compat as c\n", "main.py": "import two\nprint(two.c.core)\n"},
        {"main.py": "import compat as c\n\n\nclass A:\n    m = c\n\n\nA().m.core\n"},
        {"main.py": "import compat\n\n\ndef g(m):\n    return m.core\n\n\ng(compat)\n"},
        {"main.py": "import compat\nvars(compat)['core']\n"},
        {"main.py": "import compat\nname = 'core'\ngetattr(compat, name)\n"},
        {"main.py": "import compat\nfrom operator import attrgetter\nattrgetter('core')(compat)\n"},
        {"main.py": "from importlib import import_module\nm = import_module('compat')\nm.core\n"},
        {"main.py": "import sys\nsys.modules['compat'].core\n"},
        {"main.py": "from unittest import mock\nwith mock.patch('compat.core'):\n    pass\n"},
        {"main.py": "def test(monkeypatch):\n    monkeypatch.setattr('compat.core.f', 1)\n"},
    ],
)
def test_an_import_that_another_file_takes_stays(others: Mapping[str, str]) -> None:
    assert b"from jax import core\n" not in modernized({"compat.py": USED})["compat.py"].result
    result = modernized({"compat.py": USED, **others})["compat.py"].result
    assert b"from jax import core\n" in result
    assert b"typeof" in result


def test_an_import_that_fails_is_not_kept_for_names_that_are_replaced() -> None:
    files = {
        "compat.py": "from jax.experimental import maps\nf = maps.Mesh\n",
        "main.py": "import compat\ncompat.maps.Mesh\n",
    }
    results = modernized(files)
    assert b"maps" not in results["compat.py"].result
    assert b"maps" not in results["main.py"].result


# Random projects. A name, an old attribute of it, and the import that gives it.
_ROOTS = (
    ("xp", "product", "import jax.numpy as xp"),
    ("numpy", "alltrue", "from jax import numpy"),
    ("j", "tree_map", "import jax as j"),
    ("tu", "tree_multimap", "import jax.tree_util as tu"),
    ("core", "get_aval", "from jax import core"),
)


def random_project(seed: int) -> tuple[dict[str, str], list[str]]:
    """Two to four files, each of which takes a module from the one before; the last reads old names of it.

    Returns:
        The files, and the modules that are in them, in this order.
    """
    draw = random.Random(seed)
    name, old, statement = draw.choice(_ROOTS)
    in_package = draw.random() < 0.4
    prefix = "pkg." if in_package else ""
    files = {"pkg/__init__.py": ""} if in_package else {}
    own = draw.choice(("", f"value = {name}.{old}\n"))
    texts = [f"{statement}\n{own}"]
    modules = ["m0"]
    # How the next file says the module: by a dotted name in the one before.
    said = name
    for number in range(1, draw.randint(2, 4)):
        before, other = f"{prefix}m{number - 1}", f"n{number}"
        head, _, rest = said.partition(".")
        forms = [
            (f"from {before} import {head}", said),
            (f"from {before} import {head} as {other}", f"{other}.{rest}".rstrip(".")),
            (f"import {before} as {other}", f"{other}.{said}"),
            (f"import {before}", f"{before}.{said}"),
            (f"import {before}\n{other} = {before}.{said}", other),
            (f"from {before} import *", said),
            (f"if True:\n    from {before} import {head}", said),
            (f"try:\n    from {before} import {head}\nexcept ImportError:\n    raise", said),
            (f"import {before} as {other}_\n\n\nclass {other}:\n    part = {other}_.{said}", f"{other}.part"),
        ]
        if in_package:
            forms.append((f"from . import m{number - 1}", f"m{number - 1}.{said}"))
        text, said = draw.choice(forms)
        texts.append(f"{text}\n")
        modules.append(f"m{number}")
    places = draw.choice((f"print({said}.{old})\n", f"def f():\n    return {said}.{old}\n", f"kept = [{said}.{old}]\n"))
    texts[-1] += places
    folder = "pkg/" if in_package else ""
    files |= {f"{folder}{module}.py": text for module, text in zip(modules, texts, strict=True)}
    return files, [f"{prefix}{module}" for module in modules]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_projects_are_told_of_every_old_name(first: int) -> None:
    for seed in range(first, first + 100):
        files, modules = random_project(seed)
        results = modernized(files)
        path = f"{modules[-1].replace('.', '/')}.py"
        line = next(
            node.lineno
            for node in ast.walk(ast.parse(files[path]))
            if isinstance(node, ast.Attribute) and node.lineno >= files[path].count("\n")
        )
        assert is_told(results[path], line), (seed, files)
        # Nothing that another file names is gone.
        rewritten = {each: result.result.decode() for each, result in results.items()}
        again = modernized(rewritten)
        assert not [each for each, result in again.items() if result.changed], (seed, files)


_STAND_INS = """
import sys, types
for name in ("jax", "jax.numpy", "jax.tree_util", "jax.core", "jax.tree", "jax.extend", "jax.extend.core"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    home, _, own = name.rpartition(".")
    if home:
        setattr(sys.modules[home], own, module)
"""
_NAMES = {
    "jax.numpy": ("prod", "all", "product", "alltrue"),
    "jax.tree": ("map",),
    "jax.tree_util": ("tree_map", "tree_multimap"),
    "jax": ("tree_map", "typeof"),
    "jax.core": ("get_aval",),
}


def test_random_projects_can_be_imported(tmp_path: Path) -> None:
    """With modules in place of JAX that have the old names and the new ones: what fails is a name between the files."""
    script = _STAND_INS + "".join(
        f"sys.modules[{home!r}].{name} = len\n" for home, names in _NAMES.items() for name in names
    )
    script += "import importlib, os, pathlib\n"
    for seed in range(120):
        files, modules = random_project(seed)
        folder = tmp_path / str(seed)
        for path, result in modernized(files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(result.result)
        script += (
            f"sys.path.insert(0, {str(folder)!r})\n"
            f"try:\n    getattr(importlib.import_module({modules[-1]!r}), 'f', print)()\n"
            f"except Exception as error:\n    raise SystemExit('{seed}: ' + repr(error))\n"
            f"sys.path.pop(0)\n"
            "for name in [each for each in sys.modules if each[:2] in ('pk', 'm0', 'm1', 'm2', 'm3')]:\n"
            f"    del sys.modules[name]\n"
        )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [1, -1])
def test_a_chain_of_files_is_followed_in_three_rounds(order: int) -> None:
    class Counting(TakenNames):
        taken = 0

        def _take(self, file: Any) -> bool:
            self.taken += 1
            return super()._take(file)

    files = {f"m{number}.py": f"from m{number - 1} import xp\n".encode() for number in range(1, 300)}
    files = dict(list({"m0.py": COMPAT.encode(), **files}.items())[::order])
    found = Counting(files, lambda _: None)
    assert len(found.takers) == 299
    assert found.taken <= 3 * len(files)


# A fork of a library, or a copy of one in the project: what it defines is no name of the library.
COPY = {
    "flax/__init__.py": "from flax import nnx as nnx\n",
    "flax/nnx/__init__.py": "from flax.nnx.graph import compose_mapping as compose_mapping\n",
    "flax/nnx/graph.py": "from jax import tree_map\ndef compose_mapping(a):\n    return tree_map(abs, a)\n",
}
USES = (
    "from flax import nnx\nnnx.compose_mapping(1)\n",
    "import flax.nnx.graph\nflax.nnx.graph.compose_mapping(1)\n",
    "from flax.nnx.graph import compose_mapping as f\nf(1)\n",
    "from flax.nnx import *\ncompose_mapping(1)\n",
    "from flax.nnx import graph\nmodule = graph\nmodule.compose_mapping(1)\n",
)


@pytest.mark.parametrize("text", USES)
def test_what_a_copy_of_a_library_defines_is_its_own(text: str) -> None:
    results = modernized({**COPY, "tests/main.py": text})
    assert not results["tests/main.py"].changed and not told_lines(results["tests/main.py"])
    # Of other packages its names are as old as elsewhere.
    assert results["flax/nnx/graph.py"].changed


@pytest.mark.parametrize("text", USES[1:3])
@pytest.mark.parametrize("path", ["flax/__init__.py", "flax.py"])
def test_what_a_folder_of_its_name_lacks_is_told(path: str, text: str) -> None:
    results = modernized({path: "def train(): ...\n", "main.py": text})
    assert told_lines(results["main.py"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from flax import nnx\nnnx.VariableState(1)\n", {2: "`flax.nnx` (flax/__init__.py) has no `VariableState`"}),
        ("from flax.nnx import VariableState as V\nV(1)\n", {1: "has no `VariableState`", 2: "has no `VariableState`"}),
        ("from flax import nnx\nmodule = nnx\nmodule.VariableState(1)\n", {3: "has no `VariableState`"}),
        # Names that the library did not lose are none of our business.
        ("from flax import nnx\nnnx.Param(1)\n", {}),
    ],
)
def test_what_a_copy_of_a_library_lacks_is_told_as_its_own(text: str, told: dict[int, str]) -> None:
    result = modernized({**COPY, "tests/main.py": text})["tests/main.py"]
    assert not result.changed and not result.left
    assert {each.line for each in result.refusals} == told.keys()
    assert all(told[each.line] in each.reason for each in result.refusals)
