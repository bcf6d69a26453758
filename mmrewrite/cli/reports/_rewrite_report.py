"""The report of a command that rewrites, as the formats are given it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrewrite.results import Rewrite

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned


@dataclass(frozen=True)
class RewriteReport:
    """The result of `diff`, `check`, `apply`, `build` and `modernize`.

    Attributes:
        command: The name of the command.
        results: What becomes of each file, in path order.
        top: The folder that paths in a patch are relative to.
        shows_patch: Whether the patch is what the command prints; not so once the files are written.
        color: Whether the output goes to a reader who sees colors.
        noun: What the command rewrites, in the singular.
        unreadable: Path and reason of each file that could not be read.
        unwritten: Path and reason of each file that could not be written.
        problems: A sentence for each generated file that is out of date or was edited by hand.
        mirror: The path of each generated file that `build` would change, its content and the new one; None is no file.
        plan: Makes the plan of the rewritten program, for the formats that show it; None where there is none to show.
        evidence: The JSON document of `verify`, if the user gave one.
        suggestions: A sentence for each program for which another plan is predicted faster.
    """

    command: str
    results: tuple[Rewrite, ...]
    top: str
    shows_patch: bool = True
    color: bool = False
    noun: str = "hint"
    unreadable: tuple[tuple[str, str], ...] = ()
    unwritten: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    mirror: tuple[tuple[str, bytes | None, bytes | None], ...] = ()
    plan: Callable[[], Planned] | None = None
    evidence: Mapping[str, Any] | None = None
    suggestions: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """What files with changes did, or would do: `check` writes none, also where it shows another patch."""
        return "would change" if self.shows_patch or self.command == "check" else "changed"
