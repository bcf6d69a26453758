"""Programs with more between two of their tokens: comments, line breaks, backslashes, parentheses around values."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mmrewrite.source.text import SourceText

NO_CODE = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)
# What stands in a gap within brackets; the number tells one comment from all others.
IN_BRACKETS = {
    "comment": "  # one, (two], \"three' # x={:05}=4\n",
    "banner": f"  {'#' * 300}{{:05}}#\n",
    "own line": "\n  # (one, {:05} 'two\n",
    "line break": "\n",
    "backslash": " \\\n",
    "tool": "  # noqa: F401, E{:05}\n",
}
KINDS = (*IN_BRACKETS, "parentheses")
# Insertions, each with its offset, that are made at once.
Place = list[tuple[int, str]]
# So many places of a statement are tried one after another.
_FAR = 8


def gaps(text: str, kind: str) -> list[Place]:
    """The insertions, each as an offset and a text, one list for each place in a program that can have `kind`."""
    if kind == "parentheses":
        return list(_parentheses(text))
    source = SourceText(text, "utf-8", has_bom=False)
    found: list[Place] = []
    depth = in_string = 0
    tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    for token, following in pairwise(tokens):
        if token.type == tokenize.OP and not in_string:
            depth += (token.string in "([{") - (token.string in ")]}")
        name = tokenize.tok_name[token.type]
        in_string += name.endswith("STRING_START")
        in_string -= name.endswith("STRING_END")
        if in_string or token.type in NO_CODE or (following.type in NO_CODE and following.type != tokenize.NEWLINE):
            continue
        offset = source.line_starts[token.end[0] - 1] + token.end[1]
        new = IN_BRACKETS[kind].format(len(found))
        if following.type == tokenize.NEWLINE:
            if kind in ("comment", "banner", "tool") and depth == 0:
                found.append([(offset, new.rstrip("\n"))])
        elif depth > 0 or kind == "backslash":
            found.append([(offset, new.replace("\n", source.newline))])
    return found


def _parentheses(text: str) -> Iterator[Place]:
    """Around each value that is assigned, returned, passed to a call or entered by a `with`."""
    source = SourceText(text, "utf-8", has_bom=False)
    for node in ast.walk(ast.parse(text)):
        values: list[ast.AST | None] = []
        if isinstance(node, ast.Call):
            values = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.withitem):
            values = [node.context_expr]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr | ast.AugAssign | ast.Attribute):
            values = [node.value]
        elif isinstance(node, ast.For):
            values = [node.target, node.iter]
        elif isinstance(node, ast.FunctionDef):
            values = [*node.decorator_list]
        for value in values:
            if isinstance(value, ast.expr) and not isinstance(value, ast.Starred):
                start = source.offset(value.lineno, value.col_offset)
                end = source.offset(value.end_lineno or 0, value.end_col_offset or 0)
                yield [(start, "("), (end, ")")]


def apart(text: str, places: Sequence[Place]) -> list[list[Place]]:
    """The places in groups to be tried at once: each group has one of each statement, or of far ends of a long one."""
    source = SourceText(text, "utf-8", has_bom=False)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    starts = sorted(source.offset(node.lineno, node.col_offset) for node in nodes)
    found: list[list[Place]] = []
    counts: Counter[int] = Counter()
    for place in places:
        statement = bisect(starts, place[0][0])
        number = counts[statement] % _FAR
        counts[statement] += 1
        found += [[] for _ in range(number + 1 - len(found))]
        found[number].append(place)
    return found


def inserted(text: str, insertions: Sequence[tuple[int, str]]) -> str | None:
    """The program with insertions, None if it is no longer the same program."""
    made = text
    for offset, new in sorted(insertions, key=lambda item: item[0], reverse=True):
        made = made[:offset] + new + made[offset:]
    try:
        return made if ast.dump(ast.parse(made)) == ast.dump(ast.parse(text)) else None
    except SyntaxError:
        return None


def comments(text: str) -> list[str]:
    """The comments of a program."""
    # `tokenize` loses count behind a backslash before a carriage return alone.
    tokens = tokenize.generate_tokens(io.StringIO(text, newline=None).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)
