"""The brackets of a call or an import, read from its tokens: where each item stands, and the comma behind it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrewrite.source.spans import span
from mmrewrite.source.text import SourceText

# Tokens that are no part of the program.
_NO_CODE = frozenset(
    (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)
)
# From Python 3.12 on an f-string is many tokens, from 3.14 on a t-string, too.
_OPENS_STRING, _CLOSES_STRING = (
    frozenset(kind for kind, name in tokenize.tok_name.items() if name in (f"FSTRING_{end}", f"TSTRING_{end}"))
    for end in ("START", "END")
)


@dataclass(frozen=True)
class Token:
    """A token of a file: its text, and the offsets of its first character and of the one after its last."""

    text: str
    start: int
    end: int
    is_code: bool
    is_comment: bool

    @property
    def depth(self) -> int:
        """By how many brackets more than before the text behind it is enclosed."""
        return (self.text in ("(", "[", "{")) - (self.text in (")", "]", "}")) if self.is_code else 0


@dataclass(frozen=True)
class Brackets:
    """A pair of brackets, by the offsets of both, and what stands in them.

    Attributes:
        opening: The offset of the opening one.
        closing: The offset of the closing one.
        items: Offsets of each item, with the parentheses around it and without the comments.
        commas: The offset of the comma behind each item, None for a last one that has none.
        comments: The offsets of the comments in the brackets.
    """

    opening: int
    closing: int
    items: tuple[tuple[int, int], ...]
    commas: tuple[int | None, ...]
    comments: tuple[tuple[int, int], ...]


def tokens(program: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a program, as Python gives them, with every line ending as it reads it: `\n`.

    Python 3.11 takes a carriage return alone for a part of its line in some places, and for the end in others.
    """
    return tokenize.generate_tokens(io.StringIO(program, newline=None).readline)


def tokens_between(source: SourceText, start: int, end: int) -> list[Token]:
    """The tokens of a text that holds whole pairs of brackets. An f-string is one, on every Python."""
    line, _ = source.position(start)
    found: list[Token] = []
    depth = 0
    # In brackets line breaks and indentation mean nothing.
    for token in list(tokens(f"({source.text[start:end]}\n)"))[1:]:
        (row, column), (last, stop) = token.start, token.end
        begin = start + column - 1 if row == 1 else source.line_starts[line + row - 2] + column
        if begin >= end:
            break
        finish = start + stop - 1 if last == 1 else source.line_starts[line + last - 2] + stop
        is_comment = token.type == tokenize.COMMENT
        each = Token(source.text[begin:finish], begin, finish, token.type not in _NO_CODE, is_comment)
        is_opening, is_closing = token.type in _OPENS_STRING, token.type in _CLOSES_STRING
        is_inside = depth > 0
        if is_inside or is_opening:
            depth += each.depth + is_opening - is_closing
        if is_inside:
            first = found.pop()
            each = Token(source.text[first.start : finish], first.start, finish, is_code=True, is_comment=False)
        found.append(each)
    return found


def tokens_of(source: SourceText) -> list[Token]:
    """The tokens of a program. Python 3.11 takes a backslash alone on its line for the end of a block."""
    return tokens_between(source, 0, len(source.text))


def arguments_of(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """The arguments of a call in the order of the text."""
    return sorted((*call.args, *call.keywords), key=lambda item: (item.lineno, item.col_offset))


def call_brackets(source: SourceText, call: ast.Call) -> Brackets:
    """The brackets of a call."""
    found = brackets_of(source, span(source, call), arguments_of(call))
    assert found is not None
    return found


def brackets_of(
    source: SourceText, place: tuple[int, int], items: Sequence[ast.expr | ast.keyword | ast.alias]
) -> Brackets | None:
    """The brackets at the end of a text, around some items; None if it ends in none."""
    found = tokens_between(source, *place)
    code = [index for index, token in enumerate(found) if token.is_code]
    depth, last = 0, code[-1]
    for index in reversed(code):
        depth -= found[index].depth
        if depth <= 0:
            break
    if index == last:
        return None
    inside = found[index + 1 : last]
    places, commas = split_items(inside, [span(source, item)[1] for item in items])
    comments = tuple((token.start, token.end) for token in inside if token.is_comment)
    return Brackets(found[index].start, found[last].start, places, commas, comments)


def split_items(
    inside: Sequence[Token], ends: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], tuple[int | None, ...]]:
    """Offsets of the items of a list with their parentheses, and of the comma behind each, from where they end."""
    commas: list[int | None] = [None] * len(ends)
    places: list[tuple[int, int]] = []
    depth, number, first, stop = 0, 0, None, 0
    for token in inside:
        depth += token.depth
        if not token.is_code or number == len(ends):
            continue
        # A comma before the end of an item is one of a `lambda`.
        if depth == 0 and token.text == "," and token.start >= ends[number]:
            commas[number] = token.start
            places.append((first if first is not None else stop, stop))
            number, first = number + 1, None
        else:
            first, stop = token.start if first is None else first, token.end
    if number < len(ends) and first is not None:
        places.append((first, stop))
    return tuple(places), tuple(commas)


def expression_text(text: str) -> str:
    """The text of an expression as it can be written in other brackets: on one line if it has comments."""
    source = SourceText(text, "utf-8", has_bom=False)
    has_comments = "#" in text and any(token.is_comment for token in tokens_between(source, 0, len(text)))
    return on_one_line(source, 0, len(text)) if has_comments else text


def bracketless_text(text: str) -> str:
    """The text of an expression as it can be written anywhere: on one line if it needs brackets around its lines."""
    return on_one_line(SourceText(text, "utf-8", has_bom=False), 0, len(text)) if needs_brackets(text) else text


def needs_brackets(text: str) -> bool:
    """Whether an expression has lines that end outside of its own brackets."""
    depth = 0
    for token in tokens_between(SourceText(text, "utf-8", has_bom=False), 0, len(text)):
        if not token.is_code and not depth:
            return True
        depth += token.depth
    return False


def on_one_line(source: SourceText, start: int, end: int) -> str:
    """The text of an expression without line breaks but those in strings, and without comments."""
    code = [token for token in tokens_between(source, start, end) if token.is_code]
    text = ""
    for number, token in enumerate(code):
        space = source.text[code[number - 1].end : token.start] if number else ""
        is_broken = not set(space) <= {" ", "\t", "\f"}
        if is_broken and token.depth < 0 and text.endswith(",") and not _is_single(code[:number]):
            text = text[:-1]
        at_bracket = bool(number) and (token.depth < 0 or code[number - 1].depth > 0)
        text += ("" if at_bracket else " ") + token.text if is_broken else space + token.text
    return text


def _is_single(code: Sequence[Token]) -> bool:
    """Whether the comma at the end is the only one in its parentheses, so that it makes a tuple of what is in them."""
    depth = commas = 0
    for token in reversed(code):
        depth -= token.depth
        if depth < 0:
            return token.text == "(" and commas == 1
        commas += depth == 0 and token.text == ","
    return False


def without_items(
    source: SourceText, brackets: Brackets, gone: Collection[int], leaving: Collection[tuple[int, int]] = ()
) -> Iterator[tuple[int, int]]:
    """The text to remove with some items, by their positions: with their commas and lines.

    Of the comments only those in `leaving` go, each of which ends the line of one of them.
    """
    stops = dict(leaving)
    brackets = replace(brackets, comments=tuple(each for each in brackets.comments if each[0] not in stops))
    count = len(brackets.items)
    if len(gone) == count and not brackets.comments:
        yield brackets.opening + 1, brackets.closing
        return
    # Where all goes behind an item, and the last has no comma, that of the item goes.
    end = next((index + 1 for index in reversed(range(count)) if index not in gone), 0)
    ends_open = count if brackets.commas[-1] is not None or not end else end
    index = 0
    while index < count:
        last = index
        if index in gone:
            # Neighbours go in one piece, unless a comment stands between them.
            while last + 1 in gone and not _has_comment(brackets, brackets.items[last][1], brackets.items[last + 1][0]):
                last += 1
            if index >= ends_open:
                comma, (start, _), (_, stop) = brackets.commas[index - 1], brackets.items[index], brackets.items[last]
                assert comma is not None
                apart = _has_comment(brackets, comma, start)
                stop = max(
                    [stop, *(stops[each] for each in stops if brackets.items[index][0] < each and last + 1 == count)]
                )
                yield from [(comma, comma + 1), (start, stop)] if apart else [(comma, stop)]
            elif (own := brackets.commas[last]) is not None and _has_comment(brackets, brackets.items[last][1], own):
                yield from ((brackets.items[index][0], brackets.items[last][1]), (own, own + 1))
            else:
                yield _removal(source, brackets, index, last, stops, has_comma=index - 1 not in gone)
        index = last + 1


def without_listed(spans: Sequence[tuple[int, int]], gone: Collection[int]) -> Iterator[tuple[int, int]]:
    """The text to remove with some items of a list without brackets, by their positions: one at least stays."""
    last = max(index for index in range(len(spans)) if index not in gone)
    for index in gone:
        yield (spans[index][0], spans[index + 1][0]) if index < last else (spans[index - 1][1], spans[index][1])


def _removal(
    source: SourceText, brackets: Brackets, first: int, last: int, leaving: Mapping[int, int], *, has_comma: bool
) -> tuple[int, int]:
    """The text to remove with the items from `first` to `last`; `leaving` are comments that go, by their starts.

    `has_comma` says that the comma before them stays otherwise.
    """
    text, comma = source.text, brackets.commas[last]
    (start, _), (_, end) = brackets.items[first], brackets.items[last]
    stop = end if comma is None else comma + 1
    behind = stop + len(source.text[stop:]) - len(source.text[stop:].lstrip(" \t"))
    if behind in leaving:
        end = stop = leaving[behind]
    line = source.line_starts[source.position(start)[0] - 1]
    following = brackets.items[last + 1][0] if last + 1 < len(brackets.items) else None
    is_plain_behind = following is not None and not _has_comment(brackets, end, following)
    if not text[line:start].strip():
        if following is not None and is_plain_behind and source.position(following)[0] == source.position(stop)[0]:
            return start, following
        line_end = source.line_end(source.position(stop)[0])
        rest = text[stop:line_end]
        if not rest.strip():
            # With the line break above: an argument that is new may go below.
            above = source.text[:line]
            return len(above) - (2 if above.endswith("\r\n") else 1), stop
        if rest.lstrip().startswith("#"):
            return start, line_end - len(rest.lstrip())
    before = brackets.commas[first - 1] if first and has_comma else None
    if before is not None and not _has_comment(brackets, before, start):
        return before, end
    if following is not None and is_plain_behind:
        return start, following
    return start, behind if comma is not None and behind not in leaving else stop


def _has_comment(brackets: Brackets, start: int, end: int) -> bool:
    return any(start <= comment < end for comment, _ in brackets.comments)


def own_comment(source: SourceText, brackets: Brackets, index: int) -> tuple[int, int] | None:
    """The comment at the end of a line that holds no other item."""
    _, end = brackets.items[index]
    line = source.position(end)[0]
    around = [*brackets.items[max(0, index - 1) : index], *brackets.items[index + 1 : index + 2]]
    is_alone = all(line not in (source.position(begin)[0], source.position(stop)[0]) for begin, stop in around)
    if not is_alone:
        return None
    return next((each for each in brackets.comments if each[0] > end and source.position(each[0])[0] == line), None)


def text_before(source: SourceText, offset: int) -> str:
    """The text on the line of an offset that stands before it."""
    return source.text[source.line_starts[source.position(offset)[0] - 1] : offset]
