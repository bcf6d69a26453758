"""The call that each iteration of a loop over layers makes, and what must not pass from one layer to a later one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from mmrewrite.analysis.blocks import all_statements, assigned_in, direct_statements, targets
from mmrewrite.analysis.dataflow import Flow
from mmrewrite.analysis.losses import find_function
from mmrewrite.codemod.site import Site
from mmrewrite.directives.vocabulary import STATEMENT, kind_of
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.names import Module, Scope

CONTAINER_METHODS = frozenset(("append", "extend", "insert", "pop", "popleft", "appendleft", "setdefault"))
_PARAMETERS = frozenset(("param", "variable", "get_variable", "make_rng"))


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The call of one iteration that becomes a task, and the simple statement that holds it."""

    call: ast.Call
    statement: ast.stmt

    @property
    def is_dropped(self) -> bool:
        """Whether nothing is done with the result."""
        return isinstance(self.statement, ast.Expr) and self.statement.value is self.call


def layer_call(site: Site, loop: ast.For) -> LayerCall | None:
    """The one call in the body that is the layer; None where no call, or more than one, could be it.

    It is the call that the loop variable chooses, else the one that is given it, else the same for names that the
    body makes from the loop variable, else the only call of the program's own code whose result is kept. Where the
    body gives values from one iteration to the next, the layer is a call that reads one of them.
    """
    variables = _names(loop.target)
    own = [
        layer for statement in loop.body for layer in _calls(site, statement) if not site.is_library(layer.call.func)
    ]
    kept = [layer for layer in own if not layer.is_dropped]
    layers = _using(own, variables) or _using(own, variables | _derived(site, loop, variables)) or kept
    if len(layers) != 1:
        return None
    (layer,) = layers
    carried = _carried(site, loop)
    is_layer = not _reads_parameter(layer.call) and (not carried or bool(_names(layer.call) & carried))
    return layer if is_layer and kind_of(layer.statement) == STATEMENT else None


def _reads_parameter(call: ast.Call) -> bool:
    """Whether a call asks a Flax module for a parameter or a variable: `self.param(...)`."""
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr in _PARAMETERS and isinstance(call.func.value, ast.Name)
    )


def _carried(site: Site, loop: ast.For) -> set[str]:
    """Names that an iteration reads from the one before it, and those that the body makes from them."""
    found = Flow(site.facts, site.scope).exposed_in(loop) & assigned_in(site.scope, all_statements(loop.body))
    before = 0
    while found and len(found) != before:
        before = len(found)
        for statement in all_statements(loop.body):
            if any(isinstance(node, ast.Name) and node.id in found for node in own_expressions(statement)):
                found |= {target.id for target in targets(statement) if isinstance(target, ast.Name)}
    return found


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
            holder = _changed_container(node, site.facts.names, site.scope)
            if holder is not None and not _names(holder) & inside:
                _refuse_shared(
                    site,
                    loop,
                    holder,
                    "this loop changes",
                    ", or say where each layer runs with `task(stage=...)` on the loop",
                )
    for holder in changed_arguments(site, layer.call):
        if not _names(holder) & inside:
            _refuse_shared(site, loop, holder, "they change", "")


def _refuse_shared(site: Site, loop: ast.For, holder: ast.expr, who: str, otherwise: str) -> NoReturn:
    site.refuse(
        f"the layers share `{site.text(holder)}`, which {who}: it would travel between all stages; return what it "
        f"collects from the layers{otherwise}",
        loop,
    )


def changed_arguments(site: Site, call: ast.Call) -> Iterator[ast.expr]:
    """Arguments that the function which is called fills or empties, where its definition can be seen."""
    function = find_function(site, call.func, site.facts, site.scope)
    if function is None:
        return
    names = function.facts.names
    holders = (_changed_container(node, names, function.scope) for node in function.nodes())
    changed = {holder.id for holder in holders if isinstance(holder, ast.Name)}
    by_position = zip(function.parameters, call.args, strict=False)
    for name, argument in (*by_position, *((keyword.arg, keyword.value) for keyword in call.keywords)):
        own = function.scope.bindings.get(name or "", ())
        if (
            name in changed
            and all(each.kind == "parameter" for each in own)
            and isinstance(argument, ast.Name | ast.Attribute)
        ):
            yield argument


def _changed_container(node: ast.AST, names: Module, scope: Scope) -> ast.expr | None:
    """What a node stores into or takes out of, if it does."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONTAINER_METHODS:
        # `jnp.append` changes nothing.
        return node.func.value if names.resolve(node.func, scope) is None else None
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
