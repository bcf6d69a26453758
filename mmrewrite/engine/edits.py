"""Edits of one text: put in order, applied and taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.results import Edit


def _bounds(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.end


def ordered_edits(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits by place. The sort is stable: insertions at one place keep the order in which they were made.

    Raises:
        AssertionError: If two overlap, which is a mistake of a codemod.
    """
    ordered = sorted(edits, key=_bounds)
    position = 0
    for edit in ordered:
        if edit.start < position:
            raise AssertionError(f"edits overlap at line {edit.hints[0].line}")
        position = edit.end
    return tuple(ordered)


def without_repeats(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Each edit once, without removals of text that another edit covers.

    Two sites in one call may make the same edit, perhaps for reasons of their own, and one edit may remove or replace a
    line of which another removes a part.
    """
    covered, replaced = 0, set[tuple[int, int, str]]()
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, -edit.end)):
        key = (edit.start, edit.end, edit.text)
        # What is inserted twice at one place may be meant twice.
        if (edit.start == edit.end or key not in replaced) if edit.text else edit.end > covered:
            replaced.add(key)
            covered = max(covered, edit.end)
            yield edit


def apply_edits(text: str, edits: Sequence[Edit], start: int = 0, end: int | None = None) -> str:
    """The text from `start` to `end` after edits inside, which are in order and do not overlap."""
    parts, position = [], start
    for edit in edits:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:end]])


def undo_edits(result: str, edits: Sequence[Edit], original: str) -> str:
    """The text before the edits, put together from the result outside of them and the original inside."""
    parts, position, shift = [], 0, 0
    for edit in edits:
        parts += [result[position + shift : edit.start + shift], original[edit.start : edit.end]]
        position = edit.end
        shift += len(edit.text) - (edit.end - edit.start)
    return "".join([*parts, result[position + shift :]])
