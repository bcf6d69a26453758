"""What readers of an upgrade are shown, whatever the format: parts with titles, and a sentence for each use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._review import Paragraph, paragraphs

if TYPE_CHECKING:
    from mmrewrite.cli.upgrade import Upgrade, UpgradeGroup, UpgradeItem


# Lines of the overview, its first among them.
_MOST_LINES = 18


@dataclass(frozen=True)
class UpgradePart:
    """Uses under one title, as a rank, a place, what stands there, and what becomes of it."""

    title: str
    said: tuple[tuple[int, str, str, str], ...]

    @property
    def paragraphs(self) -> list[Paragraph]:
        """Each sentence once with its places."""
        return paragraphs(self.said)


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


# What is for a person, by what its release makes of it, the worst first.
_BY_HAND = {
    "changes": "What means something else, for a person",
    "stops": "What stops working, for a person",
    "unknown": "What is of no known release, for a person",
    "comes": "What is not there yet",
}


def parts_of(upgrade: Upgrade) -> Iterator[UpgradePart]:
    """What a person must do, the worst first; what is rewritten; what can wait."""
    needed = (*upgrade.needed, *upgrade.newer)
    by_hand: dict[str, list[_Placed]] = {change: [] for change in _BY_HAND}
    for group, item in _items(needed):
        if item.outcome != "rewritten":
            by_hand[group.change].append((group, item))
    yield from (_part(upgrade, title, by_hand[change]) for change, title in _BY_HAND.items() if by_hand[change])
    others = {
        f"What `{upgrade.command}` rewrites": [each for each in _items(needed) if each[1].outcome == "rewritten"],
        "What warns, and still works": _items(upgrade.warned),
        "What matters after this upgrade": _items(upgrade.later),
        "What may be an old name, or works as it is": _items(upgrade.unknown),
        "What never runs there, or copes with it": _items(upgrade.settled),
    }
    yield from (_part(upgrade, title, found) for title, found in others.items() if found)


_Placed = tuple["UpgradeGroup", "UpgradeItem"]


def _items(groups: Iterable[UpgradeGroup]) -> list[_Placed]:
    return [(group, item) for group in groups for item in group.items]


def _part(upgrade: Upgrade, title: str, found: Sequence[_Placed]) -> UpgradePart:
    # Of what has the same rank the most frequent comes first. What has no name may be something else.
    said = (
        (
            2 * (item.outcome == "rewritten") + (item.outcome == "left" and not item.name),
            f"{item.path}:{item.line}:{item.column}",
            *_said(item, upgrade.release_of(group)),
        )
        for group, item in found
    )
    return UpgradePart(f"{title} ({len(found)})", tuple(said))


def _said(item: UpgradeItem, release: str) -> tuple[str, str]:
    """The name at a place, what became of it in which release, and what becomes of its use."""
    # In an import or a string, the name stands in part, or among other words.
    text = item.text if item.text.replace(".", "").isidentifier() else item.name or item.text.partition("\n")[0]
    detail = "rewritten" if item.outcome == "rewritten" else item.detail
    if item.history and item.history not in detail:
        return text, f" {item.history}; {detail}"
    is_told = item.outcome == "by hand" or f"`{item.name}`" in detail
    detail += f" ({release})" if item.outcome == "rewritten" and any(map(str.isdigit, release)) else ""
    return ("", detail) if not text or is_told else (text, f": {detail}")


def _account(items: Sequence[UpgradeItem]) -> str:
    by_hand = sum(item.outcome != "rewritten" for item in items)
    rewritten = len(items) - by_hand
    counts = ((rewritten, "by itself"), (by_hand, "for a person"))
    return ", ".join(f"{number} {what}" for number, what in counts if number)
