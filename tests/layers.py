"""Which folder may import which: the table, and the imports in a tree of sources that break it.

Imports are read from the syntax tree, so those inside functions and under `TYPE_CHECKING` count as well, and so do
`import_module("x")` and `__import__("x")` of a literal.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = {"mmrewrite": "", "mmcodemods": "codemods/", "mmmodernize": "codemods/", "mmruntime": "runtime/"}

# From the bottom up: a folder, or a module that stands by itself, and what it may import besides the standard library
# and itself. `.source` is short for the row of that name in the same package; other names are rows in full, or packages
# that are not ours. A row may allow nothing but rows above it in this list, so there can be no circle. The name of a
# package is its `__init__.py`, and for `mmcodemods` it is the codemods, which never import one another, as those of
# `mmmodernize.rewrites` do not.
MAY_IMPORT = {
    # Plain data: the one part of the runtime that needs no JAX, and the one that the tool uses.
    "mmruntime.schedules": "",
    "mmrewrite": "",
    "mmrewrite.hints": "",
    "mmrewrite.results": "",
    "mmrewrite.tracking": "",
    "mmrewrite.source": "libcst",
    "mmrewrite.directives": ".results .source",
    "mmrewrite.project": ".results .source .directives",
    "mmrewrite.values": ".source .project",
    "mmrewrite.codemod": "libcst .results .source .directives .project .values",
    "mmrewrite.analysis": ".source .directives .project .values .codemod",
    "mmrewrite.engine": "fastjsonschema .results .tracking .source .directives .project .codemod",
    "mmrewrite.files": "pathspec platformdirs .results .tracking .source .directives",
    "mmrewrite.launch": "",
    "mmrewrite.mirror": ".results .tracking .source .engine .files .launch",
    "mmrewrite.plan": "mmruntime.schedules .results .tracking .source .directives .project .files .mirror",
    "mmrewrite.suggest": "mmruntime.schedules .results .tracking .source .directives .engine .files .mirror",
    "mmrewrite.verify": ".results .tracking .source .directives .project .files .launch .mirror .plan",
    "mmrewrite.testing": (".results .project .codemod .engine"),
    "mmrewrite.cli.libcst_tool": ("libcst .results .project .codemod .engine .files"),
    "mmrewrite.cli.config": ".directives .files",
    "mmrewrite.lsp": (
        "pygls lsprotocol mmrewrite .results .source .directives .project .codemod .engine .files .plan .suggest "
        ".cli.config"
    ),
    "mmrewrite.cli": (
        "click pygls mmrewrite .results .tracking .source .directives .codemod .engine "
        ".files .mirror .plan .suggest .verify .launch .cli.config .lsp"
    ),
    "mmrewrite.__main__": "mmrewrite .cli",
    "mmcodemods._task": "libcst mmrewrite.directives mmrewrite.codemod",
    "mmcodemods._constraint": "libcst mmrewrite.codemod",
    "mmcodemods._layer_loop": (
        "libcst mmrewrite.source mmrewrite.directives mmrewrite.values mmrewrite.codemod mmrewrite.analysis ._task"
    ),
    "mmcodemods": (
        "libcst mmrewrite.results mmrewrite.source mmrewrite.directives mmrewrite.project mmrewrite.values "
        "mmrewrite.codemod mmrewrite.analysis ._task ._constraint ._layer_loop"
    ),
    "mmmodernize.names.advice": "",
    "mmmodernize.names.markers": "mmrewrite.files",
    "mmmodernize.names.gate": ".names.markers",
    "mmmodernize.names.reexports": ".names.gate",
    "mmmodernize.names": ".names.advice .names.markers .names.gate .names.reexports",
    "mmmodernize.settings": "mmrewrite.engine",
    "mmmodernize.sites": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.values mmrewrite.codemod .names .settings"
    ),
    "mmmodernize.codemod": "mmrewrite.results mmrewrite.project .names.gate .sites",
    "mmmodernize.calls": "mmrewrite.source mmrewrite.project mmrewrite.values",
    "mmmodernize.meshes.partition_specs": "mmrewrite.source mmrewrite.project .names .sites .calls",
    "mmmodernize.types.libraries": "mmrewrite.source mmrewrite.project",
    "mmmodernize.meshes.mesh_values": "mmrewrite.source mmrewrite.project mmrewrite.values .names .types.libraries",
    "mmmodernize.meshes.mesh_contexts": (
        "mmrewrite.source mmrewrite.project mmrewrite.values .names .sites .types.libraries .meshes.mesh_values"
    ),
    "mmmodernize.modules": "mmrewrite.source mmrewrite.project mmrewrite.values .names .sites .calls",
    "mmmodernize.types": ("mmrewrite.source mmrewrite.project mmrewrite.values .names .sites .calls .types.libraries"),
    "mmmodernize.meshes": (
        "mmrewrite.source mmrewrite.project mmrewrite.values mmrewrite.codemod .names .sites .meshes.partition_specs "
        ".types.libraries .meshes.mesh_contexts .calls .types"
    ),
    "mmmodernize.text": "mmrewrite.source mmrewrite.project mmrewrite.values .names .sites .calls .modules .types",
    "mmmodernize.edits": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.codemod mmrewrite.engine .names.advice .names "
        ".sites"
    ),
    "mmmodernize.doubts": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.values mmrewrite.engine .names.advice .names "
        ".sites .calls .types .modules .text"
    ),
    "mmmodernize.decide": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.codemod mmrewrite.engine .names .settings "
        ".sites .codemod .modules .meshes .edits .doubts"
    ),
    "mmmodernize.rewrite": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.engine .names.gate .names.reexports .names "
        ".settings .codemod .decide"
    ),
    "mmmodernize.registry": "mmrewrite.codemod .codemod",
    "mmmodernize.marker_tables": ".names.markers .names .doubts .registry",
    "mmmodernize.upgrade": "mmrewrite.results mmrewrite.cli .names",
    "mmmodernize.command": (
        "mmrewrite.results mmrewrite.codemod mmrewrite.files mmrewrite.cli.config mmrewrite.cli click .names .settings "
        ".doubts .rewrite .registry .upgrade"
    ),
    "mmmodernize.product": (
        "mmrewrite.results mmrewrite.project mmrewrite.codemod mmrewrite.cli .names.gate .names.reexports .names "
        ".settings .rewrite .registry .command"
    ),
    "mmmodernize": "",
    "mmmodernize.rewrites": (
        "mmrewrite.results mmrewrite.source mmrewrite.project mmrewrite.values .names.advice .names.gate .names .sites "
        ".codemod .meshes.partition_specs .meshes.mesh_contexts .calls .modules .types .meshes .text "
        ".edits .doubts"
    ),
    # A path of before, for codemods of others.
    "mmrewrite.modernize": "mmmodernize.codemod",
    "mmruntime._check": "numpy",
    "mmruntime._compat": "jax numpy",
    "mmruntime._processes": "jax ._check ._compat",
    "mmruntime._core": "jax numpy ._check ._compat ._processes .schedules",
    "mmruntime._jaxpr": "jax numpy ._compat ._core",
    "mmruntime._exactness": "jax numpy ._compat ._core ._jaxpr",
    "mmruntime._frontend": "jax numpy flax ._check ._compat ._processes .schedules ._core ._jaxpr ._exactness",
    "mmruntime._calling": "jax numpy flax ._check ._core ._frontend",
    "mmruntime._slices": "jax numpy ._compat ._jaxpr",
    "mmruntime._partition.tracing": "jax numpy ._compat ._core ._jaxpr ._frontend",
    "mmruntime._partition.placement": "jax .schedules ._check ._compat ._core ._jaxpr ._partition.tracing",
    "mmruntime._partition.stacks": "jax ._compat ._core ._jaxpr ._partition.tracing ._partition.placement",
    "mmruntime._partition.programs": "jax ._compat ._core ._jaxpr ._frontend ._partition.tracing ._partition.placement",
    "mmruntime._partition.layouts": (
        "jax numpy ._compat ._core ._jaxpr ._frontend ._partition.tracing ._partition.placement "
        "._partition.stacks ._partition.programs"
    ),
    "mmruntime._partition.sums": (
        "jax numpy ._compat ._core ._jaxpr ._partition.tracing ._partition.placement ._partition.programs "
        "._partition.layouts"
    ),
    "mmruntime._partition.pipeline": (
        "jax numpy .schedules ._compat ._core ._jaxpr ._partition.placement ._partition.stacks ._partition.programs"
    ),
    "mmruntime._partition": "",
    "mmruntime._execution": (
        "jax numpy ._compat ._processes ._core ._jaxpr ._partition.placement ._partition.stacks ._partition.programs "
        "._partition.layouts ._partition.pipeline"
    ),
    "mmruntime._inspect": (
        "jax .schedules ._compat ._processes ._core ._jaxpr ._frontend ._partition.placement ._partition.programs "
        "._partition.layouts ._partition.sums ._partition.pipeline ._execution"
    ),
    "mmruntime._step": (
        "jax numpy ._check ._compat ._processes ._core ._jaxpr ._frontend ._calling ._slices ._partition.tracing "
        "._partition.placement ._partition.stacks ._partition.programs ._partition.layouts ._partition.sums "
        "._partition.pipeline ._execution ._inspect"
    ),
    "mmruntime._old_jax": "jax numpy ._compat",
    "mmruntime.flax": "jax numpy flax optax ._check ._compat ._core ._frontend ._execution ._step",
    "mmruntime.orbax": "jax orbax ._compat ._processes",
    "mmruntime._commands": "jax numpy ml_dtypes .schedules ._compat ._core ._frontend ._inspect ._step",
    "mmruntime.compat": "._core ._step ._old_jax",
    "mmruntime.test_util": "jax numpy absl ._core ._step",
    "mmruntime": "._core ._frontend ._step",
}
ORDER = {row: position for position, row in enumerate(MAY_IMPORT)}
PRIVATE_HOME = "mmruntime._compat"
# Not `jax.extend`, which is public.
PRIVATE = (
    "jax._src",
    "jax.interpreters",
    "jax.lib",
    "jaxlib",
    "jax.version",
    "jax.__version__",
    "jax.__version_info__",
)

_PRIVATE_ENDS = {name.rpartition(".")[2] for name in PRIVATE}


def tree_of(root: Path = ROOT) -> dict[str, str]:
    """The text of every module of the four packages, by its path in the repository."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for package, source_root in SOURCE_ROOTS.items()
        for path in sorted((root / source_root / package).rglob("*.py"))
    }


def violations(sources: Mapping[str, str]) -> list[str]:
    """A line for each import that the table forbids: file, line and the rule."""
    return [line for path, text in sources.items() for line in _violations_in(path, text)]


def allowed_by(row: str) -> set[str]:
    """What the modules of a row may import, in full."""
    package = row.partition(".")[0]
    return {f"{package}{name}" if name.startswith(".") else name for name in MAY_IMPORT[row].split()}


def row_of_file(path: str) -> str | None:
    """The row of a module of the repository; None for a folder or a file that has none."""
    name = _module_name(path)
    row = row_of_name(name)
    alone = row in SOURCE_ROOTS and row != "mmcodemods" and name != row
    return None if alone or row not in MAY_IMPORT else row


def row_of_name(name: str) -> str:
    """The row that a dotted name is in; its first part, if it is in none of our packages."""
    while name not in MAY_IMPORT and "." in name:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def imports(text: str, path: str) -> tuple[tuple[int, str], ...]:
    """Every import as a line and a full dotted name; `from a import b` is `a.b`."""
    parts = _module_name(path).split(".")
    package = parts if path.endswith("/__init__.py") else parts[:-1]
    found = []
    for node in ast.walk(_parsed(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            names = [start if alias.name == "*" else f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
            names = [name for name in _literal_arguments(node) if not name.startswith(".")]
        found += [(node.lineno, name) for name in names]
    return tuple(found)


# The last one only: trees of all files are millions of objects.
_parsed = functools.lru_cache(maxsize=1)(ast.parse)


def _last_name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _literal_arguments(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _module_name(path: str) -> str:
    inside = path.removeprefix("codemods/").removeprefix("runtime/")
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def _violations_in(path: str, text: str) -> tuple[str, ...]:
    row = row_of_file(path)
    if row is None:
        return (f"{path}:1: neither this file nor its folder has a row in the table of tests/layers.py",)
    found = []
    for line, name in imports(text, path):
        target = row_of_name(name)
        own = target == row and row not in ("mmcodemods", "mmmodernize.rewrites")
        if not own and target not in allowed_by(row) and target not in sys.stdlib_module_names:
            found.append(f"{path}:{line}: imports {name}, but {_rule(row, target)}")
    if row.startswith("mmruntime") and row != PRIVATE_HOME:
        for line, name in _private_names(text, path):
            found.append(f"{path}:{line}: {name} is private or a version of JAX, and belongs in {PRIVATE_HOME}")
    return tuple(found)


def _rule(row: str, target: str) -> str:
    if target == row:
        return "codemods never import one another"
    if target in ORDER and row.partition(".")[0] == target.partition(".")[0] and ORDER[target] > ORDER[row]:
        return f"{target} is above {row}"
    return f"{row} may not import {target}"


def _private_names(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Private parts of JAX, by import or by attribute, and questions for its version."""
    for line, name in imports(text, path):
        if any(f"{name}.".startswith(f"{private}.") for private in PRIVATE):
            yield line, name
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Attribute) and node.attr in _PRIVATE_ENDS and ast.unparse(node) in PRIVATE:
            yield node.lineno, ast.unparse(node)
        if (
            isinstance(node, ast.Call)
            and _last_name(node.func) == "version"
            and {"jax", "jaxlib"} & set(_literal_arguments(node))
        ):
            yield node.lineno, ast.unparse(node)
