"""What code in view gives a package out of view to keep: what comes out of the package may be that.

What is done for its effect gives something to be kept: a call whose result is not used, an assignment to an attribute
or an item, a decorator, and a class that derives from one. So it is with what the package makes, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.targets import of_target
from mmrewrite.values.value import Value

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Place = tuple[ModuleUses, ast.expr]
_OF_PYTHON = sys.stdlib_module_names | {"builtins", "__future__"}


class Kept(NamedTuple):
    """What a package is given to keep, and the module of the package that may give it; None for all of it.

    Many packages have base classes, and few of them keep what derives from these.
    """

    value: Value
    home: str | None = None


def kept_by(flow: ValueFlow, package: str) -> Sequence[Kept]:
    """What a package is given to keep, none of Python's library."""
    if package in _OF_PYTHON:
        return ()
    places: list[_Place] = [
        (module, head)
        for module in flow.modules
        if package in module.roots
        for item in module.imported
        if item.name.partition(".")[0] == package and not flow.project.holds(item.name, module.facts)
        for head in module.heads_of(item.local, module.facts.names.scopes[item.statement].owner(item.local))
    ]
    found: list[Kept] = []
    seen = {node for _, node in places}
    for module, node in places:
        for each in _given_at(flow, module, node):
            if isinstance(each, Kept):
                found.append(each)
            elif each[1] not in seen:
                seen.add(each[1])
                places.append(each)
    return found


def _given_at(flow: ValueFlow, module: ModuleUses, node: ast.expr) -> Iterator[Kept | _Place]:
    """What is given to be kept where something of a package is read, and where else that comes to."""
    calls: list[ast.Call] = []
    holder = module.parents[node]
    while True:
        match holder:
            case ast.Call(func=inner) if inner is node:
                calls.append(holder)
            case ast.Attribute(ctx=ast.Load()) | ast.Await():
                pass
            case ast.Subscript(value=inner, ctx=ast.Load()) if inner is node:
                pass
            case _:
                break
        node, holder = holder, module.parents[holder]
    arguments = (
        Kept(Value(module, each))
        for call in calls
        for each in (*call.args, *(keyword.value for keyword in call.keywords))
    )
    match holder:
        case ast.Expr() | ast.withitem():
            yield from arguments
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()) if holder.value is node:
            taken = of_target(module, holder)
            if taken is not None:
                yield Kept(Value(module, *taken))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from arguments
            if node in holder.decorator_list:
                yield Kept(Value(module, holder))
            elif node in getattr(holder, "bases", ()):
                name = module.full_name(node)
                yield Kept(Value(module, holder), name.rpartition(".")[0] if name is not None else None)
        case ast.Assign(targets=targets, value=value) if value is node:
            for target in targets:
                yield from _reads_of(flow, module, target)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target) if holder.value is node:
            yield from _reads_of(flow, module, target)
        case _:
            pass


def _reads_of(flow: ValueFlow, module: ModuleUses, target: ast.expr) -> Iterator[_Place]:
    """Where a name or an attribute is read that something of a package is assigned to."""
    if isinstance(target, ast.Name):
        owner = module.scope_of(target)
        yield from ((module, head) for head in module.heads_of(target.id, owner.owner(target.id) or owner))
    elif isinstance(target, ast.Attribute):
        yield from flow.stores.reads(target.attr)
