"""Arguments that have an old and a new name."""

from __future__ import annotations

from typing import Any

# Default of an argument for which `None` is a value.
OMITTED: Any = object()


def choose(new: Any, old: Any, names: tuple[str, str]) -> Any:
    """The value of an argument that may be passed under its new or its old name, `OMITTED` if it is not passed.

    Args:
        new: The value under the new name, or `OMITTED`.
        old: The value under the old name, or `OMITTED`.
        names: The new and the old name.

    Raises:
        ValueError: If it is passed under both.
    """
    if new is OMITTED or old is OMITTED:
        return old if new is OMITTED else new
    raise ValueError(f"`{names[0]}` and `{names[1]}` are the same argument, and both were given; give one.")
