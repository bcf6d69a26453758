"""Whether the source shows that a tree may hold `None`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmmodernize.meshes.partition_specs import TREE_MAPS
from mmmodernize.sites.shared_flow import SharedFlow
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.containers import parts_of
from mmrewrite.values.value import Access, By, Value


def may_hold_none(context: ModernizeContext, module: ModuleUses, tree: ast.expr) -> bool:
    """Whether `None` is written in `tree`, or in what it is made of in view.

    Parameters and values from libraries show nothing.
    """
    flow = context.analysis(SharedFlow)

    def parts(value: Value) -> Iterator[Value]:
        yield from parts_of(value)
        path = value.path
        if value.head in TREE_MAPS and path and path[0].kind is By.CALL and (function := path[0].what.first()):
            yield function.done(Access(By.CALL, flow.no_arguments))

    return True in flow.may(Value(module, tree), _is_none, also=parts).answers


def _is_none(value: Value) -> bool | None:
    """Whether this is `None`; None where others are behind it."""
    if isinstance(value.head, ast.arg):
        return False
    return True if isinstance(value.head, ast.Constant) and value.head.value is None and not value.path else None
