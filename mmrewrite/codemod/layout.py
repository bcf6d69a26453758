"""How a statement stands in its lines: its own text, its indentation, and a new one laid out like the rest."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

from mmrewrite.source.brackets import tokens_between
from mmrewrite.source.line_breaking import fit, longest_line
from mmrewrite.source.spans import first_line, leading_space, span
from mmrewrite.source.text import SourceText, has_lines

if TYPE_CHECKING:
    from mmrewrite.project.facts import Facts

DEFAULT_UNIT = "    "
_OPEN = "if 1:"
# A line that ends with an opening bracket, and the indentation of what stands below.
_HANGING = re.compile(r"^([ \t]*+)(?![\s#]).*[(\[{][ \t]*+\r?\n(?=([ \t]*+)[^\s)\]}])", re.MULTILINE)
_BODY = " pass"


def render_statement(code: str, indent: str, newline: str, runtime: str, width: int, unit: str) -> str:
    """The text of a new statement, laid out like the rest, without the indentation of its first line.

    `code` has lines that end in a line feed, and no indentation of its own.
    """
    first, *rest = code.split("\n")
    lines = newline.join([first, *(f"{indent}{line}" if line else "" for line in rest)])
    return fit_statement(lines, indent, runtime, width, unit, newline)


def fit_statement(
    text: str, indent: str, runtime: str | None, width: int, unit: str, newline: str, *, header: bool = False
) -> str:
    """A statement's own text, or with `header` that of a compound one's header, with calls broken as `fit` does it.

    The text does not begin with its indentation.
    """
    code = wrap(text, indent, newline, header)
    if not has_lines(text) and longest_line(code) <= width:
        return text
    return unwrap(fit(code, runtime, width, unit, newline), indent, header)


def own_span(source: SourceText, statement: ast.stmt) -> tuple[int, int, bool]:
    """Offsets of a statement's own text, and whether that is only a header: the blocks below it are not its own."""
    start, end = span(source, statement)
    decorators = getattr(statement, "decorator_list", ())
    body: list[ast.stmt] = getattr(statement, "body", [])
    if not body:
        return start, end, False
    head = start
    if decorators:
        line = first_line(statement)
        text = source.line(line)
        head = source.line_starts[line - 1] + len(text) - len(text.lstrip())
    is_decorated = first_line(body[0]) < body[0].lineno
    inner = source.line_starts[first_line(body[0]) - 1] if is_decorated else span(source, body[0])[0]
    return head, _header_end(source, start, inner), True


def indentation(source: SourceText, statement: ast.stmt) -> str:
    """The whitespace that the line of a statement begins with."""
    return leading_space(source.line(first_line(statement)))


def indent_unit(facts: Facts) -> str:
    """The text by which the module indents one level."""
    source = facts.source
    for statement, holder in facts.names.parents.items():
        # The body of a `case` is two levels below its `match`.
        if isinstance(holder, ast.Match) or first_line(statement) == holder.lineno:
            continue
        inner, outer = source.line(first_line(statement)), source.line(first_line(holder))
        indent = inner[: len(inner) - len(inner.lstrip())]
        own = outer[: len(outer) - len(outer.lstrip())]
        if indent.startswith(own) and len(indent) > len(own):
            return indent[len(own) :]
    return DEFAULT_UNIT


def hanging_unit(facts: Facts) -> str:
    """The text by which the module indents lines in brackets: Google's style has four spaces, and two for blocks."""
    found = Counter(
        inner.removeprefix(own)
        for own, inner in _HANGING.findall(facts.source.text)
        if inner.startswith(own) and len(inner) > len(own)
    )
    return found.most_common(1)[0][0] if found else indent_unit(facts)


def wrap(text: str, indent: str, newline: str, header: bool) -> str:
    """A statement's own text as a module that Python can parse; `header` says that it is that of a compound one."""
    opening = f"{_OPEN}{newline}" if indent else ""
    return f"{opening}{indent}{text}{_BODY if header else ''}{newline}"


def unwrap(code: str, indent: str, header: bool) -> str:
    """The text that `wrap` was given."""
    text = code.rstrip("\r\n")
    if indent:
        text = text.removeprefix(_OPEN).lstrip("\r\n").removeprefix(indent)
    return text.removesuffix(_BODY) if header else text


def _header_end(source: SourceText, start: int, end: int) -> int:
    """Offset just after the colon that ends the header which begins at `start`, of a block that begins at `end`."""
    depth = 0
    for token in tokens_between(source, start, end):
        depth += token.depth
        if token.text == ":" and depth == 0:
            return token.end
    raise AssertionError(f"no colon after line {source.position(start)[0]}")
