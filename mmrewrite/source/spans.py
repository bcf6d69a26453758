"""Where a node of the syntax tree begins and ends in the text."""

from __future__ import annotations

import ast
import bisect
import functools
import re
from collections.abc import Iterator, Sequence

from mmrewrite.source.text import SourceText, parse_quietly
from mmrewrite.source.walk import walk

_SIGN_AT_END = re.compile(r"@[ \t\f(]*+[\\#\r\n]")


def span(source: SourceText, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> tuple[int, int]:
    """Offsets of a node's first character and of the one after its last."""
    end_line = node.end_lineno or node.lineno
    return source.offset(node.lineno, node.col_offset), source.offset(end_line, node.end_col_offset or 0)


def first_line(node: ast.expr | ast.stmt) -> int:
    """Line on which a node begins, decorators included."""
    decorators = getattr(node, "decorator_list", None)
    return getattr(decorators[0], "sign_line", decorators[0].lineno) if decorators else node.lineno


def parse_program(text: str) -> ast.Module:
    """`parse_quietly`, where each decorator that begins below the line of its `@` has that line as `sign_line`."""
    tree = parse_quietly(text)
    if _SIGN_AT_END.search(text) is None:
        return tree
    source = SourceText(text, "utf-8", False)
    for node in walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            line, _ = source.position(sign_before(source, decorator))
            if line != decorator.lineno:
                decorator.sign_line = line
    return tree


@functools.lru_cache(maxsize=1)
def kept_program(text: str) -> ast.Module:
    """`parse_program` for those who leave the tree as it is: the result of some edits is looked at more than once."""
    return parse_program(text)


def sign_before(source: SourceText, decorator: ast.expr) -> int:
    """Offset of the `@` of a decorator: only brackets, comments and line breaks stand between them."""
    start, _ = span(source, decorator)
    line, _ = source.position(start)
    text = source.text[source.line_starts[line - 1] : start]
    while "@" not in text.partition("#")[0]:
        line -= 1
        text = source.line(line)
    return source.line_starts[line - 1] + text.index("@")


def leading_space(line: str) -> str:
    """The whitespace that a line begins with."""
    return line[: len(line) - len(line.lstrip())]


def begins_its_line(source: SourceText, statement: ast.stmt) -> bool:
    """Whether nothing but whitespace stands before a statement, nor what a backslash above carries on."""
    line = first_line(statement)
    if line != statement.lineno:
        return True
    before = source.text[source.line_starts[line - 1] : source.offset(line, statement.col_offset)]
    return not before.strip() and not carries_on(source, line - 1)


def carries_on(source: SourceText, line: int) -> bool:
    """Whether a backslash ends a line, so that the one below is the same to Python."""
    text = source.line(line).rstrip("\r\n") if line else ""
    return text.endswith("\\") and "#" not in text


def on_line(block: Sequence[ast.stmt], line: int) -> Sequence[ast.stmt]:
    """The statements of a block that begin on a line, end there or lie around it; decorators included."""
    end = bisect.bisect_right(block, line, key=first_line)
    begin = end
    while begin and (block[begin - 1].end_lineno or 0) >= line:
        begin -= 1
    return block[begin:end]


def blocks_of(holder: ast.AST | None) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a statement, a module, or a part of one such as a handler."""
    for part in (holder, *getattr(holder, "handlers", ()), *getattr(holder, "cases", ())):
        blocks = (getattr(part, name, None) for name in ("body", "orelse", "finalbody"))
        yield from (block for block in blocks if isinstance(block, list) and block)


def block_around(holder: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """The list of statements in a holder that has a statement."""
    return next(block for block in blocks_of(holder) if statement in block)
