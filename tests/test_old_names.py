"""The index of old names: each is rewritten or reported, however it is written, and files without any cost nothing."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from fixture_files import modernize_text, source_files, told_lines
from wheels import write_wheel

from mmmodernize.names.advice import ADVICE
from mmmodernize.names.name_index import (
    INDEX_FILE,
    OLDER_FILE,
    OldName,
    last_releases,
    may_use_old_names,
    old_names,
    once_modules,
)
from mmmodernize.names.private_index import private_names
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = ModernizeRegistry()


def lines_of(name: str, number: int) -> dict[str, list[str]]:
    """The lines that use a name, once, in each form; what they bind has the number in its name."""
    home, _, own = name.rpartition(".")
    package = name.partition(".")[0]
    outer, _, last = home.rpartition(".")
    found = {
        "import": [f"from {home} import {own} as name_{number}", f"value_{number} = name_{number}"],
        "attribute": [f"import {package}", f"value_{number} = {name}"],
        "module": [f"import {home} as module_{number}", f"value_{number} = module_{number}.{own}"],
        "call": [f"import {package}", f"value_{number} = {name}(1)"],
        "assigned": [f"import {package}", f"alias_{number} = {home}", f"value_{number} = alias_{number}.{own}"],
    }
    if outer:
        found["from"] = [f"from {outer} import {last} as last_{number}", f"value_{number} = last_{number}.{own}"]
    return found


FORMS = ("import", "attribute", "module", "call", "assigned", "from")


def program(form: str, names: Sequence[str]) -> tuple[str, dict[str, set[int]]]:
    """A program that uses names in one form, and the numbers of the lines of each, from 1."""
    lines: list[str] = []
    places: dict[str, set[int]] = {}
    for number, name in enumerate(names):
        mine = lines_of(name, number).get(form, [])
        if mine:
            places[name] = set(range(len(lines) + 1, len(lines) + 1 + len(mine)))
            lines += mine
    return "\n".join(lines) + "\n", places


@pytest.mark.parametrize("name", sorted(once_modules()))
def test_an_import_of_what_was_a_module_is_not_passed_over(name: str) -> None:
    for text in (f"import {name}\n", f"import {name} as other\n", f"from {name} import something\n"):
        result = modernize_text(text)
        assert result.changed or result.left or result.refusals, text


@pytest.mark.parametrize("form", FORMS)
def test_no_name_is_passed_over(form: str) -> None:
    names = [name for name in old_names() if all(part.isidentifier() for part in name.split("."))]
    assert len(names) > 1000
    places, files = {}, {}
    for start in range(0, len(names), 50):
        path = f"part_{start}.py"
        text, places[path] = program(form, names[start : start + 50])
        files[path] = text.encode()
    results = modernize_project(source_files(files), REGISTRY)
    assert [result.failure for result in results if result.failure] == []
    silent = []
    for result in results:
        told = told_lines(result)
        silent += [name for name, lines in places[result.path].items() if told.isdisjoint(lines)]
    assert silent == []


@pytest.mark.parametrize("name", ["jax.core.get_aval", "jax.linear_util", "optax.maybe_update", "jax.util.safe_map"])
@pytest.mark.parametrize("form", FORMS)
def test_a_use_is_said_at_its_line_or_gone(name: str, form: str) -> None:
    text, _ = program(form, [name])
    if text.strip():
        result = modernize_text(text)
        is_reported = any(refusal.line == text.count("\n") for refusal in result.refusals)
        assert is_reported or (result.changed and name not in result.result.decode())


# Ways by which an old name is reached that no chain of names shows: programs below `import jax`, and the lines told.
UNSEEN: dict[str, tuple[dict[str, str], set[tuple[str, int]]]] = {
    name: ({"a.py": f"import jax\n{text}"}, {("a.py", line) for line in lines})
    for name, text, lines in (
        ("class", "class C:\n    j = jax\n\nC.j.tree_map(abs, 1)\n", [5]),
        ("part of a class", "class C:\n    trees = jax.tree_util\n\nC.trees.tree_multimap(abs, 1)\n", [5]),
        ("base", "class B:\n    j = jax\nclass C(B):\n    def f(self):\n        self.j.tree_map(abs, 1)\n", [6]),
        ("object", "def f(self):\n    self.jax = jax\n\n\ndef g(self):\n    self.jax.tree_map(abs, 1)\n", [7]),
        ("property", "class C:\n    xp = property(lambda self: jax)\n\n\nC().xp.tree_map(abs, 1)\n", [6]),
        ("parameter", "def f(j):\n    return j.tree_map(abs, 1)\n\n\nf(jax)\n", [3]),
        ("default", "def f(j=jax):\n    return j.tree_map(abs, 1)\n", [3]),
        ("result", "def get():\n    return jax\n\n\nget().tree_map(abs, 1)\n", [6]),
        ("table", "of = {'j': jax}\nof['j'].tree_map(abs, 1)\n", [3]),
        ("loop", "for j in (jax,):\n    j.tree_map(abs, 1)\n", [3]),
        ("choice", "import numpy\nx = (jax if len(numpy.e) else numpy).tree_map\n", [3]),
        ("lookup", "x = getattr(jax, 'experimental').maps\n", [2]),
        ("two lookups", "x = getattr(getattr(jax, 'tree_util'), 'tree_multimap')\n", [2]),
        ("names in a loop", "x = [getattr(jax, name) for name in ('tree_map', 'jit')]\n", [2]),
        ("start of a name", "def f(of):\n    return getattr(jax, f'tree_{of}')\n\n\nx = 'jax.tree_map'\n", [3, 6]),
        ("dictionary", "x = jax.__dict__['tree_map']\n", [2]),
        ("vars", "x = vars(jax)['tree_map']\n", [2]),
        ("attrgetter", "import operator\nx = operator.attrgetter('tree_map')(jax)\n", [3]),
        ("import_module", "import importlib\nimportlib.import_module('jax').tree_map(abs, 1)\n", [3]),
        ("relative", "import importlib\nx = importlib.import_module('.maps', 'jax.experimental')\n", [3]),
        ("sys.modules", "import sys\nx = sys.modules['jax'].tree_map\n", [3]),
        ("__import__", "x = __import__('jax').tree_map\n", [2]),
        ("type comment", "x = None  # type: jax.random.KeyArray\n", [2]),
        ("signature", "def f(x):\n    # type: (int) -> jax.random.KeyArray\n    return x\n", [3]),
        ("doctest", "'''\n>>> from jax import tree_map\n'''\n", [3]),
        ("doctest by alias", "import jax.numpy as jnp\n'''\n>>> jnp.DeviceArray\n'''\n", [4]),
        ("text of code", "exec('from jax import tree_map')\n", [2]),
    )
}
UNSEEN["star of a star"] = (
    {"pkg/__init__.py": "from jax import *\n", "a.py": "from pkg import *  # jax\ntree_map(abs, 1)\n"},
    {("a.py", 2)},
)
UNSEEN["module of a star"] = (
    {
        "pkg/__init__.py": "",
        "pkg/old.py": "from jax import *\n",
        "a.py": "from pkg import old as jax\njax.tree_map(abs, 1)\n",
    },
    {("a.py", 2)},
)


@pytest.mark.parametrize("case", UNSEEN)
def test_what_no_chain_of_names_shows_is_reported(case: str) -> None:
    texts, places = UNSEEN[case]
    files = {path: text.encode() for path, text in texts.items()}
    results = modernize_project(source_files(files), REGISTRY, load=lambda path: files.get(path.removeprefix("./")))
    assert places <= {(result.path, item.line) for result in results for item in result.left}
    assert not any(result.changed for result in results)


def test_a_module_of_another_package_is_no_alias() -> None:
    """`utils.jax` is JAX itself, wherever it is imported."""
    own = "from pkg import utils\nx = utils.jax.tree_map\n"
    files = {"pkg/__init__.py": b"", "pkg/utils.py": b"import jax\n", "a.py": own.encode()}
    results = modernize_project(source_files(files), REGISTRY, load=lambda path: files.get(path.removeprefix("./")))
    (changed,) = (result for result in results if result.changed)
    assert changed.result == b"import jax\nfrom pkg import utils\nx = jax.tree.map\n"


@pytest.mark.parametrize(
    "text",
    [
        # The members of these are the project's own.
        "class Tree:\n    def tree_map(self, f):\n        return f\n\n\ndef f(x):\n    return x.tree_map(jax)\n",
        # Nothing is kept of the module.
        "print(jax)\n\n\ndef f(x):\n    return x.tree_map(abs)\n",
        "def f(x):\n    return x.tree_map(abs)\n",
        "def f(x, name):\n    return getattr(jax, name)(x)\n",
    ],
)
def test_attributes_that_are_no_module_of_jax_are_not_reported(text: str) -> None:
    result = modernize_text(f"import jax\n{text}")
    assert not result.changed
    assert result.left == ()


def test_every_row_says_since_when_and_what_to_write() -> None:
    for row in old_names().values():
        assert row.changes
        assert len(row.advice) > 5
        assert row.name.startswith((f"{row.package}.", "jaxlib."))


@pytest.mark.parametrize(
    "name",
    [
        # Gone between JAX 0.2 and 0.4.13, the first that the script reads.
        "jax.core.unit",
        "jax.custom_transforms",
        "jax.config.enable_omnistaging",
        "jax.interpreters.xla.device_put",
        "jax.profiler.TraceContext",
        # Of what the script does not read.
        "jax.test_util.check_eq",
        "jax.tools.colab_tpu",
        "jaxlib.xla_extension",
    ],
)
def test_names_that_the_script_does_not_read_are_known(name: str) -> None:
    assert old_names()[name].is_gone


def test_what_a_row_says() -> None:
    row = OldName("jax.a.b", "jax", (("0.8.2", "warns"), ("0.10.0", "raises")), "jax.a.b was deprecated. Use jax.c.")
    assert row.history == "warns since JAX 0.8.2, raises since 0.10.0"
    assert row.advice == "JAX says: Use jax.c"
    assert row.gone_since == "0.10.0"
    back = OldName("jax.a.b", "jax", (("0.9.0", "raises"), ("0.11.0", "there")))
    assert not back.is_gone
    assert back.gone_since is None


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\n\nx = np.empty(3)\n",
        "import jax\n\n\n@jax.jit\ndef f(x):\n    return jax.tree.map(abs, x)\n",
        "# jax removed some things\nfrom numpy import moveaxis\n",
    ],
)
def test_the_first_gate_keeps_files_without_old_names_out(text: str) -> None:
    assert not may_use_old_names(text.encode())


def test_the_index_is_what_the_script_writes() -> None:
    """One JSON object to a line, so that the difference between two releases can be read."""
    lines = INDEX_FILE.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    heads = [row["package"] for row in rows if "releases" in row]
    assert heads == ["jax", "flax", "optax", "chex", "orbax.checkpoint"]
    assert lines == [json.dumps(row, ensure_ascii=False) for row in rows]


def test_a_release_is_read_without_importing_it(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from index_names import Release, rows
    finally:
        sys.path.remove(str(ROOT / "tools"))
    releases = {
        "1.0": {
            "jax/__init__.py": "import token\nfrom jax._src.a import f as f, g as g, h as h, copy as copy\n",
            "jax/_src/a.py": "f = g = h = copy = 1\n",
        },
        "1.1": {
            "jax/__init__.py": '_deprecations = {"g": ("Use jax.new.g.", None), "h": (f"jax.h is {1}" " old", 2)}\n',
            "jax/new.py": "def g(): raise SystemExit('imported')\nraise SystemExit('imported')\n",
        },
        "1.2": {
            "jax/__init__.py": (
                "if True:\n  from jax._src.a import f as f\nelse:\n  def __getattr__(name):\n"
                "    if name == 'f': warnings.warn('f is old.', DeprecationWarning)\n"
            ),
            "jax/new.py": "def g(): pass\n",
        },
    }
    wheels = {version: write_wheel(tmp_path, version, files) for version, files in releases.items()}
    names = {version: Release(wheel, "jax").names for version, wheel in wheels.items()}
    # A name that a module of Python has as well is one of the package where it defines it.
    assert list(rows(names)) == [
        {"name": "jax.copy", "since": [["1.1", "gone"]]},
        {"name": "jax.f", "since": [["1.1", "gone"], ["1.2", "warns"]], "message": "f is old."},
        {
            "name": "jax.g",
            "since": [["1.1", "raises"], ["1.2", "gone"]],
            "message": "Use jax.new.g.",
            "instead": ["jax.new.g", "1.1"],
        },
        {"name": "jax.h", "since": [["1.1", "warns"], ["1.2", "gone"]], "message": "jax.h is ... old"},
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import {0}.inner",
        "import {0}.inner as inner",
        "import {0}.inner.deepest as inner",
        "from {0} import inner",
        "from {0}.inner import f",
        "from {0}.inner import *",
        "from {0}.inner.deepest import *",
    ],
)
def test_imports_of_what_a_gone_module_held_are_told(statement: str) -> None:
    # Modules that have no row beneath them, as the row of the module stands for all that it held.
    modules = ["flax.deprecated", "flax.nn", "flax.optim", "jax.experimental.stax", "jax.experimental.maps"]
    files = {f"{module}.py": f"{statement.format(module)}\n".encode() for module in modules}
    results = modernize_project(source_files(files), REGISTRY)
    assert [[*told_lines(result)] for result in results] == [[1]] * len(modules)


# Rows by hand that say what a name was, each with how that was seen. Those of the script are so by the wheels.
SEEN = {
    "jax.experimental.optimizers": "the source of 0.2.24 and today's give the same bits on JAX 0.10.2 and 0.12.0.1",
    "jax.experimental.stax": "the source of 0.2.24 and today's give the same bits on JAX 0.10.2 and 0.12.0.1",
    "jax.experimental.PartitionSpec": "both are of `jax._src.partition_spec` in 0.4.10",
    "jax.experimental.pjit.NamedSharding": "both are of `jax._src.sharding_impls` in 0.4.10",
    "jax.experimental.pjit.PartitionSpec": "both are of `jax._src.partition_spec` in 0.4.10",
    "jax.interpreters.batching.not_mapped": "`not_mapped = None` in 0.4.35",
    "jax.interpreters.pxla.Mesh": "both are of `jax._src.mesh` in 0.4.10",
    "jax.interpreters.pxla.PartitionSpec": "both are of `jax._src.partition_spec` in 0.4.10",
    "jax.interpreters.xla.Device": "both are `xla_client.Device` in 0.4.7",
    "jax.nn.normalize": "it calls `standardize` in 0.3.5",
    "jax.numpy.round_": "`round_ = round` in 0.4.30",
    "jax.numpy.row_stack": "`row_stack = vstack` in 0.4.13",
    "jax.numpy.trapz": "`trapz` of 0.4.22 and `trapezoid` of 0.4.26 compute the same",
    "jax.sharding.MeshPspecSharding": "`MeshPspecSharding = NamedSharding` in 0.4.7",
    "jax.sharding.OpShardingSharding": "its class is `GSPMDSharding` in 0.4.10",
    "jaxlib.xla_client.weakref_lru_cache": "`jax._src.util` calls the one in JAX 0.5.3, the other in 0.6.0",
    "flax.core.lift.transform": "renamed between 0.3.5 and 0.4.0",
    "optax.InitUpdate": "`InitUpdate = GradientTransformation` in 0.0.2",
    "orbax.checkpoint.aggregate_handlers.PyTreeDef": "`PyTreeDef = jax.tree_util.PyTreeDef` in 0.1.0",
    "orbax.checkpoint.type_handlers.PyTreeDef": "`PyTreeDef = jax.tree_util.PyTreeDef` in 0.1.0",
}
SAYS_SO = re.compile(
    r"`([\w.]+)`(?:, which (?:is|was) the same|, which it (?:was|is|became)| is what has that name today)"
)


def test_what_is_said_to_be_the_same_is_there_and_is() -> None:
    pytest.importorskip("jax")
    by_hand = {
        json.loads(line).get("name") for line in OLDER_FILE.read_text(encoding="utf-8").splitlines()
    } | ADVICE.keys()
    seen = set()
    for name, row in old_names().items():
        said = SAYS_SO.search(row.advice)
        if said is None:
            continue
        seen |= {name} & by_hand
        new, release = row.instead or (said[1], "0.0.0")
        if new == "None" or not _is_installed(new, release):
            continue
        found, old = _at(said[1]), _at(name)
        assert found is not None, (name, new)
        # A module that is there still is named by it in `jax` alone. What only has the name may be another.
        assert row.like or old is None or old is found or isinstance(found, ModuleType), (name, new)
    assert seen == SEEN.keys()


@pytest.mark.slow
def test_what_is_said_of_private_names_is_there() -> None:
    pytest.importorskip("jax")
    for name, row in private_names().items():
        said = SAYS_SO.search(row.advice)
        if said is not None and _is_installed(row.package, last_releases()[row.package]):
            assert _at(said[1]) is not None, name


def _is_installed(name: str, release: str) -> bool:
    package = name.partition(".")[0]
    version = importlib.metadata.version({"orbax": "orbax-checkpoint"}.get(package, package))
    return tuple(map(int, version.split(".")[:3])) >= tuple(map(int, release.split(".")))


def _at(name: str) -> object | None:
    parts = name.split(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in range(len(parts), 0, -1):
            with contextlib.suppress(ImportError, AttributeError):
                return functools.reduce(getattr, parts[length:], importlib.import_module(".".join(parts[:length])))
    return None
