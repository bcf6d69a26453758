"""The values that the engines return: plain and frozen; only the command line prints them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What a release makes of a name: it stops working there, means something else, warns, or comes.
Change = Literal["stops", "changes", "warns", "comes", "unknown"]


@dataclass(frozen=True, order=True)
class HintReference:
    """A hint, or an old name, as a reader of the source sees it: its line and column from 1, and its text.

    `name` is the full name of an old name, as in `jax.experimental.maps.Mesh`; empty for a hint.
    """

    line: int
    column: int
    text: str
    name: str = ""


@dataclass(frozen=True)
class Edit:
    """Replace the characters `start` to `end` of the source by `text`; offsets count from 0."""

    start: int
    end: int
    text: str
    codemods: tuple[str, ...]
    hints: tuple[HintReference, ...]


@dataclass(frozen=True, order=True)
class Refusal:
    """A site that was left alone, with the reason and what the user may write instead.

    `hint` is the hint or old name that is not rewritten because of it, None where there is none. `is_consequence` says
    that the site stays only because another one does, so that there is nothing to do about it here. `cause` is the path
    and line of that one, with no line where all of its file stays; None where it is no single one.
    """

    path: str
    line: int
    column: int
    reason: str
    codemod: str
    hint: HintReference | None = field(default=None, compare=False)
    is_consequence: bool = field(default=False, compare=False)
    cause: tuple[str, int | None] | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        """Where it is, as compilers write it."""
        return f"{self.path}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason} [{self.codemod}]"


# Characters of a line of the source that messages show, and that errors keep on either side of a mistake.
_LONGEST = 160
_KEPT = 500


@dataclass(frozen=True, order=True)
class HintError:
    """A hint that cannot be read. Its file is left alone.

    `source_line` is its line, or of one that somebody's program has written, what is around the mistake: `cut` says how
    many characters of the line come before that. `fix` is what to write in place of the `length` characters at its
    place, None where no one spelling is near. `count` is how many errors it stands for: of very many in a file, the
    last tells of the rest.
    """

    path: str
    line: int
    column: int
    message: str
    source_line: str
    length: int = 1
    fix: str | None = field(default=None, compare=False)
    cut: int = field(default=0, compare=False)
    count: int = field(default=1, compare=False)

    @classmethod
    def at(
        cls, path: str, line: int, column: int, message: str, source_line: str, length: int, fix: str | None = None
    ) -> HintError:
        """An error on a line, of which it keeps what it shows."""
        cut = max(0, column - 1 - _KEPT)
        return cls(path, line, column, message, source_line[cut : column + _KEPT], length, fix, cut)

    def __str__(self) -> str:
        """The message, the source line, and carets under the mistake."""
        place = self.column - 1 - self.cut
        start = max(0, place - _LONGEST // 2) if len(self.source_line) > _LONGEST else 0
        text = self.source_line[start : start + _LONGEST]
        lead, tail = "..." * (start + self.cut > 0), "..." * (start + _LONGEST < len(self.source_line))
        before = lead + text[: place - start]
        indent = "".join("\t" if character == "\t" else " " for character in before)
        carets = max(1, min(self.length, len(lead + text) - len(before)))
        return f"{self.path}:{self.line}:{self.column}: {self.message}\n  {lead}{text}{tail}\n  {indent}{'^' * carets}"


@dataclass(frozen=True, order=True)
class LeftAlone:
    """A hint or an old name that was left alone on purpose: `text` is its source, `reason` says who asked for it.

    `name` is the full name of an old name; empty for a hint, and where the text may mean something else. `is_settled`
    says that nothing is left to do: no release of today runs it, or the program copes with its failure.
    """

    path: str
    line: int
    column: int
    text: str
    reason: str
    name: str = ""
    is_settled: bool = False

    @property
    def place(self) -> str:
        """Where it is, as compilers write it."""
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, order=True)
class CompatUse:
    """A place that a function of `mmruntime.compat` was written at, and why no text of plain JAX is exact there."""

    path: str
    line: int
    column: int
    text: str
    function: str
    reason: str


@dataclass(frozen=True)
class Rewrite:
    """The result of one source file. `failure` is why it could not be handled as a whole, else None."""

    path: str
    original: bytes
    result: bytes
    edits: tuple[Edit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    errors: tuple[HintError, ...] = ()
    left: tuple[LeftAlone, ...] = ()
    failure: str | None = None
    compat: tuple[CompatUse, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the result differs from the file."""
        return self.original != self.result

    @property
    def failed(self) -> bool:
        """Whether the file could not be handled at all."""
        return bool(self.errors) or self.failure is not None


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 file", "2 files"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
