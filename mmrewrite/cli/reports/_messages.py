"""Messages of `explain`, `init` and `run`, as the formats are given them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`.

    Attributes:
        subject: A codemod, or `FILE:LINE`.
        lines: What there is to say, in lines; of a codemod, its page.
        place: The file and the line; None for a codemod.
    """

    subject: str
    lines: tuple[str, ...]
    place: tuple[str, int] | None = None


@dataclass(frozen=True)
class Initialized:
    """The result of `init`: the configuration, the file that it belongs into, and whether it was written there."""

    file: str
    content: str
    is_written: bool


@dataclass(frozen=True)
class RunLine:
    """A line that a process of `run` wrote, or with `is_last`, one of the last of the process that failed.

    `color` says whether it goes to a reader who sees colors.
    """

    process: int
    is_error: bool
    data: bytes
    width: int
    is_last: bool = False
    color: bool = False


@dataclass(frozen=True)
class RunMessage:
    """What `run` itself says; with `status` how the job has ended, and with `blamed` which process failed first.

    `color` says whether it goes to a reader who sees colors.
    """

    text: str
    status: int | None = None
    blamed: int | None = None
    color: bool = False
