"""Which classes are modules of Flax's nnx."""

from __future__ import annotations

import ast

from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project

_MODULES = frozenset(f"flax.nnx.{name}" for name in ("Module", "Object", "Pytree"))
_DEEPEST = 6


def is_nnx_module(facts: Facts, node: ast.ClassDef, project: Project, depth: int = 0) -> bool:
    """Whether a class is a module of nnx whose attributes Flax sorts into data and static ones.

    Args:
        facts: The Python module that holds the class.
        node: The class.
        project: Where its bases may be.
        depth: How many bases were followed to it.
    """
    if depth > _DEEPEST:
        return False
    if any(keyword.arg in (None, "pytree") for keyword in node.keywords):
        return False
    for base in node.bases:
        name = facts.names.resolve(base, facts.names.scope)
        if name in _MODULES:
            return True
        found = project.definition(name, facts) if name is not None else None
        if found is not None and isinstance(found[1].node, ast.ClassDef):
            if is_nnx_module(found[0], found[1].node, project, depth + 1):
                return True
        elif found is None and isinstance(base, ast.Name):
            binding = facts.names.binding(base.id, facts.names.scope)
            if binding is not None and isinstance(binding.node, ast.ClassDef):
                return is_nnx_module(facts, binding.node, project, depth + 1)
    return False
