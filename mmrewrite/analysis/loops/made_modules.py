"""How a module that a statement calls was made: in place, by a name, or as an attribute of `self`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from mmrewrite.codemod.site import Site
from mmrewrite.source.names import Scope

SEQUENTIALS = frozenset(
    ("flax.linen.Sequential", "flax.nnx.Sequential", "haiku.Sequential", "equinox.nn.Sequential"),
)


def is_made_by(
    site: Site, node: ast.expr, makes: Callable[[ast.expr, Scope], bool], scope: Scope | None = None
) -> bool:
    """Whether an expression is a module made by a call of what `makes` accepts, directly or by name.

    An attribute of `self` is one if the class assigns nothing else to it.
    """
    scope = scope or site.scope
    if isinstance(node, ast.Call):
        return makes(node.func, scope)
    if isinstance(node, ast.Name):
        binding = site.facts.names.binding(node.id, scope)
        owner = scope.owner(node.id) or scope
        return binding is not None and binding.value is not None and is_made_by(site, binding.value, makes, owner)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = [
            (statement, statement.value)
            for holder in site.facts.names.around(site.statement)
            if isinstance(holder, ast.ClassDef)
            for statement in ast.walk(holder)
            if isinstance(statement, ast.Assign)
            and any(ast.dump(target) == ast.dump(_stored(node)) for target in statement.targets)
        ]
        return bool(found) and all(
            is_made_by(site, value, makes, site.facts.scope_of(statement)) for statement, value in found
        )
    return False


def is_sequential(site: Site, node: ast.expr) -> bool:
    """Whether an expression is a `Sequential` of Flax, Haiku or Equinox, which calls its layers itself."""
    return is_made_by(site, node, lambda made, scope: site.resolve(made, scope) in SEQUENTIALS)


def _stored(node: ast.Attribute) -> ast.Attribute:
    return ast.Attribute(node.value, node.attr, ast.Store())
