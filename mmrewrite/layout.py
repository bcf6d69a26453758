"""Break generated calls that are too long for their line, the way black would."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mmrewrite.source import SourceText, parse_quietly

_TAB_COLUMNS = 4


@dataclass(frozen=True)
class _Brackets:
    """Offsets just after an opening bracket and of the closing one, and the spans of what is between commas."""

    start: int
    end: int
    items: tuple[tuple[int, int], ...]


def fit(code: str, runtime: str, width: int, unit: str, newline: str) -> str:
    """Text of one statement with the runtime's calls broken until its lines fit `width`, as far as that goes.

    What is between the brackets goes onto one indented line, or, where that is too long, onto one line each. Only calls
    of the runtime, and of `partial` on one of them, are broken: what the user wrote keeps its layout.
    """
    while True:
        source = SourceText(code, "utf-8", has_bom=False)
        long = {number for number in range(1, len(source.line_starts) + 1) if _columns(source.line(number)) > width}
        if not long or not _parses(code):
            return code
        brackets = next(
            (found for found in _unbroken(source, runtime) if source.position(found.start)[0] in long), None
        )
        if brackets is None:
            return code
        line = source.line(source.position(brackets.start)[0])
        own = line[: len(line) - len(line.lstrip())]
        inside = source.text[brackets.start : brackets.end]
        if _columns(own + unit + inside) > width or inside.endswith(",") or newline in inside:
            inside = _one_each(source, brackets, own + unit, newline)
        broken = f"{newline}{own}{unit}{inside}{newline}{own}"
        code = source.text[: brackets.start] + broken + source.text[brackets.end :]


def _parses(code: str) -> bool:
    """What does not parse is our bug, which is found and reported when the whole file is checked."""
    try:
        parse_quietly(code)
    except SyntaxError:
        return False
    return True


def longest_line(text: str) -> int:
    """Columns of the longest line."""
    return max((_columns(line) for line in text.splitlines()), default=0)


def _columns(line: str) -> int:
    return len(line.rstrip("\r\n").expandtabs(_TAB_COLUMNS))


def _one_each(source: SourceText, brackets: _Brackets, indent: str, newline: str) -> str:
    lines, position = [], brackets.start
    for (_, end), following in zip(brackets.items, [*brackets.items[1:], None], strict=True):
        stop = source.text.index(",", end) if following is not None else brackets.end
        lines.append(source.text[position:stop].strip().removesuffix(","))
        position = stop + 1
    return f"{newline}{indent}".join(f"{line}," for line in lines)


def _unbroken(source: SourceText, runtime: str) -> Iterator[_Brackets]:
    """Brackets that may be broken, outer ones first."""
    queue: list[ast.AST] = [parse_quietly(source.text)]
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.Call) and _is_generated(node, runtime):
            parts: Sequence[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=_place)
            opening = source.text.index("(", _end(source, node.func)) + 1
            yield from _brackets(source, opening, _end(source, node) - 1, parts)
            values = (part.value if isinstance(part, ast.keyword) else part for part in parts)
            for value in values:
                if isinstance(value, ast.Tuple) and source.text[_start(source, value)] == "(":
                    yield from _brackets(source, _start(source, value) + 1, _end(source, value) - 1, value.elts)
        queue.extend(ast.iter_child_nodes(node))


def _brackets(source: SourceText, start: int, end: int, parts: Sequence[ast.expr | ast.keyword]) -> Iterator[_Brackets]:
    items = tuple((_start(source, part), _end(source, part)) for part in parts)
    between = "".join(source.text[stop:begin] for (_, stop), (begin, _) in pairwise(items))
    if items and "#" not in between and source.text[start] not in "\r\n":
        yield _Brackets(start, end, items)


def _is_generated(node: ast.Call, runtime: str) -> bool:
    if _root(node.func) == runtime:
        return True
    is_partial = (isinstance(node.func, ast.Attribute) and node.func.attr == "partial") or (
        isinstance(node.func, ast.Name) and "partial" in node.func.id
    )
    return is_partial and bool(node.args) and _root(node.args[0]) == runtime


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _place(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _start(source: SourceText, node: ast.expr | ast.keyword) -> int:
    return source.offset(node.lineno, node.col_offset)


def _end(source: SourceText, node: ast.expr | ast.keyword) -> int:
    return source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
