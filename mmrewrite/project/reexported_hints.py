"""Names under which the project's own modules hand `mmrewrite.hints` on: `from .compat import hints`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mmrewrite.directives.calls import Handed, means_hints
from mmrewrite.project.facts import Facts, Importing, SourceFile, Unreadable
from mmrewrite.source.names import absolute_import

Read = Callable[[SourceFile, Handed], Facts | Unreadable]


def read_hinted(
    marked: Sequence[SourceFile], importers: Importing, read: Read
) -> tuple[list[Facts | Unreadable], Handed]:
    """Read the files with marks, and those whose hints have come to them through another module.

    Args:
        marked: Files that may hold hints by their own text.
        importers: The other files of the run whose bytes are wanted.
        read: Parses one file, given what is handed on.
    """
    found = {file.path: read(file, Handed()) for file in marked}
    files = {file.path: file for file in marked}
    handed = Handed()
    while True:
        before, handed = handed, _handed_on(found.values(), handed)
        if handed == before:
            return [found[path] for path in sorted(found)], handed
        for file in importers(_mentions(handed)):
            files.setdefault(file.path, file)
        for path, file in files.items():
            facts = found.get(path)
            facts = read(file, handed) if facts is None else facts
            if isinstance(facts, Facts) and _imports(facts, handed):
                found[path] = read(file, handed)


def _handed_on(modules: Iterable[Facts | Unreadable], handed: Handed) -> Handed:
    names: dict[str, str] = {}
    unclear: set[str] = set()
    for facts in modules:
        if isinstance(facts, Unreadable):
            continue
        scope = facts.names.scope
        for name, bindings in scope.bindings.items():
            meaning = facts.names.resolve_dotted(name, scope)
            full = f"{facts.names.name}.{name}"
            if meaning is not None and means_hints(meaning):
                names[full] = meaning
            elif any(handed.is_hints(binding.target) for binding in bindings):
                unclear.add(full)
    return Handed(names, frozenset(unclear))


def _mentions(handed: Handed) -> Callable[[bytes], bool]:
    """Whether a file may import one of the names that are handed on, or take one from a module that it imports."""
    names = {full.rpartition(".")[2].encode() for full in handed.every}
    return lambda data: b"import" in data and any(name in data for name in names)


def _imports(facts: Facts, handed: Handed) -> bool:
    """Whether a module imports a name that is handed on, or a module and takes the name from it."""
    targets, star = set(_targets(facts)), facts.names.star
    if star is not None:
        names = facts.names
        if absolute_import(names.name, names.is_package, star.module, star.level) in handed.modules:
            return True
    for full in handed.every:
        module, _, name = full.rpartition(".")
        if full in targets or (module in targets and f".{name}" in facts.source.text):
            return True
    return False


def _targets(facts: Facts) -> Iterator[str]:
    for scope in {id(scope): scope for scope in facts.names.scopes.values()}.values():
        for bindings in scope.bindings.values():
            yield from (binding.target for binding in bindings if binding.target is not None)
