"""Write old_names.jsonl: since when public names of JAX and its libraries warn, raise or are gone.

It lies in codemods/mmmodernize/names. Beside it, `old_parts.jsonl` has the arguments, members and flags that went, by
`index_parts.py`, and `newer_names.jsonl` the names that came after the first release of each package that is read, also
those that came back. `private_names.jsonl` has the names of private modules that went, by `index_private.py`.

    python tools/index_names.py [--wheels FOLDER] [--python INTERPRETER]

Wheels of every release in `RELEASES` are fetched with `pip download --no-deps` and read with `ast`; nothing of them is
imported or run. With --wheels, they stay in a folder for the next run. For a new release, run it and read the diff.
JAX 0.4.13 and 0.4.14 have no wheels, and building one would run them: a zip of the package of the former as
`jax-0.4.13-py3-none-any.whl` in that folder is read as well. Of releases before those in `RELEASES`, private names are
read from what that folder holds: wheels, and such zips, as of the tags `jax-v0.2.4` to `jax-v0.4.12` of JAX.

A name warns or raises if a deprecation table of its module says so, or if its function begins with a
`DeprecationWarning`. It is gone if the next release neither defines it nor has it in a table, and if INTERPRETER, which
has the last releases installed, cannot find it either. The Python that runs this must be as new as the newest wheel,
since it reads the syntax of all of them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from index_parts import LOOK, Parts, moved_rows, part_rows, parts_of
from index_private import Private, corrected_private, private_of, private_rows

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "codemods" / "mmmodernize" / "names" / "old_names.jsonl"
PARTS = INDEX.with_name("old_parts.jsonl")
NEWER = INDEX.with_name("newer_names.jsonl")
PRIVATE = INDEX.with_name("private_names.jsonl")

# Distribution, package, and the first release to read; of orbax, the first and the last release of every minor version,
# since there are more than a hundred.
RELEASES = (
    ("jax", "jax", "0.4.13"),
    ("flax", "flax", "0.6.0"),
    ("optax", "optax", "0.1.0"),
    ("chex", "chex", "0.1.5"),
    ("orbax-checkpoint", "orbax.checkpoint", "0.2.0"),
)
_SAMPLED = frozenset(("orbax-checkpoint",))
_ROOTS = tuple(f"{package.partition('.')[0]}." for _, package, _ in RELEASES)
# Wheels of new releases refuse older Pythons, but they are only read here.
_PYTHON = "3.13"

# Parts of the packages that programs do not import.
_INTERNAL = re.compile(
    r"(^|[._])(tests?|testing|test_util|benchmarks?|examples|tools|version|google)([._]|$)|_test$|\.conftest$"
    r"|^jax\.experimental\.(jax2tf|mosaic|pallas\.ops|sparse\.\w+|array_serialization\.\w+|colocated_python\.\w+)"
    r"|^jax\.(jaxlib|lib\.mlir|_src)|^jaxlib"
)
# Modules that others import and so seem to have, such as `jax.lax.itertools`.
_MODULES = frozenset((*sys.stdlib_module_names, "jax", "np", "onp"))
# Such as T and KT, which modules define for their annotations.
_TYPE_VARIABLE = re.compile(r"[A-Z]{1,2}$")


@dataclass(frozen=True)
class Named:
    """A name in one release.

    `state` is "there", "warns", "raises", or "hidden" for a name that is bound but not offered, such as the import of a
    helper. `message` is that of the warning or error, `origin` the place of what is named: of a hidden name only if
    that is in one of the packages that are read. `is_module` says that the name is a module.
    """

    state: str
    message: str = ""
    origin: str = ""
    is_module: bool = False


@dataclass
class Module:
    """What one module binds at its top level, in order: names, imports and entries of deprecation tables."""

    is_package: bool
    imported: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    deprecated: dict[str, Named] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


class Release:
    """The public names of one wheel."""

    def __init__(self, wheel: Path, package: str) -> None:
        self.package = package
        self.archive = zipfile.ZipFile(wheel)
        self.modules: dict[str, Module] = {}
        self.paths: dict[str, str] = {}
        for path in self.archive.namelist():
            if path.startswith(package.replace(".", "/") + "/") and path.endswith(".py"):
                self.paths[path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")] = path

    def module(self, name: str) -> Module | None:
        """A module of the package, public or not, read when it is first asked for."""
        if name in self.paths and name not in self.modules:
            path = self.paths[name]
            self.modules[name] = _read(self.archive.read(path), name, path.endswith("/__init__.py"))
        return self.modules.get(name)

    @cached_property
    def names(self) -> dict[str, Named]:
        """Every public name and module."""
        found: dict[str, Named] = {}
        for name in filter(_is_public, self.paths):
            module = self.module(name)
            assert module is not None
            found[name] = Named("there", "", name, is_module=True)
            for local in self._bound(name, module):
                full = f"{name}.{local}"
                if full not in self.paths:
                    found[full] = module.deprecated.get(local) or self._state(name, local)
            for local in self._hidden(name, 0):
                if local.isidentifier() and not local.startswith("_") and f"{name}.{local}" not in found:
                    found[f"{name}.{local}"] = Named("hidden", "", self._origin(name, local))
        return found

    def _origin(self, module: str, local: str) -> str:
        """The place of what a hidden name names, if that is in one of the packages that are read."""
        place = ".".join(filter(None, self.resolve(module, local)))
        return place if place.startswith(_ROOTS) and not _TYPE_VARIABLE.match(local) else ""

    def _hidden(self, name: str, depth: int) -> Iterator[str]:
        """Every name that a module binds, also by `import *`."""
        module = self.module(name)
        if module is None or depth > 6:
            return
        yield from (*module.imported, *module.defined, *module.aliases)
        for star in module.stars:
            yield from self._hidden(star, depth + 1)

    def _bound(self, name: str, module: Module) -> Iterator[str]:
        """The public names of a module: what it defines, re-exports as itself, or has in a deprecation table."""
        own = (*module.defined, *module.aliases)
        public = (local for local in own if not local.startswith("_") and not _TYPE_VARIABLE.match(local))
        exported = [
            local
            for local, (home, _, is_renamed) in module.imported.items()
            if not local.startswith("_")
            and (is_renamed or (module.is_package and self._is_own(home) and not self._is_module(local, module)))
        ]
        yield from dict.fromkeys((*public, *exported, *module.deprecated))

    def _is_module(self, local: str, module: Module) -> bool:
        home, member, _ = module.imported[local]
        return f"{home}.{member}" in self.paths

    def _is_own(self, module: str) -> bool:
        return f"{module}.".startswith(f"{self.package}.")

    def _state(self, module: str, local: str) -> Named:
        home, name = self.resolve(module, local)
        definer = self.module(home)
        statement = definer.defined.get(name) if definer is not None else None
        message = _warning(statement, definer) if statement is not None and definer is not None else None
        origin = f"{home}.{name}" if self._is_own(home) and statement is not None else ""
        return Named("there", "", origin) if message is None else Named("warns", message, origin)

    def resolve(self, module: str, local: str, depth: int = 0) -> tuple[str, str]:
        """Module and name at which a name is defined, as far as this package shows it."""
        found = self.module(module)
        if found is None or depth > 12 or local in found.defined:
            return module, local
        if local in found.imported:
            home, member, _ = found.imported[local]
            return self.resolve(home, member, depth + 1) if member else (home, "")
        if local in found.aliases:
            first, *rest = found.aliases[local].split(".")
            place = self.resolve(module, first, depth + 1) if first != local else (module, local)
            for part in rest:
                place = self.resolve(".".join(filter(None, place)), part, depth + 1)
            return place
        if f"{module}.{local}" in self.paths:
            return f"{module}.{local}", ""
        for star in found.stars:
            place = self.resolve(star, local, depth + 1)
            if place != (star, local) or local in getattr(self.module(star), "defined", ()):
                return place
        return module, local


def _is_public(name: str) -> bool:
    return not _INTERNAL.search(name) and not any(part.startswith("_") for part in name.split("."))


# Read one module


def _read(data: bytes, name: str, is_package: bool) -> Module:
    module = Module(is_package)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(data)
    except SyntaxError as error:
        # A module that is not read would look empty, and its names gone.
        python = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(f"{name} cannot be parsed by Python {python}: {error}; run this with a newer one") from error
    for statement in _top_level(tree.body):
        _add(module, statement, name)
    return module


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _top_level(getattr(statement, part, ()))


def _add(module: Module, statement: ast.stmt, name: str) -> None:
    if isinstance(statement, ast.ImportFrom):
        home = statement.module or ""
        if statement.level:
            parts = name.split(".")
            base = parts[: len(parts) - statement.level + module.is_package]
            home = ".".join(filter(None, (*base, home)))
        if statement.names[0].name == "*":
            module.stars.append(home)
            return
        for alias in statement.names:
            module.imported[alias.asname or alias.name] = (home, alias.name, alias.asname == alias.name)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            module.imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, "", False)
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        module.defined[statement.name] = statement
        if isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__":
            module.deprecated |= dict(_warned_of(statement, module))
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                _assign(module, target.id, statement.value, statement)


def _assign(module: Module, local: str, value: ast.expr, statement: ast.stmt) -> None:
    if local.endswith("deprecations") and isinstance(value, ast.Dict):
        for key, entry in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(entry, ast.Tuple) and len(entry.elts) == 2:
                message, instead = entry.elts
                is_gone = isinstance(instead, ast.Constant) and instead.value is None
                module.deprecated[str(key.value)] = Named("raises" if is_gone else "warns", _text(message, module))
        return
    dotted = _dotted(value)
    is_wrapped = isinstance(value, ast.Call) and any(_dotted(each) == local for each in value.args)
    if is_wrapped and isinstance(module.defined.get(local), ast.FunctionDef):
        # `jit = api_boundary(jit)` takes what `jit` takes.
        return
    if dotted is not None:
        module.aliases[local] = dotted
    else:
        module.defined[local] = statement
        module.texts[local] = _text(value, module)


def _warned_of(function: ast.FunctionDef, module: Module) -> Iterator[tuple[str, Named]]:
    """The names of which the `__getattr__` of a module warns: `if name == "Old": warnings.warn(...)`."""
    for part in function.body:
        match part:
            case ast.If(test=ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=str(name))]), body=body):
                calls = [each.value for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
                warned = [each for each in calls if (_dotted(each.func) or "").rpartition(".")[2] == "warn"]
                if warned:
                    yield name, Named("warns", _joined(warned[0], module))
            case _:
                pass


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None


def _text(node: ast.expr, module: Module) -> str:
    """A message as far as it is written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, module) or "..." for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left, module) + _text(node.right, module)
    if isinstance(node, ast.Name):
        return module.texts.get(node.id, "")
    return ""


def _warning(statement: ast.stmt, module: Module) -> str | None:
    """The message with which a function or class warns in any case that it is deprecated; None if it does not."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        maker = (_dotted(statement.value.func) or "").rpartition(".")[2]
        return _joined(statement.value, module) if "deprecated" in maker else None
    if isinstance(statement, ast.ClassDef):
        makers = [each for each in statement.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return _warning(makers[0], module) if makers else None
    if not isinstance(statement, ast.FunctionDef):
        return None
    for decorator in statement.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if "deprecated" in (_dotted(call) or "").rpartition(".")[2]:
            return _joined(decorator, module)
    for part in statement.body[:4]:
        call_ = part.value if isinstance(part, ast.Expr) else None
        if isinstance(call_, ast.Call) and (_dotted(call_.func) or "").rpartition(".")[2] == "warn":
            given = [*call_.args, *(keyword.value for keyword in call_.keywords)]
            if any((_dotted(argument) or "").endswith("DeprecationWarning") for argument in given):
                return _joined(call_, module)
    return None


def _joined(node: ast.expr, module: Module) -> str:
    if not isinstance(node, ast.Call):
        return ""
    texts = (_text(argument, module) for argument in (*node.args, *(keyword.value for keyword in node.keywords)))
    return next((text for text in texts if text), "")


# Compare the releases


def rows(releases: Mapping[str, Mapping[str, Named]]) -> Iterator[dict[str, object]]:
    """A row for each name that the last release does not have as it was, from the names of each release in order."""
    versions = list(releases)
    last = releases[versions[-1]]
    homes: dict[str, list[str]] = {}
    for name, named in last.items():
        if named.state == "there":
            homes.setdefault(named.origin, []).append(name)
    every = sorted({name for names in releases.values() for name in names})
    gone: set[str] = set()
    for name in every:
        since, message, origin = _changes(name, releases)
        if name.rpartition(".")[2] in _MODULES and not origin:
            # An import; what the package itself defines may be called as a module is, such as `jax.core.token`.
            continue
        if not since or (since[-1][1] == "there" and not message):
            continue
        if since[-1][1] == "gone":
            gone.add(name)
            if name.rpartition(".")[0] in gone and not message:
                # The row of the module stands for all that it held.
                continue
        row: dict[str, object] = {"name": name, "since": since}
        if message:
            row["message"] = " ".join(message.split())
        instead = _home_today(name, message, origin, homes.get(origin, ()) if origin else (), last)
        like = _like_today(name, origin, last)
        if instead is not None:
            row["instead"] = [instead, _there_since(instead, releases)]
        elif like is not None and since[-1][1] == "gone":
            row["like"] = like
        yield row


def _there_since(name: str, releases: Mapping[str, Mapping[str, Named]]) -> str:
    """The release from which on a name of the last one is there."""
    lacking = [place for place, names in enumerate(releases.values()) if name not in names]
    return list(releases)[max(lacking, default=-1) + 1]


def _like_today(name: str, origin: str, last: Mapping[str, Named]) -> str | None:
    """What a module around has under the same last name in the last release, or what came from another package."""
    home, _, own = name.rpartition(".")
    if origin and origin.partition(".")[0] != name.partition(".")[0]:
        return origin if _is_public(origin) else None
    around = (".".join(home.split(".")[:count]) for count in range(home.count("."), 0, -1))
    found = ((each, last[each]) for place in around if (each := f"{place}.{own}") in last)
    return next((each for each, named in found if named.state == "there" and not named.is_module), None)


def once_modules(releases: Mapping[str, Mapping[str, Named]]) -> Iterator[dict[str, object]]:
    """A row for each module of before that is an attribute of the module around it today, and no module any more."""
    versions = list(releases)
    last_with = {
        name: place for place, names in enumerate(releases.values()) for name, named in names.items() if named.is_module
    }
    for name, place in sorted(last_with.items()):
        if place + 1 < len(versions):
            yield {"module": name, "since": [[versions[place + 1], "gone"]]}


def _home_today(name: str, message: str, origin: str, same: Sequence[str], last: Mapping[str, Named]) -> str | None:
    """Where the last release has the same thing: by its message under the same last name, or by its definition."""
    own = name.rpartition(".")[2]
    for found in re.findall(r"\b[Uu]se:? `?([a-z]\w*(?:\.\w+)+)", message):
        if found.rpartition(".")[2] == own and found in last and last[found].state == "there":
            return str(found)
    names = (own, origin.rpartition(".")[2])
    others = [other for other in same if other != name and other.rpartition(".")[2] in names]
    return min(others, key=lambda other: (other.count("."), len(other), other)) if others else None


def _changes(name: str, releases: Mapping[str, Mapping[str, Named]]) -> tuple[list[list[str]], str, str]:
    """Since when a name is in which state; the last message, and the last place of what it named."""
    since: list[list[str]] = []
    before, message, origin = None, "", ""
    for version, names in releases.items():
        named = names.get(name)
        state = named.state if named is not None else "gone"
        if named is not None:
            message, origin = named.message or message, named.origin or origin
        if state == "hidden":
            state = "there"
        if before is None:
            if named is None or (named.state == "hidden" and not named.origin):
                continue
            if state == "there":
                before = state
                continue
        if state != before:
            since.append([version, state])
            before = state
    while since and since[0][1] == "there":
        since.pop(0)
    return since, message, origin


# Fetch the wheels


def _known_versions(distribution: str) -> list[str]:
    command = [sys.executable, "-m", "pip", "index", "versions", distribution, "--python-version", _PYTHON]
    answer = subprocess.run([*command, "--only-binary=:all:"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Available versions: (.*)", answer)
    return sorted(found[1].split(", "), key=_numbers) if found else []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _wanted(distribution: str, first: str) -> list[str]:
    known = [version for version in _known_versions(distribution) if _numbers(version) >= _numbers(first)]
    if distribution not in _SAMPLED:
        return known
    minors: dict[tuple[int, ...], list[str]] = {}
    for version in known:
        minors.setdefault(_numbers(version)[:2], []).append(version)
    return list(dict.fromkeys(version for group in minors.values() for version in (group[0], group[-1])))


def _wheel(distribution: str, version: str, folder: Path) -> Path | None:
    """The wheel of a release, None if it has none."""
    pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", _PYTHON, "--dest", str(folder), f"{distribution}=={version}"]
        answer = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if answer.returncode and "No matching distribution found" not in answer.stderr:
            raise SystemExit(answer.stderr)
    return next(folder.glob(pattern), None)


def _older_wheels(distribution: str, first: str, folder: Path) -> dict[str, Path]:
    """The releases before the first one of which the folder holds a wheel."""
    found = {wheel.name.split("-")[1]: wheel for wheel in folder.glob(f"{distribution.replace('-', '_')}-*.whl")}
    return {each: found[each] for each in sorted(found, key=_numbers) if _numbers(each) < _numbers(first)}


def _read_wheel(wheel: Path, package: str) -> tuple[dict[str, Named], Parts, dict[str, Private]]:
    release = Release(wheel, package)
    return release.names, parts_of(release), private_of(release)


def _read_private(wheel: Path, package: str) -> dict[str, Private]:
    return private_of(Release(wheel, package))


def _index(folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """The rows of the files, each with its file."""
    for distribution, package, first in RELEASES:
        versions = _wanted(distribution, first)
        with ThreadPoolExecutor(4) as threads:
            found = threads.map(lambda version, name=distribution: _wheel(name, version, folder), versions)
            wheels = {version: wheel for version, wheel in zip(versions, found, strict=True) if wheel is not None}
        for version in versions:
            if version not in wheels:
                print(f"{distribution} {version} has no wheel and is not read", file=sys.stderr)
        with ProcessPoolExecutor() as workers:
            read = list(workers.map(_read_wheel, wheels.values(), [package] * len(wheels)))
            older = _older_wheels(distribution, first, folder)
            read_older = list(workers.map(_read_private, older.values(), [package] * len(older)))
        names = {version: names for version, (names, _, _) in zip(wheels, read, strict=True)}
        head = {"package": package, "releases": list(wheels)}
        yield from ((head, path) for path in (INDEX, PARTS))
        yield from ((row, INDEX) for row in (*rows(names), *once_modules(names)))
        parts = {version: parts for version, (_, parts, _) in zip(wheels, read, strict=True)}
        yield from ((row, PARTS) for row in part_rows(parts))
        yield from ((row, PARTS) for row in moved_rows(parts, _moves(package)))
        yield from ((row, NEWER) for row in newer_rows(names, package))
        private = dict(zip(older, read_older, strict=True))
        private |= {version: private for version, (_, _, private) in zip(wheels, read, strict=True)}
        yield {"package": package, "releases": list(private)}, PRIVATE
        yield from ((row, PRIVATE) for row in private_rows(private, names[versions[-1]]))


def _moves(package: str) -> Mapping[str, str]:
    """The names of a package that codemods move, with their new ones."""
    sys.path[:0] = [str(ROOT), str(ROOT / "codemods")]
    try:
        from mmmodernize.registry import ModernizeRegistry

        moved = [pair for codemod in ModernizeRegistry().values() for pair in codemod.moved.items()]
    finally:
        del sys.path[:2]
    return {old: new for old, new in moved if old.startswith(f"{package}.")}


def newer_rows(releases: Mapping[str, Mapping[str, Named]], package: str) -> Iterator[dict[str, Any]]:
    """A row for each release and module with the names that came there, or went there and came back later.

    A name that is bound but not offered is there as well, since code can use it; it came if it was offered after that.
    The row of a module stands for the names that came and went with it.
    """
    yield {"package": package, "releases": list(releases)}
    order = list(releases)
    changes: dict[tuple[int, str, str], list[str]] = {}
    found: dict[str, set[tuple[int, str]]] = {}
    # A module is before its names.
    for name in sorted({name for names in releases.values() for name in names}):
        home, _, own = name.rpartition(".")
        found[name] = set(_comings(name, releases))
        if not found[name] <= found.get(home, set()):
            for place, change in found[name]:
                changes.setdefault((place, home, change), []).append(own)
    for place, home, change in sorted(changes):
        yield {change: order[place], "in": home, "names": changes[place, home, change]}


def _comings(name: str, releases: Mapping[str, Mapping[str, Named]]) -> Iterator[tuple[int, str]]:
    """The places of the releases in which a name came, and of those in which it went before it came back."""
    states = [names[name].state if name in names else "gone" for names in releases.values()]
    is_there = [state not in ("gone", "raises") for state in states]
    for place in range(1, len(states)):
        is_offered = any(state in ("there", "warns") for state in states[place:])
        if is_there[place] != is_there[place - 1] and is_offered:
            yield place, "came" if is_there[place] else "went"


# Prints, for each name of a list in JSON, whether it is there; null where the package is not installed.
_LOOK = """
import importlib, importlib.util, json, logging, sys, warnings
logging.disable()
warnings.simplefilter("ignore")
def exists(name):
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
installed = {}
for name in json.load(sys.stdin):
    package = name.partition(".")[0]
    if package not in installed:
        installed[package] = importlib.util.find_spec(package) is not None
    print(json.dumps(exists(name) if installed[package] else None))
"""


def corrected(found: Sequence[dict[str, object]], python: str) -> Iterator[dict[str, object]]:
    """The rows, without names that an interpreter with the last releases has although their source does not show it.

    Of modules of before, those stay that it has under their name. Modules made at import, and `import *` of what is
    made so, cannot be read. Names that are silently gone after a warning are marked so.
    """
    names = [row.get("name", row.get("module")) for row in found if "releases" not in row]
    looked = subprocess.run(
        [python, "-c", _LOOK], input=json.dumps(names), capture_output=True, text=True, check=True
    ).stdout
    exists = dict(zip(names, map(json.loads, looked.splitlines()), strict=True))
    releases: list[str] = []
    for row in found:
        if "releases" in row:
            releases = list(map(str, row["releases"]))  # type: ignore[call-overload]
            yield row
            continue
        if "module" in row:
            if exists[row["module"]]:
                yield row
            continue
        since: list[list[str]] = row["since"]  # type: ignore[assignment]
        there = exists[row["name"]]
        if there and since[-1][1] == "gone":
            continue
        if there is False and since[-1][1] == "there":
            row = {**row, "since": [*since[:-1], [since[-1][0], "gone"]]}
        elif there is False and since[-1][1] == "warns":
            print(f"{row['name']} only warns by its source, and is not in {releases[-1]}", file=sys.stderr)
        yield row


def corrected_parts(found: Sequence[dict[str, Any]], python: str) -> list[dict[str, Any]]:
    """The rows about parts, without those that an interpreter with the last releases has."""
    wanted = [row for row in found if "package" not in row]
    looked = subprocess.run(
        [python, "-c", LOOK], input=json.dumps(wanted), capture_output=True, text=True, check=True
    ).stdout
    there = dict(zip(map(id, wanted), map(json.loads, looked.splitlines()), strict=True))
    return [row for row in found if not there.get(id(row))]


def main() -> None:
    """Write the index."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, help="keep the wheels in this folder")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the last releases installed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.wheels or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = list(_index(folder))
    of = {path: [row for row, place in found if place == path] for path in (INDEX, PARTS, NEWER, PRIVATE)}
    _write(INDEX, corrected(of[INDEX], given.python))
    _write(PARTS, corrected_parts(of[PARTS], given.python))
    _write(NEWER, of[NEWER])
    _write(PRIVATE, corrected_private(of[PRIVATE], given.python))


def _write(path: Path, found: Iterable[Mapping[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in found]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
