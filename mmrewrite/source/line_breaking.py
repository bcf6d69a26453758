"""Break generated calls that do not fit the line, in the style of black."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from mmrewrite.source.brackets import Brackets, brackets_of, call_brackets, text_before, tokens, tokens_between
from mmrewrite.source.text import SourceText, has_lines, parse_quietly
from mmrewrite.source.walk import walk

_TAB_COLUMNS = 4


@dataclass(frozen=True)
class _Breakable:
    """The inside of a pair of brackets as (start, end) offsets, and the spans of its comma-separated items.

    `is_around` is whether what is generated stands in front of them, as in the last ones of `mm.f(x)(y)`, or in them.
    """

    start: int
    end: int
    items: tuple[tuple[int, int], ...]
    is_around: bool = False

    def is_opened(self, source: SourceText) -> bool:
        """Whether a line ends at the opening bracket."""
        return source.text[self.start] in "\r\n"


def fit(code: str, runtime: str | None, width: int, unit: str, newline: str) -> str:
    """The text of one statement, with generated calls broken until its lines fit `width` where that is possible.

    The arguments go onto one indented line, or one line each if that is too long. Only calls of the runtime, of
    `partial` on one of them, and those around them on one line are broken: the user's own code keeps its layout.
    Where the first of several arguments of a generated call goes over lines, each has its own, however short they are.
    Parameters on one line are broken likewise, as a function may have got more of them.

    Without a `runtime`, for a statement of which only parts are generated, any call may be broken that lies on one
    line, in no other brackets of that line, and begins within `width`. A line of several arguments is broken before the
    last of them sooner than one of these.
    """
    while True:
        source = SourceText(code, "utf-8", has_bom=False)
        long = {number for number in range(1, len(source.line_starts) + 1) if _columns(source.line(number)) > width}
        if not long and (runtime is None or newline not in code.rstrip()):
            return code
        try:
            tree = parse_quietly(code)
        except SyntaxError:
            # That is our bug, and the self check of the whole file reports it.
            return code
        places = list(_between_items(source, tree, long)) if runtime is None else []
        place = next((each[:2] for each in places if not each[2]), None)
        unbroken = _unbroken(source, tree, runtime, width, long) if place is None else iter(())
        brackets = next(
            (each for each in unbroken if _line(source, each) in long or (runtime and _hugs(source, each))), None
        )
        if brackets is None and runtime is not None:
            brackets = next(_parameters(source, tree, width, long), None)
        if brackets is None:
            start, stop = place or next((each[:2] for each in places), (0, 0))
            if not stop:
                return code
            begin = source.line_starts[source.position(start)[0] - 1]
            lead = source.text[begin : begin + len(source.text[begin:]) - len(source.text[begin:].lstrip(" \t"))]
            code = f"{code[:start]}{newline}{lead}{code[stop:]}"
            continue
        line = source.line(source.position(brackets.start)[0])
        own = line[: len(line) - len(line.lstrip())]
        inside = source.text[brackets.start : brackets.end]
        if _columns(own + unit + inside) > width or inside.endswith(",") or newline in inside:
            inside = _one_each(source, brackets, own + unit, newline)
        broken = f"{newline}{own}{unit}{inside}{newline}{own}"
        code = source.text[: brackets.start] + broken + source.text[brackets.end :]


def _parameters(source: SourceText, tree: ast.Module, width: int, long: Set[int]) -> Iterator[_Breakable]:
    """The brackets of parameters on one line that is too long, also without the `pass` that stands for a block."""
    for node in walk(tree) if long else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.lineno not in long:
            continue
        # Commas of a `lambda` are in no brackets.
        has_lambda = any(isinstance(each, ast.Lambda) for each in walk(node.args))
        if has_lambda or _columns(source.line(node.lineno).rstrip().removesuffix(" pass")) <= width:
            continue
        begin, end = source.offset(node.lineno, node.col_offset), source.line_end(node.lineno)
        depth, starts, ends = 0, list[int](), list[int]()
        for token in tokens_between(source, begin, source.offset(node.body[0].lineno, node.body[0].col_offset)):
            depth += token.depth
            is_open = bool(starts)
            if depth == 1 and token.text == "(" and not is_open:
                starts.append(token.end)
            elif is_open and ((depth == 1 and token.text == ",") or depth == 0):
                ends.append(token.start)
                if depth == 0:
                    break
                starts.append(token.end)
        spans = [(start, stop) for start, stop in zip(starts, ends, strict=True) if source.text[start:stop].strip()]
        items = [
            (start + len(source.text[start:stop]) - len(source.text[start:stop].lstrip()), stop)
            for start, stop in spans
        ]
        if items and ends[-1] < end:
            yield _Breakable(starts[0], ends[-1], tuple(items))


def _between_items(source: SourceText, tree: ast.Module, long: Set[int]) -> Iterator[tuple[int, int, bool]]:
    """The space before the last of several arguments on a line that is too long and begins with one of them.

    With it comes whether these are all arguments of the call.
    """
    for node in walk(tree):
        if isinstance(node, ast.Call) and not long.isdisjoint(range(node.lineno, (node.end_lineno or 0) + 1)):
            brackets = call_brackets(source, node)
            for (first, _), (start, _), comma in zip(brackets.items, brackets.items[1:], brackets.commas, strict=False):
                line, _ = source.position(start)
                items = [each for each, _ in brackets.items if source.position(each)[0] == line]
                is_last = items[-1] == start and source.position(first)[0] == line
                if line in long and is_last and comma is not None and not text_before(source, items[0]).strip():
                    yield comma + 1, start, len(items) == len(brackets.items)


def longest_line(text: str) -> int:
    """Columns of the longest line."""
    return max((_columns(line) for line in SourceText(text, "utf-8", has_bom=False).lines), default=0)


def _columns(line: str) -> int:
    return len(line.rstrip("\r\n").expandtabs(_TAB_COLUMNS))


def _one_each(source: SourceText, brackets: _Breakable, indent: str, newline: str) -> str:
    items = [source.text[start:end] for start, end in brackets.items]
    if _hugs(source, brackets):
        items[0] = _moved(source, brackets, indent, newline)
    return f"{newline}{indent}".join(f"{item}," for item in items)


def _hugs(source: SourceText, brackets: _Breakable) -> bool:
    """Whether the first of several arguments begins on the line of its call and ends on another."""
    start, end = brackets.items[0]
    first, _ = source.position(start)
    if brackets.is_around or len(brackets.items) == 1 or first == source.position(end)[0]:
        return False
    # The lines of a string are its text.
    texts = (each for each in tokens_between(source, start, end) if has_lines(each.text) and each.is_code)
    return first == source.position(brackets.start)[0] and not any(texts)


def _moved(source: SourceText, brackets: _Breakable, indent: str, newline: str) -> str:
    """The first item with its lines as far to the right as its first line now is, or by how much it is indented."""
    start, end = brackets.items[0]
    head, *rest = source.text[start:end].split(newline)
    if not rest:
        # Its lines end otherwise than those of the file.
        return head
    line, column = source.position(start)
    unit = len(indent) - _indentation(source.line(line))
    # Lines below an opening bracket are indented, others stand below what follows it.
    ahead = [each for each in tokens_between(source, start, end) if each.is_code and each.start < start + len(head)]
    is_aligned = ahead[-1].text not in tuple("([{")
    lowest = min((_indentation(each) for each in rest if each.strip()), default=0)
    if is_aligned:
        # The item may have stood on a line of its own, which its lines still show.
        own = min(column - 1, lowest)
    elif rest[-1].lstrip()[:1] in tuple(")]}"):
        own = _indentation(rest[-1])
    else:
        own = lowest - unit
    by = len(indent) - own
    added = " " * by if is_aligned else indent[-1:] * by
    rest = [each[min(-by, _indentation(each)) :] if by < 0 else f"{added}{each}" for each in rest]
    return newline.join([head, *(each if each.strip() else "" for each in rest)])


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _line(source: SourceText, brackets: _Breakable) -> int:
    """The line that becomes shorter when brackets are broken."""
    return source.position(brackets.items[0][0] if brackets.is_opened(source) else brackets.start)[0]


def _is_plain(source: SourceText, brackets: _Breakable, width: int) -> bool:
    """Whether the items of brackets lie on one line, in no other brackets of that line, and begin within `width`.

    The brackets themselves may stand on the lines above and below.
    """
    first, last = brackets.items[0][0], brackets.items[-1][1]
    line, _ = source.position(brackets.start)
    begin = source.line_starts[line - 1]
    return (
        source.position(first)[0] == source.position(last)[0]
        and (len(brackets.items) > 1 if brackets.is_opened(source) else source.position(brackets.end)[0] == line)
        and _head(source, brackets) <= width
        and not any(begin <= start < brackets.start and brackets.end < end for start, end in _pairs(source))
    )


def _head(source: SourceText, brackets: _Breakable) -> int:
    """Columns of a line up to the opening bracket."""
    line, _ = source.position(brackets.start)
    return _columns(source.text[source.line_starts[line - 1] : brackets.start])


def _pairs(source: SourceText) -> Iterator[tuple[int, int]]:
    """The inside of every pair of brackets as (start, end) offsets."""
    opened: list[int] = []
    for token in tokens(source.text):
        if token.type == tokenize.OP and token.string in "([{":
            opened.append(source.line_starts[token.end[0] - 1] + token.end[1])
        elif token.type == tokenize.OP and token.string in ")]}" and opened:
            yield opened.pop(), source.line_starts[token.start[0] - 1] + token.start[1]


def _unbroken(
    source: SourceText, tree: ast.Module, runtime: str | None, width: int, long: Set[int]
) -> Iterator[_Breakable]:
    """Brackets that may be broken, outer ones first."""
    for brackets, is_call in _all_brackets(source, tree, runtime, long):
        if runtime is not None:
            # Of `mm.f(x)(y)` the last arguments are broken, unless what is in front of them is too long by itself.
            if not brackets.is_opened(source) and not (brackets.is_around and _head(source, brackets) > width):
                yield brackets
        elif _is_plain(source, brackets, width) and (is_call or _begins_line(source, brackets)):
            yield brackets


def _begins_line(source: SourceText, brackets: _Breakable) -> bool:
    """Whether brackets begin their line, apart from the name of an argument."""
    begin = source.line_starts[source.position(brackets.start)[0] - 1]
    return re.fullmatch(r"\s*(\w+\s*=\s*)?[(\[]", source.text[begin : brackets.start]) is not None


def _all_brackets(
    source: SourceText, tree: ast.Module, runtime: str | None, long: Set[int]
) -> Iterator[tuple[_Breakable, bool]]:
    """The brackets of calls and of tuples among their arguments, each with whether it is a call's.

    Calls on one line that is not too long stay as they are.
    """
    for node in walk(tree):
        if (
            isinstance(node, ast.Call)
            and (node.lineno in long or node.lineno != node.end_lineno)
            and (_is_generated(node, runtime) or _holds_generated(node, runtime))
        ):
            parts: Sequence[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=_place)
            own = call_brackets(source, node)
            if _is_breakable(source, own, parts):
                is_own = runtime is None or (_is_generated(node, runtime) and not isinstance(node.func, ast.Call))
                yield _Breakable(own.opening + 1, own.closing, own.items, is_around=not is_own), True
            for value in (part.value if isinstance(part, ast.keyword) else part for part in parts):
                if isinstance(value, ast.Tuple) and source.text[_start(source, value)] == "(":
                    inner = brackets_of(source, (_start(source, value), _end(source, value)), value.elts)
                    if inner is not None and _is_breakable(source, inner, value.elts):
                        yield _Breakable(inner.opening + 1, inner.closing, inner.items), False


def _is_breakable(source: SourceText, brackets: Brackets, parts: Sequence[ast.expr | ast.keyword]) -> bool:
    """Whether there are items in brackets, and no comments between them."""
    # The brackets of `f(x for x in y)` are those of the generator.
    is_own = bool(brackets.items) and _start(source, parts[0]) > brackets.opening
    return is_own and all(any(a <= start < b for a, b in brackets.items) for start, _ in brackets.comments)


def _is_generated(node: ast.Call, runtime: str | None) -> bool:
    if runtime is None or _root(node.func) == runtime:
        return True
    if isinstance(node.func, ast.Call):
        return _is_generated(node.func, runtime)
    is_partial = (isinstance(node.func, ast.Attribute) and node.func.attr == "partial") or (
        isinstance(node.func, ast.Name) and "partial" in node.func.id
    )
    return is_partial and bool(node.args) and _root(node.args[0]) == runtime


def _holds_generated(node: ast.Call, runtime: str | None) -> bool:
    """Whether a call on one line has a generated one among its arguments."""
    parts = (each for part in (*node.args, *node.keywords) for each in walk(part))
    return node.lineno == node.end_lineno and any(
        isinstance(each, ast.Call) and _is_generated(each, runtime) for each in parts
    )


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
