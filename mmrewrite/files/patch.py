"""Rewrites as a patch that `git apply` takes.

Hunks come from the edits, not from comparing texts: exact, and cheap to find. Texts are compared only where no edits
lead from one to the other, as between a file of a mirror and what `build` would write.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mmrewrite.results import Edit, Rewrite
from mmrewrite.source.text import SourceText

CONTEXT = 3

_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True)
class Change:
    """The old lines `start` to `end`, half-open and counted from 0, become `new`."""

    start: int
    end: int
    new: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class PatchHunk:
    """Changes that a patch shows together.

    Attributes:
        changes: The changes, in order.
        shift: By how many lines the changes above this hunk move it down.
        data: The hunk as git prints it, with its `@@` line, in the encoding of the file.
    """

    changes: tuple[Change, ...]
    shift: int
    data: bytes


def patch_of(results: Iterable[Rewrite], top: str) -> bytes:
    """The patch of all files, with their paths relative to the folder `top`."""
    parts = []
    for result in results:
        if result.changed:
            path = os.path.relpath(result.path, top).replace(os.sep, "/")
            parts.append(file_patch(result, path))
    return b"".join(parts)


def file_patch(rewrite: Rewrite, path: str) -> bytes:
    """The patch of one file, under the name `path`; empty when nothing changes."""
    if not rewrite.changed:
        return b""
    old, new = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    head = [b"diff --git " + old + b" " + new + b"\n", b"--- " + old + _tab(path), b"+++ " + new + _tab(path)]
    return b"".join([*head, *(hunk.data for hunk in file_hunks(rewrite))])


def replacement_patch(old: bytes | None, new: bytes | None, path: str) -> bytes:
    """The patch from one content of a file to another, under the name `path`; None stands for no file.

    Of a binary file it only says that it differs, as git does.
    """
    if old == new:
        return b""
    names = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    before, after = (b"/dev/null" if data is None else name for name, data in zip(names, (old, new), strict=True))
    head = b"diff --git %s %s\n" % names
    head += b"new file mode 100644\n" if old is None else b"deleted file mode 100644\n" if new is None else b""
    if any(b"\0" in data for data in (old, new) if data is not None):
        return head + b"Binary files %s and %s differ\n" % (before, after)
    tab = b"\t" if " " in path else b""
    found = difflib.diff_bytes(
        difflib.unified_diff, _byte_lines(old or b""), _byte_lines(new or b""), before + tab, after + tab, n=CONTEXT
    )
    return head + b"".join(line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE for line in found)


def _byte_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def file_hunks(rewrite: Rewrite) -> tuple[PatchHunk, ...]:
    """The hunks of one file's patch."""
    source, edits = _with_mark(SourceText.decode(rewrite.original), rewrite.edits)
    lines = split_lines(source.text)
    found, shift = [], 0
    for changes in _hunks(changes_of(source, edits)):
        data, grown = _hunk(source, lines, changes, shift)
        found.append(PatchHunk(tuple(changes), shift, data))
        shift += grown
    return tuple(found)


def _with_mark(source: SourceText, edits: Sequence[Edit]) -> tuple[SourceText, Sequence[Edit]]:
    """The source with its byte order mark as a character: for git it is part of the first line."""
    if not source.has_bom:
        return source, edits
    moved = [replace(edit, start=edit.start + 1, end=edit.end + 1) for edit in edits]
    return SourceText("\ufeff" + source.text, source.encoding, has_bom=False), moved


def split_lines(text: str) -> list[str]:
    """Lines as git counts them: only a line feed ends one; `str.splitlines` also splits at form feeds."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def changes_of(source: SourceText, edits: Sequence[Edit]) -> list[Change]:
    """The changed lines; edits on touching lines are merged into one change."""
    lines = split_lines(source.text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Change] = []
    group: list[Edit] = []
    begin = stop = 0

    def close() -> None:
        if group:
            found.extend(_change(source, lines, starts, begin, stop, tuple(group)))

    for edit in (_narrowed(source, edit) for edit in edits):
        first = _line_of(starts, edit.start)
        last = _line_of(starts, max(edit.start, edit.end - 1)) + 1
        if edit.start == edit.end and edit.start == starts[first]:
            last = first
        last = min(last, len(lines))
        if group and first <= stop:
            stop = max(stop, last)
            group.append(edit)
        else:
            close()
            group, begin, stop = [edit], first, last
    close()
    return found


def _narrowed(source: SourceText, edit: Edit) -> Edit:
    """The edit without its last lines that stay, as the `def` below a decorator that is replaced."""
    old, new = split_lines(source.text[edit.start : edit.end]), split_lines(edit.text)
    stays = 0
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        stays += len(old.pop())
        new.pop()
    return replace(edit, end=edit.end - stays, text=edit.text[: len(edit.text) - stays])


def _line_of(starts: Sequence[int], offset: int) -> int:
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if starts[middle] <= offset:
            low = middle
        else:
            high = middle - 1
    return low


def _change(
    source: SourceText, lines: Sequence[str], starts: Sequence[int], begin: int, stop: int, edits: tuple[Edit, ...]
) -> Iterator[Change]:
    text, position = "", starts[begin]
    for edit in edits:
        text += source.text[position : edit.start] + edit.text
        position = edit.end
    # An edit that ends with its line still has the rest of the group's last line to come.
    stop = max(stop, _line_of(starts, max(position - 1, starts[begin])) + 1 if position > starts[begin] else stop)
    text += source.text[position : starts[stop]]
    new = split_lines(text)
    old = lines[begin:stop]
    while old and new and old[0] == new[0]:
        old, new, begin = old[1:], new[1:], begin + 1
    while old and new and old[-1] == new[-1]:
        old, new, stop = old[:-1], new[:-1], stop - 1
    if old or new:
        yield Change(begin, stop, tuple(new), edits)


def _hunks(changes: Sequence[Change]) -> Iterator[list[Change]]:
    group: list[Change] = []
    for change in changes:
        if group and change.start - group[-1].end > 2 * CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _hunk(source: SourceText, lines: Sequence[str], changes: Sequence[Change], shift: int) -> tuple[bytes, int]:
    begin = max(0, changes[0].start - CONTEXT)
    end = min(len(lines), changes[-1].end + CONTEXT)
    body: list[bytes] = []
    position, grown = begin, 0
    for change in changes:
        body += [_line(source, b" ", lines, index) for index in range(position, change.start)]
        body += [_line(source, b"-", lines, index) for index in range(change.start, change.end)]
        body += [_line(source, b"+", change.new, index) for index in range(len(change.new))]
        grown += len(change.new) - (change.end - change.start)
        position = change.end
    body += [_line(source, b" ", lines, index) for index in range(position, end)]
    old, new = end - begin, end - begin + grown
    header = f"@@ -{_range(begin, old)} +{_range(begin + shift, new)} @@\n".encode()
    return header + b"".join(body), grown


def _range(start: int, count: int) -> str:
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"


def _line(source: SourceText, sign: bytes, lines: Sequence[str], index: int) -> bytes:
    line = lines[index]
    return sign + line.encode(source.encoding) + (b"" if line.endswith("\n") else b"\n" + _NO_NEWLINE)


def _tab(path: str) -> bytes:
    # git ends a name that has spaces with a tab: `patch` would take what follows a space for a date.
    return b"\t\n" if " " in path else b"\n"


def _quoted(path: str) -> bytes:
    """The name as git writes it: quoted, with C escapes, if it holds quotes, control characters or non-ASCII bytes."""
    data = path.encode(errors="surrogateescape")
    special = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\t"): b"\\t"}
    if not any(byte < 0x20 or byte >= 0x7F or byte in special for byte in data):
        return data
    escaped = b"".join(
        special.get(byte) or (bytes([byte]) if 0x20 <= byte < 0x7F else f"\\{byte:03o}".encode()) for byte in data
    )
    return b'"' + escaped + b'"'
