"""Checks of our own output."""

from __future__ import annotations

from collections.abc import Sequence

from mmrewrite.project.facts import Facts
from mmrewrite.results import Edit, Rewrite
from mmrewrite.source.text import SourceText

_BUG = (
    "this is a bug in mmrewrite ({problem}); nothing was written. Please report it with this file, the command line "
    "and the output of `mmrewrite --version`"
)


def bug(problem: str) -> str:
    """What to say when a check of our own output fails."""
    return _BUG.format(problem=problem)


def apply_edits(source: SourceText, edits: Sequence[Edit]) -> str:
    """The text after all edits, which are in order and do not overlap."""
    parts, position = [], 0
    for edit in edits:
        parts += [source.text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, source.text[position:]])


def failed(result: Rewrite, problem: str) -> Rewrite:
    """The file as it was, with the bug that a check found."""
    return Rewrite(result.path, result.original, result.original, refusals=result.refusals, failure=bug(problem))


def text_kept(facts: Facts, result: Rewrite) -> str:
    """The original text, put together from what the result has outside its edits."""
    text = SourceText.decode(result.result).text
    parts, position, shift = [], 0, 0
    for edit in result.edits:
        parts += [text[position + shift : edit.start + shift], facts.source.text[edit.start : edit.end]]
        position = edit.end
        shift += len(edit.text) - (edit.end - edit.start)
    return "".join([*parts, text[position + shift :]])
