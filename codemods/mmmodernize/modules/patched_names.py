"""Old names that the program puts into their module by itself, as in `jax.tree_map = my_map`."""

from __future__ import annotations

import ast
from functools import cached_property

from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.uses import OldNameUse
from mmrewrite.source.spans import span


class PatchedNames:
    """Where the modules in view assign or delete old names. Those that do so for want of a name today do not count."""

    def __init__(self, context: ModernizeContext) -> None:
        self._context = context

    def place_of(self, use: OldNameUse) -> str | None:
        """The file and line that set what is used, None if nothing does."""
        return self._places.get(use.name)

    @cached_property
    def _places(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for module in self._context.modules.values():
            if all(isinstance(node.ctx, ast.Load) for node in module.nodes_of(ast.Attribute)):
                continue
            for use in module.uses(self._context.owners):
                is_set = isinstance(use.node, ast.Attribute) and not isinstance(use.node.ctx, ast.Load)
                if is_set and guard_of(module, use.node) is None:
                    line, _ = module.facts.source.position(span(module.facts.source, use.node)[0])
                    found.setdefault(use.name, f"{module.facts.path}:{line}")
        return found
