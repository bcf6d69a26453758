"""What becomes of the import statements of a module, once its uses are edited."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mmrewrite.codemod.imports import ImportPosition, NewImport, import_block, place_import
from mmrewrite.modernize.analysis.old_names import PJIT
from mmrewrite.modernize.edits.import_names import one_line, parts_that_go
from mmrewrite.modernize.site import Context, ModuleDraft, PointEdit
from mmrewrite.modernize.uses import ImportedName, ModuleUses, dotted_text
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import HintReference
from mmrewrite.source.names import absolute_import
from mmrewrite.source.spans import first_line, span

# Importing these modules raises on a JAX of today.
GONE_MODULES = frozenset(("jax.experimental.maps",))
# Of these nothing is left but `pjit`.
_EMPTIED = frozenset(("jax.experimental.pjit",))


@dataclass(eq=False)
class ImportEdits:
    """Drops the imports of old names that nothing uses any more, moves those that have a new home, adds new ones.

    `owners` names the codemod of every old name, `active` the codemods that may write, `kept` the old names that some
    site of the module keeps.
    """

    draft: ModuleDraft
    context: Context
    owners: Mapping[str, str]
    active: Collection[str]
    kept: Collection[str]

    @property
    def module(self) -> ModuleUses:
        """The module at hand."""
        return self.draft.module

    def edits(self) -> Iterator[PointEdit]:
        """Edits of import statements, and of the places where new ones go."""
        for statement in dict.fromkeys(item.statement for item in self.module.imported):
            if guard_of(self.module, statement) is None:
                yield from self._statement(statement)
        yield from self._added()

    def _statement(self, statement: ast.Import | ast.ImportFrom) -> Iterator[PointEdit]:
        items = [item for item in self.module.imported if item.statement is statement]
        changed = {item: self._instead(item) for item in items}
        gone = [item for item in items if changed[item] is not None]
        if not gone:
            return
        source = self.module.facts.source
        start, end = span(source, statement)
        lines = list(_merged(line for item in gone for line in changed[item] or ()))
        codemod = min(self.owners[name] for name in self.owners if f"{name}.".startswith(f"{gone[0].name}."))
        line, column = source.position(start)
        because = HintReference(line, column, source.text[start:end].splitlines()[0])
        dropped = {item.alias for item in gone}
        parts = parts_that_go(source, statement, dropped) if len(dropped) < len(statement.names) else None
        if parts is None and len(dropped) < len(statement.names):
            lines = list(_merged((one_line(source, statement, dropped), *lines)))
        own = source.line(statement.lineno)
        rest = source.text[end : source.line_end(statement.end_lineno or statement.lineno)].strip()
        alone = not own[: statement.col_offset].strip() and (not rest or rest.startswith("#"))
        indent = own[: len(own) - len(own.lstrip())]
        separator = f"{source.newline}{indent}" if alone else "; "
        if parts is not None:
            yield from (PointEdit(begin, stop, "", codemod, because) for begin, stop in parts)
            if lines:
                yield PointEdit(end, end, "".join(f"{separator}{each}" for each in lines), codemod, because)
        elif lines:
            yield PointEdit(start, end, separator.join(lines), codemod, because)
        elif self._is_whole_body(statement):
            yield PointEdit(start, end, "pass", codemod, because)
        elif alone:
            yield PointEdit(
                source.line_starts[statement.lineno - 1],
                source.line_end(statement.end_lineno or statement.lineno),
                "",
                codemod,
                because,
            )
        else:
            follows = re.match(r"[ \t]*;[ \t]*(?=[^\s#;])", source.text[end:])
            begin = None if follows else self._separator_before(statement)
            stop = end + follows.end() if follows else end
            text = "" if follows or begin is not None else "pass"
            yield PointEdit(start if begin is None else begin, stop, text, codemod, because)

    def _separator_before(self, statement: ast.Import | ast.ImportFrom) -> int | None:
        """Where the `;` in front of a statement that goes begins, None where what is in front of that goes as well."""
        source = self.module.facts.source
        begin = source.line_starts[statement.lineno - 1]
        start, _ = span(source, statement)
        separator = re.search(r"[ \t]*;[ \t]*$", source.text[begin:start])
        before = [
            other
            for other in dict.fromkeys(item.statement for item in self.module.imported)
            if other is not statement and other.end_lineno == statement.lineno and span(source, other)[1] <= start
        ]
        is_beside_a_change = any(
            self._instead(item) is not None for item in self.module.imported if item.statement in before[-1:]
        )
        return None if separator is None or is_beside_a_change else begin + separator.start()

    def _instead(self, item: ImportedName) -> tuple[str, ...] | None:
        """Import lines that stand for an imported name from now on, None when it stays."""
        had_uses = any(head.id == item.local for head, _ in self.module.chains)
        if item.name in self.context.moved and item.name not in self.kept:
            if had_uses and not self._is_needed(item.local):
                return ()
            home, _, name = self.context.moved[item.name].rpartition(".")
            if isinstance(item.statement, ast.ImportFrom):
                return (f"from {home} import {name}" + (f" as {item.local}" if item.local != name else ""),)
            return None
        old = [name for name in self.owners if name == item.name or name.startswith(f"{item.name}.")]
        if not old or not any(self.owners[name] in self.active for name in old):
            return None
        plain = isinstance(item.statement, ast.Import) and item.alias.asname is None and "." in item.name
        if plain:
            return self._plain_instead(item)
        if self._is_needed(item.local):
            return None
        home = item.name.rpartition(".")[0]
        is_gone = item.name in GONE_MODULES or home in GONE_MODULES or (home in _EMPTIED and item.name not in PJIT)
        return () if had_uses or is_gone else None

    def _plain_instead(self, item: ImportedName) -> tuple[str, ...] | None:
        """`import jax.experimental.maps` binds `jax`, which may be used for other things."""
        prefix = f"{item.name}."
        below = [head for head, chain in self.module.chains if f"{dotted_text(chain[-1])}.".startswith(prefix)]
        covered = [head for head in below if self._is_covered(head)]
        if len(covered) < len(below) or not (covered or item.name in GONE_MODULES):
            return None
        others = [
            other
            for other in self.module.imported
            if other.local == item.local and other is not item and other.statement is not item.statement
        ]
        return (f"import {item.local}",) if self._is_needed(item.local) and not others else ()

    @cached_property
    def _replaced(self) -> list[tuple[int, int]]:
        return [(edit.start, edit.end) for edit in self.draft.edits if edit.start < edit.end]

    def _is_covered(self, node: ast.expr) -> bool:
        start, end = span(self.module.facts.source, node)
        return any(first <= start and end <= last for first, last in self._replaced)

    def _is_needed(self, local: str) -> bool:
        """Whether a name is still read once the edits are made."""
        heads = (head for head, _ in self.module.chains if head.id == local)
        return local in self.draft.spelled or self._is_exported(local) or not all(map(self._is_covered, heads))

    def _is_exported(self, local: str) -> bool:
        """Whether something outside, or a string such as those of `__all__`, may need the name."""
        facts = self.module.facts
        if facts.names.is_package:
            return True
        word = re.compile(rf"\b{re.escape(local)}\b")
        for node in self.module.strings:
            if not word.search(str(node.value)):
                continue
            if not isinstance(self.module.parents.get(node), ast.Expr | ast.JoinedStr) and not self._is_key(node):
                return True
        return any(
            self._is_taken_by(other, local) for other in self.context.modules.values() if other is not self.module
        )

    def _is_taken_by(self, other: ModuleUses, local: str) -> bool:
        """Whether another module imports a name from this one, by itself or with all others."""
        facts, names, project = self.module.facts, other.facts.names, self.context.project
        for item in other.imported:
            home, _, name = item.name.rpartition(".")
            if name == local and project.module(home, other.facts) is facts:
                return True
        if local not in names.identifiers:
            return False
        homes = (absolute_import(names.name, names.is_package, star.module, star.level) for star in names.stars)
        return any(home is not None and project.module(home, other.facts) is facts for home in homes)

    def _is_key(self, node: ast.Constant) -> bool:
        """Whether a string is a key, as in `config["mesh"]`; not in `Optional["Mesh"]` and `globals()["Mesh"]`."""
        holder = self.module.parents.get(node)
        if isinstance(holder, ast.Dict):
            return node in holder.keys
        if not isinstance(holder, ast.Subscript) or holder.slice is not node or isinstance(holder.value, ast.Call):
            return False
        inner: ast.AST = node
        for above in self.module.above(node):
            if inner in (getattr(above, "annotation", None), getattr(above, "returns", None)):
                return False
            inner = above
        return True

    def _is_whole_body(self, statement: ast.stmt) -> bool:
        holder = self.module.parents.get(statement)
        return any(
            getattr(holder, part, None) == [statement] and not isinstance(holder, ast.Module)
            for part in ("body", "orelse", "finalbody")
        )

    def _added(self) -> Iterator[PointEdit]:
        new = self.draft.imports.new
        if not new:
            return
        facts = self.module.facts
        lines = []
        for edit in self.draft.edits:
            number, _ = facts.source.position(edit.start)
            top = [node for node in facts.tree.body if first_line(node) <= number <= (node.end_lineno or node.lineno)]
            lines += [first_line(top[0])] if top else [number]
        places: dict[int, list[tuple[ImportPosition, NewImport]]] = {}
        lines_of: dict[str, list[str]] = {}
        for item in new.values():
            lines_of.setdefault(item.module if item.is_from else item.text, []).append(item.text)
        for texts in lines_of.values():
            (item,) = (item for item in new.values() if item.text == texts[0])
            item = replace(item, text=next(_merged(texts)))
            placement = place_import(facts, item, min(lines))
            places.setdefault(placement.offset, []).append((placement, item))
        codemod = self.draft.edits[0].codemod
        because = self.draft.edits[0].because
        for offset, imports in places.items():
            yield PointEdit(offset, offset, import_block(facts.source, imports), codemod, because)


def _merged(lines: Iterable[str]) -> Iterator[str]:
    """Import lines, with one for all that comes from one module."""
    members: dict[str, list[str]] = {}
    for line in lines:
        start, word, name = line.partition(" import ")
        names = members.setdefault(start if word else line, [])
        if name and name not in names:
            names.append(name)
    return (f"{start} import {', '.join(names)}" if names else start for start, names in members.items())
