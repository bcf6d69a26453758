"""The names of private modules, those with a part `_src`, that a release removed: what `index_names.py` writes of them.

A row is about names of one module that went with one release. The row of a module stands for all that it held. What the
last release has under another name is told as `same`, the module with the same definition, or as `like`, one that
defines another of that name and the same parameters.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from index_names import Module, Named, Release

# What private modules import for their own use, and nobody takes from there.
_NO_NAMES_OF_THEIRS = frozenset((*sys.stdlib_module_names, "numpy", "scipy", "typing_extensions"))
_OF_TESTS = frozenset(("benchmarks", "testing", "tests"))
# Written in NumPy, with the names and parameters of what it is compared to.
_OF_REFERENCE = "jax._src.lax_reference."
_TYPE_VARIABLE = re.compile(r"_?[A-Z]{1,2}$")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Private:
    """A name of a private module in one release.

    `origin` is the place of what is named, as far as the package shows it. `digest` stands for the text of its
    definition, and `head` is what it is, with its name and its parameters; both are empty for other values.
    """

    origin: str
    digest: str = ""
    head: str = ""


def private_of(release: Release) -> dict[str, Private]:
    """Every name of the private modules of a release, and these modules."""
    found: dict[str, Private] = {}
    lines: dict[str, list[bytes]] = {}
    known: dict[int, tuple[str, str]] = {}
    for name in filter(_is_read, release.paths):
        found[name] = Private(name, head=f"module {name.rpartition('.')[2]}")
        for local in dict.fromkeys(_bound(release, name, 0)):
            home, own = release.resolve(name, local)
            definer = release.module(home)
            statement = definer.defined.get(own) if definer is not None else None
            told = ("", "")
            if isinstance(statement, _DEFINITIONS):
                if id(statement) not in known:
                    if home not in lines:
                        lines[home] = release.archive.read(release.paths[home]).splitlines()
                    known[id(statement)] = _digest(lines[home], statement), _head(statement)
                told = known[id(statement)]
            found.setdefault(f"{name}.{local}", Private(f"{home}.{own}" if own else home, *told))
    return found


def _is_read(name: str) -> bool:
    """Whether a module is private, and none of those that test or time the package."""
    parts = name.split(".")
    return "_src" in parts and not any(part in _OF_TESTS or part.endswith("_test") for part in parts)


def _digest(lines: Sequence[bytes], statement: _Definition) -> str:
    text = b"\n".join(lines[statement.lineno - 1 : statement.end_lineno])
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]


def _head(statement: _Definition) -> str:
    if isinstance(statement, ast.ClassDef):
        return f"class {statement.name}"
    given = statement.args
    named = [
        each.arg for each in (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg) if each
    ]
    return f"{statement.name}({', '.join(named)})"


def _bound(release: Release, name: str, depth: int) -> Iterator[str]:
    """The names that a module binds, also by `import *`, but for those that it imports from Python's own modules."""
    module = release.module(name)
    if module is None or depth > 6:
        return
    # `import jax` is for its own use as well.
    taken = (
        local for local, (home, own, _) in module.imported.items() if _is_of_packages(home) and (own or "." in home)
    )
    warned = (local for local, named in module.deprecated.items() if named.state != "raises")
    for local in (*taken, *module.defined, *module.aliases, *warned):
        is_hidden = local.startswith("__") or (depth and local.startswith("_")) or _TYPE_VARIABLE.match(local)
        if local.isidentifier() and not is_hidden and not _is_again_theirs(module, local):
            yield local
    for star in module.stars:
        yield from _bound(release, star, depth + 1)


def _is_of_packages(home: str) -> bool:
    return home.partition(".")[0] not in _NO_NAMES_OF_THEIRS


def _is_again_theirs(module: Module, local: str) -> bool:
    """Whether a name is one of Python's or NumPy's by an assignment, as in `Array = Any`."""
    first = module.aliases.get(local, "").partition(".")[0]
    home = module.imported.get(first)
    return local in module.aliases and home is not None and not _is_of_packages(home[0])


def private_rows(
    releases: Mapping[str, Mapping[str, Private]], public: Mapping[str, Named]
) -> Iterator[dict[str, Any]]:
    """A row for each release, module, and place today, with the names that went; `public` are those of the last."""
    order = list(releases)
    last = releases[order[-1]]
    homes = _Homes(last, public)
    gone: dict[str, tuple[int, Private]] = {}
    for place, names in enumerate(releases.values(), 1):
        gone |= {name: (place, private) for name, private in names.items() if name not in last}
    found: dict[tuple[int, str, str, str], list[str]] = {}
    for name in sorted(gone):
        place, private = gone[name]
        home, _, own = name.rpartition(".")
        relation, today = homes.of(name, private)
        # The row of the module stands for all that it held and that has no other place.
        if today or gone.get(home, (0,))[0] != place:
            found.setdefault((place, home, relation, today), []).append(own)
    for place, home, relation, today in sorted(found):
        row: dict[str, Any] = {"gone": order[place], "in": home, "names": found[place, home, relation, today]}
        yield {**row, relation: today} if today else row


class _Homes:
    """Where the last release has what a private name named."""

    def __init__(self, last: Mapping[str, Private], public: Mapping[str, Named]) -> None:
        self._last = last
        self._public: dict[str, list[str]] = {}
        for name, named in public.items():
            if named.state == "there" and named.origin:
                self._public.setdefault(named.origin, []).append(name)
        self._by_digest: dict[tuple[str, str], set[str]] = {}
        self._by_head: dict[str, set[str]] = {}
        for private in last.values():
            own = private.origin.rpartition(".")[2]
            if private.digest:
                self._by_digest.setdefault((own, private.digest), set()).add(private.origin)
            if private.head and not private.origin.startswith(_OF_REFERENCE):
                self._by_head.setdefault(private.head, set()).add(private.origin)

    def of(self, name: str, private: Private) -> tuple[str, str]:
        """The relation, "same" or "like", and the module with something of the same name; nothing if there is none."""
        own = name.rpartition(".")[2]
        named = private.origin.rpartition(".")[2]
        same = {private.origin} if private.origin != name and private.origin in {*self._last, *self._public} else set()
        same = same or (self._by_digest.get((named, private.digest), set()) if private.digest else set())
        for relation, origins in (("same", same), ("like", self._by_head.get(private.head, set()))):
            if len(origins) == 1:
                (origin,) = origins
                others = [*self._public.get(origin, ()), *([origin] if origin in self._last else ())]
                places = [other for other in others if other != name and other.rpartition(".")[2] == own]
                if places:
                    public = [place for place in places if "_src" not in place.split(".")]
                    return relation, min(public or places, key=_simplicity).rpartition(".")[0]
        return "", ""


def _simplicity(name: str) -> tuple[int, int, str]:
    return name.count("."), len(name), name


# Prints, for each pair of a module and a name of a list in JSON, whether the module has it; null if that is not known.
_LOOK = """
import importlib, importlib.util, json, logging, sys, warnings
logging.disable()
warnings.simplefilter("ignore")
def module(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        is_its_own = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        return False if is_its_own else None
    except BaseException:
        return None
pairs = json.load(sys.stdin)
# Some modules write names into others.
found = {home: module(home) for home in sorted({home for home, _ in pairs})}
installed = {home.partition(".")[0]: None for home in found}
installed = {root: importlib.util.find_spec(root) is not None for root in installed}
for home, own in pairs:
    there = found[home] if installed[home.partition(".")[0]] else None
    if there:
        there = hasattr(there, own) or module(f"{home}.{own}")
    print(json.dumps(there if there is None else bool(there)), flush=True)
"""


def corrected_private(found: Sequence[Mapping[str, Any]], python: str) -> Iterator[Mapping[str, Any]]:
    """The rows, without names that an interpreter with the last releases has, or cannot tell about."""
    pairs = [(row["in"], own) for row in found if "in" in row for own in row["names"]]
    places = {(row[relation], own) for row in found for relation in _told(row) for own in row["names"]}
    there = _looked([*pairs, *sorted(places)], python)
    for row in found:
        if "in" not in row:
            yield row
            continue
        names = [own for own in row["names"] if there[row["in"], own] is False]
        for own in row["names"]:
            if there[row["in"], own] is None:
                print(f"{row['in']}.{own} is left out, since {python} cannot import its module", file=sys.stderr)
        for relation in _told(row):
            # What is not where the source has it is told without its place.
            lost = [own for own in names if not there[row[relation], own]]
            names = [own for own in names if own not in lost]
            if lost:
                yield {"gone": row["gone"], "in": row["in"], "names": lost}
        if names:
            yield {**row, "names": names}


def _told(row: Mapping[str, Any]) -> Iterable[str]:
    return [relation for relation in ("same", "like") if relation in row]


def _looked(pairs: Sequence[tuple[str, str]], python: str) -> Mapping[tuple[str, str], bool | None]:
    asked = subprocess.run(
        [python, "-c", _LOOK], input=json.dumps(pairs), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return dict(zip(pairs, map(json.loads, asked.splitlines()), strict=True))
