"""Write a rewritten mirror of packages and scripts, with a manifest of the sources and hashes of its files.

A package is mirrored whole, and its modules import each other relatively there, so that the mirror can be imported
beside the original. Modules that are run by their path as well, where Python knows no package, keep their own imports
for that.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.engine.edits import apply_edits
from mmrewrite.engine.outcome import bug
from mmrewrite.files.select import MANIFEST, Rules, load_file, shown, source_file, walk
from mmrewrite.files.write import write_new
from mmrewrite.results import Edit, Rewrite
from mmrewrite.source.newer_syntax import parse_any
from mmrewrite.source.text import SourceError, SourceText

_FORMAT = 1
_FROM = re.compile(r"from([ \t]+)([\w.]+)([ \t]+)import\b")
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=]")


class NotBuilt(Exception):
    """Why no mirror was written, as a sentence."""


@dataclass(frozen=True)
class _Target:
    """One file of the mirror: its path there, its source, and its content."""

    place: str
    source: str
    source_hash: str
    data: bytes


def build_mirror(paths: Sequence[str], out: str, rules: Rules, results: Iterable[Rewrite]) -> int:
    """Write the mirror of `paths` under `out` and return how many files it has.

    Raises:
        NotBuilt: If a file in the way was edited by hand, or was never written by us.
    """
    targets = _targets(paths, out, rules, {result.path: result for result in results})
    known = _read_manifest(out)
    foreign = [problem for target in targets for problem in _problems(target, out, known)]
    if foreign:
        raise NotBuilt("\n".join(foreign))
    for target in targets:
        path = os.path.join(out, target.place)
        if load_file(path) != target.data:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_new(path, target.data)
    for place in sorted(known.keys() - {target.place for target in targets}):
        path = os.path.join(out, place)
        data = load_file(path)
        if data is not None and _hash(data) == known[place]:
            os.unlink(path)
    manifest = _manifest(targets)
    os.makedirs(out, exist_ok=True)
    if load_file(os.path.join(out, MANIFEST)) != manifest:
        write_new(os.path.join(out, MANIFEST), manifest)
    return len(targets)


def stale(paths: Sequence[str], out: str, rules: Rules, results: Iterable[Rewrite]) -> list[str]:
    """A sentence for each file that `build_mirror` would change, or that was edited by hand.

    Raises:
        NotBuilt: If the manifest cannot be read.
    """
    targets = _targets(paths, out, rules, {result.path: result for result in results})
    known = _read_manifest(out)
    found = []
    for target in targets:
        path = os.path.join(out, target.place)
        data = load_file(path)
        problems = _problems(target, out, known)
        if problems:
            found += problems
        elif data != target.data:
            found.append(f"{shown(path)}: {'missing' if data is None else 'out of date'}; run `mmrewrite build`")
    places = {target.place for target in targets}
    for place in sorted(known.keys() - places):
        found.append(f"{shown(os.path.join(out, place))}: its source is gone; run `mmrewrite build`")
    return found


def _problems(target: _Target, out: str, known: Mapping[str, str]) -> list[str]:
    path = os.path.join(out, target.place)
    data = load_file(path)
    if data is None or data == target.data:
        return []
    if target.place not in known:
        return [f"{shown(path)}: not written by mmrewrite; give an empty folder, or move that file away"]
    if _hash(data) != known[target.place]:
        return [f"{shown(path)}: edited by hand; move the change to {target.source}, then delete this file"]
    return []


def _targets(paths: Sequence[str], out: str, rules: Rules, results: Mapping[str, Rewrite]) -> list[_Target]:
    mirrored = _mirrored(paths, out, rules)
    modules = {_module_name(place) for place in mirrored if place.endswith(".py")}
    targets = []
    for place, path in sorted(mirrored.items()):
        original = load_file(path)
        if original is None:
            continue
        rewritten = results.get(shown(path))
        data = rewritten.result if rewritten else original
        if place.endswith(".py"):
            data = _generated(rewritten.result if rewritten else original, path, modules)
        targets.append(_Target(place, shown(path), _hash(original), data))
    return targets


def _mirrored(paths: Sequence[str], out: str, rules: Rules) -> dict[str, str]:
    """The files to mirror: paths in the mirror, with the paths of the sources."""
    found: dict[str, str] = {}
    mirror = os.path.realpath(out)
    for path in paths:
        base, top = _base_and_top(path)
        files = walk(top) if os.path.isdir(top) else [top]
        for file in files:
            absolute = os.path.abspath(file)
            inside = os.path.realpath(absolute)
            hidden = os.path.basename(file).startswith(".")
            if inside == mirror or inside.startswith(os.path.join(mirror, "")) or hidden:
                continue
            if file != path and rules.excludes(absolute):
                continue
            found[os.path.relpath(absolute, base).replace(os.sep, "/")] = file
    return found


def _base_and_top(path: str) -> tuple[str, str]:
    """The folder to which paths in the mirror are relative, and the part of it to mirror: a package is never cut."""
    absolute = os.path.abspath(path)
    folder = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
    top = absolute
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        top, folder = folder, os.path.dirname(folder)
    if top == absolute and os.path.isdir(absolute) and folder == absolute:
        return absolute, absolute
    return folder, top


def _module_name(place: str) -> str:
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _generated(data: bytes, path: str, modules: set[str]) -> bytes:
    try:
        source = SourceText.decode(data)
        edits = _relative_imports(source, path, modules)
    except (SourceError, SyntaxError, ValueError, RecursionError):
        # A file that does not parse is copied as it is; one with hints has been reported already.
        return data
    text = apply_edits(source.text, [_header(source, shown(path)), *edits])
    result = source.encode(text)
    try:
        parse_any(text)
    except SyntaxError as error:
        raise NotBuilt(f"{shown(path)}: " + bug(f"the mirrored file does not parse: {error}")) from None
    return result


def _header(source: SourceText, path: str) -> Edit:
    """One comment line that names the source, below a `#!` line and a coding comment."""
    line = 1
    count = len(source.line_starts)
    if source.text.startswith("#!"):
        line = 2
    if any(_COOKIE.match(source.line(number)) for number in (1, 2) if number <= count):
        line = next(number for number in (1, 2) if _COOKIE.match(source.line(number))) + 1
    offset = source.line_end(line - 1) if line > 1 else 0
    lead = source.newline if offset and source.text[offset - 1] not in "\r\n" else ""
    name = path.encode(source.encoding, errors="backslashreplace").decode(source.encoding)
    return Edit(offset, offset, f"{lead}# Written by mmrewrite from {name}{source.newline}", (), ())


def _relative_imports(source: SourceText, path: str, modules: set[str]) -> list[Edit]:
    """Edits that make imports of mirrored modules of the same package relative."""
    file = source_file(path, b"")
    top, _, below = file.module.partition(".")
    if not (below or file.is_package) or top not in source.text:
        return []
    package = file.module.split(".") if file.is_package else file.module.split(".")[:-1]
    tree = parse_any(source.text)
    by_path = _runs_by_path(tree, source)
    edits = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        start = source.offset(node.lineno, node.col_offset)
        end = source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        original = source.text[start:end]
        text = original
        if isinstance(node, ast.Import):
            parts = [_relative_import(alias, package, modules) for alias in node.names]
            plain = (f"import {ast.unparse(alias)}" for alias in node.names)
            if any(parts):
                text = "; ".join(part or other for part, other in zip(parts, plain, strict=True))
        elif not node.level and node.module in modules and node.module.split(".")[0] == top:
            text = _FROM.sub(lambda match: f"from{match[1]}{_relative(package, match[2])}{match[3]}import", original, 1)
        if text == original:
            continue
        if by_path:
            indent = source.line(node.lineno)[: node.col_offset]
            rest = source.text[end : source.line_end(node.end_lineno or node.lineno)].strip()
            if indent.strip() or not (rest == "" or rest.startswith("#")):
                # Two statements on one line: the one that runs by path is kept.
                continue
            lines = ("if __package__:", f"    {text}", "else:", f"    {original}")
            text = f"{source.newline}{indent}".join(lines)
        edits.append(Edit(start, end, text, (), ()))
    return sorted(edits, key=lambda edit: edit.start)


def _runs_by_path(tree: ast.Module, source: SourceText) -> bool:
    """Whether a module of a package is also a script: Python gives it no package when it is run by its path."""
    tests = (ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If))
    return source.text.startswith("#!") or any("__name__" in test and "__main__" in test for test in tests)


def _relative_import(alias: ast.alias, package: Sequence[str], modules: set[str]) -> str | None:
    """A statement that imports the mirror's module for one name of an `import`; None if the mirror lacks it."""
    holder, _, name = alias.name.rpartition(".")
    if alias.name not in modules or alias.name.split(".")[0] != package[0]:
        return None
    if alias.asname and holder:
        return f"from {_relative(package, holder)} import {name}" + (
            f" as {alias.asname}" if alias.asname != name else ""
        )
    # Python has no relative form of `import a.b`: `from . import` cannot bind the topmost package by its name.
    load, top = '__import__("importlib").import_module', "." * len(package)
    text = f'{alias.asname or package[0]} = {load}("{top}", __package__)'
    below = alias.name.partition(".")[2]
    return f'{load}("{top}{below}", __package__); {text}' if below else text


def _relative(package: Sequence[str], module: str) -> str:
    target = module.split(".")
    common = 0
    while common < min(len(package), len(target)) and package[common] == target[common]:
        common += 1
    return "." * (len(package) - common + 1) + ".".join(target[common:])


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest(targets: Sequence[_Target]) -> bytes:
    files = {
        target.place: {
            "sha256": _hash(target.data),
            "source": target.source,
            "source_sha256": target.source_hash,
        }
        for target in targets
    }
    return (json.dumps({"format": _FORMAT, "files": files}, indent=2, sort_keys=True) + "\n").encode()


def _read_manifest(out: str) -> dict[str, str]:
    """Hashes of the files that were written last time, by their path in the mirror."""
    data = load_file(os.path.join(out, MANIFEST))
    if data is None:
        return {}
    try:
        content = json.loads(data)
        if content["format"] != _FORMAT:
            raise NotBuilt(f"{shown(os.path.join(out, MANIFEST))}: written by another version; delete {out}")
        return {place: entry["sha256"] for place, entry in content["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotBuilt(f"{shown(os.path.join(out, MANIFEST))}: cannot be read; delete {out}") from None
