"""What becomes of a value: the mirror of `flow.py`.

From a definition, or an expression that gives it, to all places that it comes to: its calls, and the places where it
leaves what is in view.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope
from mmrewrite.values.library import PARTIALS
from mmrewrite.values.value import CallArguments, Function, Own, Value

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_MOST_PLACES = 400
# Methods that a call of their class runs.
_MAKE = ("__init__", "__new__", "__post_init__")
# Functions that call what they are given first with their other arguments.
_CALL_IT = frozenset(("asyncio.to_thread", "atexit.register", "jax.eval_shape", "operator.call", "weakref.finalize"))
# What is called with the arguments of the function that it is given first.
WRAPPERS = frozenset(
    (
        *(f"jax.{name}" for name in ("checkpoint", "grad", "hessian", "jacfwd", "jacrev", "jit", "named_call", "pmap")),
        *("jax.remat", "jax.value_and_grad", "jax.vmap", "functools.cache", "functools.lru_cache", "jax.custom_jvp"),
        *("jax.custom_vjp", "jax.experimental.pjit.pjit", "flax.nnx.jit", "flax.nnx.grad", "flax.nnx.value_and_grad"),
        *("builtins.staticmethod", "builtins.classmethod", "contextlib.contextmanager"),
    )
)


class UsePlace(NamedTuple):
    """An expression that may be the value; `before` are calls of `partial` that gave it arguments, outermost first."""

    module: ModuleUses
    node: ast.expr
    before: tuple[ast.Call, ...] = ()


class Used(NamedTuple):
    """What becomes of a value.

    Attributes:
        calls: Its calls, each with what `partial` gave it before.
        escapes: Where it leaves what is in view, with the reason.
    """

    calls: Sequence[tuple[UsePlace, ast.Call]]
    escapes: Sequence[tuple[UsePlace, str]]


def calls_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> tuple[Sequence[CallArguments], str | None]:
    """The calls of a definition, in one form, and why there may be others than in code that imports it."""
    used = uses_of(flow, module, definition)
    calls = [_call(flow, place, call, definition) for place, call in used.calls]
    if used.escapes:
        place, reason = used.escapes[0]
        return calls, f"{reason} on line {place.node.lineno} of {place.module.facts.path}"
    return calls, None


def _call(flow: ValueFlow, place: UsePlace, call: ast.Call, definition: ast.AST) -> CallArguments:
    found = flow.call_at(place.module, call, None)
    for partial in place.before:
        found = flow.joined(flow.call_at(place.module, partial, None), found)
    holder = place.module.parents.get(definition)
    inner = place.node
    if isinstance(holder, ast.ClassDef) and getattr(definition, "name", "") in _MAKE:
        is_named = isinstance(inner, ast.Attribute) and inner.attr in _MAKE
        return found if is_named else flow.merged(Value(place.module, Own(holder, is_class=False)), found)
    if isinstance(inner, ast.Attribute) and isinstance(definition, Function):
        owner = flow.class_at(place.module, inner.value) if isinstance(inner.value, ast.Name) else None
        is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in definition.decorator_list)
        is_module = flow.full_name(place.module, inner.value) is not None and owner is None and holder is None
        if owner is None and not is_static and not is_module:
            return flow.merged(Value(place.module, inner.value), found)
    return found


def uses_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> Used:
    """What becomes of a function, a lambda or a class."""
    calls: list[tuple[UsePlace, ast.Call]] = []
    escapes: list[tuple[UsePlace, str]] = []
    queue = [*_places_of(flow, module, definition)]
    seen = {place.node for place in queue}
    for place in queue:
        if len(queue) > _MOST_PLACES:
            escapes.append((place, "it is used in too many places"))
            break
        for each in _after(flow, place, calls, escapes):
            if each.node not in seen:
                seen.add(each.node)
                queue.append(each)
    return Used(calls, escapes)


def _places_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> Iterator[UsePlace]:
    """The places that name a definition."""
    if isinstance(definition, ast.Lambda):
        yield UsePlace(module, definition)
        return
    if not isinstance(definition, Function | ast.ClassDef):
        return
    scope = module.facts.names.scopes[definition]
    name = definition.name
    if isinstance(definition, Function) and scope.kind == "class":
        if name in _MAKE:
            yield from _places_of(flow, module, scope.node)
        for home, node in flow.stores.reads(name):
            yield UsePlace(home, node)
    yield from _heads(flow, module, scope, name)


def _heads(flow: ValueFlow, module: ModuleUses, scope: Scope, name: str) -> Iterator[UsePlace]:
    for head in module.heads.get(name, ()):
        if module.scope_of(head).owner(name) is scope:
            yield UsePlace(module, head)
    if scope.kind == "module":
        full = f"{module.facts.names.name}.{name}"
        for other in flow.modules:
            if other is not module:
                for use in other.uses((full,)):
                    yield UsePlace(other, use.node)


def _after(
    flow: ValueFlow, place: UsePlace, calls: list[tuple[UsePlace, ast.Call]], escapes: list[tuple[UsePlace, str]]
) -> Iterator[UsePlace]:
    """Where a value comes to from one place."""
    module, node, before = place
    if module.in_annotation(node):
        return
    holder = module.parents[node]
    match holder:
        case ast.Call(func=function) if function is node:
            calls.append((place, holder))
        case ast.Call(func=function, args=[first, *_]) if first is node:
            name = flow.full_name(module, function)
            if name in PARTIALS:
                yield UsePlace(module, holder, (holder, *before))
            elif name in WRAPPERS:
                yield UsePlace(module, holder, before)
            else:
                yield from _handed_on(flow, place, holder, escapes)
        case ast.Call():
            yield from _handed_on(flow, place, holder, escapes)
        case ast.keyword():
            call = module.parents[holder]
            if isinstance(call, ast.Call):
                yield from _handed_on(flow, place, call, escapes)
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _named(flow, place, target, escapes)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            yield from _named(flow, place, target, escapes)
            if isinstance(holder, ast.NamedExpr):
                yield UsePlace(module, holder, before)
        case ast.IfExp() | ast.BoolOp():
            yield UsePlace(module, holder, before)
        case ast.Attribute(attr="lower" | "trace" | "eval_shape"):
            yield UsePlace(module, holder, before)
        case ast.Attribute() | ast.Compare() | ast.Expr() | ast.ClassDef() | ast.Subscript():
            pass
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            # A decorator: it is called with what stands below it.
            escapes.append((place, "it decorates a function"))
        case ast.Return():
            around = next((each for each in module.above(node) if isinstance(each, Function)), None)
            if around is not None:
                inner, reason = _calls_at(flow, module, around)
                if reason is not None:
                    escapes.append((place, reason))
                yield from (UsePlace(home, call, before) for home, call in inner)
        case _:
            escapes.append((place, "it is kept where it cannot be followed"))


def _calls_at(
    flow: ValueFlow, module: ModuleUses, function: ast.AST
) -> tuple[list[tuple[ModuleUses, ast.Call]], str | None]:
    """The calls of a function by its name alone."""
    places = [*_places_of(flow, module, function)]
    found = []
    for place in places:
        call = place.module.parents.get(place.node)
        if isinstance(call, ast.Call) and call.func is place.node:
            found.append((place.module, call))
        elif not place.module.in_annotation(place.node):
            return found, "the function that returns it is passed on"
    return found, None


def _named(
    flow: ValueFlow, place: UsePlace, target: ast.expr, escapes: list[tuple[UsePlace, str]]
) -> Iterator[UsePlace]:
    module = place.module
    match target:
        case ast.Name(id=name):
            owner = module.scope_of(target)
            owner = owner.owner(name) or owner
            yield from (each._replace(before=place.before) for each in _heads(flow, module, owner, name))
        case ast.Attribute(attr=name):
            yield from (UsePlace(home, node, place.before) for home, node in flow.stores.reads(name))
        case _:
            escapes.append((place, "it is kept where it cannot be followed"))


def _handed_on(
    flow: ValueFlow, place: UsePlace, call: ast.Call, escapes: list[tuple[UsePlace, str]]
) -> Iterator[UsePlace]:
    """Where a value comes to that a call is given."""
    name = flow.full_name(place.module, call.func)
    function = flow.function_at(place.module, call.func)
    if function is None:
        escapes.append(
            (place, f"it is passed to `{ast.unparse(call.func)}`" if name is None else f"`{name}` is given it")
        )
        return
    home, definition = function
    parameter = parameter_of(definition, call, place.node)
    if parameter is None:
        escapes.append((place, "it is passed among other arguments"))
        return
    scope = home.facts.names.inner[definition]
    yield from (each._replace(before=place.before) for each in _heads(flow, home, scope, parameter))


def parameter_of(definition: Function, call: ast.Call, argument: ast.expr) -> str | None:
    """The name of the parameter that an argument of a call is passed for, None if that is not seen."""
    keyword = next((each for each in call.keywords if each.value is argument), None)
    arguments = definition.args
    if keyword is not None:
        named = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
        return keyword.arg if keyword.arg in named else None
    if argument not in call.args or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    in_order = [*arguments.posonlyargs, *arguments.args]
    place = call.args.index(argument)
    return in_order[place].arg if place < len(in_order) else None
