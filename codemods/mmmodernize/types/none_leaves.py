"""Whether the source shows that a tree may hold `None`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmmodernize.meshes.partition_specs import TREE_MAPS
from mmmodernize.sites.shared_flow import SharedFlow
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.types.array_functions import GIVE_LEAVES
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.arguments import given
from mmrewrite.values.containers import parts_of
from mmrewrite.values.value import Access, By, Own, Value


def may_hold_none(context: ModernizeContext, module: ModuleUses, tree: ast.expr) -> bool:
    """Whether `None` is written in `tree`, or in what it is made of in view.

    Parameters, attributes of objects and values from libraries show nothing.
    """
    flow = context.analysis(SharedFlow)

    def parts(value: Value) -> Iterator[Value]:
        yield from parts_of(value)
        path = value.path
        if isinstance(value.head, str) and value.head.startswith(GIVE_LEAVES) and path and path[0].kind is By.CALL:
            call = path[0].what
            yield from (each for each in given(call) if not isinstance(each.head, ast.Constant))
            if value.head in TREE_MAPS and (function := call.first()):
                yield function.done(Access(By.CALL, flow.no_arguments))

    return True in flow.may(Value(module, tree), _is_none, also=parts).answers


def _is_none(value: Value) -> bool | None:
    """Whether this is `None`; None where others are behind it."""
    if isinstance(value.head, ast.arg | ast.ClassDef | Own):
        # What a parameter or an attribute is by default is no tree.
        return False
    return True if isinstance(value.head, ast.Constant) and value.head.value is None and not value.path else None
