"""The call in a loop over layers that is the layer, and containers that layers must not share."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NoReturn

from mmrewrite.analysis.loops.dataflow import Flow, all_statements, assigned_in, direct_statements, targets
from mmrewrite.analysis.steps.losses import find_function
from mmrewrite.codemod.site import Site
from mmrewrite.directives.vocabulary import STATEMENT, kind_of
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.names import Module, Scope, dotted_name
from mmrewrite.values.flow import values_of

CONTAINER_METHODS = frozenset(("append", "extend", "insert", "pop", "popleft", "appendleft", "setdefault"))
_PARAMETERS = frozenset(("param", "variable", "get_variable", "make_rng"))
_OF_TYPES = frozenset(("shape", "ndim", "size", "dtype"))


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The call in the body of the loop that becomes a task, and the simple statement with it."""

    call: ast.Call
    statement: ast.stmt

    @property
    def is_dropped(self) -> bool:
        """Whether its result is dropped."""
        return isinstance(self.statement, ast.Expr) and self.statement.value is self.call


def layer_call(site: Site, loop: ast.For) -> LayerCall | None:
    """The call in the body that is the layer; None if there is no candidate, or more than one.

    In this order: the call whose callee depends on the loop variable, the call with an argument that does, the same for
    names that the body derives from the loop variable, and the only call of the program's own code whose result is
    kept. If the loop carries values between iterations, the layer must read one of them. A call that makes a module
    for the statements below it, as in `block = Block(config)`, is no candidate.
    """
    variables = _names(loop.target)
    carried = _carried(site, loop)
    makers = dict(_makers(site, loop))
    if any(_values_in(call) & carried for call in makers):
        return None
    own = [
        layer
        for statement in loop.body
        for layer in _calls(site, statement)
        if not site.is_library(layer.call.func) and not _keeps(layer) and layer.call not in makers
    ]
    kept = [layer for layer in own if not layer.is_dropped]
    made = set(makers.values())
    layers = (
        _using(own, variables) or _using(own, variables | made | _derived(site, loop, variables | made, makers)) or kept
    )
    if len(layers) != 1:
        return None
    (layer,) = layers
    is_layer = not _reads_parameter(layer.call) and (not carried or bool(_names(layer.call) & carried))
    return layer if is_layer and kind_of(layer.statement) == STATEMENT else None


def _makers(site: Site, loop: ast.For) -> Iterator[tuple[ast.expr, str]]:
    """The calls in a loop's body that make an object of a class of the project that is only called, and its name."""
    for index, statement in enumerate(loop.body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=maker) as call):
                below = [node for each in loop.body[index + 1 :] for node in ast.walk(each)]
                called = {node.func for node in below if isinstance(node, ast.Call)}
                reads = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id == name]
                if (
                    _is_class(site, maker)
                    and len(reads) > 1
                    and all(node is statement.targets[0] or node in called for node in reads)
                ):
                    yield call, name


def _values_in(node: ast.AST) -> set[str]:
    """The names in an expression whose values are read, not only `x.shape` and the like."""
    types = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in _OF_TYPES}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and id(each) not in types}


def _is_class(site: Site, node: ast.expr) -> bool:
    """Whether an expression names a class that the project defines."""
    if isinstance(node, ast.Name) and (owner := site.scope.owner(node.id)) is not None:
        kinds = {binding.kind for binding in owner.bindings[node.id]}
        if kinds != {"import"}:
            return kinds == {"class"}
    dotted = dotted_name(node)
    found = site.facts.names.resolve_dotted(dotted, site.scope) if dotted else None
    known = site.project.definition(found, site.facts) if found else None
    return known is not None and known[1].kind == "class"


def _keeps(layer: LayerCall) -> bool:
    """Whether a call only keeps what others compute: `seen.append(x)`."""
    return layer.is_dropped and isinstance(layer.call.func, ast.Attribute) and layer.call.func.attr in CONTAINER_METHODS


def _reads_parameter(call: ast.Call) -> bool:
    """Whether a call creates or reads a parameter or variable of a Flax module: `self.param(...)`."""
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr in _PARAMETERS and isinstance(call.func.value, ast.Name)
    )


def _carried(site: Site, loop: ast.For) -> set[str]:
    """Names that the loop carries between iterations, and those that the body derives from them (a fixed point)."""
    found = Flow(site.facts, site.scope).exposed_in(loop) & assigned_in(site.scope, all_statements(loop.body))
    before = 0
    while found and len(found) != before:
        before = len(found)
        for statement in all_statements(loop.body):
            if any(isinstance(node, ast.Name) and node.id in found for node in own_expressions(statement)):
                found |= {target.id for target in targets(statement) if isinstance(target, ast.Name)}
    return found


def refuse_carried_containers(site: Site, loop: ast.For, layer: LayerCall) -> None:
    """Refuses layers that are given a list or dictionary whole which they, or the loop, change: a cache.

    What the loop keeps beside the layers is no matter: each value goes where it is read.
    """
    inside = {
        node.id
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for statement in loop.body:
        for node in ast.walk(statement):
            holder = _changed_container(node, site.facts.names, site.scope)
            if holder is not None and not _names(holder) & inside and _is_given(layer.call, holder):
                _refuse_shared(
                    site,
                    loop,
                    holder,
                    "this loop changes",
                    ", or say where each layer runs with `task(stage=...)` on the loop",
                )
    given = [*layer.call.args, *(keyword.value for keyword in layer.call.keywords)]
    shared = [each for each in given if isinstance(each, ast.Name | ast.Attribute) and not _names(each) & inside]
    holder = next((each for each in changed_arguments(site, layer.call) if each in shared), None) if shared else None
    if holder is not None:
        _refuse_shared(site, loop, holder, "they change", "")


def _is_given(call: ast.Call, holder: ast.expr) -> bool:
    """Whether a container is an argument of a call, as a whole."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(ast.dump(argument) == ast.dump(holder) for argument in arguments)


def _refuse_shared(site: Site, loop: ast.For, holder: ast.expr, who: str, otherwise: str) -> NoReturn:
    site.refuse(
        f"the layers share `{site.text(holder)}`, which {who}: it would travel between all stages; return what it "
        f"collects from the layers{otherwise}",
        loop,
    )


def changed_arguments(site: Site, call: ast.Call) -> Iterator[ast.expr]:
    """Arguments of a call that its function changes in place, as far as its definition can be found."""
    function = find_function(site, values_of(site.project).value_in(site.facts, call.func))
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
    """The container that a node changes in place, if it does."""
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


def _derived(site: Site, loop: ast.For, variables: set[str], makers: Container[ast.expr]) -> set[str]:
    """Names that the body derives from the loop variables, without calls of the program's own code but `makers`."""
    found: set[str] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.For):
                target, value = node.target, node.iter
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            else:
                continue
            if _names(value) & (variables | found) and all(
                call in makers or site.is_library(call.func) for call in site.calls(value)
            ):
                found |= _names(target)
    return found


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _calls(site: Site, statement: ast.stmt) -> Iterator[LayerCall]:
    """Calls in a statement and its blocks, without calls that only make the callee of another."""
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
    """Calls without those that only make the callee of another one, as `Block(cfg)` in `Block(cfg)(x)`."""
    makers = {node for call in calls if isinstance(call.func, ast.Call) for node in ast.walk(call.func)}
    return [call for call in calls if call not in makers]


_WRAPPERS = frozenset(("vmap", "partial", "jit", "checkpoint", "remat", "filter_vmap"))


def callee_name(node: ast.expr) -> str:
    """A task name for a callee: `encoder` for `self.encoder`, `Block` for `Block(cfg)`, `f` for `vmap(f)`."""
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
