"""How an engine lets its caller show how far it is, and prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

Item = TypeVar("Item")
# Takes what is being done, as "compiling, 3 of 8 done".
Tell = Callable[[str], None]


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


class Phase(Protocol):
    """Shows one piece of work while the block lasts; what the block is given takes what is being done of it."""

    def __call__(self, what: str, /) -> AbstractContextManager[Tell]:
        """The block of some work, as "4/7 original in float64"."""
        ...


def untracked(what: str, items: Iterable[Item], total: int | None, /) -> Iterable[Item]:
    """The items; nothing is shown."""
    return items


def untold(text: str) -> None:
    """Take what is being done; nothing is shown."""
