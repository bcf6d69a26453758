"""Arguments that have an old and a new name."""

from __future__ import annotations

from typing import Any

# Default of an argument for which `None` is a value.
OMITTED: Any = object()


def choose(given: Any, old: Any, names: tuple[str, str]) -> Any:
    """The one of an argument's new and old name that was given, `OMITTED` if neither was.

    Raises:
        ValueError: If both were.
    """
    if given is OMITTED or old is OMITTED:
        return old if given is OMITTED else given
    raise ValueError(f"`{names[0]}` and `{names[1]}` are the same argument, and both were given; give one.")
