"""Which imports of `mmrewrite.hints` other modules of the project still need once hints are consumed.

A module may re-export the hint functions, such as a `compat.py` from which others do `from .compat import hints`. Once
the hints of all its importers are consumed its import goes away too, so that the rewritten project does without
`mmrewrite`.
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
    """The modules of a run, the hint calls of each that are consumed, and the files that could not be read."""

    modules: Sequence[Facts]
    consumed: Mapping[str, Sequence[CalledHint]]
    unreadable: Sequence[SourceFile] = ()
    _unused: dict[int, bool] = field(default_factory=dict)

    def is_reexporter(self, facts: Facts) -> bool:
        """Whether another module imports a hint function from this one."""
        names = (_local_name(facts, each) for each in facts.hints.imports)
        return any(self.is_needed_elsewhere(name) is not None for name in names)

    def is_unused(self, facts: Facts, imported: HintImport) -> bool:
        """Whether nothing in the project needs an import any more."""
        key = id(imported)
        if key not in self._unused:
            # Modules that import it from each other in a circle keep it.
            self._unused[key] = False
            functions = [called.call.function for called in self.consumed[facts.path]]
            if all(any(start <= use < end for start, end in functions) for use in imported.uses):
                needed = self.is_needed_elsewhere(_local_name(facts, imported))
                # An import without any use is not ours to remove, unless hints went away here or in its importers.
                had_users = bool(imported.uses) or needed is False or self._had_hints(facts)
                self._unused[key] = not needed and had_users
        return self._unused[key]

    def _had_hints(self, facts: Facts) -> bool:
        """Whether hints are consumed in a module, or in those that import hint functions from it."""
        return bool(self.consumed[facts.path]) or any(
            self.is_needed_elsewhere(_local_name(facts, each)) is False for each in facts.hints.imports
        )

    def is_needed_elsewhere(self, full: str) -> bool | None:
        """Whether another module still needs a re-exported name, None if none ever imported it."""
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
        """The consumed hints of all modules that import hint functions from this one, also transitively."""
        queue, seen, hints = [facts], {facts.path}, list[CalledHint]()
        while queue:
            source = queue.pop()
            names = [_local_name(source, each).rpartition(".")[::2] for each in source.hints.imports]
            for other in self.modules:
                if other.path not in seen and any(any(True for _ in self._needs(other, *name)) for name in names):
                    seen.add(other.path)
                    queue.append(other)
                    hints += self.consumed[other.path]
        return hints

    def _needs(self, facts: Facts, module: str, name: str) -> Iterator[bool]:
        """For each way in which a module gets at `name` of `module`, whether it still needs it."""
        names = facts.names
        if any(
            absolute_import(names.name, names.is_package, star.module, star.level) == module for star in names.stars
        ):
            # It may use the name, or re-export it in turn.
            yield True
        for imported in facts.hints.imports:
            if _imported_name(facts, imported) == f"{module}.{name}":
                yield not self.is_unused(facts, imported)
        # Names of the module itself, or of a package around it: `compat.hints`, `pkg.compat.hints`.
        holders = {
            bound
            for scope in {id(scope): scope for scope in facts.names.scopes.values()}.values()
            for bound, bindings in scope.bindings.items()
            if any(binding.target and f"{module}.".startswith(f"{binding.target}.") for binding in bindings)
        }
        if holders:
            use = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(holders)))})(?:\.\w+)*?\.{re.escape(name)}\b")
            uses = len(use.findall(facts.source.text))
            consumed = (facts.source.text[slice(*called.call.function)] for called in self.consumed[facts.path])
            if uses:
                yield uses > sum(use.match(text) is not None for text in consumed)


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


def _local_name(facts: Facts, imported: HintImport) -> str:
    """The full name that an import binds in its module."""
    return f"{facts.names.name}.{imported.alias.asname or imported.alias.name.partition('.')[0]}"


def _imported_name(facts: Facts, imported: HintImport) -> str:
    """The full name that an import takes from another module."""
    statement, names = imported.statement, facts.names
    if isinstance(statement, ast.Import):
        return imported.alias.name
    return f"{absolute_import(names.name, names.is_package, statement.module, statement.level)}.{imported.alias.name}"
