"""Whether the source shows that a tree may hold `None`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmmodernize.meshes.partition_specs import TREE_MAPS, parts_of
from mmmodernize.sites.shared_flow import SharedFlow
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import ANY_ITEM, Access, By, Display, Value


def may_hold_none(context: ModernizeContext, module: ModuleUses, tree: ast.expr) -> bool:
    """Whether `None` is written in `tree`, or in what it is made of in view.

    Parameters and values from libraries show nothing.
    """
    flow = context.analysis(SharedFlow)

    def parts(value: Value) -> Iterator[Value]:
        head, path = value.head, value.path
        if isinstance(head, Display) and not path:
            yield from (part for _, part, _ in head.entries)
        elif isinstance(head, ast.Name | ast.Attribute) and not path:
            # What is put into it later.
            yield value.done(ANY_ITEM)
        elif isinstance(head, ast.AST) and not path:
            yield from (value._replace(head=part) for part in parts_of(head))
        elif head in TREE_MAPS and path[0].kind is By.CALL and (function := path[0].what.first()) is not None:
            yield function.done(Access(By.CALL, flow.no_arguments))

    return True in flow.may(Value(module, tree), _is_none, also=parts).answers


def _is_none(value: Value) -> bool | None:
    """Whether this is `None`; None where others are behind it."""
    if isinstance(value.head, ast.arg):
        return False
    return True if isinstance(value.head, ast.Constant) and value.head.value is None and not value.path else None
