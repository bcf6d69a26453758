"""The imports of a group in the order, and on the lines, of ruff's isort."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.source.brackets import tokens_of
from mmrewrite.source.spans import carries_on
from mmrewrite.source.text import SourceText, parse_quietly

_IMPORTS = ast.Import | ast.ImportFrom
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class ImportLines:
    """Import statements at module level with nothing but comments between them, by the offsets of their lines."""

    start: int
    end: int
    text: str


def import_groups(tree: ast.Module, source: SourceText) -> Iterator[ImportLines]:
    """The groups of imports of a module, in order."""
    for group in import_statements(tree, source):
        start = source.line_starts[group[0].lineno - 1]
        end = source.line_end(group[-1].end_lineno or group[-1].lineno)
        yield ImportLines(start, end, source.text[start:end])


def import_statements(tree: ast.Module, source: SourceText) -> Iterator[list[ast.Import | ast.ImportFrom]]:
    """The statements of each group of imports of a module, in order; those of `__future__` stand above all others."""
    group: list[ast.Import | ast.ImportFrom] = []
    for statement in [*tree.body, None]:
        one = statement if isinstance(statement, _IMPORTS) and not _is_carried_on(source, statement) else None
        if isinstance(one, ast.ImportFrom) and one.module == "__future__":
            one = None
        if group and (one is None or not _is_below(source, group[-1], one)):
            yield group
            group = []
        if one is not None:
            group.append(one)


def _is_carried_on(source: SourceText, statement: ast.stmt) -> bool:
    """Whether a backslash puts a statement on one line with that above or below it."""
    return carries_on(source, statement.lineno - 1) or carries_on(source, statement.end_lineno or statement.lineno)


def _is_below(source: SourceText, above: ast.stmt, statement: ast.stmt) -> bool:
    lines = range((above.end_lineno or above.lineno) + 1, statement.lineno)
    return all(source.line(line).strip() for line in lines)


def arranged(text: str, width: int, unit: str, newline: str) -> str | None:
    """A group of imports as isort writes it; None if it has `*`, lines with several statements, or comments in between.

    A comment behind a statement stays behind it, where that stands on one line and none is joined with it.
    """
    if ";" in text:
        return None
    statements = parse_quietly(text).body
    behind = _comments_behind(text, statements) if "#" in text else {}
    if behind is None:
        return None
    found: list[tuple[tuple[object, ...], str, str]] = []
    renamed: list[tuple[tuple[object, ...], str, str]] = []
    members: dict[str, list[ast.alias]] = {}
    told: dict[str, str] = {}
    for statement in statements:
        comment = behind.get(statement, "")
        if isinstance(statement, ast.Import):
            if comment and len(statement.names) > 1:
                return None
            for name, local in ((alias.name, alias.asname) for alias in statement.names):
                line = f"import {name}" + (f" as {local}" if local else "")
                found.append(((0, _of_module((name, local))), line, comment))
        elif isinstance(statement, ast.ImportFrom):
            home = _home(statement) or ""
            plain = [alias for alias in statement.names if alias.asname is None]
            if statement.names[0].name == "*" or (comment and plain and (len(plain) < len(statement.names))):
                # What `*` binds, an import above it would bind no more.
                return None
            if plain and home in members and (comment or told[home]):
                return None
            if plain:
                members.setdefault(home, []).extend(plain)
                told[home] = comment
            for alias in statement.names:
                if alias.asname is not None:
                    line = _from(home, [f"{alias.name} as {alias.asname}"], width, unit, newline)
                    renamed.append(((1, _natural(home), _of_member(alias.name)), line, "" if plain else comment))
    for home, aliases in members.items():
        names = sorted({alias.name for alias in aliases}, key=_of_member)
        line = _from(home, names, width, unit, newline)
        found.append(((1, _natural(home), _of_member(names[0])), line, told[home]))
    ordered = sorted([*found, *renamed], key=lambda item: item[0])
    lines = {f"{line}  {comment}" if comment else line: comment for _, line, comment in ordered}
    if any(comment and (newline in line or len(line) > width) for line, comment in lines.items()):
        return None
    return "".join(f"{line}{newline}" for line in lines)


def _comments_behind(text: str, statements: Sequence[ast.stmt]) -> dict[ast.stmt, str] | None:
    """The comments on the lines of statements that have one line, None if there are others."""
    source = SourceText(text, "utf-8", has_bom=False)
    alone = {each.lineno: each for each in statements if each.end_lineno == each.lineno}
    comments = {
        alone.get(source.position(token.start)[0]): token.text for token in tokens_of(source) if token.is_comment
    }
    return {each: comment for each, comment in comments.items() if each is not None} if None not in comments else None


def joined(text: str, was: str, width: int, unit: str, newline: str) -> str:
    """A group of imports where what is new joins the statement of its module that is there, which keeps its layout.

    `was` is the text of the group before. One with comments stays, which are about lines of it.
    """
    if "#" in text:
        return text
    try:
        above, now = parse_quietly(was).body, parse_quietly(text).body
    except SyntaxError:
        # The first of its lines is the end of another statement, too.
        return text
    before = [each for each in above if isinstance(each, ast.ImportFrom)]
    if any(each.names[0].name == "*" for each in before):
        # An import that goes to the other side of it would bind what it did not, or no more.
        return text
    old, kept = Counter(map(_home, before)), {name for each in before for name in _names_of(each)}
    for home, count in Counter(map(_home, now)).items():
        for _ in range(count - max(old[home], 1) if home is not None else 0):
            source = SourceText(text, "utf-8", has_bom=False)
            body = parse_quietly(text).body
            same = [each for each in body if isinstance(each, ast.ImportFrom) and _home(each) == home]
            # What is there comes first, and what is new goes into it.
            same.sort(key=lambda each: kept.isdisjoint(_names_of(each)))
            (first, *_, last) = ((each, *_lines_of(source, each)) for each in same)
            made = _with_names(source, first[0], last[0], width, unit, newline)
            if made is None:
                break
            for start, end, new in sorted([(*first[1:], made), (*last[1:], "")], reverse=True):
                text = text[:start] + new + text[end:]
    return text


def _home(statement: ast.stmt) -> str | None:
    """The module that a statement imports names of."""
    return "." * statement.level + (statement.module or "") if isinstance(statement, ast.ImportFrom) else None


def _names_of(statement: ast.ImportFrom) -> set[tuple[str | None, str, str | None]]:
    return {(_home(statement), alias.name, alias.asname) for alias in statement.names}


def _lines_of(source: SourceText, statement: ast.stmt) -> tuple[int, int]:
    return source.line_starts[statement.lineno - 1], source.line_end(statement.end_lineno or statement.lineno)


def _with_names(
    source: SourceText, statement: ast.ImportFrom, new: ast.ImportFrom, width: int, unit: str, newline: str
) -> str | None:
    """An import with the names of another one of its module, None if it has a layout of its own."""
    lines = source.text[slice(*_lines_of(source, statement))]
    text = lines + source.text[slice(*_lines_of(source, new))]
    if any(sign in text for sign in ";*\\"):
        return None
    old, home = [*map(_imported, statement.names)], _home(new) or ""
    names = [*old, *(name for name in map(_imported, new.names) if name not in old)]
    if old == sorted(old, key=_of_member):
        names.sort(key=_of_member)
    is_broken = lines.count(newline) > 1
    if is_broken and _from(home, old, 0, unit, newline) + newline != lines:
        return None
    return _from(home, names, 0 if is_broken else width, unit, newline) + newline


def _imported(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname is not None else alias.name


def _from(home: str, names: Sequence[str], width: int, unit: str, newline: str) -> str:
    line = f"from {home} import {', '.join(names)}"
    if len(line) <= width:
        return line
    return f"from {home} import ({newline}" + "".join(f"{unit}{name},{newline}" for name in names) + ")"


def _of_module(item: tuple[str, str | None]) -> tuple[object, ...]:
    return _natural(item[0]), item[1] is not None, item[1] or ""


def _of_member(name: str) -> tuple[object, ...]:
    """Constants come first, then classes, then all others."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return name != "*", kind, _natural(name)


def _natural(name: str) -> tuple[object, ...]:
    parts = _NUMBERS.split(name.lower())
    return (*((int(part), "") if part.isdigit() else (-1, part) for part in parts), (-2, name))
