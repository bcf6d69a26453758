"""Comments in replaced text: those for other tools, and those that must be written elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from mmrewrite.source.brackets import tokens_of
from mmrewrite.source.text import SourceText

# What stands in a comment that is for a tool, about the code on its line.
_FOR_TOOLS = re.compile(
    r"#\s*(noqa|type:\s*ignore|(pylint|pyright|ruff|isort|mypy|flake8|fmt|yapf):|pragma|nosec)", re.I
)


def is_for_tools(comment: str) -> bool:
    """Whether a comment tells a linter, a type checker or the like about the code on its line."""
    return _FOR_TOOLS.match(comment) is not None


def comments_of(source: SourceText) -> Iterator[tuple[int, str]]:
    """The comments of a program, each with its offset."""
    return ((token.start, token.text) for token in tokens_of(source) if token.is_comment)


def lost(before: Sequence[tuple[int, str]], after: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The comments before, each with its offset, that are not among those after. Of equal ones, the last are lost."""
    count = Counter(text for _, text in after)
    found = []
    for offset, text in before:
        if count[text]:
            count[text] -= 1
        else:
            found.append((offset, text))
    return found
