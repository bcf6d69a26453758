"""How an engine lets its caller show how far it is, and prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Track(Protocol):
    """Hands items on, and may show how many of them are done."""

    def __call__(self, what: str, items: Iterable[Item], total: int | None, /) -> Iterable[Item]:
        """The items themselves.

        Args:
            what: The work, as "Reading"; it is done on one item when the next is asked for.
            items: What the work is done on.
            total: How many there are, None if nobody knows yet.
        """
        ...


def untracked(what: str, items: Iterable[Item], total: int | None, /) -> Iterable[Item]:
    """The items; nothing is shown."""
    return items
