"""What a module says in `__all__` that `from ... import *` takes from it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from mmrewrite.source.names import Module


@dataclass(frozen=True)
class ExportedNames:
    """The names in `__all__`.

    Attributes:
        names: Those that it certainly has.
        is_whole: Whether it certainly has no others.
    """

    names: frozenset[str]
    is_whole: bool

    def has(self, name: str) -> bool:
        """Whether a name is certain to be among them."""
        return name in self.names

    def may_have(self, name: str) -> bool:
        """Whether a name may be among them."""
        return not self.is_whole or name in self.names


def exported_names(module: Module) -> ExportedNames | None:
    """The names in a module's `__all__`; None if it has none, so that all are taken but those with a leading `_`."""
    bindings = module.scope.bindings.get("__all__", [])
    if not bindings:
        return None if "__all__" not in module.identifiers else ExportedNames(frozenset(), is_whole=False)
    binding = bindings[0]
    mentions = sum(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(module.tree))
    value = binding.value
    if mentions > 1 or binding.statement in module.parents or not isinstance(value, ast.List | ast.Tuple):
        # Something else may change it: `__all__ += [...]`, `__all__.append(...)`.
        return ExportedNames(frozenset(), is_whole=False)
    texts = [each.value for each in value.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return ExportedNames(frozenset(texts), is_whole=len(texts) == len(value.elts))
