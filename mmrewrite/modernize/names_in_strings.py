"""Old names in strings and docstrings. They are reported, not edited: only the user knows whether code runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.results import LeftAlone

_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)+")


def mentions(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Strings that spell an old name in full, or as it is written after `from jax import experimental`."""
    source = module.facts.source
    for node in module.strings:
        found = next(_spelled(str(node.value), names), None)
        if found is None or node in module.quoted:
            continue
        kind = "a docstring" if isinstance(module.parents.get(node), ast.Expr) else "a string"
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        line = next((number for number in lines if found in source.line(number)), node.lineno)
        column = source.line(line).find(found) + 1
        yield LeftAlone(
            module.facts.path,
            line,
            max(column, 1),
            found,
            f"it stands in {kind}; edit it by hand if code runs it",
        )


def _spelled(text: str, names: Collection[str]) -> Iterator[str]:
    for match in _DOTTED.finditer(text):
        parts = match.group().split(".")
        for length in range(len(parts), 1, -1):
            found = ".".join(parts[:length])
            if found in names or (length > 1 and f"jax.experimental.{found}" in names):
                yield found
                break
