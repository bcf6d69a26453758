"""Parse modules whose syntax is newer than the Python that runs the tool.

LibCST knows that syntax. It says where it stands, and `ast` reads the module with older syntax of the same length in
its place, so that every position is that of the source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mmrewrite.source import parse_quietly

if TYPE_CHECKING:
    import libcst as cst

    Span = Callable[[cst.CSTNode], tuple[int, int]]


def parse_any(text: str) -> ast.Module:
    """`ast.parse`, also of what only LibCST can parse.

    `except A, B:` is read as `except A| B:`, `type X = int` as an assignment, type parameters are left out, and of an
    f-string that this Python cannot read, and of any t-string, only the names in it are left.

    Raises:
        SyntaxError: If neither can parse it; as this Python says it.
    """
    try:
        return parse_quietly(text)
    except SyntaxError as error:
        older = _as_older(text)
        if older is None:
            raise
        try:
            return parse_quietly(older)
        except SyntaxError:
            raise error from None


def _as_older(text: str) -> str | None:
    import libcst as cst
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    try:
        module = cst.parse_module(text)
    except (cst.ParserSyntaxError, cst.CSTLogicError, cst.CSTValidationError, RecursionError):
        return None
    if module.code != text:
        return None
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    places = wrapper.resolve(ByteSpanPositionProvider)
    data = text.encode()

    def span(node: cst.CSTNode) -> tuple[int, int]:
        place = places[node]
        start = len(data[: place.start].decode())
        return start, start + len(data[place.start : place.start + place.length].decode())

    parts, position = [], 0
    for start, end, new in sorted(_replacements(module, text, span)):
        if len(new) != end - start:
            return None
        parts += [text[position:start], new]
        position = end
    return "".join([*parts, text[position:]])


def _replacements(node: cst.CSTNode, text: str, span: Span) -> Iterator[tuple[int, int, str]]:
    """Newer syntax in a tree, as offsets and what to read there."""
    import libcst as cst

    match node:
        case cst.ExceptHandler() | cst.ExceptStarHandler() if isinstance(node.type, cst.Tuple) and not node.type.lpar:
            for element in node.type.elements:
                if isinstance(element.comma, cst.Comma):
                    start, _ = span(element.comma)
                    yield start, start + 1, "|"
        case cst.TypeParameters():
            start, end = span(node)
            yield start, end, _blank(text[start:end])
            return
        case cst.TypeAlias():
            start, _ = span(node)
            first, last = span(node.name)
            head = span(node.type_parameters)[1] if node.type_parameters is not None else last
            yield start, head, text[first:last] + _blank(text[start:head])[last - first :]
            yield from _replacements(node.value, text, span)
            return
        case cst.FormattedString() | cst.TemplatedString():
            start, end = span(node)
            if isinstance(node, cst.TemplatedString) or not _is_readable(text[start:end]):
                yield start, end, _plain_string(node, text[start:end])
            return
    for child in node.children:
        yield from _replacements(child, text, span)


def _blank(text: str) -> str:
    """As many spaces, with the lines that there are joined by backslashes."""
    lines = text.split("\n")
    return "\n".join([*(" " * (len(line) - 1) + "\\" for line in lines[:-1]), " " * len(lines[-1])])


def _is_readable(text: str) -> bool:
    try:
        parse_quietly(f"({text})")
    except SyntaxError:
        return False
    return True


def _plain_string(node: cst.FormattedString | cst.TemplatedString, text: str) -> str:
    """An f-string of the same length with nothing in it but the names; another length where they do not fit."""
    begin, end = node.start.replace("t", "f").replace("T", "f"), node.end
    names = ",".join(dict.fromkeys(_names(node)))
    field = f"{{{names}}}" if names else ""
    lines = text[len(begin) : len(text) - len(end)].split("\n")
    # In quotes that are not triple, a backslash ends each line but the last.
    joint = "\\" if len(end) == 1 else ""
    plain = []
    for index, line in enumerate(lines):
        tail = joint if index < len(lines) - 1 else ""
        room = len(line) - len(tail)
        mine, field = (field, "") if len(field) <= room else ("", field)
        plain.append(mine + "_" * (room - len(mine)) + tail)
    return begin + "\n".join(plain) + end if not field else ""


def _names(node: cst.CSTNode) -> Iterator[str]:
    """Names that are read in a string."""
    import libcst as cst

    for child in node.children:
        if isinstance(node, cst.Attribute) and child is node.attr:
            continue
        if isinstance(child, cst.Name):
            yield child.value
        yield from _names(child)
