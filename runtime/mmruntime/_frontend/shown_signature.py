"""Signatures that name the keywords which a function takes by `**`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def names_keywords(parameters: Iterable[inspect.Parameter]) -> Callable[[F], F]:
    """Have `inspect.signature`, `help` and editors at run time show what a function takes in the place of its `**`."""
    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]

    def decorate(function: F) -> F:
        found = inspect.signature(function)
        kept = [each for each in found.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        own = {each.name for each in kept}
        function.__signature__ = found.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *(each for each in shown if each.name not in own)]
        )
        return function

    return decorate
