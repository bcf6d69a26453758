"""What became of a line of a source, and where a generated line came from."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Sequence

from mmrewrite.cli.reports._review import checks, reasons
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.files.patch import Change, changes_of, split_lines
from mmrewrite.files.revisions import revisions_of
from mmrewrite.files.select import source_file
from mmrewrite.files.walk import MANIFEST, folders_above, load_file, shown
from mmrewrite.results import HintReference, Rewrite
from mmrewrite.source.text import SourceError, SourceText

_REVISIONS = 30


def source_of_generated(path: str) -> str | None:
    """The source of a file that `build` has written, as the manifest of its folder knows it; None if it has not."""
    absolute = os.path.realpath(path)
    for folder in folders_above(os.path.dirname(absolute)):
        data = load_file(os.path.join(folder, MANIFEST))
        if data is not None:
            place = os.path.relpath(absolute, folder).replace(os.sep, "/")
            try:
                return str(json.loads(data)["files"][place]["source"])
            except (ValueError, KeyError, TypeError, RecursionError):
                return None
    return None


def fate(result: Rewrite, line: int, cell: tuple[str, range] | None = None) -> Iterator[str]:
    """What becomes of a line of a source.

    Args:
        result: The rewrite of the source.
        line: The line, from 1.
        cell: In a notebook, where messages say that this line is: the cell, as they name it, and the lines in it.
    """
    source = SourceText.decode(result.original)
    lines = split_lines(source.text)
    where, within = cell or (result.path, range(line, line + 1))
    yield _quoted(result.path, line, lines)
    if result.failure is not None:
        yield f"The file stays as it is: {result.failure}"
        return
    said = False
    for error in result.errors:
        if error.path == where and error.line in within:
            yield f"An error: {error.message}{'' if error.message.endswith('?') else '.'}"
            said = True
    for refusal in result.refusals:
        hint = refusal.hint
        # The hint of a cell ends with its number.
        number = f"({where.rpartition(', ')[2]})" if cell else ""
        is_hint = hint is not None and hint.line in within and hint.text.endswith(number)
        if is_hint or (refusal.path == where and refusal.line in within):
            yield f"Refused by `{refusal.codemod}`: {refusal.reason}."
            said = True
    for left in result.left:
        if left.path == where and left.line in within:
            yield f"`{left.text}` is left alone: {left.reason}."
            said = True
    shift = 0
    changes = changes_of(source, result.edits)
    for change in changes:
        if change.start < line <= change.end or (change.start == change.end == line - 1):
            yield from _change(change, shift)
            if change.start < line <= change.end:
                yield from _rest(change, changes)
                return
        elif change.end >= line:
            break
        if change.end < line:
            shift += len(change.new) - (change.end - change.start)
    if not said or result.changed:
        yield f"It stays as it is, and is line {line + shift} of the result." if shift else "It stays as it is."


def _change(change: Change, shift: int) -> Iterator[str]:
    for sentence in reasons(change.edits):
        yield f"Changed by {sentence}." if not sentence.startswith("imports") else f"New here: {sentence}."
    for sentence in checks(change.edits):
        yield f"To check: {sentence}"
    if not change.new:
        yield "It goes away."
        return
    first = change.start + shift + 1
    where = _lines(first, first + len(change.new) - 1)
    yield f"In its place, {where} of the result:" if change.end > change.start else f"Above it, {where} of the result:"
    yield from (f"    {line.rstrip()}" for line in change.new)


def _rest(change: Change, changes: Sequence[Change]) -> Iterator[str]:
    """The other lines that the hints of a change made, such as the loop around a body that stays."""
    hints = _hints(change)
    shift = 0
    for other in changes:
        if other is not change and _hints(other) == hints and other.new:
            first = other.start + shift + 1
            yield f"Of the same hint, {_lines(first, first + len(other.new) - 1)} of the result:"
            yield from (f"    {line.rstrip()}" for line in other.new)
        shift += len(other.new) - (other.end - other.start)


def _hints(change: Change) -> frozenset[HintReference]:
    return frozenset(hint for edit in change.edits for hint in edit.hints)


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def origin(result: Rewrite, path: str, data: bytes, line: int, revision: str | None = None) -> Iterator[str] | None:
    """Where a line of a file with the content `data` comes from, None if the rewrite did not make that file.

    Args:
        result: The rewrite of its source.
        path: The file.
        data: Its content, which may have been edited since.
        line: The line, from 1.
        revision: The git revision that `result.original` is from, None if it is on disk.
    """
    source = SourceText.decode(result.original)
    made = split_lines(SourceText.decode(result.result).text)
    found = split_lines(SourceText.decode(data).text)
    matcher = difflib.SequenceMatcher(None, made, found, autojunk=False)
    for tag, start, _, begin, end in matcher.get_opcodes():
        if begin < line <= end:
            if tag != "equal":
                return None
            return _origin(result, source, start + line - begin, _quoted(path, line, found), revision)
    return None


def _origin(result: Rewrite, source: SourceText, line: int, head: str, revision: str | None) -> Iterator[str]:
    where = result.path if revision is None else f"{result.path} at revision {revision[:12]}"
    shift = 0
    yield head
    for change in changes_of(source, result.edits):
        first = change.start + shift + 1
        if line < first:
            break
        if line < first + len(change.new):
            for sentence in reasons(change.edits):
                begin = "Written for" if sentence.startswith("imports") else "Written by"
                yield f"{begin} {sentence}; in {where}."
            for sentence in checks(change.edits):
                yield f"To check: {sentence}"
            yield from _before(change, source)
            return
        shift += len(change.new) - (change.end - change.start)
    yield f"It is line {line - shift} of {where}, as it was."


def _before(change: Change, source: SourceText) -> Iterator[str]:
    old = split_lines(source.text)[change.start : change.end]
    if old:
        noun = f"line {change.end}" if len(old) == 1 else f"lines {change.start + 1} to {change.end}"
        yield f"Before, {noun}:"
        yield from (f"    {text.rstrip()}" for text in old)


def earlier(path: str, line: int, settings: HintSettings) -> Iterator[str] | None:
    """Where a line of a file comes from that was rewritten in place: the git revision that had the hints, if any."""
    data = load_file(os.path.realpath(path))
    if data is None:
        return None
    for revision, old in revisions_of(path, _REVISIONS):
        if not may_have_hints(old):
            continue
        file = source_file(path, old)
        (result, *_) = rewrite_project([file], Registry(), load=load_file, settings=settings)
        if result.changed:
            try:
                found = origin(result, shown(path), data, line, revision)
            except SourceError:
                continue
            if found is not None:
                return found
    return None


def _quoted(path: str, line: int, lines: Sequence[str]) -> str:
    return f"{path}:{line}: {lines[line - 1].strip()}"
