"""Keep the lines of a statement below what they stood below: the text after a bracket that an edit has moved."""

from __future__ import annotations

import difflib
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

from mmrewrite.source.brackets import Token, tokens_of
from mmrewrite.source.text import SourceText, has_lines

# Statements with more tokens keep their lines as they are: to find the same tokens takes the square of their number.
_MOST = 2000


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a text by number: where they begin, and the bracket around each, or that which it closes."""

    all: Sequence[Token]
    places: Sequence[tuple[int, int]]
    around: Sequence[int | None]

    @classmethod
    def read(cls, text: str) -> _Tokens:
        source = SourceText(text, "utf-8", has_bom=False)
        found = [token for token in tokens_of(source) if token.is_code or token.is_comment]
        around: list[int | None] = []
        opened: list[int] = []
        for number, token in enumerate(found):
            around.append(opened[-1] if opened else None)
            if token.depth < 0 and opened:
                opened.pop()
            if token.depth > 0:
                opened.append(number)
        return cls(found, [source.position(token.start) for token in found], around)

    def begins_line(self, number: int) -> bool:
        """Whether a token is the first of its line."""
        return not number or self.places[number - 1][0] < self.places[number][0]

    def below(self, number: int) -> int | None:
        """The token after the bracket around one, if that one stands below it."""
        bracket = self.around[number]
        if bracket is None or self.places[bracket + 1][0] != self.places[bracket][0]:
            return None
        return bracket + 1 if self.places[bracket + 1][1] == self.places[number][1] else None


def aligned(old: str, new: str) -> str:
    """The new code of a statement, in which lines that stood below the text after a bracket stand below it again."""
    if not has_lines(new) or not has_lines(old) or "\t" in new:
        return new
    try:
        before, after = _Tokens.read(old), _Tokens.read(new)
    except (SyntaxError, tokenize.TokenError):
        # An edit at its end belongs to another statement as well.
        return new
    if max(len(before.all), len(after.all)) > _MOST:
        return new
    was, now = ([token.text for token in each.all] for each in (before, after))
    changes = difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes()
    # As many tokens in the place of others are these by other names.
    same = [each for each in changes if each[2] - each[1] == each[4] - each[3]]
    to_new = {a + n: c + n for _, a, b, c, _ in same for n in range(b - a)}
    kept = set(to_new.values())

    def first_of(number: int) -> int:
        """The first token of what is new before one on its line, such as its name or the module in front of it."""
        while not after.begins_line(number) and number - 1 not in kept:
            number -= 1
        return number

    shifts: dict[int, int] = {}
    for origin, number in to_new.items():
        if not before.begins_line(origin):
            continue
        first = first_of(number)
        line, column = after.places[first]
        if not after.begins_line(first) or before.places[origin][1] != column:
            continue
        below, bracket = before.below(origin), before.around[origin]
        head = first_of(to_new[below]) if below in to_new else None
        if head is not None and not after.begins_line(head):
            head_line, head_column = after.places[head]
            shifts[line] = head_column + shifts.get(head_line, 0) - column
        elif below is None and bracket is not None and bracket in to_new:
            shifts[line] = shifts.get(after.places[to_new[bracket]][0], 0)
    source = SourceText(new, "utf-8", has_bom=False)
    parts, position = [], 0
    for line, shift in shifts.items():
        start = source.line_starts[line - 1]
        parts += [new[position:start], " " * max(0, shift)]
        space = len(source.line(line)) - len(source.line(line).lstrip())
        position = start + min(space, max(0, -shift))
    return "".join([*parts, new[position:]])
