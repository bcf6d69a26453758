"""What readers of an upgrade are shown, whatever the format: parts with titles, and a sentence for each use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._review import Paragraph, paragraphs

if TYPE_CHECKING:
    from mmrewrite.cli.upgrade import Upgrade, UpgradeItem


# Lines of the overview, its first among them.
_MOST_LINES = 18
_RANKS = ("by hand", "left", "rewritten")


@dataclass(frozen=True)
class UpgradePart:
    """Uses under one title."""

    title: str
    items: tuple[UpgradeItem, ...]

    @property
    def paragraphs(self) -> list[Paragraph]:
        """Each sentence once with its places, first those that are for a person."""
        return paragraphs(
            (_RANKS.index(item.outcome), f"{item.path}:{item.line}:{item.column}", *_said(item)) for item in self.items
        )


def overview(upgrade: Upgrade) -> list[str]:
    """The account by release, in at most 20 lines with the summary: what is done by itself, what needs a person."""
    items: dict[str, list[UpgradeItem]] = {}
    for group in (*upgrade.needed, *upgrade.newer):
        items.setdefault(upgrade.release_of(group), []).extend(group.items)
    if len(items) < 2:
        return []
    # What comes early is folded: most of it is rewritten.
    earlier = len(items) - _MOST_LINES + 1 if len(items) > _MOST_LINES else 0
    shown = [*items][earlier:]
    width = max(map(len, shown))
    lines = [f"{earlier} releases before these: see below"] if earlier else []
    return [*lines, *(f"{release:{width}}  {_account(items[release])}" for release in shown)]


def parts_of(upgrade: Upgrade) -> Iterator[UpgradePart]:
    """What is needed, in the order of releases; then what is not, yet."""
    for group in upgrade.needed:
        yield UpgradePart(f"{upgrade.title_of(group)} ({_account(group.items)})", group.items)
    for group in upgrade.newer:
        yield UpgradePart(upgrade.title_of(group), group.items)
    for group in upgrade.warned:
        yield UpgradePart(upgrade.title_of(group), group.items)
    for group in upgrade.later:
        yield UpgradePart(f"After this upgrade, {upgrade.title_of(group)}", group.items)
    for group in upgrade.unknown:
        yield UpgradePart(upgrade.title_of(group), group.items)


def _said(item: UpgradeItem) -> tuple[str, str]:
    """What stands at a place, and what became of the name and becomes of its use."""
    # In an import or a string, the name stands in part, or among other words.
    text = item.text if item.text.replace(".", "").isidentifier() else item.name or item.text
    detail = "rewritten" if item.outcome == "rewritten" else item.detail
    if item.history and item.history not in detail:
        return text, f" {item.history}; {detail}"
    is_told = item.outcome == "by hand" or f"`{item.name}`" in detail
    return ("", detail) if not text or is_told else (text, f": {detail}")


def _account(items: Sequence[UpgradeItem]) -> str:
    by_hand = sum(item.outcome != "rewritten" for item in items)
    rewritten = len(items) - by_hand
    counts = ((rewritten, "by itself"), (by_hand, "for a person"))
    return ", ".join(f"{number} {what}" for number, what in counts if number)
