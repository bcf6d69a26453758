"""All hinted files of a run, those too that take them from a module, as in `from .compat import hints`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from mmrewrite.directives.calls import Reexports, means_hints
from mmrewrite.project.facts import Facts, Importing, SourceFile, Unreadable

_WORD = re.compile(r"\w+")
Read = Callable[[SourceFile, Reexports], Facts | Unreadable]


def read_hinted(
    marked: Iterable[SourceFile], importers: Importing, read: Read
) -> tuple[list[Facts | Unreadable], Reexports]:
    """Read the files with hints of their own, and those that import hints from a module that re-exports them.

    Re-exports of re-exports count too, so both are repeated up to a fixed point.

    Args:
        marked: Files that may hold hints by their own text.
        importers: Finds further files of the run, by a test of their bytes.
        read: Parses one file, given the known re-exports.
    """
    found, files = dict[str, Facts | Unreadable](), dict[str, SourceFile]()
    for file in marked:
        files[file.path], found[file.path] = file, read(file, Reexports())
    reexports = Reexports()
    while True:
        before, reexports = reexports, _reexports_of(found.values(), reexports)
        if reexports == before:
            return [found[path] for path in sorted(found)], reexports
        for file in importers(_mentions(reexports)):
            files.setdefault(file.path, file)
        for path, file in files.items():
            facts = found.get(path)
            facts = read(file, Reexports()) if facts is None else facts
            if isinstance(facts, Facts) and _imports(facts, reexports):
                found[path] = read(file, reexports)


def _reexports_of(modules: Iterable[Facts | Unreadable], reexports: Reexports) -> Reexports:
    names: dict[str, str] = {}
    ambiguous: set[str] = set()
    for facts in modules:
        if isinstance(facts, Unreadable):
            continue
        scope = facts.names.scope
        for name, bindings in scope.bindings.items():
            meaning = facts.names.resolve_dotted(name, scope)
            full = f"{facts.names.name}.{name}"
            if meaning is not None and means_hints(meaning):
                names[full] = meaning
            elif any(reexports.is_hints(binding.target) for binding in bindings):
                ambiguous.add(full)
    return Reexports(names, frozenset(ambiguous))


def _mentions(reexports: Reexports) -> Callable[[bytes], bool]:
    """A test of bytes: whether a file may import a re-exported name, or a module and use the name by attribute."""
    names = {full.rpartition(".")[2].encode() for full in reexports.every}
    return lambda data: b"import" in data and any(name in data for name in names)


def _imports(facts: Facts, reexports: Reexports) -> bool:
    """Whether a module imports a re-exported name, or a module that re-exports one, and may use it by attribute."""
    targets, star = set(_targets(facts)), facts.names.star
    if star is not None:
        names = facts.names
        if names.home_of(star) in reexports.modules:
            return True
    given = {each.rpartition(".")[2] for each in reexports.every if each.rpartition(".")[0] in targets}
    # By the words of its text, since hints that are calls have left the tree.
    words = _WORD.findall(facts.source.text) if given else ()
    return not targets.isdisjoint(reexports.every) or not given.isdisjoint(words)


def _targets(facts: Facts) -> Iterator[str]:
    for scope in {id(scope): scope for scope in facts.names.scopes.values()}.values():
        for bindings in scope.bindings.values():
            yield from (binding.target for binding in bindings if binding.target is not None)
