"""Write a rewritten mirror of packages and scripts, with a manifest of the sources and hashes of its files.

A package is mirrored whole, and its modules import each other relatively there, so that the mirror can be imported
beside the original. Modules that are run by their path as well, where Python knows no package, keep their own imports
for that.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.engine.edits import apply_edits
from mmrewrite.files.cache_folder import hash_of
from mmrewrite.files.select import RewrittenProgram, source_file
from mmrewrite.files.walk import MANIFEST, load_file, read_file, shown, walk
from mmrewrite.files.write import remove_left_behind, write_new
from mmrewrite.results import Edit
from mmrewrite.source.failure import bug
from mmrewrite.source.names import relative_import
from mmrewrite.source.spans import parse_program
from mmrewrite.source.text import SourceError, SourceText, parse_quietly
from mmrewrite.tracking import Track, untracked

# Before format 2 a run that was killed left files that the manifest did not know.
_FORMAT = 2
_READABLE = (1, _FORMAT)
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


@dataclass(frozen=True)
class BuiltMirror:
    """What became of a mirror: how many files it has, and a sentence for each trouble that cost one file.

    `unread` has path and reason of sources, `unwritten` of files of the mirror; `outdated` are the sources of these.
    """

    count: int
    problems: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    unwritten: tuple[tuple[str, str], ...] = ()
    outdated: frozenset[str] = frozenset()


def check_place(paths: Sequence[str], out: str) -> None:
    """Check that a mirror may lie at `out`.

    Raises:
        NotBuilt: If `out` is what is mirrored, lies in it, or holds it.
    """
    mirror = os.path.realpath(out)
    for path in paths:
        _, top = _base_and_top(path)
        source = os.path.realpath(top)
        if mirror == source or mirror.startswith(os.path.join(source, "")):
            where = "is" if mirror == source else "lies in"
            raise NotBuilt(
                f"--out {out} {where} the source {shown(top)}; give a folder outside of it, or name the package alone"
            )
        if source.startswith(os.path.join(mirror, "")):
            raise NotBuilt(f"--out {out} holds the source {shown(top)}; give a folder of its own")
    if os.path.lexists(out) and not os.path.isdir(out):
        raise NotBuilt(f"--out {out} is no folder; give another name")


def build_mirror(program: RewrittenProgram, out: str, track: Track = untracked, *, headed: bool = True) -> BuiltMirror:
    """Write the mirror of a program under `out`.

    The manifest is written first, with the hashes before and after of each file, and without those before at the end.
    So after a run that was killed the next one knows what is its own, and goes on.

    Args:
        program: The files to mirror.
        out: The folder of the mirror.
        track: Shows how many files are done.
        headed: Whether each file begins with a line that names its source. Without it, lines are those of `apply`.

    Raises:
        NotBuilt: If a file in the way was edited by hand, was never written by us, is a link or is a source.
    """
    unreadable: list[tuple[str, str]] = []
    targets = _targets(program, out, unreadable, track, headed)
    manifest = _read_manifest(out)
    foreign = [problem for target in targets for problem in _problems(target, out, manifest.known)]
    if foreign:
        # A link on the way to many files is in the way of each of them.
        raise NotBuilt("\n".join(dict.fromkeys(foreign)))
    problems, failed = list(manifest.problems), dict[str, str]()
    path = os.path.join(out, MANIFEST)
    try:
        os.makedirs(out, exist_ok=True)
        begun = _begun(targets, out, manifest.known)
        done = _as_json({target.place: _entry(target) for target in targets})
        if load_file(path) not in (begun, done):
            write_new(path, begun)
    except OSError as error:
        raise NotBuilt(f"{shown(out)}: not written: {error.strerror or error}") from None
    for target in track("Writing", targets, len(targets)):
        try:
            _write_target(target, out)
        except OSError as error:
            failed[target.place] = error.strerror or str(error)
    gone = _remove_gone(out, manifest.known.keys() - {target.place for target in targets}, manifest.known, failed)
    folders = {os.path.dirname(os.path.join(out, place)) for place in (*(t.place for t in targets), *gone, MANIFEST)}
    for folder in sorted(folders):
        problems += remove_left_behind(folder)
    # With files that could not be written the manifest stays as at the beginning, and the next run goes on.
    if not failed and load_file(path) != done:
        write_new(path, done)
    unwritten = [(shown(os.path.join(out, place)), reason) for place, reason in failed.items()]
    outdated = frozenset(target.source for target in targets if target.place in failed)
    return BuiltMirror(len(targets), tuple(problems), tuple(unreadable), tuple(unwritten), outdated)


def _write_target(target: _Target, out: str) -> None:
    path = os.path.join(out, target.place)
    if load_file(path) != target.data:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_new(path, target.data)


def _remove_gone(
    out: str, places: Iterable[str], known: Mapping[str, Sequence[str]], failed: dict[str, str]
) -> list[str]:
    """Remove the files whose source is gone, as far as they are proved to be ours, and folders that become empty."""
    removed = []
    for place in sorted(places):
        if _removable(out, place, known) is None:
            continue
        try:
            os.unlink(os.path.join(out, place))
        except OSError as error:
            failed[place] = error.strerror or str(error)
            continue
        removed.append(place)
        folder = os.path.dirname(place)
        while folder:
            with contextlib.suppress(OSError):
                # Fails where anything is left in it.
                os.rmdir(os.path.join(out, folder))
            folder = os.path.dirname(folder)
    return removed


def _removable(out: str, place: str, known: Mapping[str, Sequence[str]]) -> bytes | None:
    """The content of a file whose source is gone; None unless it is there and proved to be ours."""
    data = None if _link_on_the_way(out, place) else load_file(os.path.join(out, place))
    return data if data is not None and hash_of(data) in known[place] else None


def _link_on_the_way(out: str, place: str) -> str | None:
    """The first part of a place below `out` that is a link, None if there is none."""
    path = out
    for part in place.split("/"):
        path = os.path.join(path, part)
        if os.path.islink(path):
            return path
    return None


@dataclass(frozen=True)
class StaleMirror:
    """What `build_mirror` would do to a mirror.

    Attributes:
        problems: A sentence for each file that it would change, or that was edited by hand.
        changes: The path of each file that it would change, its content and what it would be; None is no file.
        unread: Path and reason of sources that could not be read.
    """

    problems: tuple[str, ...] = ()
    changes: tuple[tuple[str, bytes | None, bytes | None], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()


def stale(program: RewrittenProgram, out: str, track: Track = untracked) -> StaleMirror:
    """What `build_mirror` would change, and what stands in its way.

    Raises:
        NotBuilt: If the manifest cannot be read.
    """
    unreadable: list[tuple[str, str]] = []
    targets = _targets(program, out, unreadable, track)
    manifest = _read_manifest(out)
    known = manifest.known
    found = [*manifest.problems]
    changes: list[tuple[str, bytes | None, bytes | None]] = []
    for target in targets:
        path = os.path.join(out, target.place)
        data = load_file(path)
        problems = _problems(target, out, known)
        if problems:
            found += [problem for problem in problems if problem not in found]
        elif data != target.data:
            found.append(f"{shown(path)}: {'missing' if data is None else 'out of date'}; run `mmrewrite build`")
            changes.append((path, data, target.data))
    for place in sorted(known.keys() - {target.place for target in targets}):
        path = os.path.join(out, place)
        found.append(f"{shown(path)}: its source is gone; run `mmrewrite build`")
        data = _removable(out, place, known)
        changes += [(path, data, None)] if data is not None else []
    return StaleMirror(tuple(found), tuple(changes), tuple(unreadable))


def _problems(target: _Target, out: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    path = os.path.join(out, target.place)
    link = _link_on_the_way(out, target.place)
    if link is not None:
        return [f"{shown(link)}: a link, which `build` does not follow; give another folder, or remove it"]
    if os.path.realpath(path) == os.path.realpath(target.source):
        return [f"{shown(path)}: this is the source itself; give another folder"]
    data = load_file(path)
    if data is None and os.path.lexists(path):
        return [f"{shown(path)}: in the way and not readable as a file; give another folder, or move it away"]
    if data is None or data == target.data:
        return []
    if target.place not in known:
        return [f"{shown(path)}: not written by mmrewrite; give an empty folder, or move that file away"]
    if hash_of(data) not in known[target.place]:
        return [f"{shown(path)}: edited by hand; move the change to {target.source}, then delete this file"]
    return []


def _targets(
    program: RewrittenProgram, out: str, unreadable: list[tuple[str, str]], track: Track, headed: bool = True
) -> list[_Target]:
    mirrored, results = _mirrored(program, out), {result.path: result for result in program.results}
    modules = {_module_name(place) for place in mirrored if place.endswith(".py")}
    targets = []
    for place, path in track("Mirroring", sorted(mirrored.items()), len(mirrored)):
        try:
            original = read_file(path)
        except OSError as error:
            unreadable.append((shown(path), error.strerror or str(error)))
            continue
        rewritten = results.get(shown(path))
        if rewritten is not None:
            # One state of the file for all that is made of it, whatever happens to it meanwhile.
            original = rewritten.original
        data = rewritten.result if rewritten else original
        if place.endswith(".py"):
            data = _generated(rewritten.result if rewritten else original, path, modules, headed)
        targets.append(_Target(place, shown(path), hash_of(original), data))
    return targets


def _mirrored(program: RewrittenProgram, out: str) -> dict[str, str]:
    """The files to mirror: paths in the mirror, with the paths of the sources."""
    found: dict[str, str] = {}
    mirror = os.path.realpath(out)
    for path in program.paths:
        base, top = _base_and_top(path)
        files = walk(top) if os.path.isdir(top) else [top]
        for file in files:
            absolute = os.path.abspath(file)
            inside = os.path.realpath(absolute)
            hidden = os.path.basename(file).startswith(".")
            if inside == mirror or inside.startswith(os.path.join(mirror, "")) or hidden:
                continue
            if file != path and program.rules.excludes(absolute):
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


def _generated(data: bytes, path: str, modules: set[str], headed: bool) -> bytes:
    try:
        source = SourceText.decode(data)
        edits = _relative_imports(source, path, modules)
    except (SourceError, SyntaxError, ValueError, RecursionError):
        # A file that does not parse is copied as it is; one with hints has been reported already.
        return data
    text = apply_edits(source.text, [*([_header(source, shown(path))] if headed else []), *edits])
    result = source.encode(text)
    try:
        parse_quietly(text)
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
    # A name of a folder may have lines, and none of them is code.
    plain = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in path)
    name = plain.encode(source.encoding, errors="backslashreplace").decode(source.encoding)
    return Edit(offset, offset, f"{lead}# Written by mmrewrite from {name}{source.newline}", (), ())


def _relative_imports(source: SourceText, path: str, modules: set[str]) -> list[Edit]:
    """Edits that make imports of mirrored modules of the same package relative."""
    file = source_file(path, b"")
    top, _, below = file.module.partition(".")
    if not (below or file.is_package) or top not in source.text:
        return []
    package = file.module.split(".") if file.is_package else file.module.split(".")[:-1]
    tree = parse_program(source.text)
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
            text = _FROM.sub(
                lambda match: f"from{match[1]}{relative_import(package, match[2])}{match[3]}import", original, 1
            )
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
        return f"from {relative_import(package, holder)} import {name}" + (
            f" as {alias.asname}" if alias.asname != name else ""
        )
    # Python has no relative form of `import a.b`: `from . import` cannot bind the topmost package by its name.
    load, top = '__import__("importlib").import_module', "." * len(package)
    text = f'{alias.asname or package[0]} = {load}("{top}", __package__)'
    below = alias.name.partition(".")[2]
    return f'{load}("{top}{below}", __package__); {text}' if below else text


def _begun(targets: Sequence[_Target], out: str, known: Mapping[str, Sequence[str]]) -> bytes:
    """The manifest of a run that has begun: also with the files as they are, as far as they are ours."""
    files: dict[str, dict[str, Any]] = {}
    for place, hashes in known.items():
        data = load_file(os.path.join(out, place))
        files[place] = {"sha256": hash_of(data) if data is not None and hash_of(data) in hashes else hashes[0]}
    for target in targets:
        data = load_file(os.path.join(out, target.place))
        entry = _entry(target)
        if data is not None and data != target.data:
            entry["before"] = hash_of(data)
        files[target.place] = entry
    return _as_json(files)


def _entry(target: _Target) -> dict[str, Any]:
    return {"sha256": hash_of(target.data), "source": target.source, "source_sha256": target.source_hash}


def _as_json(files: Mapping[str, Any]) -> bytes:
    return (json.dumps({"format": _FORMAT, "files": files}, indent=2, sort_keys=True) + "\n").encode()


@dataclass(frozen=True)
class _Manifest:
    """What a manifest proves: for each place in the mirror, the hashes that our file there may have.

    `problems` has a sentence for each of its lines that is not believed.
    """

    known: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...] = ()


def _read_manifest(out: str) -> _Manifest:
    """What was written last time. Anybody may have written the manifest, so its places are confined to `out`."""
    path = os.path.join(out, MANIFEST)
    data = load_file(path)
    if os.path.lexists(path) and (data is None or os.path.islink(path)):
        raise NotBuilt(f"{shown(path)}: in the way and no file that can be read; give another folder, or move it away")
    if data is None:
        return _Manifest({})
    known: dict[str, tuple[str, ...]] = {}
    problems = []
    try:
        content = json.loads(data)
        if content["format"] not in _READABLE:
            raise NotBuilt(f"{shown(path)}: written by another version; delete {out}")
        for place, entry in content["files"].items():
            hashes = (entry["sha256"], *([entry["before"]] if "before" in entry else []))
            if not _is_inside(place):
                problems.append(f"{shown(path)}: {place!r} is no place inside of {out}, and is not believed")
            elif all(isinstance(each, str) for each in hashes):
                known[place] = hashes
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotBuilt(f"{shown(path)}: cannot be read; delete {out}") from None
    return _Manifest(known, tuple(problems))


def _is_inside(place: str) -> bool:
    """Whether a place of a manifest is a plain path below the folder that holds it."""
    parts = place.split("/")
    plain = not any(mark in place for mark in ("\\", "\0")) and not os.path.isabs(place) and ":" not in parts[0]
    return plain and not any(part in ("", ".", "..") for part in parts)
