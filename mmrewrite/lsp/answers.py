"""What the worker process answers: plain values, in positions of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmrewrite.lsp.completion import AxisNames
from mmrewrite.lsp.positions import Position, Units

# Characters of a file that is looked at while somebody types: some ten thousand lines, which take a second or two.
LARGEST = 500_000

Severity = Literal["error", "warning", "information"]


@dataclass(frozen=True)
class Request:
    """A question to the worker.

    Attributes:
        kind: What to do.
        folder: A folder of the workspace, else that of an open file.
        walks: Whether the files below that folder belong to the run, and not the open ones alone.
        buffers: The text of each open file, by its absolute path.
        units: What a column counts.
        fresh: Whether to look again which files there are.
        path: The file that `describe`, `rewrite` and `step` are about.
        line: Its line, from 1.
        others: The open files that are of the run of another folder.
        large: The open files that are too large to be looked at while somebody types.
    """

    kind: Literal["check", "describe", "rewrite", "step"]
    folder: str
    walks: bool
    buffers: Mapping[str, str]
    units: Units = "utf-16"
    fresh: bool = True
    path: str = ""
    line: int = 0
    others: frozenset[str] = frozenset()
    large: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ShownProblem:
    """Something to show at a place.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        message: One sentence.
        severity: How bad it is; what only follows from another problem is information.
        code: The codemod that refuses, else what kind of problem it is.
        link: A page about it, None if there is none.
        fix: What to write there instead, None where nothing is near.
        hint: Where the hint is that stays because of it, None if that is this place or unknown.
    """

    start: Position
    end: Position
    message: str
    severity: Severity
    code: str
    link: str | None = None
    fix: str | None = None
    hint: Position | None = None


@dataclass(frozen=True)
class CheckedWorkspace:
    """The problems of every file, and the lines with hints, from 1, by real path; and the names of axes."""

    problems: Mapping[str, tuple[ShownProblem, ...]]
    hints: Mapping[str, frozenset[int]] = field(default_factory=dict)
    axes: AxisNames = field(default_factory=AxisNames)


@dataclass(frozen=True)
class RegionRewrite:
    """The rewrite of one hint and of those that it stands or falls with.

    Attributes:
        edits: Start, end and new text of each change, by real path.
        count: The number of hints.
        refused: Why there is no rewrite; None if there is one.
    """

    edits: Mapping[str, tuple[tuple[Position, Position, str], ...]]
    count: int
    refused: str | None = None


@dataclass(frozen=True)
class StepOnLine:
    """A step of a file without hints, by name; `why_not` says what to write before a pipeline can be suggested."""

    name: str
    why_not: str | None


@dataclass(frozen=True)
class Failed:
    """The worker could not answer, in a sentence."""

    message: str


Answer = CheckedWorkspace | RegionRewrite | StepOnLine | Failed | str | None
