"""Edit the import statements of a module once its uses are edited."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from mmmodernize.edits.import_names import one_line, parts_that_go
from mmmodernize.names.advice import ADVICE
from mmmodernize.names.name_index import ONCE_MODULES_OF_THEMSELVES, old_names, once_modules, row_around
from mmmodernize.names.shared_names import PJIT, STILL_THERE
from mmmodernize.sites.site import ModernizeContext, ModuleDraft
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.codemod.comments import is_for_tools
from mmrewrite.codemod.imports import NewImport, placed_imports
from mmrewrite.codemod.layout import indentation
from mmrewrite.project.uses import ImportedName, ModuleUses
from mmrewrite.results import Edit, HintReference
from mmrewrite.source.names import dotted_name
from mmrewrite.source.spans import begins_its_line, block_around, first_line, span

# Importing these modules raises on today's JAX.
GONE_MODULES = frozenset(("jax.experimental.maps",))
# Today's JAX has nothing in these but `pjit`.
_EMPTIED = frozenset(("jax.experimental.pjit",))


# The offsets of a range of characters, and the text that replaces it.
_Change = tuple[int, int, str]

# What keeps linters from telling of an import that nothing uses.
_KEPT_UNUSED = re.compile(r"#\s*noqa\b(?!\s*:)|#\s*noqa\s*:[^#]*\bF401\b", re.IGNORECASE)


@dataclass(eq=False)
class ImportEdits:
    """Drops the imports of old names that nothing uses any more, moves those that have a new home, adds new ones.

    `kept` are the old names that some site of the module keeps.
    """

    draft: ModuleDraft
    context: ModernizeContext
    kept: Collection[str]

    @property
    def module(self) -> ModuleUses:
        """The module whose imports these are."""
        return self.draft.module

    @cached_property
    def _of_statements(self) -> Mapping[ast.Import | ast.ImportFrom, Sequence[ImportedName]]:
        found: dict[ast.Import | ast.ImportFrom, list[ImportedName]] = {}
        for item in self.module.imported:
            found.setdefault(item.statement, []).append(item)
        return found

    @cached_property
    def _by_local(self) -> Mapping[str, Sequence[ImportedName]]:
        found: dict[str, list[ImportedName]] = {}
        for item in self.module.imported:
            found.setdefault(item.local, []).append(item)
        return found

    def edits(self) -> Iterator[Edit]:
        """Edits of import statements, and of the places where new ones go."""
        for statement in self._of_statements:
            yield from self._statement(statement)
        yield from self._added()

    def _statement(self, statement: ast.Import | ast.ImportFrom) -> Iterator[Edit]:
        """Edits of one import statement, as far as its names go away or move."""
        items = self._of_statements[statement]
        instead = {item: lines for item in items if (lines := self._instead(item)) is not None}
        gone = [*instead]
        if not gone or guard_of(self.module, statement) is not None:
            return
        codemods = tuple(dict.fromkeys(name for item in gone for name in self._codemods_of(item)))
        source = self.module.facts.source
        begin, stop = span(source, statement)
        because = HintReference(*source.position(begin), source.text[begin:stop].splitlines()[0])
        # Names whose uses are edited as well are named there.
        itself = [replace(because, name=item.name) for item in gone if not self._replacing(item)]
        for start, end, text in self._changes(statement, {item.alias: lines for item, lines in instead.items()}):
            yield Edit(start, end, text, codemods, tuple(dict.fromkeys(itself)) or (because,))

    def _codemods_of(self, item: ImportedName) -> Iterable[str]:
        """The codemods for which an imported name goes: those that replaced its uses, else that of the name."""
        owners = self.context.owners
        replacing = [name for edit in self._replacing(item) for name in edit.codemods]
        return replacing or (min(owners[name] for name in self.context.old_names_below(item.name)),)

    def _replacing(self, item: ImportedName) -> list[Edit]:
        """The edits that replace uses of an imported name."""
        heads = [span(self.module.facts.source, head) for head in self.module.heads.get(item.local, ())]
        return [
            edit for edit in self.draft.edits if any(edit.start <= start and end <= edit.end for start, end in heads)
        ]

    def _changes(
        self, statement: ast.Import | ast.ImportFrom, instead: Mapping[ast.alias, Sequence[str]]
    ) -> Iterator[_Change]:
        """Changes that drop some names of a statement, or all, and put other import lines in their place."""
        source, meant = self.module.facts.source, self.draft.meant
        start, end = span(source, statement)
        is_alone, is_part = self._is_alone(statement), len(instead) < len(statement.names)
        moved = [alias for alias, lines in instead.items() if lines] if is_alone else []
        parts = parts_that_go(source, statement, instead, moved)
        lines = list(_merged(line for alias, new in instead.items() if alias not in parts.comments for line in new))
        meant.replace_import(statement, [line for new in instead.values() for line in new], stays=is_part)
        for alias in instead:
            meant.remove(alias)
        line_end = source.line_end(statement.end_lineno or statement.lineno)
        behind = source.text[end:line_end].strip() if is_alone else ""
        stop = end + source.text[end:line_end].index(behind) + len(behind)
        if is_part and parts.removed is None:
            lines = list(_merged((one_line(source, statement, instead), *lines)))
        # What is for a tool is about each of the names.
        tail = f"  {behind}" if is_for_tools(behind) else ""
        lines = [f"{line}{tail}" for line in lines]
        with_comments = [
            f"{line}  {source.text[slice(*comment)]}"
            for alias, comment in parts.comments.items()
            for line in instead[alias]
        ]
        separator = f"{source.newline}{indentation(source, statement)}" if is_alone else "; "
        if is_part and parts.removed is not None:
            yield from ((begin, close, "") for begin, close in parts.removed)
            if lines or with_comments:
                place = stop if behind else end
                yield place, place, "".join(f"{separator}{each}" for each in (*lines, *with_comments))
        elif lines or with_comments:
            is_whole = bool(behind) and (bool(tail) or not lines)
            rest = [behind] if is_whole and not tail else []
            made = [*with_comments, *lines, *rest] if behind else [*lines, *with_comments]
            yield start, stop if is_whole else end, separator.join(made)
        elif self._is_rest_of_body(statement):
            meant.replace(statement, "pass")
            yield start, end, "pass"
        elif not is_alone:
            yield self._without_semicolon(statement)
        elif behind and not tail:
            yield start, stop - len(behind), separator if self._ends_imports(statement) else ""
        else:
            line = (statement.end_lineno or statement.lineno) + 1
            while self._is_head_of_body(statement) and not source.line(line).strip():
                # A block begins with no blank line.
                line_end, line = source.line_end(line), line + 1
            yield source.line_starts[statement.lineno - 1], line_end, ""

    def _ends_imports(self, statement: ast.Import | ast.ImportFrom) -> bool:
        """Whether a statement ends a group of imports, and the import above it stays."""
        block = block_around(self.module.parents[statement], statement)
        place, kinds = block.index(statement), (ast.Import, ast.ImportFrom)
        above = block[place - 1] if place else None
        if not isinstance(above, kinds) or above.end_lineno != statement.lineno - 1:
            return False
        is_last = not any(isinstance(each, kinds) for each in block[place + 1 : place + 2])
        items = self._of_statements.get(above, ())
        return is_last and (not items or any(self._instead(item) != () for item in items))

    def _is_alone(self, statement: ast.Import | ast.ImportFrom) -> bool:
        """Whether nothing but a comment shares the lines of a statement."""
        source = self.module.facts.source
        _, end = span(source, statement)
        rest = source.text[end : source.line_end(statement.end_lineno or statement.lineno)].strip()
        return begins_its_line(source, statement) and (not rest or rest.startswith("#"))

    def _without_semicolon(self, statement: ast.Import | ast.ImportFrom) -> _Change:
        """The change that removes one of several statements on a line, with the `;` behind it or else before it."""
        source = self.module.facts.source
        start, end = span(source, statement)
        rest = source.text[end : source.line_end(statement.end_lineno or statement.lineno)]
        sign, following = rest.lstrip(" \t")[:1], rest.lstrip(" \t")[1:].lstrip(" \t")
        if sign == ";" and following.strip() and following[0] not in "#;\\":
            return start, end + len(rest) - len(following), ""
        begin = self._separator_before(statement)
        if begin is None:
            self.draft.meant.replace(statement, "pass")
            return start, end, "pass"
        return begin, end, ""

    def _separator_before(self, statement: ast.Import | ast.ImportFrom) -> int | None:
        """Offset of the `;` before a statement that goes away, None if the import before it goes with that."""
        source = self.module.facts.source
        begin = source.line_starts[statement.lineno - 1]
        start, _ = span(source, statement)
        text = source.text[begin:start].rstrip(" \t")
        before = [
            other
            for other in self._of_statements
            if other is not statement and other.end_lineno == statement.lineno and span(source, other)[1] <= start
        ]
        beside = (item for other in before[-1:] for item in self._of_statements[other])
        goes = bool(before) and all(self._instead(item) == () for item in beside)
        return begin + len(text[:-1].rstrip(" \t")) if text.endswith(";") and not goes else None

    def _instead(self, item: ImportedName) -> tuple[str, ...] | None:
        """Import lines that replace an imported name, None if it stays."""
        if isinstance(item.statement, ast.Import) and item.alias.name in ONCE_MODULES_OF_THEMSELVES:
            return self._once_module_instead(item)
        had_uses = item.local in self.module.heads
        if item.name in self.context.moved and item.name not in self.kept:
            is_idle = had_uses and not self._is_needed(item.local) and not self._is_member(item)
            if is_idle or self._is_imported_twice(item):
                return ()
            home, _, name = self.context.moved[item.name].rpartition(".")
            if isinstance(item.statement, ast.ImportFrom) or item.alias.asname is not None:
                has_alias = item.local != name or _is_reexport(item)
                return (f"from {home} import {name}" + (f" as {item.local}" if has_alias else ""),)
            return None
        old = self.context.old_names_below(item.name)
        if not old or not any(self.context.owners[name] in self.context.active for name in old):
            return None
        plain = isinstance(item.statement, ast.Import) and item.alias.asname is None and "." in item.name
        if plain:
            return self._plain_instead(item)
        if self._is_needed(item.local) or self._is_member(item):
            return None
        return () if had_uses or self._is_gone(item) else None

    def _once_module_instead(self, item: ImportedName) -> tuple[str, ...]:
        """Import lines that replace `import jax.config`, or `import jax.config as c`."""
        home, _, name = item.alias.name.rpartition(".")
        if item.alias.asname is not None:
            return (f"from {home} import {name} as {item.alias.asname}",)
        others = any(
            other is not item and other.alias.name not in once_modules() for other in self._by_local[item.local]
        )
        return () if others else (f"import {home}",)

    def _is_imported_twice(self, item: ImportedName) -> bool:
        """Whether another import already binds the name of one that moves to its new home."""
        scopes = self.module.facts.names.scopes
        return any(
            other.name == self.context.moved[item.name]
            and scopes[other.statement] is scopes[item.statement]
            and guard_of(self.module, other.statement) is None
            for other in self._by_local[item.local]
        )

    def _is_gone(self, item: ImportedName) -> bool:
        """Whether an import raises on today's JAX."""
        home = item.name.rpartition(".")[0]
        is_emptied = home in _EMPTIED and item.name not in PJIT
        known = old_names().get(item.name)
        is_old = item.name in self.context.owners and item.name not in STILL_THERE
        if known is not None:
            is_old = known.is_gone
        return item.name in GONE_MODULES or home in GONE_MODULES or is_emptied or is_old

    def staying(self) -> Iterator[tuple[ImportedName, str, bool]]:
        """The imports that stay and are told of, each with what to say, and whether it fails today."""
        for item in self.module.imported:
            told = list(self._told(item))
            if told and guard_of(self.module, item.statement) is None and self._instead(item) is None:
                yield from ((item, reason, fails) for reason, fails in told)

    def _told(self, item: ImportedName) -> Iterator[tuple[str, bool]]:
        """What there is to say of an import if it stays, and whether it fails today."""
        owners, active, statement = self.context.owners, self.context.active, item.statement
        module = (statement.module if isinstance(statement, ast.ImportFrom) else item.alias.name) or ""
        # A use of the name that is refused says so itself.
        is_refused = any(f"{name}.".startswith(f"{item.name}.") for name in self.kept)
        is_active = any(owners[name] in active for name in self.context.old_names_below(item.name))
        home, _, own = module.rpartition(".")
        if module in once_modules():
            again = ADVICE.get(module) if module not in ONCE_MODULES_OF_THEMSELVES else None
            again = again or f"write `from {home} import {own}`"
            yield f"`{module}` is no module any more, so this import fails; {again}", True
        elif is_active and not is_refused and self._is_gone(item):
            reason = "is gone, and the name is exported or used in a way that is not replaced; remove it"
            yield f"`{item.name}` {reason}", True
        # What the index does not know may have been in a module that it knows to be gone.
        around = row_around(item.name.rpartition(".")[0]) if item.name not in owners else None
        if around and around.is_gone and around.name not in once_modules() and owners.get(around.name) in active:
            yield f"`{around.name}` {around.history}, so this import fails; {around.advice}", True
        known = old_names().get(item.name)
        is_idle = item.local not in self.module.heads and owners.get(item.name) in active
        if known is not None and is_idle and not known.is_gone:
            reason = "nothing in this file uses it; remove it unless other files import it from here"
            yield f"it {known.history}, and {reason}", False

    def _plain_instead(self, item: ImportedName) -> tuple[str, ...] | None:
        """Import lines that replace `import jax.experimental.maps`, which binds `jax`; None if it stays."""
        prefix = f"{item.name}."
        below = [head for head, chain in self.module.chains if f"{dotted_name(chain[-1])}.".startswith(prefix)]
        covered = [head for head in below if self._is_covered(head)]
        if len(covered) < len(below) or not (covered or self._is_gone(item)):
            return None
        parts = item.name.count(".") + 1
        if any(length < parts and written.startswith(prefix) for length, written in self.draft.reached):
            return None
        return (f"import {item.local}",) if self._is_needed(item.local) and not self._is_bound_above(item) else ()

    def _is_bound_above(self, item: ImportedName) -> bool:
        """Whether another import that stays, or leaves `import jax` behind, binds the name of this one above it."""
        names = self.module.facts.names
        around, others = list(names.scopes[item.statement].chain()), self._by_local[item.local]
        return any(
            other.statement is not item.statement
            and other.statement.lineno <= item.statement.lineno
            and names.scopes[other.statement] in around
            and self._instead(other) != ()
            for other in others[: others.index(item)]
        )

    @cached_property
    def _replaced(self) -> tuple[list[int], list[int]]:
        """Where text that edits replace begins, in order, and where the longest of it ends that begins up to there."""
        replaced = sorted((edit.start, edit.end) for edit in self.draft.edits if edit.start < edit.end)
        return [start for start, _ in replaced], list(accumulate((end for _, end in replaced), max))

    def _is_covered(self, node: ast.expr) -> bool:
        start, end = span(self.module.facts.source, node)
        starts, ends = self._replaced
        before = bisect.bisect_right(starts, start)
        return before > 0 and end <= ends[before - 1]

    def _is_member(self, item: ImportedName) -> bool:
        """Whether an import binds an attribute of a class, which is read in ways that are not seen."""
        return self.module.facts.names.scopes[item.statement].kind == "class"

    def _is_needed(self, local: str) -> bool:
        """Whether a name is still read after the edits."""
        heads = self.module.heads.get(local, ())
        if local in self.draft.spelled or not all(map(self._is_covered, heads)) or self._is_exported(local):
            return True
        # An edit may write again what another takes away, such as the value of a keyword.
        word = re.compile(rf"(?<![\w.]){re.escape(local)}\b(?!\s*=[^=])")
        return bool(heads) and any(word.search(edit.text) for edit in self.draft.edits)

    def _is_exported(self, local: str) -> bool:
        """Whether another module, or a string such as one in `__all__`, may need a name of the module."""
        facts = self.module.facts
        # The names of an `__init__.py` are there to be imported, also by code that is not in view.
        items = self._by_local.get(local, ())
        if facts.names.is_package or any(map(_is_reexport, items)):
            return True
        if any(map(self._is_kept_unused, items)):
            return True
        word = re.compile(rf"\b{re.escape(local)}\b")
        hidden = self.context.hidden.get(facts.path, ())
        if any(word.search(line) for lines in hidden for line in lines.values()):
            return True
        for node in self.module.strings:
            if node in self.module.quoted or not word.search(str(node.value)):
                continue
            if not isinstance(self.module.parents.get(node), ast.Expr | ast.JoinedStr) and not self._is_key(node):
                return True
        return self._is_taken(local)

    def _is_kept_unused(self, item: ImportedName) -> bool:
        """Whether a comment says that an import is right though nothing uses it; one of an old name is so no more."""
        if item.name in self.context.owners or self._is_gone(item):
            return False
        source, lines = self.module.facts.source, {item.alias.lineno, item.statement.lineno, item.statement.end_lineno}
        return any(_KEPT_UNUSED.search(source.line(line)) for line in lines if line is not None)

    def _is_taken(self, local: str) -> bool:
        """Whether another module takes a name from this one: imports it, reads it as an attribute, or by its text.

        What it takes from a module that has this one's names by `import *`, it takes from here.
        """
        facts, project = self.module.facts, self.context.project
        giving = {id(facts), *map(id, project.starring(facts))}
        if any(
            other is not self.module and id(project.module(home, other.facts)) in giving
            for other, home in self.context.importing(local)
        ):
            return True
        by_star = (other for other, home in self.context.importing("*") if id(other.facts) in giving)
        if any(other is not self.module and _takes_by_star(other, local, self.context) for other in by_star):
            return True
        is_gone = any(map(self._is_gone, self._by_local.get(local, ())))
        if any(
            other is not self.module
            and self._is_module(other, node, giving)
            and not (is_gone and self._is_site(other, node))
            for other, node in self.context.reading(local)
        ):
            return True
        # An import that fails is no better kept for what may be something else.
        return not is_gone and self._may_be_taken(local, giving)

    def _may_be_taken(self, local: str, giving: Collection[int]) -> bool:
        """Whether a module that imports this one may take a name by way of a value, or any by text that names both."""
        for other, node in self.context.reading(local):
            is_value = other.full_name(node) is None
            if is_value and other is not self.module and self._imports(other, giving):
                return True
        own = self.module.facts.names.name.rpartition(".")[2]
        return any(
            other is not self.module and (f"{own}.{local}" in text or (text == local and self._imports(other, giving)))
            for other, text in self.context.saying(local)
        )

    def _imports(self, other: ModuleUses, giving: Collection[int]) -> bool:
        """Whether a module imports this one, by a statement or by its name as text."""
        own = self.module.facts.names.name.rpartition(".")[2]
        return any(id(each) in giving for each in self.context.project.imported(other.facts)) or any(
            each is other and text.rpartition(".")[2] == own for each, text in self.context.saying(own)
        )

    def _is_module(self, other: ModuleUses, node: ast.expr, giving: Collection[int]) -> bool:
        """Whether an expression in another module is this one, or one of those that have its names by `import *`.

        A name that has several bindings, or comes by `import *` itself, may be any module that the other imports.
        """
        scope, project = other.scope_of(node), self.context.project
        name = other.facts.names.resolve(node, scope)
        if name is not None:
            return id(project.module(name, other.facts)) in giving
        head = (dotted_name(node) or "").partition(".")[0]
        owner = scope.owner(head)
        bindings = owner.bindings.get(head, ()) if owner is not None else ()
        is_open = (
            any(each.kind == "import" for each in bindings) if owner is not None else bool(other.facts.names.stars)
        )
        return (
            bool(head) and is_open and any(id(each) in giving for each in project.imported_by([other.facts]).values())
        )

    def _is_site(self, other: ModuleUses, node: ast.expr) -> bool:
        """Whether what is read of an expression ends in an old name, which is replaced or refused there.

        An import that fails is no better kept for it: then nothing of the module can be read.
        """
        for holder in other.above(node):
            if not isinstance(holder, ast.Attribute):
                return False
            if other.full_name(holder) in self.context.owners:
                return True
        return False

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

    def _is_rest_of_body(self, statement: ast.stmt) -> bool:
        """Whether a statement ends a block that goes as a whole."""
        holder = self.module.parents[statement]
        if isinstance(holder, ast.Module):
            return False
        block = block_around(holder, statement)
        return block[-1] is statement and all(map(self._goes, block[:-1]))

    def _is_head_of_body(self, statement: ast.stmt) -> bool:
        """Whether a statement is in a block that begins with it, but for what goes as well."""
        holder = self.module.parents[statement]
        if isinstance(holder, ast.Module):
            return False
        block = block_around(holder, statement)
        return all(map(self._goes, block[: block.index(statement)]))

    def _goes(self, statement: ast.stmt) -> bool:
        items = self._of_statements.get(statement, ())  # type: ignore[call-overload]
        return bool(items) and all(self._instead(item) == () for item in items)

    def _added(self) -> Iterator[Edit]:
        new = self.draft.imports.new
        if not new:
            return
        facts = self.module.facts
        lines = []
        for edit in self.draft.edits:
            number, _ = facts.source.position(edit.start)
            top = [node for node in facts.tree.body if first_line(node) <= number <= (node.end_lineno or node.lineno)]
            lines += [first_line(top[0])] if top else [number]
        users: dict[NewImport, list[Edit]] = {}
        alike: dict[str, dict[str, NewImport]] = {}
        for key, item in new.items():
            alike.setdefault(item.module if item.is_from else item.text, {})[key] = item
        for items in alike.values():
            item = next(iter(items.values()))
            item = replace(item, text=next(_merged(each.text for each in items.values())))
            users[item] = self._users(items)
        for offset, block, imports in placed_imports(facts, users, min(lines)):
            edits = [edit for each in imports for edit in users[each]]
            codemods = dict.fromkeys(name for edit in edits for name in edit.codemods)
            because = dict.fromkeys(hint for edit in edits for hint in edit.hints)
            self.draft.meant.insert_import(facts.tree, facts.source, block.strip(), offset)
            yield Edit(offset, offset, block, tuple(codemods), tuple(because))

    def _users(self, keys: Iterable[str]) -> list[Edit]:
        """The edits that write a name of new imports."""
        names = "|".join(re.escape(self.draft.imports.chosen(key) or key) for key in keys)
        word = re.compile(rf"(?<![\w.])(?:{names})\b")
        return [edit for edit in self.draft.edits if word.search(edit.text)] or list(self.draft.edits)


def _is_reexport(item: ImportedName) -> bool:
    """Whether an import says of its name that it is for other modules: `from jax import tree_map as tree_map`."""
    return item.alias.asname == item.alias.name


def _merged(lines: Iterable[str]) -> Iterator[str]:
    """Import lines, where one takes all names of the same module."""
    members: dict[str, list[str]] = {}
    for line in lines:
        start, word, name = line.partition(" import ")
        names = members.setdefault(start if word else line, [])
        if name and name not in names:
            names.append(name)
    return (f"{start} import {', '.join(names)}" if names else start for start, names in members.items())


def _takes_by_star(module: ModuleUses, name: str, context: ModernizeContext) -> bool:
    """Whether a module with `import *` may read a name that this gives, rather than what it binds to it below.

    It does not read what it imports in a branch by itself, where that is rewritten as an old name.
    """
    names = module.facts.names
    if name not in names.identifiers:
        return False
    read, old = module.heads.get(name, ()), {use.node for use in module.uses(context.owners)}
    if read and old.issuperset(read) and all(module.scope_of(node).owner(name) is not None for node in read):
        return False
    below = [
        binding.statement.lineno
        for binding in names.scope.bindings.get(name, ())
        if binding.statement in names.tree.body and binding.statement.lineno > max(star.lineno for star in names.stars)
    ]
    return not below or any(node.lineno < min(below) for node in module.heads.get(name, ()))
