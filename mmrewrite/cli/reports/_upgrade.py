"""What readers of an upgrade are shown, whatever the format: parts with titles, and a sentence for each use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.cli.upgrade import Upgrade, UpgradeGroup, UpgradeItem


@dataclass(frozen=True)
class UpgradePart:
    """Uses under one title."""

    title: str
    items: tuple[UpgradeItem, ...]


def parts_of(upgrade: Upgrade) -> Iterator[UpgradePart]:
    """What is needed, in the order of releases; then what is not, yet."""
    for group in upgrade.needed:
        yield UpgradePart(f"{upgrade.title_of(group)} ({_account(group)})", group.items)
    for group in upgrade.newer:
        yield UpgradePart(upgrade.title_of(group), group.items)
    for group in upgrade.warned:
        yield UpgradePart(upgrade.title_of(group), group.items)
    for group in upgrade.later:
        yield UpgradePart(f"After this upgrade, {upgrade.title_of(group)}", group.items)
    for group in upgrade.unknown:
        yield UpgradePart(upgrade.title_of(group), group.items)


def sentence(item: UpgradeItem) -> str:
    """What became of a name, and what becomes of its use."""
    text = item.name if item.text.startswith(("import ", "from ")) else item.text
    detail = f"rewritten by `{item.detail}`" if item.outcome == "rewritten" else item.detail
    if item.history and item.history not in detail:
        return f"`{text}` {item.history}; {detail}"
    return detail if not text or f"`{item.name}`" in detail else f"`{text}`: {detail}"


def _account(group: UpgradeGroup) -> str:
    by_hand = sum(item.outcome != "rewritten" for item in group.items)
    rewritten = len(group.items) - by_hand
    counts = ((rewritten, "rewritten"), (by_hand, "by hand"))
    return ", ".join(f"{number} {what}" for number, what in counts if number)
