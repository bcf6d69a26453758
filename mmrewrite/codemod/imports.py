"""Names for the modules that generated code uses, and the places of imports that a module does not have yet."""

from __future__ import annotations

import ast
import bisect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mmrewrite.project.facts import Facts
from mmrewrite.source.brackets import tokens_between
from mmrewrite.source.import_order import import_groups, import_statements
from mmrewrite.source.names import Binding, Scope, numbered
from mmrewrite.source.spans import carries_on, first_line
from mmrewrite.source.text import SourceText

_JAX_FAMILY = frozenset(("jax", "flax", "optax", "orbax", "chex", "haiku", "equinox", "numpy"))


@dataclass(frozen=True)
class NewImport:
    """An import line to add, as text without a line ending."""

    text: str
    module: str
    is_from: bool

    @property
    def is_standard(self) -> bool:
        """Whether the module is part of the standard library."""
        return self.module.partition(".")[0] in sys.stdlib_module_names

    @property
    def key(self) -> tuple[bool, str]:
        """Sorts as isort and ruff do: `import x` before `from x import y`."""
        return self.is_from, self.module.lower()


class Imports:
    """Names for what generated code in one module uses; a name that is not imported yet becomes a `NewImport`.

    Args:
        facts: The module.
        is_taken: Whether a name is not free, besides its own.
    """

    def __init__(self, facts: Facts, is_taken: Callable[[str], bool] = lambda name: False) -> None:
        self._facts = facts
        self._is_taken = is_taken
        self._chosen: dict[str, str] = {}
        self.new: dict[str, NewImport] = {}

    def checkpoint(self) -> Callable[[], None]:
        """A function that forgets what is chosen from now on."""
        chosen, new = self._chosen.copy(), self.new.copy()

        def take_back() -> None:
            self._chosen, self.new = chosen, new

        return take_back

    def chosen(self, module: str) -> str | None:
        """The name that generated code uses for a module, None if it does not use the module."""
        return self._chosen.get(module)

    def part(self, module: str, name: str, aliases: tuple[str, ...], scope: Scope, line: int) -> str:
        """A name of a module, under whatever name the source has for it or for a package around it."""
        found = self.existing(f"{module}.{name}", scope, line)
        package, _, inner = f"{module}.{name}".partition(".")
        holder = self.existing(package, scope, line) if found is None else None
        return found or (f"{holder}.{inner}" if holder else self.member(module, name, aliases))

    def member(self, module: str, name: str, aliases: tuple[str, ...]) -> str:
        """A name that `from module import name` brings in, under the first alias that is free.

        A `module` that begins with dots is relative.
        """
        key = f"{module}.{name}"
        if key not in self._chosen:
            alias = next((alias for alias in aliases if self._is_free(alias)), None)
            if alias is None:
                alias = next(other for other in numbered(aliases[0]) if self._is_free(other))
            text = f"from {module} import {name}" + (f" as {alias}" if alias != name else "")
            self._add(key, alias, NewImport(text, module, is_from=True))
        return self._chosen[key]

    def module(self, module: str, alias: str, scope: Scope, line: int) -> str:
        """A module, under the name that the source has for it, else under `alias` or the nearest free name."""
        found = self.existing(module, scope, line)
        if found:
            self._chosen.setdefault(module, found)
            return found
        if module not in self._chosen or module not in self.new:
            names = (name for start in (alias, module) for name in (start, f"{start}_"))
            chosen = next((name for name in names if self._is_free(name)), None)
            chosen = chosen or next(name for name in numbered(module) if self._is_free(name))
            text = f"import {module}" + (f" as {chosen}" if chosen != module else "")
            self._add(module, chosen, NewImport(text, module, is_from=False))
        return self._chosen[module]

    def _is_free(self, name: str) -> bool:
        if name in self._facts.names.identifiers or name in self._chosen.values():
            return False
        return not self._is_taken(name)

    def _add(self, key: str, alias: str, new: NewImport) -> None:
        self._chosen[key] = alias
        self.new[key] = new

    def existing(self, qualified: str, scope: Scope, line: int, column: int = 0) -> str | None:
        """The shortest name that means `qualified` in `scope` and is bound above a line and column, else None.

        One that is imported comes before others.
        """
        names, place = self._facts.names, (line, column)
        found = [
            (binding.kind != "import", len(binding.name), binding.name)
            for binding in names.other_names(qualified, scope)
            if binding.statement is not None and _place_of(binding.statement) < place and self._is_sure(binding)
        ]
        if names.star is not None and _place_of(names.star) < place:
            # Only what the code reads anyway is certain to stay where it comes from.
            found += [(False, len(name), name) for name in names.read_by_star(qualified, scope)]
        return min(found)[-1] if found else None

    def _is_sure(self, binding: Binding) -> bool:
        """Whether a binding has been made below it: a value that raises in a `try` binds nothing.

        Whether an expression in a statement is evaluated depends on the rest of it.
        """
        kinds: tuple[type[ast.stmt], ...] = (ast.If, ast.For, ast.While, ast.Match, ast.ClassDef)
        if binding.kind != "import":
            kinds += (ast.Try, ast.TryStar, ast.With)
        holders = self._facts.names.around(binding.statement) if binding.statement is not None else ()
        return not isinstance(binding.node, ast.NamedExpr) and not any(isinstance(each, kinds) for each in holders)


def _place_of(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


@dataclass(frozen=True)
class _ImportPosition:
    """The offset at which an import line goes, the comment that it needs, and the blank lines above and below."""

    offset: int
    comment: str = ""
    lead: str = ""
    trail: str = ""


def placed_imports(facts: Facts, new: Iterable[NewImport], before: int) -> Iterator[tuple[int, str, list[NewImport]]]:
    """Offset and text of the lines that bring new imports in, above line `before`, with the imports."""
    places: dict[int, list[tuple[_ImportPosition, NewImport]]] = {}
    for each in new:
        position = _place(facts, each, before)
        position = replace(position, comment=_comment_of_place(facts, position.offset))
        places.setdefault(position.offset, []).append((position, each))
    for offset, imports in places.items():
        yield offset, _block(facts.source, imports), [each for _, each in imports]


def _place(facts: Facts, new: NewImport, before: int) -> _ImportPosition:
    """The place of an import above line `before`, in the group of its kind and in order, as isort would put it."""
    newline = facts.source.newline
    sections = [each for each in import_statements(facts.tree, facts.source) if each[-1].lineno < before]
    star = facts.names.star
    if star is not None and star.lineno < before:
        # `import *` might bind the name of the new import, so that goes below it.
        sections = [section for section in sections if section[0].lineno > star.lineno]
        if not sections:
            return _ImportPosition(_line_below(facts, facts.names.top_level(star)))
    if not sections:
        return _above_everything(facts, before)
    root = new.module.partition(".")[0]
    standard = [section for section in sections if not sys.stdlib_module_names.isdisjoint(_roots(section))]
    if root in sys.stdlib_module_names:
        if standard:
            return _into(facts, standard[-1], new)
        return _ImportPosition(facts.source.line_starts[sections[0][0].lineno - 1], trail=newline)
    same = [section for section in sections if root in _roots(section)]
    jax = [section for section in sections if not _JAX_FAMILY.isdisjoint(_roots(section))]
    others = [section for section in sections if section not in standard and "" not in _roots(section)]
    for candidates in (same[:1], jax[:1], others[-1:]):
        if candidates:
            return _into(facts, candidates[0], new)
    if standard:
        return _ImportPosition(_line_below(facts, standard[-1][-1]), lead=newline)
    return _into(facts, sections[0], new)


# What lets an import stand below other code, whatever it imports: for ruff and flake8, and for pylint.
_ALLOWED = {
    "# noqa: E402": re.compile(r"#\s*noqa:[^#]*\bE402\b", re.I),
    "# pylint: disable=wrong-import-position": re.compile(r"#\s*pylint:.*\b(wrong-import-position|C0413)\b"),
}


def _comment_of_place(facts: Facts, offset: int) -> str:
    """What lets the imports stand that a place is beside."""
    source = facts.source
    for group in import_groups(facts.tree, source):
        if group.start <= offset <= group.end and "#" in group.text:
            comments = [token.text for token in tokens_between(source, group.start, group.end) if token.is_comment]
            found = [text for text, pattern in _ALLOWED.items() if any(map(pattern.search, comments))]
            return "".join(f"  {text}" for text in found)
    return ""


def _module_of(statement: ast.Import | ast.ImportFrom) -> str:
    if isinstance(statement, ast.Import):
        return statement.names[0].name
    return "." * statement.level + (statement.module or "")


def _roots(section: Sequence[ast.Import | ast.ImportFrom]) -> set[str]:
    return {_module_of(statement).partition(".")[0] for statement in section}


def _into(facts: Facts, section: Sequence[ast.Import | ast.ImportFrom], new: NewImport) -> _ImportPosition:
    keys = [(isinstance(statement, ast.ImportFrom), _module_of(statement).lower()) for statement in section]
    if keys == sorted(keys):
        place = sum(existing < new.key for existing in keys)
    else:
        plain = [index for index, (is_from, _) in enumerate(keys) if not is_from]
        place = _between_both_kinds(section, new) or (plain[-1] + 1 if plain and not new.is_from else len(keys))
    if place == 0:
        return _ImportPosition(facts.source.line_starts[section[0].lineno - 1])
    return _ImportPosition(_line_below(facts, section[place - 1]))


def _between_both_kinds(section: Sequence[ast.Import | ast.ImportFrom], new: NewImport) -> int | None:
    """The place between two imports of a group that has them, of both kinds, in the order of what they import.

    That is the order of Google's style. Only the last imports need be in it, as many as there are.
    """
    paths = [
        f"{_module_of(each)}.{each.names[0].name}".lower()
        if isinstance(each, ast.ImportFrom)
        else _module_of(each).lower()
        for each in section
    ]
    begin = next((index for index in range(len(paths) - 1, 0, -1) if paths[index - 1] > paths[index]), 0)
    place = bisect.bisect(paths, new.module.lower(), begin)
    kinds = [isinstance(statement, ast.ImportFrom) for statement in section[begin:]]
    return place if kinds != sorted(kinds) and begin < place < len(paths) else None


def _line_below(facts: Facts, statement: ast.stmt) -> int:
    """Offset of the line below a statement, and below further statements that begin on its last line."""
    end = statement.end_lineno or statement.lineno
    for other in facts.tree.body:
        if other.lineno == end or (other.lineno > end and carries_on(facts.source, end)):
            end = other.end_lineno or end
    return facts.source.line_end(end)


def _above_everything(facts: Facts, before: int) -> _ImportPosition:
    source, body = facts.source, facts.tree.body
    index = 0
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        index = 1
    while index < len(body) and isinstance(body[index], ast.ImportFrom) and _is_future(body[index]):
        index += 1
    if index:
        return _ImportPosition(_line_below(facts, body[index - 1]), lead=source.newline)
    blank = 2 if isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else 1
    line = min(before, first_line(body[0]))
    # A hint that stays belongs to the statement below it, so the import must not come between.
    hinted = [comment.comment.line for comment in facts.hints.comments if comment.comment.line < line]
    return _ImportPosition(source.line_starts[min([line, *hinted]) - 1], trail=source.newline * blank)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _block(source: SourceText, imports: Sequence[tuple[_ImportPosition, NewImport]]) -> str:
    """The text of all imports that go to one offset."""
    ordered = sorted(imports, key=lambda pair: (not pair[1].is_standard, pair[1].key))
    lines: list[str] = []
    for index, (placement, new) in enumerate(ordered):
        apart = index and (placement.lead or placement.trail) and new.is_standard != ordered[index - 1][1].is_standard
        lines += ["", new.text + placement.comment] if apart else [new.text + placement.comment]
    first, last = ordered[0][0], ordered[-1][0]
    before = source.text[: first.offset]
    # The last line of a file may lack its line ending.
    unfinished = source.newline if before and not before.endswith(("\n", "\r")) else ""
    return unfinished + first.lead + "".join(line + source.newline for line in lines) + last.trail
