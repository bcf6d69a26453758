"""Which lines of a source a line of its rewrite is made of."""

from __future__ import annotations

from collections.abc import Sequence

from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText


class LinesBefore:
    """The lines of a source that lines of its rewrite are made of."""

    def __init__(self, result: Rewrite) -> None:
        self._before, self._after = SourceText.decode(result.original), SourceText.decode(result.result)
        self._edits = sorted(result.edits, key=lambda edit: edit.start)

    def of(self, line: int) -> Sequence[int]:
        """The lines of the hints that made a line, or the one line that it was."""
        if line > len(self._after.line_starts):
            return ()
        start, end = self._after.line_starts[line - 1], self._after.line_end(line)
        shift, before, found = 0, 0, set[int]()
        for edit in self._edits:
            begin = edit.start + shift
            if begin >= end:
                break
            shift += len(edit.text) - (edit.end - edit.start)
            if begin + len(edit.text) <= start:
                before = shift
            else:
                found.update(hint.line for hint in edit.hints)
        return sorted(found) or (self._before.position(min(start - before, len(self._before.text)))[0],)
