"""The pages of all codemods, whichever command runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mmrewrite.codemod.products import registries

_TO_CHECK = re.compile(r"^To check: (.+?)(?=\n\n|\nRefused: |\nSee https://|\Z)", re.MULTILINE | re.DOTALL)


def codemod_names() -> Iterator[str]:
    """The names of all codemods."""
    for registry in registries():
        yield from registry


def page_of(name: str) -> str | None:
    """The docstring of a codemod, None if there is no codemod of that name."""
    for registry in registries():
        if name in registry:
            return registry.page(name)
    return None


def summary_of(name: str) -> str:
    """What a codemod does, in one line."""
    return (page_of(name) or "").partition("\n")[0]


def to_check(name: str) -> str | None:
    """What a reviewer must check by hand where a codemod was at work, as its page says; None if it says nothing."""
    found = _TO_CHECK.search(page_of(name) or "")
    return " ".join(found[1].split()) if found else None
