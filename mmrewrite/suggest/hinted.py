"""Hints that are written into sources as comments, in memory, and what the codemods make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrewrite.engine.edits import apply_edits
from mmrewrite.results import Edit, HintError, Refusal, Rewrite
from mmrewrite.source.file import SourceFile
from mmrewrite.source.spans import leading_space
from mmrewrite.source.text import SourceText

Rewriter = Callable[[Sequence[SourceFile]], Sequence[Rewrite]]


@dataclass(frozen=True)
class NewHint:
    """A directive for the statement that begins on a line of a file without hints, as `# mm: text` above it."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class HintTrial:
    """What becomes of new hints.

    Attributes:
        hints: The hints.
        comments: The files with their comments.
        results: The rewrites of these.
        refused: Why a hint is not rewritten; empty if all are.
        remarks: Refusals of something else.
    """

    hints: tuple[NewHint, ...]
    comments: tuple[Rewrite, ...]
    results: tuple[Rewrite, ...]
    refused: tuple[str, ...]
    remarks: tuple[Refusal, ...]

    @property
    def accepted(self) -> bool:
        """Whether all hints are rewritten."""
        return not self.refused


class HintedProject:
    """The files of a program without hints, to write some into."""

    def __init__(self, files: Mapping[str, SourceFile], rewrite: Rewriter) -> None:
        self.files = files
        self._rewrite = rewrite
        self._known: dict[tuple[NewHint, ...], HintTrial] = {}

    def text(self, path: str) -> SourceText:
        """The text of a file."""
        return SourceText.decode(self.files[path].data)

    def tried(self, hints: Iterable[NewHint]) -> HintTrial:
        """What becomes of the program with these hints and no others."""
        chosen = tuple(dict.fromkeys(hints))
        if chosen not in self._known:
            self._known[chosen] = self._tried(chosen)
        return self._known[chosen]

    def _tried(self, hints: tuple[NewHint, ...]) -> HintTrial:
        comments = tuple(self.commented(path, hints) for path in sorted({hint.path for hint in hints}))
        sources = [replace(self.files[each.path], data=each.result) for each in comments]
        results = tuple(self._rewrite(sources))
        refused: list[str] = []
        remarks: list[Refusal] = []
        for result in results:
            if result.failure is not None:
                refused.append(f"{result.path}: {result.failure}")
            refused += [f"{error.path}:{self.original_line(hints, error)}: {error.message}" for error in result.errors]
            for refusal in result.refusals:
                own = replace(refusal, line=self.original_line(hints, refusal))
                if refusal.hint is None:
                    remarks.append(own)
                elif not refusal.is_consequence:
                    refused.append(f"{own.path}:{own.line}: {own.reason} [{own.codemod}]")
        if not refused and any(refusal.hint is not None for result in results for refusal in result.refusals):
            refused.append("a hint depends on another that is not rewritten")
        return HintTrial(hints, comments, results, tuple(refused), tuple(remarks))

    @staticmethod
    def original_line(hints: Iterable[NewHint], place: Refusal | HintError) -> int:
        """The line of the file without hints that a message about the file with them speaks of."""
        path, line = place.path, place.line
        for above in sorted({hint.line for hint in hints if hint.path == path}):
            if above < line:
                line -= 1
        return line

    def commented(self, path: str, hints: Iterable[NewHint]) -> Rewrite:
        """A file with its hints, those of one statement in one comment."""
        source = self.text(path)
        by_line: dict[int, list[str]] = {}
        for hint in hints:
            if hint.path == path:
                by_line.setdefault(hint.line, []).append(hint.text)
        edits = []
        for line, texts in sorted(by_line.items()):
            start = source.line_starts[line - 1]
            indent = leading_space(source.line(line))
            edits.append(Edit(start, start, f"{indent}# mm: {'; '.join(texts)}{source.newline}", (), ()))
        data = source.encode(apply_edits(source.text, edits))
        return Rewrite(path, self.files[path].data, data, tuple(edits))
