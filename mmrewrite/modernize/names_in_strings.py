"""Old names in strings and docstrings. They are reported, not edited: only the user knows whether code runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.spans import span

_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)+")


def mentions(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Strings that spell an old name in full, or as it is written after `from jax import experimental`."""
    source = module.facts.source
    for node in module.strings:
        found = next(_spelled(str(node.value), names), None)
        looked_up = None if found is not None else _looked_up(module, node, names)
        if looked_up is not None:
            position = source.position(span(source, node)[0])
            reason = f"it is `{looked_up}`, looked up by its name; write what takes its place"
            yield LeftAlone(module.facts.path, *position, ast.unparse(node), reason)
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


def _looked_up(module: ModuleUses, node: ast.Constant, names: Collection[str]) -> str | None:
    """The old name that `getattr(jax, "tree_map")` and the like stand for; None with a default, which copes."""
    call = module.parents.get(node)
    if not isinstance(call, ast.Call) or len(call.args) < 2 or call.args[1] is not node:
        return None
    scope = module.scope_of(call)
    function = module.facts.names.resolve(call.func, scope)
    if function == "builtins.hasattr" or (function == "builtins.getattr" and len(call.args) > 2):
        return None
    home = module.facts.names.resolve(call.args[0], scope)
    full = f"{home}.{node.value!s}"
    return full if home is not None and full in names and guard_of(module, call) is None else None


def _spelled(text: str, names: Collection[str]) -> Iterator[str]:
    for match in _DOTTED.finditer(text):
        parts = match.group().split(".")
        for length in range(len(parts), 1, -1):
            found = ".".join(parts[:length])
            if found in names or (length > 1 and f"jax.experimental.{found}" in names):
                yield found
                break
