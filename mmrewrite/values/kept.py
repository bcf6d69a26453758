"""What code in view gives a package out of view to keep: what comes out of the package may be that.

What is done for its effect gives something to be kept: a call whose result is not used, an assignment to an attribute
or an item, a decorator, and a class that derives from one. So it is with what the package makes, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.library import KNOWN_PACKAGES
from mmrewrite.values.targets import of_target
from mmrewrite.values.value import Access, By, Path, Value

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow


class _ModuleRead(NamedTuple):
    """Where something of a package is read, and of which module if it has come there by another name."""

    module: ModuleUses
    node: ast.expr
    home: str | None


# But for `parser.set_defaults(run=f)`, with `args.run(args)` later.
_OF_PYTHON = (sys.stdlib_module_names | {"builtins", "typing_extensions"}) - {"argparse"}


class TakenOut(NamedTuple):
    """What comes out of a module of a package, and what is done to that, whatever calls of it are given."""

    home: str
    rest: Path


def takes_out(flow: ValueFlow, value: Value) -> Iterator[TakenOut]:
    """What the calls of a value take out of its module, if that keeps anything."""
    home = f"{value.head}".rpartition(".")[0]
    if flow.kept_by(home):
        called = Access(By.CALL, flow.no_arguments)
        path = tuple(called if step.kind is By.CALL else step for step in value.path)
        yield from (TakenOut(home, path[place + 1 :]) for place, step in enumerate(path) if step is called)


def taken_out(flow: ValueFlow, taken: TakenOut) -> Sequence[Value]:
    """The values that may come out of a module."""
    return [each.done(*taken.rest) for each in flow.kept_by(taken.home)]


def kept_by(flow: ValueFlow, package: str) -> Mapping[str, Sequence[Value]]:
    """What a package is given to keep, by the full name of its module that is given it; nothing if it is known."""
    if package in _OF_PYTHON or package in KNOWN_PACKAGES:
        return {}
    places: list[_ModuleRead] = [
        _ModuleRead(module, head, None)
        for module in flow.modules
        if package in module.roots
        for item in module.imported
        if item.name.partition(".")[0] == package and not flow.project.holds(item.name, module.facts)
        for head in module.heads_of(item.local, module.facts.names.scopes[item.statement].owner(item.local))
    ]
    found: dict[str, list[Value]] = {}
    seen = {place.node for place in places}
    for place in places:
        for each in _given_at(flow, place):
            if isinstance(each, Value):
                found.setdefault(place.home or _home(place), []).append(each)
            elif each.node not in seen:
                seen.add(each.node)
                places.append(each)
    return found


def _home(place: _ModuleRead) -> str:
    """The full name of the module of which something is read at a place."""
    node, holder = place.node, place.module.parents[place.node]
    while isinstance(holder, ast.Attribute):
        node, holder = holder, place.module.parents[holder]
    return (place.module.full_name(node) or "").rpartition(".")[0]


def _given_at(flow: ValueFlow, place: _ModuleRead) -> Iterator[Value | _ModuleRead]:
    """What is given to be kept where something of a package is read, and where else that comes to."""
    module, node, _ = place
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
        Value(module, each)
        for call in calls
        for each in (*call.args, *(keyword.value for keyword in call.keywords))
        if not isinstance(each, ast.Constant | ast.JoinedStr)
    )
    match holder:
        case ast.Expr() | ast.withitem():
            yield from arguments
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()) if holder.value is node:
            taken = of_target(module, holder)
            if taken is not None:
                yield Value(module, *taken)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from arguments
            if node in (*holder.decorator_list, *getattr(holder, "bases", ())):
                yield Value(module, holder)
        case ast.Assign(targets=targets, value=value) if value is node:
            for target in targets:
                yield from _reads_of(flow, place, target)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target) if holder.value is node:
            yield from _reads_of(flow, place, target)
        case _:
            pass


def _reads_of(flow: ValueFlow, place: _ModuleRead, target: ast.expr) -> Iterator[_ModuleRead]:
    """Where a name or an attribute is read that something of a package is assigned to."""
    home, module = place.home or _home(place), place.module
    if isinstance(target, ast.Name):
        owner = module.scope_of(target)
        yield from (
            place._replace(node=head, home=home) for head in module.heads_of(target.id, owner.owner(target.id) or owner)
        )
    elif isinstance(target, ast.Attribute):
        yield from (_ModuleRead(other, read, home) for other, read in flow.stores.reads(target.attr))
