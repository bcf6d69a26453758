"""Find the `# mm:` comments of a module, and the statement that each is about.

A comment that only looks like a hint, such as `# MM: stages`, is found too if the rest of it reads as a directive, and
so is one in another comment: `# TODO: mm: stages`.

A comment on a line of its own is about the next statement, one at the end of a line about the statement on that line.
The module is not tokenised: a `#` begins a comment unless it lies in a string of the syntax tree.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import functools
import operator
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.directives.carrier import BEGINNING, CARRIER, INSIDE
from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES
from mmrewrite.source.brackets import tokens
from mmrewrite.source.spans import blocks_of, first_line, on_line, span
from mmrewrite.source.text import SourceText, TooDeep, parse_quietly

CARRIER_OR_NEAR = re.compile(BEGINNING)
INSIDE_COMMENT = re.compile(INSIDE)
# Words that begin no comment but a misspelt hint; after the others, prose is as likely.
_OWN_WORDS = re.compile(r"mm|mmr(ewrite)?", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+")
_BRACKETS = re.compile(r"[(<\[{]\w+[])>}]\s*\Z")
_CALL = re.compile(r"([a-z_]+)[ \t]*\(")
# How alike a misspelt directive and a real one are (`difflib`): `tsk` and `task` are, `mask` and `task` are not.
_ALIKE = 0.8
# What a bare directive stands behind where it is meant as one, sooner than as a word: other tools' comments, and signs.
_BEFORE_WORD = re.compile(r"(?:[^\w\s)`'\"]|noqa(?::[ \w,]+)?|ignore(?:\[[\w, -]*\])?|no cover|fmt: ?\w+|TODO)\s*\Z")
# Of what looks like a hint on one line. What is no comment, or prose, is tried again and again on a line that a program
# has written; each try reads the rest of the line.
_MOST_TRIED = 100


@dataclass(frozen=True)
class Comment:
    """A hint comment.

    Attributes:
        start: Offset of its `#`.
        body: Offset of its first directive.
        end: Offset of its end.
        line: Its line.
        own_line: Whether nothing else is on that line.
        exact: Whether it begins with `# mm: ` in just this spelling.
        left: Why it stays: the whole line is code that somebody commented out, or a sentence goes on behind it.
    """

    start: int
    body: int
    end: int
    line: int
    own_line: bool
    exact: bool
    left: str | None = None


@dataclass(frozen=True)
class Misplaced:
    """Why a comment is about no statement."""

    reason: str


def find_comments(source: SourceText, tree: ast.Module) -> Iterator[Comment]:
    """Hint comments, and those that look like one, in the order of the file."""
    last_line = 0
    tried: Counter[int] = Counter()
    strings = _CommentsBetweenStrings(source)
    matches = (*CARRIER_OR_NEAR.finditer(source.text), *INSIDE_COMMENT.finditer(source.text))
    for match in sorted(matches, key=operator.methodcaller("start")):
        line, _ = source.position(match.start())
        tried[line] += 1
        if line == last_line or tried[line] > _MOST_TRIED:
            continue
        first = _comment_start(source, tree, line, match.start(), strings)
        if first is None:
            continue
        line_start, line_end = source.line_starts[line - 1], source.line_starts[line - 1] + len(source.line(line))
        own_line = not source.text[line_start:first].strip()
        rest = source.text[match.end() : line_end]
        body = match.end() + len(rest) - len(rest.lstrip())
        carrier = source.text[match.start() : body]
        exact = carrier.rstrip(" \t") == CARRIER.strip() and (carrier != CARRIER.strip() or body == line_end)
        before, text, left = source.text[first : match.start()], source.text[body:line_end], None
        if before.count("`") % 2 or before.endswith(("'", '"')):
            # It is spoken about.
            continue
        if match.re is INSIDE_COMMENT:
            call = _CALL.match(text)
            is_meant = call is not None or _BEFORE_WORD.search(before) is not None
            if not (is_meant and _reads_as_directive(CARRIER, text)):
                continue
            left = None if _parsed(text) is not None else "in a sentence"
        elif (before and own_line) or carrier.endswith("hints."):
            # `# x = f(y)  # mm: shard(...)` on a line of its own is code that somebody commented out.
            left = "commented out"
        elif before and not before[-1].isspace():
            continue
        if (left or not exact) and not _reads_as_directive(carrier, text):
            continue
        last_line = line
        yield Comment(match.start(), body, line_end, line, own_line, exact, left)


def second_carrier(text: str) -> tuple[int, int] | None:
    """Start and end of another carrier in the text of a hint, as in `task(stage=0)  # mm: stages`."""
    for match in CARRIER_OR_NEAR.finditer(text):
        if match.group().rstrip() == CARRIER.strip() or _reads_as_directive(match.group(), text[match.end() :]):
            return match.start(), match.start() + len(match.group().rstrip())
    return None


def _reads_as_directive(carrier: str, rest: str) -> bool:
    """Whether the text after something like `# MM:` is a directive and not prose."""
    word = _WORD.search(carrier)
    is_ours = word is not None and _OWN_WORDS.fullmatch(word.group()) is not None
    # In brackets, as a unit may stand, it has none yet.
    has_separator = _BRACKETS.search(carrier) is None and not carrier.rstrip()[-1:].isalpha()
    body = _parsed(rest)
    if body is None:
        # `# MM: task(stage=0` is a directive too, with a mistake more.
        call = _CALL.match(rest)
        return is_ours and has_separator and call is not None and call[1] in DIRECTIVES
    if "." in carrier and any(isinstance(node, ast.Call) and node.args for node in ast.walk(ast.Module(body, []))):
        # `# mm.task(f, ...)(x)` is a call of the runtime that somebody commented out.
        return False
    return bool(body) and all(_is_directive(statement, is_ours, has_separator) for statement in body)


def _parsed(text: str) -> list[ast.stmt] | None:
    try:
        return parse_quietly(text).body
    except (SyntaxError, ValueError, TooDeep):
        return None


def _is_directive(statement: ast.stmt, is_ours: bool, has_separator: bool) -> bool:
    node = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(node, ast.Call | ast.Subscript):
        target = node.func if isinstance(node, ast.Call) else node.value
        name = target.id if isinstance(target, ast.Name) else ""
        known = DIRECTIVES if isinstance(node, ast.Call) else (IGNORE,)
        return name in known or (is_ours and bool(difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)))
    if not isinstance(node, ast.Name):
        return False
    if not is_ours:
        return node.id in DIRECTIVES and DIRECTIVES[node.id].needs_no_arguments
    if has_separator:
        return bool(difflib.get_close_matches(node.id, (*DIRECTIVES, *SWITCHES), n=1, cutoff=_ALIKE))
    return node.id in SWITCHES or (node.id in DIRECTIVES and DIRECTIVES[node.id].needs_no_arguments)


def _comment_start(
    source: SourceText, tree: ast.Module, line: int, offset: int, between: _CommentsBetweenStrings
) -> int | None:
    """Offset of the comment that holds `offset`, None when a string holds it."""
    position = source.line_starts[line - 1]
    strings = sorted(_strings_on(source, tree, line))
    for start, end in strings:
        if start <= offset < end:
            return between.start(start, end, offset)
    while position >= 0:
        position = source.text.find("#", position, offset + 1)
        inside = next((end for start, end in strings if start <= position < end), None)
        if inside is None:
            return position if position >= 0 else None
        position = inside
    return None


class _CommentsBetweenStrings:
    """The comments between adjacent strings, which are one node of the tree: looked for once in each."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._known: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def start(self, start: int, end: int, offset: int) -> int | None:
        """Offset of the comment that holds `offset` in the text of a node; None when a string holds it."""
        if (start, end) not in self._known:
            self._known[start, end] = list(self._find(start, end))
        return next((first for first, last in self._known[start, end] if first <= offset < last), None)

    def _find(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        source = self._source
        line, first_column = source.position(start)
        for token in tokens(f"(\n{source.text[start:end]}\n)"):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                found = source.line_starts[line + row - 3] + column + (first_column - 1 if row == 2 else 0)
                yield found, found + len(token.string)


def _strings_on(source: SourceText, tree: ast.Module, line: int) -> Iterator[tuple[int, int]]:
    stack: list[ast.AST] = list(on_line(tree.body, line))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.expr | ast.stmt):
            if not first_line(node) <= line <= (node.end_lineno or node.lineno):
                continue
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
            ):
                yield span(source, node)
                continue
        for _, part in ast.iter_fields(node):
            if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
                stack.extend(on_line(part, line))
            else:
                stack.extend(each for each in (part if isinstance(part, list) else [part]) if isinstance(each, ast.AST))


def statement_of(source: SourceText, tree: ast.Module, comment: Comment) -> ast.stmt | Misplaced:
    """The statement that a comment is about."""
    if comment.own_line:
        return _next_statement(source, tree, comment)
    return _statement_on(tree, comment.line)


def _next_statement(source: SourceText, tree: ast.Module, comment: Comment) -> ast.stmt | Misplaced:
    code = _code_lines(source)
    line = code[bisect.bisect_right(code, comment.line)]
    column = comment.start - source.line_starts[comment.line - 1]
    covering = list(_covering(tree.body, line))
    found = next((statement for statement in covering if first_line(statement) == line), None)
    if found is None:
        holder = covering[-1] if covering else None
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and line <= holder.lineno:
            return Misplaced("a hint between decorators; write it above the first decorator, or at the end of a line")
        if holder is not None and comment.line > first_line(holder) and not hasattr(holder, "body"):
            return Misplaced(
                "a hint on a line of its own inside a statement; write it above the statement, or at the end of a line"
            )
        return Misplaced("a hint at the end of a block, where no statement follows it; write it above its statement")
    text = source.line(line)
    indent = len(text) - len(text.lstrip())
    if column != indent:
        where = "at the end of a block" if column > indent else "that is indented less than the statement below it"
        return Misplaced(f"a hint {where}; write it directly above its statement, with the same indentation")
    return found


def _statement_on(tree: ast.Module, line: int) -> ast.stmt | Misplaced:
    found = [statement for statement in _covering(tree.body, line) if _has_line(statement, line)]
    if not found:
        return Misplaced(
            "a hint on a line that begins no statement; write it above the statement, or on its first line"
        )
    if len(found) > 1:
        return Misplaced("a hint on a line with more than one statement; give its statement a line of its own")
    return found[0]


def _has_line(statement: ast.stmt, line: int) -> bool:
    """Whether the line belongs to the statement itself and not to a block inside it."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return True
    head = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else first_line(body[0])
    return line < head or line == statement.lineno


def _covering(block: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements around a line, outermost first."""
    for statement in on_line(block, line):
        yield statement
        for inner in blocks_of(statement):
            yield from _covering(inner, line)


@functools.lru_cache(maxsize=8)
def _code_lines(source: SourceText) -> list[int]:
    """The lines with code in order, and that behind the last: each of many comments asks for the one below it."""
    count = len(source.line_starts)
    return [*(line for line in range(1, count + 1) if not _is_blank(source.line(line))), count + 1]


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
