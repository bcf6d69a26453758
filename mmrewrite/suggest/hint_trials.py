"""Hints that are written into sources, in memory, and what the codemods make of them.

They are comments, and calls where no comment can stand above their statement alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrewrite.directives.carrier import PACKAGE
from mmrewrite.engine.edits import apply_edits
from mmrewrite.results import Edit, HintError, Refusal, Rewrite
from mmrewrite.source.file import SourceFile
from mmrewrite.source.spans import first_line, leading_space
from mmrewrite.source.text import SourceText, parse_quietly

_NAME = "hints"

Rewriter = Callable[[Sequence[SourceFile]], Sequence[Rewrite]]


@dataclass(frozen=True)
class NewHint:
    """A directive for the statement that begins on a line of a file without hints, as `# mm: text` above it.

    With `around`, the offsets of an expression, it is the call `hints.text` around that.
    """

    path: str
    line: int
    text: str
    around: tuple[int, int] | None = None


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
        paths = sorted({hint.path for hint in hints})
        comments = tuple(with_hints(path, self.files[path].data, hints) for path in paths)
        sources = [replace(self.files[each.path], data=each.result) for each in comments]
        hinted = {each.path for each in comments}
        # Steps that another file compiles are seen there.
        results = tuple(self._rewrite([*sources, *(file for path, file in self.files.items() if path not in hinted)]))
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

    def original_line(self, hints: Iterable[NewHint], place: Refusal | HintError) -> int:
        """The line of the file without hints that a message about the file with them speaks of."""
        path, line = place.path, place.line
        for above in sorted(self._lines(path, hints)):
            if above < line:
                line -= 1
        return line

    def _lines(self, path: str, hints: Iterable[NewHint]) -> list[int]:
        """The lines of a file above which others are written."""
        own = [hint for hint in hints if hint.path == path]
        imported = [import_line(self.text(path))] if any(hint.around is not None for hint in own) else []
        return [*imported, *{hint.line for hint in own if hint.around is None}]


def with_hints(path: str, data: bytes, hints: Iterable[NewHint]) -> Rewrite:
    """A file with the given hints that belong to it, the hints of one statement in one comment."""
    source = SourceText.decode(data)
    own = [hint for hint in hints if hint.path == path]
    by_line: dict[int, list[str]] = {}
    # What is written where, and what orders texts at one place.
    edits: list[tuple[tuple[int, int, int], str]] = []
    name = _free_name(source)
    for hint in own:
        if hint.around is None:
            by_line.setdefault(hint.line, []).append(hint.text)
            continue
        (start, end), (directive, _, arguments) = hint.around, hint.text.partition("(")
        arguments = arguments.removesuffix(")")
        # What is around more begins first and ends last.
        edits.append(((start, 1, -end), f"{name}.{directive}("))
        edits.append(((end, 0, -start), f", {arguments})" if arguments else ")"))
    if edits:
        offset = [*source.line_starts, len(source.text)][import_line(source) - 1]
        imported = f"from {PACKAGE} import {_NAME}" + ("" if name == _NAME else f" as {name}")
        edits.append(((offset, 1, -len(source.text)), f"{imported}{source.newline}"))
    for line, texts in sorted(by_line.items()):
        start = source.line_starts[line - 1]
        indent = leading_space(source.line(line))
        edits.append(((start, 1, -len(source.text)), f"{indent}# mm: {'; '.join(texts)}{source.newline}"))
    ordered = tuple(Edit(place, place, text, (), ()) for (place, *_), text in sorted(edits, key=lambda each: each[0]))
    return Rewrite(path, data, source.encode(apply_edits(source.text, ordered)), ordered)


def import_line(source: SourceText) -> int:
    """The line that an import can stand above: behind the docstring and what must come first."""
    tree = parse_quietly(source.text)
    first: list[ast.stmt] = tree.body[: ast.get_docstring(tree) is not None]
    first += [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    behind = (first[-1].end_lineno or 0) if first else 0
    following = next((each for each in tree.body if first_line(each) > behind), None)
    return behind + 1 if following is None else first_line(following)


def _free_name(source: SourceText) -> str:
    """What hints are imported as."""
    nodes = ast.walk(parse_quietly(source.text))
    taken = {getattr(node, part, None) for node in nodes for part in ("id", "arg", "asname", "name")}
    return _NAME if _NAME not in taken else f"mm_{_NAME}"
