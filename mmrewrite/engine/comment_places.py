"""No comment is lost: one whose place an edit replaces goes above its statement, unless the edit writes it itself."""

from __future__ import annotations

import ast
import bisect
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mmrewrite.codemod.comments import comments_of, is_for_tools, lost
from mmrewrite.codemod.layout import indentation, own_span
from mmrewrite.engine.edits import apply_edits, ordered_edits
from mmrewrite.project.facts import Facts
from mmrewrite.results import Edit, HintReference
from mmrewrite.source.spans import begins_its_line, blocks_of, first_line, on_line, span
from mmrewrite.source.text import SourceText


def kept_comments(
    facts: Facts, edits: Sequence[Edit], consumed: Iterable[tuple[int, int, str]] = ()
) -> tuple[Edit, ...]:
    """The edits, with others that write the comments which would be lost.

    What is for other tools stays on the line of the code that it is about; where that goes, it goes as well, and the
    edit names it among its reasons.

    Args:
        facts: The module.
        edits: Its edits, in order.
        consumed: Parts of comments that are hints and go, as offsets and what is written for them.
    """
    source = facts.source
    consumed = sorted(consumed)
    # The text of consumed hints goes first, since tokens cost much.
    replaced = [edit for edit in edits if "#" in _without(source.text, edit.start, edit.end, consumed)]
    if not replaced:
        return tuple(edits)
    before = list(_without_hints(source, consumed))
    try:
        after = list(comments_of(SourceText(apply_edits(source.text, edits), source.encoding, has_bom=False)))
    except (SyntaxError, tokenize.TokenError):
        # Then the comparison of the trees fails.
        return tuple(edits)
    # Of equal comments the first are found again: those outside of what is replaced.
    before.sort(key=lambda comment: _holder(replaced, comment[0]) is not None)
    found = list(edits)
    for offset, comment in lost(before, after):
        holder = _holder(found, offset)
        if holder is None:
            continue
        index = found.index(holder)
        if is_for_tools(comment) and comment in holder.text:
            continue
        if not is_for_tools(comment):
            found.insert(index, _above(facts, found, offset, comment, holder))
        elif holder.text.strip() and _ends_line(source, holder):
            found[index] = replace(holder, text=_beside(source, holder, comment))
        elif holder.text.strip():
            found.insert(index, _above(facts, found, offset, comment, holder))
        else:
            told = HintReference(*source.position(offset), f"{comment} (goes with its code)")
            found[index] = replace(holder, hints=(*holder.hints, told))
    return ordered_edits(found)


def _holder(edits: Sequence[Edit], offset: int) -> Edit | None:
    """The edit that replaces the character at an offset."""
    return next((edit for edit in edits if edit.start <= offset < edit.end), None)


def _without(text: str, start: int, end: int, consumed: Sequence[tuple[int, int, str]]) -> str:
    """The text between two offsets without the parts that are consumed, which are in order."""
    found = ""
    first = max(0, bisect.bisect_right(consumed, start, key=lambda each: each[0]) - 1)
    for begin, stop, _ in consumed[first:]:
        if begin >= end:
            break
        if stop > start:
            found += text[start : max(start, begin)]
            start = stop
    return found + text[start:end]


def _without_hints(source: SourceText, consumed: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, str]]:
    """The comments of a module as they are without the hints that go."""
    for offset, text in comments_of(source):
        end = offset + len(text)
        for start, stop, left in consumed:
            if start < end and stop > offset:
                text = text[: max(0, start - offset)] + left + text[stop - offset :]
        if text.strip().startswith("#"):
            yield offset, text.strip()


def _above(facts: Facts, edits: Sequence[Edit], offset: int, comment: str, holder: Edit) -> Edit:
    """The edit that writes a comment above the statement in which it stands."""
    source = facts.source
    statement = _statement_at(facts, offset)
    place = source.line_starts[first_line(statement) - 1]
    around = next((edit for edit in edits if edit.start < place < edit.end), None)
    if around is not None:
        place = source.line_starts[source.position(around.start)[0] - 1]
    line = f"{indentation(source, statement)}{comment}{source.newline}"
    return Edit(place, place, line, holder.codemods, holder.hints)


def _statement_at(facts: Facts, offset: int) -> ast.stmt:
    """The innermost statement around an offset, or the one before it on the line where that begins."""
    source, (line, _) = facts.source, facts.source.position(offset)
    block: Sequence[ast.stmt] = facts.tree.body
    statement = block[0]
    while block:
        inner = on_line(block, line)
        if not inner:
            # A decorator that is a hint is no part of the tree.
            below = next((each for each in block if first_line(each) > line), None)
            statement = below if isinstance(below, ast.FunctionDef | ast.ClassDef) else statement
            break
        # A comment behind a statement is about that.
        statement = next((each for each in inner if span(source, each)[1] > offset), inner[-1])
        begun = [each for each in blocks_of(statement) if span(source, each[0])[0] <= offset]
        body = getattr(statement, "body", ())
        block = begun[-1] if begun else body if body and own_span(source, statement)[1] <= offset else ()
    while not begins_its_line(facts.source, statement):
        holder = facts.names.parents.get(statement)
        siblings = [
            each
            for each in on_line(facts.tree.body if holder is None else _all(holder), first_line(statement))
            if first_line(each) < first_line(statement) or each.col_offset < statement.col_offset
        ]
        before = siblings[0] if siblings else holder
        if before is None:
            break
        statement = before
    return statement


def _all(holder: ast.stmt) -> list[ast.stmt]:
    return [each for each in ast.iter_child_nodes(holder) if isinstance(each, ast.stmt)]


def _ends_line(source: SourceText, edit: Edit) -> bool:
    """Whether the first line of what an edit writes ends with it, or in a comment."""
    rest = source.text[edit.end : source.line_end(source.position(edit.end)[0])].strip()
    return source.newline in edit.text or not rest or rest.startswith("#")


def _beside(source: SourceText, edit: Edit, comment: str) -> str:
    """The new text of an edit with a comment at the end of its first line."""
    first, newline, rest = edit.text.partition(source.newline)
    return f"{first}  {comment}{newline}{rest}"
