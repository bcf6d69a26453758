"""Which classes are modules of Flax's nnx."""

from __future__ import annotations

import ast

from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import Decorated, Value

_MODULES = frozenset(f"flax.nnx.{name}" for name in ("Module", "Object", "Pytree"))
_DEEPEST = 6


def is_nnx_module(flow: ValueFlow, module: ModuleUses, node: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a class may be a module of nnx whose attributes Flax sorts into data and static ones.

    Args:
        flow: The values of the project.
        module: The Python module that holds the class.
        node: The class.
        depth: How many bases were followed to it.
    """
    if depth > _DEEPEST or any(keyword.arg in (None, "pytree") for keyword in node.keywords):
        return False
    bases = [value for base in node.bases for value in flow.may(Value(module, base), _class_at).answers]
    return any(
        not isinstance(base.head, ast.ClassDef) or is_nnx_module(flow, base.module, base.head, depth + 1)
        for base in bases
    )


def _class_at(value: Value) -> Value | None:
    """The class of nnx or of the project that a value is."""
    head = value.head.definition if isinstance(value.head, Decorated) else value.head
    if isinstance(head, ast.ClassDef) and not value.path:
        return value._replace(head=head)
    return value if value.outside in _MODULES else None
