"""Parse modules whose syntax is newer than the Python that runs the tool.

LibCST brings its own parser and knows newer syntax. Each piece of it is replaced by older syntax of the same length,
so that `ast` can parse the module and every position in its tree is one of the source.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrewrite.source.libcst_parser import parse_module
from mmrewrite.source.text import SourceText, parse_quietly

if TYPE_CHECKING:
    import libcst as cst

    Span = Callable[[cst.CSTNode], tuple[int, int]]


def parse_any(text: str) -> ast.Module:
    """`ast.parse`, extended to syntax that only LibCST can parse.

    `except A, B:` (PEP 758) is read as `except A| B:`, `type X = int` (PEP 695) as an assignment, and type parameters
    are left out. An f-string that this Python cannot parse (PEP 701) and any t-string (PEP 750) become an f-string of
    the expressions in it.

    Raises:
        SyntaxError: If neither can parse it; the error of this Python.
    """
    try:
        return parse_quietly(text)
    except SyntaxError as error:
        older = _as_older(text)
        if older is None:
            raise
        try:
            tree = parse_quietly(older.text)
        except SyntaxError:
            raise error from None
        _restore_columns(tree, SourceText(older.text, "utf-8", False), SourceText(text, "utf-8", False))
        if not _restore_strings(tree, SourceText(text, "utf-8", False), older.strings):
            raise
        return tree


def tokens(program: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a program, in which a string that this Python cannot read is a pair of brackets."""
    try:
        parse_quietly(program)
    except SyntaxError:
        older = _as_older(program)
        program = program if older is None else older.text
    return tokenize.generate_tokens(io.StringIO(program, newline="").readline)


def newer_comments(text: str) -> list[tuple[int, int]] | None:
    """Offsets of the comments between and in adjacent strings; None if this Python can parse them itself."""
    if _is_readable(text):
        return None
    import libcst as cst

    module = parse_module(f"(\n{text}\n)")
    span = _spans(module, module.code)
    return sorted((start - 2, end - 2) for start, end in (span(node) for node in _nodes(module, cst.Comment)))


@dataclass(frozen=True)
class _Older:
    """The text in older syntax, and the offsets of the strings that became tuples of their expressions."""

    text: str
    strings: frozenset[tuple[int, int]]


def _as_older(text: str) -> _Older | None:
    import libcst as cst

    try:
        module = parse_module(text)
    except (cst.ParserSyntaxError, cst.CSTLogicError, cst.CSTValidationError, RecursionError):
        return None
    if module.code != text:
        # Then LibCST's positions are not those of the text.
        return None
    strings: set[tuple[int, int]] = set()
    older = list(text)
    for start, end, new in _replacements(module, text, _spans(module, text), strings):
        older[start:end] = new
    return _Older("".join(older), frozenset(strings))


def _spans(module: cst.Module, text: str) -> Span:
    """A function from a node of the module to its offsets.

    LibCST counts bytes of UTF-8, offsets count characters.
    """
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    places = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    data = text.encode()

    def span(node: cst.CSTNode) -> tuple[int, int]:
        place = places[node]
        start = len(data[: place.start].decode())
        return start, start + len(data[place.start : place.start + place.length].decode())

    return span


def _replacements(
    node: cst.CSTNode, text: str, span: Span, strings: set[tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """(start, end, older text) for newer syntax in a tree, outer nodes first; replaced strings go to `strings`."""
    import libcst as cst

    match node:
        case cst.ExceptHandler() | cst.ExceptStarHandler() if isinstance(node.type, cst.Tuple) and not node.type.lpar:
            for element in node.type.elements:
                if isinstance(element.comma, cst.Comma):
                    start, _ = span(element.comma)
                    yield start, start + 1, "|"
        case cst.TypeParameters():
            start, end = span(node)
            if text.startswith("(", end):
                yield start, end + 1, f"({_blank(text[start + 1 : end + 1])}"
            else:
                yield start, end, f"({_blank(text[start + 1 : end - 1])})"
            return
        case cst.TypeAlias():
            start, _ = span(node)
            first, last = span(node.name)
            if node.type_parameters is None:
                yield start, last, text[first:last] + re.sub(r"[^\\\r\n]", " ", text[start + last - first : last])
            else:
                end = span(node.type_parameters)[1]
                yield start, first, f"({_blank(text[start + 1 : first])}"
                yield last, end, f"{_blank(text[last : end - 1])})"
            yield from _replacements(node.value, text, span, strings)
            return
        case cst.FormattedString() | cst.TemplatedString() | cst.ConcatenatedString():
            start, end = span(node)
            if not _is_readable(text[start:end]):
                strings.add((start, end))
                yield start, end, _tuple_of_expressions(node, text, span)
                for field in _fields(node):
                    yield from _replacements(field.expression, text, span, strings)
                return
    for child in node.children:
        yield from _replacements(child, text, span, strings)


def _blank(text: str) -> str:
    """The same number of spaces on the same lines."""
    return re.sub(r"[^\r\n]", " ", text)


def _is_readable(text: str) -> bool:
    try:
        parse_quietly(f"(\n{text}\n)")
    except (SyntaxError, ValueError):
        return False
    return True


def _tuple_of_expressions(node: cst.CSTNode, text: str, span: Span) -> str:
    """A tuple of a string's expressions, each at its place; all other characters become brackets, commas and spaces."""
    import libcst as cst

    start, end = span(node)
    plain = list(_blank(text[start:end]))
    plain[0], plain[-1] = "(", ")"
    fields = list(_fields(node))
    for position, field in enumerate(fields):
        opening, closing = span(field)
        expression = field.expression
        first = span(expression.lpar[0])[0] if expression.lpar else span(expression)[0]
        last = span(expression.rpar[-1])[1] if expression.rpar else span(expression)[1]
        if isinstance(expression, cst.Tuple) and not expression.lpar:
            comma = expression.elements[-1].comma
            last = span(comma)[0] if isinstance(comma, cst.Comma) else last
        plain[first - start : last - start] = text[first:last]
        if position:
            plain[opening - start] = ","
        if position == len(fields) - 1:
            plain[closing - 1 - start] = ","
    return "".join(plain)


def _fields(node: cst.CSTNode) -> Iterator[cst.FormattedStringExpression | cst.TemplatedStringExpression]:
    """The replacement fields of a string in the order of the text, with those in format specifications."""
    import libcst as cst

    match node:
        case cst.ConcatenatedString():
            yield from _fields(node.left)
            yield from _fields(node.right)
        case cst.FormattedString() | cst.TemplatedString():
            for part in node.parts:
                yield from _fields(part)
        case cst.FormattedStringExpression() | cst.TemplatedStringExpression():
            yield node
            for part in node.format_spec or ():
                yield from _fields(part)


def _nodes(node: cst.CSTNode, kind: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    if isinstance(node, kind):
        yield node
    for child in node.children:
        yield from _nodes(child, kind)


def _restore_columns(tree: ast.Module, older: SourceText, source: SourceText) -> None:
    """Count columns in bytes of the source again: a replaced character may have had more bytes than its replacement."""

    def restored(line: int, column: int) -> int:
        if source.line(line).isascii():
            return column
        characters = len(older.line(line).encode()[:column].decode())
        return len(source.line(line)[:characters].encode())

    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias | ast.excepthandler | ast.pattern):
            node.col_offset = restored(node.lineno, node.col_offset)
            if node.end_lineno is not None and node.end_col_offset is not None:
                node.end_col_offset = restored(node.end_lineno, node.end_col_offset)


def _restore_strings(tree: ast.Module, source: SourceText, strings: frozenset[tuple[int, int]]) -> bool:
    """Turn the tuples at `strings` back into f-strings; whether all were found."""
    found = 0
    # Inner strings first, since an outer one is built from its parts.
    for node in reversed(list(ast.walk(tree))):
        for name, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            for index, item in enumerate(items):
                if not isinstance(item, ast.Tuple) or _offsets(source, item) not in strings:
                    continue
                found += 1
                values = [ast.copy_location(ast.FormattedValue(value=each, conversion=-1), each) for each in item.elts]
                text = ast.copy_location(ast.JoinedStr(values=list[ast.expr](values)), item)
                if isinstance(value, list):
                    value[index] = text
                else:
                    setattr(node, name, text)
    return found == len(strings)


def _offsets(source: SourceText, node: ast.expr) -> tuple[int, int]:
    return (
        source.offset(node.lineno, node.col_offset),
        source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
    )
