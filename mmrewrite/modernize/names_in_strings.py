"""Old names in strings and docstrings. They are reported, not edited: only the user knows whether code runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.results import LeftAlone


def mentions(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Strings that spell an old name in full, or as it is written after `from jax import experimental`."""
    written = {*names, *(name.removeprefix("jax.experimental.") for name in names if name.count(".") > 2)}
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(sorted(map(re.escape, written), key=len, reverse=True))})(?!\w)")
    source = module.facts.source
    for node in module.strings:
        found = pattern.search(str(node.value))
        if found is None or node in module.quoted:
            continue
        kind = "a docstring" if isinstance(module.parents.get(node), ast.Expr) else "a string"
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        line = next((number for number in lines if found.group() in source.line(number)), node.lineno)
        column = source.line(line).find(found.group()) + 1
        yield LeftAlone(
            module.facts.path,
            line,
            max(column, 1),
            found.group(),
            f"it stands in {kind}; edit it by hand if code runs it",
        )
