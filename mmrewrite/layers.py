"""The call that each iteration of a loop over layers makes, and what must not pass from one layer to a later one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from mmrewrite.losses import find_function
from mmrewrite.site import Site
from mmrewrite.vocabulary import STATEMENT, kind_of

_CONTAINER_METHODS = frozenset(("append", "extend", "insert", "pop", "popleft", "appendleft", "setdefault"))


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The call of one iteration that becomes a task, and the simple statement that holds it."""

    call: ast.Call
    statement: ast.stmt

    @property
    def is_dropped(self) -> bool:
        """Whether nothing is done with the result."""
        return isinstance(self.statement, ast.Expr) and self.statement.value is self.call


def layer_call(site: Site, loop: ast.For) -> LayerCall:
    """The one call in the body that is the layer; refuses when there is none or more than one.

    It is the call that the loop variable chooses, else the one that is given it, else the same for names that the
    body makes from the loop variable, else the only call of the program's own code whose result is kept.
    """
    variables = _names(loop.target)
    own = [
        layer for statement in loop.body for layer in _calls(site, statement) if not site.is_library(layer.call.func)
    ]
    kept = [layer for layer in own if not layer.is_dropped]
    layers = _using(own, variables) or _using(own, variables | _derived(site, loop, variables)) or kept
    names = " or ".join(sorted(f"`{name}`" for name in variables))
    if not layers:
        site.refuse(f"no call in the body of this loop uses {names}; call the layer there", loop)
    if len(layers) > 1:
        calls = ", ".join(f"`{site.text(layer.call)}` (line {layer.call.lineno})" for layer in layers)
        site.refuse(f"more than one call could be the layer: {calls}; put the layer's work into one callable", loop)
    layer = layers[0]
    if kind_of(layer.statement) != STATEMENT:
        site.refuse("the layer is called in the head of a compound statement; assign its result to a name first", loop)
    return layer


def refuse_carried_containers(site: Site, loop: ast.For, layer: LayerCall) -> None:
    """Refuses where layers fill or empty a list or dictionary that outlives them: a cache, or skip connections."""
    inside = {
        node.id
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for statement in loop.body:
        for node in ast.walk(statement):
            holder = _changed_container(node)
            if holder is not None and not _names(holder) & inside:
                _refuse_shared(
                    site,
                    loop,
                    holder,
                    "this loop changes",
                    ", or say where each layer runs with `task(stage=...)` on the loop",
                )
    for holder in _changed_arguments(site, layer.call):
        if not _names(holder) & inside:
            _refuse_shared(site, loop, holder, "they change", "")


def _refuse_shared(site: Site, loop: ast.For, holder: ast.expr, who: str, otherwise: str) -> NoReturn:
    site.refuse(
        f"the layers share `{site.text(holder)}`, which {who}: it would travel between all stages; return what it "
        f"collects from the layers{otherwise}",
        loop,
    )


def _changed_arguments(site: Site, call: ast.Call) -> Iterator[ast.expr]:
    """Arguments that the function which is called fills or empties, where its definition can be seen."""
    function = find_function(site, call.func, site.facts, site.scope)
    if function is None:
        return
    changed = {holder.id for node in function.nodes() if isinstance(holder := _changed_container(node), ast.Name)}
    by_position = zip(function.parameters, call.args, strict=False)
    for name, argument in (*by_position, *((keyword.arg, keyword.value) for keyword in call.keywords)):
        own = function.scope.bindings.get(name or "", ())
        if (
            name in changed
            and all(each.kind == "parameter" for each in own)
            and isinstance(argument, ast.Name | ast.Attribute)
        ):
            yield argument


def _changed_container(node: ast.AST) -> ast.expr | None:
    """What a node stores into or takes out of, if it does."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CONTAINER_METHODS:
        return node.func.value
    return None


def _using(layers: list[LayerCall], variables: set[str]) -> list[LayerCall]:
    by_callee = [layer for layer in layers if _names(layer.call.func) & variables]
    return by_callee or [
        layer
        for layer in layers
        if any(_names(argument) & variables for argument in (*layer.call.args, *layer.call.keywords))
    ]


def _derived(site: Site, loop: ast.For, variables: set[str]) -> set[str]:
    """Names that the body binds to something made of the loop variables, without any call of the program's own."""
    found: set[str] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.For):
                target, value = node.target, node.iter
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            else:
                continue
            if _names(value) & (variables | found) and all(site.is_library(call.func) for call in site.calls(value)):
                found |= _names(target)
    return found


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _calls(site: Site, statement: ast.stmt) -> Iterator[LayerCall]:
    """Calls of a statement and of the blocks in it, except those that only make what another one calls."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    inner = [child for child in ast.walk(statement) if isinstance(child, ast.stmt) and child is not statement]
    nested = {node for child in inner for node in ast.walk(child)}
    own = [call for call in site.calls(statement) if call not in nested]
    for call in outermost_callees(own):
        yield LayerCall(call, statement)
    for child in direct_statements(statement):
        yield from _calls(site, child)


def direct_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements in the blocks of a compound statement."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def outermost_callees(calls: list[ast.Call]) -> list[ast.Call]:
    """Calls that do not merely make what another one calls, as `Block(cfg)` does in `Block(cfg)(x)`."""
    makers = {node for call in calls if isinstance(call.func, ast.Call) for node in ast.walk(call.func)}
    return [call for call in calls if call not in makers]


_WRAPPERS = frozenset(("vmap", "partial", "jit", "checkpoint", "remat", "filter_vmap"))


def callee_name(node: ast.expr) -> str:
    """A task name from what is called: `encoder` for `self.encoder`, `Block` for `Block(cfg)`, `f` for `vmap(f)`."""
    match node:
        case ast.Call(args=[ast.Name() | ast.Attribute() | ast.Subscript() as inner, *_]) if (
            callee_name(node.func) in _WRAPPERS
        ):
            return callee_name(inner)
        case ast.Call():
            return callee_name(node.func)
        case ast.Subscript():
            return callee_name(node.value)
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
    return "task"
