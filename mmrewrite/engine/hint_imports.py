"""Which parts of imports go away together with the hints: of `mmrewrite.hints`, and of what only hinted code used.

A module may re-export the hint functions, such as a `compat.py` from which others do `from .compat import hints`. Once
the hints of all its importers are consumed its import goes away too, so that the rewritten project does without
`mmrewrite`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mmrewrite.codemod.comments import is_for_tools
from mmrewrite.directives.calls import HintImport, Removal
from mmrewrite.directives.collect import CalledHint
from mmrewrite.engine.edits import apply_edits
from mmrewrite.project.facts import Facts, SourceFile
from mmrewrite.project.project import Project
from mmrewrite.results import Edit
from mmrewrite.source.brackets import brackets_of, own_comment, without_items, without_listed
from mmrewrite.source.spans import begins_its_line, kept_program, span
from mmrewrite.source.text import SourceText
from mmrewrite.source.walk import walk

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"\w+")
Item = TypeVar("Item", ast.alias, ast.expr)


@dataclass(frozen=True)
class Unused:
    """An import that is removed, in whole or in part, and the removals that do it.

    Attributes:
        statement: The import.
        removals: The text that goes.
        nodes: The names of the import, and the strings of `__all__`, that go.
        is_whole: Whether no name of it stays.
    """

    statement: ast.stmt
    removals: tuple[Removal, ...]
    nodes: tuple[ast.AST, ...]
    is_whole: bool


def removed_imports(facts: Facts, importers: HintImporters) -> Iterator[Unused]:
    """The parts of imports, and of `__all__`, that nothing needs once hints are gone."""
    together: dict[ast.stmt, tuple[ast.alias, ...]] = {}
    unused: dict[ast.stmt, list[ast.alias]] = {}
    for found in facts.hints.imports:
        if importers.is_unused(facts, found):
            together[found.statement] = found.together
            unused.setdefault(found.statement, []).append(found.alias)
    whole: list[tuple[int, int]] = []
    removals: dict[ast.stmt, list[Removal]] = {}
    for statement, aliases in sorted(unused.items(), key=lambda item: item[0].lineno):
        if len(aliases) < len(together[statement]):
            removals[statement] = list(_items(facts.source, statement, together[statement], aliases))
            continue
        removal = _statement(facts, statement)
        removals[statement] = [removal]
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if (removal.start, removal.end) == (facts.source.line_starts[first - 1], facts.source.line_end(last)):
            # Imports with only blank lines between them are removed as one.
            is_next = whole and all(not facts.source.line(line).strip() for line in range(whole[-1][1] + 1, first))
            if is_next and whole[-1][1] < first - 1:
                between = facts.source.line_end(whole[-1][1]), facts.source.line_starts[first - 1]
                removals[statement].append(Removal(*between, spacing=True))
            whole.append((whole.pop()[0] if is_next else first, last))
    for first, last in whole:
        statement = next(each for each in removals if each.lineno >= first)
        removals[statement] += _spacing(facts.source, first, last)
    names = [_local(alias) for aliases in unused.values() for alias in aliases]
    strings = list(listed(facts, names)) if names else []
    for statement, mine in removals.items():
        nodes: list[ast.AST] = [*unused[statement]]
        while strings:
            value, items = strings.pop(0)
            mine += _entries(facts.source, value, items)
            nodes += items
        is_whole = len(unused[statement]) == len(together[statement])
        yield Unused(statement, tuple(mine), tuple(nodes), is_whole)


def idle_imports(facts: Facts, project: Project, edits: Sequence[Edit]) -> Iterator[Unused]:
    """The imports of names that a module reads, and once edited does not, nor another module."""
    # Lines of a notebook that are no Python may need them, and whatever imports a package.
    is_seen = not facts.names.is_package and not facts.path.endswith(".ipynb")
    own = {found.statement for found in facts.hints.imports}
    imports = [each for each in facts.names.scopes if isinstance(each, ast.Import | ast.ImportFrom) and each not in own]
    idle = _no_longer_read(facts, edits, {_local(alias) for each in imports for alias in each.names}) if is_seen else ()
    for statement in imports if idle else ():
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        is_plain = all(isinstance(each, _FUNCTIONS) for each in facts.names.around(statement))
        if not is_plain or any("#" in facts.source.line(line) for line in range(first, last + 1)):
            continue
        gone = [alias for alias in statement.names if _is_idle(facts, project, statement, alias, idle)]
        if len(gone) == len(statement.names):
            removals = [_statement(facts, statement)]
            if first > 1 and removals[0].text != "pass" and facts.source.line(first - 1).endswith(":"):
                removals += _below(facts.source, last)
            yield Unused(statement, tuple(removals), (*gone,), is_whole=True)
        elif gone:
            yield Unused(
                statement, tuple(_items(facts.source, statement, statement.names, gone)), (*gone,), is_whole=False
            )


def _no_longer_read(facts: Facts, edits: Sequence[Edit], names: Collection[str]) -> Collection[str]:
    """The names that a module reads only on lines that edits change, and nowhere once it is edited."""
    source = facts.source
    changed = {line for edit in edits for line in _lines(source, edit)}
    possible = {word for line in changed for word in _WORD.findall(source.line(line)) if word in names}
    read: set[str] = set()
    for words, first, last in _read_in(facts.tree) if possible else ():
        if not changed.isdisjoint(range(first, last + 1)):
            read.update(words)
            continue
        possible.difference_update(words)
        if not possible:
            return ()
    possible &= read
    if not possible:
        return ()
    try:
        new = kept_program(apply_edits(source.text, edits))
    except SyntaxError:
        # Then the comparison of the trees fails.
        return ()
    return possible.difference(*(words for words, _, _ in _read_in(new)))


def _lines(source: SourceText, edit: Edit) -> Iterable[int]:
    return range(source.position(edit.start)[0], source.position(edit.end)[0] + 1)


def _read_in(tree: ast.Module) -> Iterator[tuple[Sequence[str], int, int]]:
    """The names that code reads, and the words of its strings but for docstrings without code, with their lines."""
    told = set[ast.expr]()
    for node in walk(tree):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Store):
                yield (node.id,), node.lineno, node.lineno
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if ">>>" not in str(node.value.value):
                told.add(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
            yield _WORD.findall(node.value), node.lineno, node.end_lineno or node.lineno


def _local(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_idle(facts: Facts, project: Project, statement: ast.stmt, alias: ast.alias, idle: Collection[str]) -> bool:
    local, scope = _local(alias), facts.names.scopes[statement]
    if local not in idle or len(scope.bindings.get(local, ())) != 1 or project.starring(facts):
        return False
    others = (each for each in project.facts.values() if each is not facts and facts in project.imported(each))
    if any(_may_take(other, local) for other in others):
        return False
    own = re.escape(facts.names.name.rpartition(".")[2].encode())
    taken = re.compile(
        rb"\bfrom[^\n]*\b%s[ \t]+import\b(?:[^\n(]*|[ \t]*\([^)]*)\b%s\b|\b%s\.%s\b"
        % (own, local.encode(), own, local.encode())
    )
    return not any(map(taken.search, project.beside()))


def _may_take(other: Facts, local: str) -> bool:
    """Whether a module may take a name of one that it imports: by an import of it, or as an attribute."""
    for node in ast.walk(other.tree):
        if isinstance(node, ast.Attribute) and node.attr == local:
            return True
        if isinstance(node, ast.ImportFrom) and any(alias.name == local for alias in node.names):
            return True
    return False


def _entries(source: SourceText, value: ast.List | ast.Tuple, unused: Sequence[ast.expr]) -> Iterator[Removal]:
    """Remove strings from `__all__`."""
    if len(unused) < len(value.elts):
        yield from _items(source, value, value.elts, unused)
    else:
        yield Removal(*span(source, value), "[]" if isinstance(value, ast.List) else "()")


def _items(
    source: SourceText, holder: ast.stmt | ast.expr, items: Sequence[Item], unused: Collection[Item]
) -> Iterator[Removal]:
    """Remove some items of a list with their commas; other items stay, and so do comments."""
    brackets = brackets_of(source, span(source, holder), items)
    gone = [index for index, item in enumerate(items) if item in unused]
    if brackets is not None:
        comments = [own_comment(source, brackets, index) for index in gone]
        leaving = [each for each in comments if each is not None and is_for_tools(source.text[slice(*each)])]
        yield from (Removal(start, end) for start, end in without_items(source, brackets, gone, leaving))
        return
    for start, end in without_listed([span(source, item) for item in items], gone):
        yield Removal(start, end)


def _statement(facts: Facts, statement: ast.stmt) -> Removal:
    source = facts.source
    start, end = span(source, statement)
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    rest = source.text[end : source.line_end(last)]
    if facts.names.is_only(statement):
        return Removal(start, end, "pass")
    if not begins_its_line(source, statement):
        return Removal(source.text.rindex(";", 0, start), end)
    if rest.lstrip().startswith(";"):
        rest = rest.lstrip()[1:]
        return Removal(start, source.line_end(last) - len(rest.lstrip(" \t")))
    if rest.strip() and not is_for_tools(rest.strip()):
        return Removal(start, end + len(rest) - len(rest.lstrip()))
    return Removal(source.line_starts[first - 1], source.line_end(last))


def _spacing(source: SourceText, first: int, last: int) -> Iterator[Removal]:
    """The blank lines on one side of an import that stood alone between blank lines, so that not both sides stay."""
    above = first
    while above > 1 and not source.line(above - 1).strip():
        above -= 1
    below = [*_below(source, last)]
    if below and 1 < above < first:
        yield Removal(source.line_starts[above - 1], source.line_starts[first - 1], spacing=True)
    elif above == 1:
        yield from below


def _below(source: SourceText, last: int) -> Iterator[Removal]:
    """The blank lines below a line."""
    below = last
    while below < len(source.line_starts) and not source.line(below + 1).strip():
        below += 1
    if below > last:
        yield Removal(source.line_end(last), source.line_end(below), spacing=True)


@dataclass(eq=False)
class HintImporters:
    """The modules of a run, the hint calls of each that are consumed, and the files that could not be read."""

    modules: Sequence[Facts]
    consumed: Mapping[str, Sequence[CalledHint]]
    unreadable: Sequence[SourceFile] = ()
    _unused: dict[int, bool] = field(default_factory=dict)
    _bound: dict[str, Mapping[str, set[str]]] = field(default_factory=dict)

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
        if any(names.home_of(star) == module for star in names.stars):
            # It may use the name, or re-export it in turn.
            yield True
        for imported in facts.hints.imports:
            if _imported_name(facts, imported) == f"{module}.{name}":
                yield not self.is_unused(facts, imported)
        # Names of the module itself, or of a package around it: `compat.hints`, `pkg.compat.hints`.
        parts, bound = module.split("."), self._bound_in(facts)
        holders = {each for stop in range(len(parts)) for each in bound.get(".".join(parts[: stop + 1]), ())}
        if holders:
            use = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(holders)))})(?:\.\w+)*?\.{re.escape(name)}\b")
            uses = len(use.findall(facts.source.text))
            consumed = (facts.source.text[slice(*called.call.function)] for called in self.consumed[facts.path])
            if uses:
                yield uses > sum(use.match(text) is not None for text in consumed)

    def _bound_in(self, facts: Facts) -> Mapping[str, set[str]]:
        """The names that a module binds, by the full names that they stand for: all others ask for them."""
        if facts.path not in self._bound:
            found: dict[str, set[str]] = defaultdict(set)
            for scope in set(facts.names.scopes.values()):
                for name, bindings in scope.bindings.items():
                    for binding in bindings:
                        if binding.target:
                            found[binding.target].add(name)
            self._bound[facts.path] = found
        return self._bound[facts.path]


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
    return f"{facts.names.name}.{_local(imported.alias)}"


def _imported_name(facts: Facts, imported: HintImport) -> str:
    """The full name that an import takes from another module."""
    statement, names = imported.statement, facts.names
    if isinstance(statement, ast.Import):
        return imported.alias.name
    return f"{names.home_of(statement)}.{imported.alias.name}"
