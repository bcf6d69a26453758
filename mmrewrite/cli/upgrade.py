"""What an upgrade of a project needs, as reports show it: uses of old names, by release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmrewrite.results import Change

Outcome = Literal["rewritten", "by hand", "left"]


@dataclass(frozen=True, order=True)
class UpgradeItem:
    """One use of an old name, or of one that is newer than the upgrade.

    Attributes:
        path: The file; `model.ipynb, cell 3` where it stays, in a notebook.
        line: The line, from 1.
        column: The column, from 1.
        text: The source of the use.
        name: The full name, empty where it is not certain.
        history: What became of the name, or when it came, as a sentence without an end; empty if no release is known.
        outcome: What `mmrewrite modernize` does: rewrite it exactly, leave it for a person, or leave it as it works.
        detail: The codemods that rewrite it, or why it stays.
    """

    path: str
    line: int
    column: int
    text: str
    name: str
    history: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class UpgradeGroup:
    """Uses for which one release matters.

    Attributes:
        package: The package, such as `jax`; empty where no release is known.
        release: The release.
        change: What that release makes of them.
        items: The uses, in the order of files.
    """

    package: str
    release: str
    change: Change
    items: tuple[UpgradeItem, ...]


@dataclass(frozen=True)
class Upgrade:
    """What the upgrade needs, by release.

    Attributes:
        target: The release of each package that the upgrade leads to.
        needed: What stops working or changes its meaning on the way, in the order of releases; first what did so before
            the index begins.
        warned: What only warns there.
        later: What stops or warns in a later release.
        unknown: Text that may be an old name.
        newer: What the target does not have, as it came, or came back, in a later release.
        settled: What it never runs, as the program chooses by the version, and what the program copes with.
        command: What rewrites what can be rewritten.
        titles: What readers call the packages.
    """

    target: Mapping[str, str]
    needed: tuple[UpgradeGroup, ...]
    warned: tuple[UpgradeGroup, ...]
    later: tuple[UpgradeGroup, ...]
    unknown: tuple[UpgradeGroup, ...]
    newer: tuple[UpgradeGroup, ...] = ()
    settled: tuple[UpgradeGroup, ...] = ()
    command: str = "mmrewrite modernize"
    titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def lacks_any(self) -> bool:
        """Whether the target lacks a name that is used without a choice by the version."""
        return self._lacking > 0

    @property
    def _lacking(self) -> int:
        return sum(item.outcome != "left" for group in self.newer for item in group.items)

    def release_of(self, group: UpgradeGroup) -> str:
        """The package and the release of a group."""
        return f"{self.titles[group.package]} {group.release}" if group.package else "no release known"

    @property
    def summary(self) -> str:
        """The account in one sentence."""
        items = [item for group in self.needed for item in group.items]
        by_hand = sum(item.outcome != "rewritten" for item in items)
        versions = ", ".join(f"{self.titles[package]} {release}" for package, release in self.target.items())
        uses = "1 use of an old name needs" if len(items) == 1 else f"{len(items)} uses of old names need"
        came = "1 use of a name that came" if self._lacking == 1 else f"{self._lacking} uses of names that came"
        newer = f"{came} later {'is' if self._lacking == 1 else 'are'} for a person."
        if not items:
            return f"To run on {versions}, {newer}" if self._lacking else _NOTHING.format(versions)
        return (
            f"To run on {versions}, {uses} a change: `{self.command}` rewrites {len(items) - by_hand}, and "
            f"{by_hand} {'is' if by_hand == 1 else 'are'} for a person."
            + (f" Beside these, {newer}" if self._lacking else "")
        )


_NOTHING = "Nothing in these files keeps them from {}."
