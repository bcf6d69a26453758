"""Keep the lines of a statement below what they stood below: the text after a bracket that an edit has moved."""

from __future__ import annotations

import difflib
import tokenize
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mmrewrite.source.brackets import Token, tokens_of
from mmrewrite.source.text import SourceText, has_lines

# The offsets between which code was, and between which that is that replaces it.
Change = tuple[int, int, int, int]
# Statements with more tokens keep their lines as they are: to find the same tokens takes the square of their number.
_MOST = 2000


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a text by number: where they begin, and the bracket around each, or that which it closes."""

    length: int
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
        return cls(len(text), found, [source.position(token.start) for token in found], around)

    def begins_line(self, number: int) -> bool:
        """Whether a token is the first of its line."""
        return not number or self.places[number - 1][0] < self.places[number][0]

    def below(self, number: int) -> int | None:
        """The token after the bracket around one, if that one stands below it."""
        bracket = self.around[number]
        if bracket is None or self.places[bracket + 1][0] != self.places[bracket][0]:
            return None
        return bracket + 1 if self.places[bracket + 1][1] == self.places[number][1] else None


def aligned(old: str, new: str, changes: Sequence[Change] | None = None) -> str:
    """The new code of a statement. Lines that were aligned with the text after a bracket are aligned again.

    Args:
        old: The code before.
        new: The code.
        changes: What has been replaced, in order; None if the same tokens are to be looked for.
    """
    if not has_lines(new) or not has_lines(old) or "\t" in new:
        return new
    try:
        before, after = _Tokens.read(old), _Tokens.read(new)
    except (SyntaxError, tokenize.TokenError):
        # An edit at its end belongs to another statement as well.
        return new
    if max(len(before.all), len(after.all)) > _MOST:
        return new
    to_new = _same_tokens(before, after) if changes is None else _kept_tokens(before, after, changes)
    kept = set(to_new.values())

    def first_of(number: int) -> int:
        """The first token of what is new before one on its line, such as its name or the module in front of it."""
        while not after.begins_line(number) and number - 1 not in kept:
            number -= 1
        return number

    shifts: dict[int, int] = {}
    for origin, number in sorted(to_new.items(), key=lambda item: item[1]):
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


def _same_tokens(before: _Tokens, after: _Tokens) -> dict[int, int]:
    """For each old token that is likely to be the same in the new code, its number there."""
    found = _differences(before, after, range(len(before.all)), range(len(after.all)))
    # As many tokens in the place of others are these by other names.
    same = [each for each in found if each[2] - each[1] == each[4] - each[3]]
    return {a + n: c + n for _, a, b, c, _ in same for n in range(b - a)}


def _differences(
    before: _Tokens, after: _Tokens, old: Sequence[int], new: Sequence[int]
) -> Sequence[tuple[str, int, int, int, int]]:
    """How some tokens become others."""
    was, now = [before.all[number].text for number in old], [after.all[number].text for number in new]
    return difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes()


def _kept_tokens(before: _Tokens, after: _Tokens, changes: Sequence[Change]) -> dict[int, int]:
    """For each old token its number in the new code. A token that was replaced has the number of its replacement."""
    was, now = ([token.start for token in each.all] for each in (before, after))
    numbers = {start: number for number, start in enumerate(now)}
    to_new: dict[int, int] = {}
    first = shift = 0
    for start, end, new_start, new_end in (*changes, (before.length, before.length, after.length, after.length)):
        inside = range(bisect_left(was, start), bisect_left(was, end))
        for number in range(first, inside.start):
            if was[number] + shift in numbers:
                to_new[number] = numbers[was[number] + shift]
        instead = range(bisect_left(now, new_start), bisect_left(now, new_end))
        if len(inside) == len(instead):
            to_new |= zip(inside, instead, strict=True)
        elif inside and instead:
            to_new[inside.start] = instead.start
        first, shift = inside.stop, new_end - end
    # What has moved is gone here and new there.
    taken = {*to_new.values()}
    gone, come = (
        [number for number in range(len(before.all)) if number not in to_new],
        [number for number in range(len(after.all)) if number not in taken],
    )
    for kind, a, b, c, _ in _differences(before, after, gone, come):
        if kind == "equal" and b - a > 1:
            to_new |= {gone[a + n]: come[c + n] for n in range(b - a)}
    return to_new
