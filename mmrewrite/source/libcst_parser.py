"""LibCST's parser, for what is not nested too deeply.

That parser recurses on the stack of the process, and where the stack is full it ends the process, without an error that
could be caught. From some 1,200 brackets on it needs more than the 8 MB that Linux and macOS give; one such file would
cost the whole run. So the text is looked at first. LibCST's own printer gives up at some 400 levels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mmrewrite.source.text import TooDeep

if TYPE_CHECKING:
    import libcst as cst

_MOST = 600
# What is no longer, and has no more brackets, needs less than that stack in any case, and is not looked at.
_SHORT, _FEW = 5000, 300

# Strings that this does not recognize are read as code, which makes them no shallower.
_TOKEN = re.compile(
    r"""(?P<skipped>\#[^\r\n]*|\\\r?\n|\\\r)
    |(?P<string>(?P<prefix>[A-Za-z]{,3})(?:\"{3}(?:[^"\\]|\\.|"(?!""))*+\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*+'{3}
        |"(?:\\.|[^"\\\r\n])*+"|'(?:\\.|[^'\\\r\n])*+'))
    |(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<cut>[,;])|(?P<line>\r\n|[\r\n])|(?P<word>\w+)|(?P<other>\\["']|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
_INDENT = re.compile(r"[ \t\f]*(?P<first>elif\b|else\b|[^\s#])?")


def parse_module(text: str) -> cst.Module:
    """`libcst.parse_module`.

    Raises:
        TooDeep: If the text may be nested too deeply.
    """
    import libcst as cst

    _check(text)
    return cst.parse_module(text)


def parse_expression(text: str) -> cst.BaseExpression:
    """`libcst.parse_expression`.

    Raises:
        TooDeep: If the text may be nested too deeply.
    """
    import libcst as cst

    _check(text)
    return cst.parse_expression(text)


def parse_statement(text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """`libcst.parse_statement`.

    Raises:
        TooDeep: If the text may be nested too deeply.
    """
    import libcst as cst

    _check(text)
    return cst.parse_statement(text)


def _check(text: str) -> None:
    if len(text) <= _MOST:
        # It is no deeper than it is long, and most are that short.
        return
    is_plain = len(text) <= _SHORT and sum(map(text.count, "([{")) <= _FEW
    if not is_plain and deepest(text) > _MOST:
        raise TooDeep("too deep for LibCST's parser")


class _NestingLevel:
    """What is between two brackets, or a line of statements: between commas, each token may be a level."""

    def __init__(self) -> None:
        self.tokens = self.inside = self.deepest = 0

    def cut(self) -> int:
        self.deepest = max(self.deepest, self.tokens + self.inside)
        self.tokens = self.inside = 0
        return self.deepest


def deepest(text: str) -> int:
    """How deep the syntax tree of a text can be at most; for what people write a small multiple of how deep it is."""
    levels = [_NestingLevel()]
    chains: dict[int, int] = {}
    blocks = most = _block(text, 0, chains)
    for token in _TOKEN.finditer(text):
        level = levels[-1]
        match token.lastgroup:
            case "open":
                level.tokens += 1
                levels.append(_NestingLevel())
            case "close" if len(levels) > 1:
                levels.pop()
                levels[-1].inside = max(levels[-1].inside, level.cut())
            case "cut":
                level.cut()
            case "line":
                if len(levels) == 1:
                    most = max(most, blocks + level.cut())
                    levels = [_NestingLevel()]
                    blocks = _block(text, token.end(), chains)
            case "string":
                level.tokens += 1
                if set(token["prefix"].lower()) & {"f", "t"}:
                    level.inside = max(level.inside, _fields(token["string"]))
            case "skipped":
                pass
            case _:
                level.tokens += 1
    for level, above in zip(reversed(levels), [*reversed(levels[:-1]), _NestingLevel()], strict=True):
        above.inside = max(above.inside, level.cut())
    return max(most, blocks + levels[0].deepest)


def _block(text: str, start: int, chains: dict[int, int]) -> int:
    """How many blocks the line that starts here is in at most.

    Each has a column. An `elif` is a block inside of the last one; `chains` counts them by their column.
    """
    found = _INDENT.match(text, start)
    if found is None or not found["first"]:
        return 0
    column, first = found.start("first") - start, found["first"]
    for other in [each for each in chains if each > column or (each == column and first not in ("elif", "else"))]:
        del chains[other]
    if first == "elif":
        chains[column] = chains.get(column, 0) + 1
    return column + sum(chains.values())


def _fields(text: str) -> int:
    """How deep the braces in a string are."""
    depth = most = 0
    for brace in re.findall(r"[{}]", text):
        depth = depth + 1 if brace == "{" else max(0, depth - 1)
        most = max(most, depth)
    return most
