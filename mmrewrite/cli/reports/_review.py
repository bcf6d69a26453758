"""What a reviewer is shown, whatever the format: the changes with their reasons, and an account of every hint."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mmrewrite.cli.pages import to_check
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.files.patch import PatchHunk, changes_of, file_hunks
from mmrewrite.results import Edit, Rewrite, counted
from mmrewrite.source.text import SourceText

# What a review does not show unless it is asked to.
UNTRACED = (
    "Read from the source alone. Bytes on each device, communication and whether microbatches make up the whole batch "
    "exactly are known once a step is traced: add `--entry module:function --args module:function`."
)
NOTHING_TO_VERIFY = "Nothing to verify: no file would change."
UNVERIFIED = (
    "Not verified: no evidence was given. `mmrewrite verify --format json > evidence.json` runs both programs and "
    "compares them, and `--evidence evidence.json` shows here what it found."
)

_IN_CELL = re.compile(r"(.*\.ipynb), cell (\d+)", re.DOTALL)


@dataclass(frozen=True)
class ReviewedChange:
    """Neighbouring lines that change together.

    Attributes:
        path: The file, relative to the top of the repository.
        start: The first old line, from 1; where lines are only added, the line above which they are.
        end: The last old line; `start - 1` where lines are only added.
        new: The new lines.
        edits: What made them.
        source: The text of the file.
    """

    path: str
    start: int
    end: int
    new: tuple[str, ...]
    edits: tuple[Edit, ...]
    source: SourceText

    @property
    def codemods(self) -> tuple[str, ...]:
        """The codemods at work, in the order of their edits."""
        return tuple(dict.fromkeys(name for edit in self.edits for name in edit.codemods))


@dataclass(frozen=True)
class Finding:
    """Something that was not rewritten, at its place.

    Attributes:
        kind: "error" for hints that cannot be read and files that could not be handled, "refusal" for the rest.
        path: The file, relative to the top of the repository.
        line: The line, from 1; None if it is about the whole file, or in a cell of a notebook.
        column: The column, from 1.
        length: How many characters it is about.
        message: One sentence.
        codemod: Who refuses; None for errors.
        is_consequence: Whether the site stays only because of another finding.
    """

    kind: Literal["error", "refusal"]
    path: str
    line: int | None
    column: int | None
    length: int
    message: str
    codemod: str | None = None
    is_consequence: bool = False

    @property
    def place(self) -> str:
        """Where it is, as compilers write it."""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)


# So many places of one reason are shown where a person reads.
_MOST_PLACES = 5


@dataclass(frozen=True)
class Paragraph:
    """One reason, with all places that it is about, and what stands at each.

    The reason goes on from what stands there; where that is empty, it is a sentence of its own.
    """

    reason: str
    places: tuple[tuple[str, str], ...]

    @property
    def place(self) -> str:
        """The first place."""
        return self.places[0][0]

    @property
    def subject(self) -> str:
        """What stands at the first place."""
        return self.places[0][1]

    @property
    def sentence(self) -> str:
        """The reason behind what stands at the first place."""
        return f"`{self.subject}`{self.reason}" if self.subject else self.reason

    @property
    def others(self) -> str:
        """The places behind the first, the most of them by their number alone; empty if there is one place."""
        shown, more = self.places[1:_MOST_PLACES], len(self.places) - _MOST_PLACES
        texts = (f"{place} (`{subject}`)" if subject != self.subject else place for place, subject in shown)
        return f"also at {', '.join(texts)}{f' and {more} more' if more > 0 else ''}" if shown else ""


def paragraphs(found: Iterable[tuple[int, str, str, str]]) -> list[Paragraph]:
    """One for each reason, from a rank, a place, what stands there, and a reason: by rank, the most places first."""
    places: dict[tuple[int, str], dict[tuple[str, str], None]] = {}
    for rank, place, subject, reason in found:
        places.setdefault((rank, reason), {})[place, subject] = None
    ordered = sorted(places.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [Paragraph(reason, tuple(each)) for (_, reason), each in ordered]


@dataclass(frozen=True)
class Completeness:
    """How many hints, or old names, had which outcome. Those in files with errors are not counted.

    Attributes:
        noun: What is counted.
        rewritten: How many were rewritten.
        left: How many were left on purpose.
        refused: How many were refused.
        failed_files: Files with errors.
        unhinted: Refusals that keep no hint from being rewritten: one is missing, or other code stands in the way.
    """

    noun: str
    rewritten: int
    left: int
    refused: int
    failed_files: int
    unhinted: int = 0

    def __str__(self) -> str:
        """The line that a review begins with."""
        total = self.rewritten + self.left + self.refused
        parts = [f"{self.rewritten} rewritten", f"{self.left} left on purpose", f"{self.refused} refused"]
        line = f"{counted(total, self.noun)}: {', '.join(parts)}"
        if self.unhinted:
            line += f"; and {counted(self.unhinted, 'refusal')} besides"
        if self.failed_files:
            files = counted(self.failed_files, "file")
            line += f"; and {files} with errors, whose {self.noun}s are not counted, all of which stay"
        return line


def changes(report: RewriteReport) -> Iterator[ReviewedChange]:
    """All changes, in path order."""
    for result in report.results:
        if result.changed:
            yield from changes_in(result, relative(result.path, report.top))


def changes_in(result: Rewrite, path: str) -> Iterator[ReviewedChange]:
    """The changes of one file."""
    source = SourceText.decode(result.original)
    for change in changes_of(source, result.edits):
        new = tuple(line.removesuffix("\n") for line in change.new)
        yield ReviewedChange(path, change.start + 1, change.end, new, change.edits, source)


def hunks(result: Rewrite) -> tuple[tuple[PatchHunk, str], ...]:
    """The hunks of a file's patch, with their text."""
    encoding = SourceText.decode(result.original).encoding
    return tuple((hunk, hunk.data.decode(encoding, errors="replace")) for hunk in file_hunks(result))


def reasons(edits: tuple[Edit, ...]) -> list[str]:
    """For each codemod of some edits, one sentence: which it is, and which hints made it; and whose the imports are."""
    hints: dict[str, dict[str, None]] = {}
    importing: dict[str, None] = {}
    for edit in edits:
        if _is_import(edit):
            importing.update(dict.fromkeys(edit.codemods))
            continue
        places = {f"line {hint.line}: `{hint.text}`": None for hint in edit.hints}
        for name in edit.codemods:
            hints.setdefault(name, {}).update(places)
    sentences = [f"`{name}`, because of {'; '.join(places)}" for name, places in hints.items()]
    if importing:
        sentences.append(f"imports for {', '.join(f'`{name}`' for name in importing)}")
    return sentences


def checks(edits: tuple[Edit, ...]) -> list[str]:
    """What the reviewer must check by hand, one sentence for each codemod that has one; imports need none."""
    names = dict.fromkeys(name for edit in edits if not _is_import(edit) for name in edit.codemods)
    return [sentence for name in names if (sentence := _to_check(name)) is not None]


def _is_import(edit: Edit) -> bool:
    # In a notebook a line stands in quotes, behind a comma if it is the last.
    return edit.start == edit.end and edit.text.lstrip(' \t\r\n,"').startswith(("import ", "from "))


_to_check = functools.cache(to_check)


def findings(report: RewriteReport) -> list[Finding]:
    """Errors first, then refusals, causes before consequences; each in path order."""
    found = [Finding("error", path, None, None, 1, message) for path, message in report.unreadable]
    for result in report.results:
        if result.failure is not None:
            found.append(Finding("error", result.path, None, None, 1, result.failure))
        found += [Finding("error", at.path, at.line, at.column, at.length, at.message) for at in result.errors]
    refusals = (each for result in report.results for each in result.refusals)
    found += [
        Finding("refusal", at.path, at.line, at.column, 1, at.reason, at.codemod, at.is_consequence)
        for at in sorted(refusals, key=lambda refusal: refusal.is_consequence)
    ]
    return [_in_repository(each, report.top) for each in found]


def _in_repository(found: Finding, top: str) -> Finding:
    """A finding at its path in patches; in a notebook, where lines are those of a cell, its message says where."""
    cell = _IN_CELL.fullmatch(found.path) if found.line is not None else None
    if cell is None:
        return replace(found, path=relative(found.path, top))
    message = f"cell {cell[2]}, line {found.line}: {found.message}"
    return replace(found, path=relative(cell[1], top), line=None, column=None, message=message)


def completeness(report: RewriteReport) -> Completeness:
    """The account of every hint."""
    rewritten: set[tuple[str, int, int]] = set()
    refused: set[tuple[str, int, int]] = set()
    for result in report.results:
        rewritten |= {
            (result.path, hint.line, hint.column)
            for edit in result.edits
            for hint in edit.hints
            # A module that only hands hint functions on loses an import, and has no hint itself.
            if not hint.text.startswith(("import ", "from "))
        }
        for refusal in result.refusals:
            place = refusal if refusal.hint is None else refusal.hint
            if refusal.hint is not None or report.noun != "hint":
                refused.add((refusal.path, place.line, place.column))
    left = sum(len(result.left) for result in report.results)
    failed = sum(result.failed for result in report.results) + len(report.unreadable)
    unhinted = 0
    if report.noun == "hint":
        unhinted = sum(refusal.hint is None for result in report.results for refusal in result.refusals)
    return Completeness(report.noun, len(rewritten - refused), left, len(refused), failed, unhinted)


def relative(path: str, top: str) -> str:
    """A path as patches write it, relative to the top of the repository."""
    return os.path.relpath(path, top).replace(os.sep, "/")


def nothing_planned(*, refused: bool) -> str:
    """What a plan says that has no part."""
    return f"Nothing in these files runs on a mesh{': the messages say why' * refused}."
