"""Which parts of imports go away together with the hints: of `mmrewrite.hints`, and of what only hinted code used."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mmrewrite.codemod.comments import is_for_tools
from mmrewrite.directives.calls import Removal
from mmrewrite.engine.edits import apply_edits
from mmrewrite.engine.hint_importers import HintImporters, listed
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.results import Edit
from mmrewrite.source.brackets import brackets_of, own_comment, without_items, without_listed
from mmrewrite.source.spans import begins_its_line, span
from mmrewrite.source.text import SourceText, parse_quietly
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
    imports = [each for each in walk(facts.tree) if isinstance(each, ast.Import | ast.ImportFrom) and each not in own]
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
    """Those of some names that a module reads on lines that edits change, and once edited nowhere."""
    source = facts.source
    changed = {line for edit in edits for line in _lines(source, edit)}
    old = [(words, changed.isdisjoint(range(first, last + 1))) for words, first, last in _read_in(facts.tree)]
    kept = {word for words, stays in old if stays for word in words}
    possible = {word for words, stays in old if not stays for word in words if word in names} - kept
    if not possible:
        return ()
    try:
        new = parse_quietly(apply_edits(source.text, edits))
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
