"""Which imports of `mmrewrite.hints` other modules of the project still need once hints are consumed.

A module may hand the hint functions on, as `from .compat import hints` takes them. When those who took them have no
hint left, that import goes away as well, so that the rewritten project does without `mmrewrite`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmrewrite.directives.calls import HintImport
from mmrewrite.directives.collect import CalledHint
from mmrewrite.project.facts import Facts, SourceFile
from mmrewrite.source.names import absolute_import


@dataclass(eq=False)
class HintImporters:
    """The modules of a run, the hint calls of each that go away, and the files that could not be read."""

    modules: Sequence[Facts]
    consumed: Mapping[str, Sequence[CalledHint]]
    unreadable: Sequence[SourceFile] = ()
    _found: dict[int, bool] = field(default_factory=dict)

    def is_reexporter(self, facts: Facts) -> bool:
        """Whether what other modules take decides about an import of a module."""
        return any(
            self.is_needed_elsewhere(name) is not None
            for name in (_local_name(facts, each) for each in facts.hints.imports)
        )

    def is_unused(self, facts: Facts, found: HintImport) -> bool:
        """Whether nothing needs an import any more."""
        key = id(found)
        if key not in self._found:
            # Modules that take it from each other keep it.
            self._found[key] = False
            functions = [called.call.function for called in self.consumed[facts.path]]
            if all(any(start <= use < end for start, end in functions) for use in found.uses):
                taken = self.is_needed_elsewhere(_local_name(facts, found))
                self._found[key] = not taken and (bool(found.uses) or taken is False or self._had_hints(facts))
        return self._found[key]

    def _had_hints(self, facts: Facts) -> bool:
        """Whether hints go away in a module, or in those to which it hands hint functions on."""
        return bool(self.consumed[facts.path]) or any(
            self.is_needed_elsewhere(_local_name(facts, each)) is False for each in facts.hints.imports
        )

    def is_needed_elsewhere(self, full: str) -> bool | None:
        """Whether another module needs a name that is handed on, None where none ever took it."""
        module, _, name = full.rpartition(".")
        if any(name.encode() in file.data for file in self.unreadable):
            return True
        needs = [
            needed
            for facts in self.modules
            if facts.names.name != module
            for needed in self._needs(facts, module, name)
        ]
        return any(needs) if needs else None

    def hints_of_importers(self, facts: Facts) -> list[CalledHint]:
        """The hints that go away in modules that took names from this one, however indirectly."""
        queue, seen, found = [facts], {facts.path}, list[CalledHint]()
        while queue:
            given = queue.pop()
            names = [_local_name(given, each).rpartition(".")[::2] for each in given.hints.imports]
            for other in self.modules:
                if other.path not in seen and any(any(True for _ in self._needs(other, *name)) for name in names):
                    seen.add(other.path)
                    queue.append(other)
                    found += self.consumed[other.path]
        return found

    def _needs(self, facts: Facts, module: str, name: str) -> Iterator[bool]:
        """For each way in which a module takes a name, whether it still needs it; by `*` it may."""
        names = facts.names
        if any(
            absolute_import(names.name, names.is_package, star.module, star.level) == module for star in names.stars
        ):
            yield True
        for found in facts.hints.imports:
            if _imported_name(facts, found) == f"{module}.{name}":
                yield not self.is_unused(facts, found)
        through = {
            bound
            for scope in {id(scope): scope for scope in facts.names.scopes.values()}.values()
            for bound, bindings in scope.bindings.items()
            if any(binding.target and f"{module}.".startswith(f"{binding.target}.") for binding in bindings)
        }
        if through:
            use = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(through)))})(?:\.\w+)*?\.{re.escape(name)}\b")
            uses = len(use.findall(facts.source.text))
            gone = (facts.source.text[slice(*called.call.function)] for called in self.consumed[facts.path])
            if uses:
                yield uses > sum(use.match(text) is not None for text in gone)


def listed(facts: Facts, names: Collection[str]) -> Iterator[tuple[ast.List | ast.Tuple, list[ast.expr]]]:
    """Lists that are assigned to `__all__`, and their strings that are among `names`."""
    for statement in facts.tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        is_list = any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)
        if is_list and isinstance(value, ast.List | ast.Tuple):
            found: list[ast.expr] = [
                each for each in value.elts if isinstance(each, ast.Constant) and each.value in names
            ]
            if found:
                yield value, found


def _local_name(facts: Facts, found: HintImport) -> str:
    """The full name under which a module has what it imports."""
    return f"{facts.names.name}.{found.alias.asname or found.alias.name.partition('.')[0]}"


def _imported_name(facts: Facts, found: HintImport) -> str:
    """The full name of what is imported."""
    statement, names = found.statement, facts.names
    if isinstance(statement, ast.Import):
        return found.alias.name
    return f"{absolute_import(names.name, names.is_package, statement.module, statement.level)}.{found.alias.name}"
