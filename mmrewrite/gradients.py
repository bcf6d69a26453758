"""Find the gradient function that a statement makes or calls, and the calls that show its arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from mmrewrite.names import Scope
from mmrewrite.site import Site
from mmrewrite.vocabulary import STATEMENT, kind_of

GRADIENTS = frozenset(("jax.grad", "jax.value_and_grad"))


@dataclass(frozen=True, eq=False)
class Gradient:
    """`jax.grad(function, ...)` and how it is used.

    `wrapped_call` is the call of the hinted statement to wrap: `jax.grad(...)` itself, or, when `by_name`, the call of
    a name that stands for it.
    """

    function: ast.expr
    argnums: frozenset[int]
    has_aux: bool
    wrapped_call: ast.Call
    by_name: bool
    calls: tuple[ast.Call, ...]


def find_gradient(site: Site) -> Gradient:
    """The gradient of the hinted statement; refuses when there is none or it is not visibly one."""
    calls = list(site.calls(site.statement))
    made = [call for call in calls if site.resolve(call.func) in GRADIENTS]
    if len(made) > 1:
        site.refuse("more than one gradient in this statement; give each a statement of its own")
    if made:
        return _gradient(site, made[0], made[0], by_name=False, calls=_uses(site, made[0], calls))
    named = [(call, _made_by_name(site, call.func, site.scope)) for call in calls]
    found = [(call, maker) for call, maker in named if maker is not None]
    if len(found) != 1:
        site.refuse(
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here; hint the statement that calls one, by name "
            "or directly"
        )
    call, maker = found[0]
    assert maker is not None
    return _gradient(site, maker, call, by_name=True, calls=(call,))


def _gradient(site: Site, maker: ast.Call, wrapped: ast.Call, by_name: bool, calls: tuple[ast.Call, ...]) -> Gradient:
    keywords = {keyword.arg: keyword.value for keyword in maker.keywords}
    if None in keywords or any(isinstance(argument, ast.Starred) for argument in maker.args):
        site.refuse("jax.grad(*args): cannot tell what is differentiated; write its arguments out", maker)
    function = maker.args[0] if maker.args else keywords.get("fun")
    if function is None:
        site.refuse("this gradient has no function to differentiate; write `jax.value_and_grad(loss_fn)`", maker)
    argnums = keywords.get("argnums", maker.args[1] if len(maker.args) > 1 else None)
    has_aux = keywords.get("has_aux", maker.args[2] if len(maker.args) > 2 else None)
    return Gradient(function, _argnums(site, argnums), _flag(site, has_aux), wrapped, by_name, calls)


def _argnums(site: Site, node: ast.expr | None) -> frozenset[int]:
    if node is None:
        return frozenset((0,))
    values = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    found = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, int)]
    if len(found) != len(values):
        if site.hint.argument("argnum") is not None:
            return frozenset()
        site.refuse("`argnums` is computed, so the batch cannot be told from what is differentiated; write `argnum=`")
    return frozenset(found)


def _flag(site: Site, node: ast.expr | None) -> bool:
    if node is None:
        return False
    if not isinstance(node, ast.Constant):
        site.refuse("`has_aux` is computed; write True or False", node)
    return bool(node.value)


def _uses(site: Site, made: ast.Call, calls: list[ast.Call]) -> tuple[ast.Call, ...]:
    """Calls of what `made` returns: in the statement itself, else of the name that it is assigned to."""
    holder = made
    while True:
        # `jax.jit(jax.grad(f))` is called with the same arguments.
        jitted = next(
            (call for call in calls if holder in call.args[:1] and site.resolve(call.func) == "jax.jit"), None
        )
        if jitted is None:
            break
        holder = jitted
    direct = tuple(call for call in calls if call.func is holder)
    if direct:
        return direct
    statement = site.statement
    if isinstance(statement, ast.Assign) and statement.value is holder and isinstance(statement.targets[0], ast.Name):
        return tuple(_calls_of(site, statement.targets[0].id))
    return ()


def _calls_of(site: Site, name: str) -> list[ast.Call]:
    owner = site.scope.owner(name)
    found = []
    for statement, scope in site.facts.names.scopes.items():
        if scope.owner(name) is owner and kind_of(statement) == STATEMENT:
            found += [
                call for call in site.calls(statement) if isinstance(call.func, ast.Name) and call.func.id == name
            ]
    return found


def _made_by_name(site: Site, node: ast.expr, scope: Scope) -> ast.Call | None:
    """The `jax.grad(...)` that a name was assigned, through `jax.jit` and other names."""
    if not isinstance(node, ast.Name):
        return None
    binding = site.facts.names.binding(node.id, scope)
    value = binding.value if binding else None
    owner = scope.owner(node.id) or scope
    while isinstance(value, ast.Call) and site.resolve(value.func, owner) == "jax.jit" and value.args:
        value = value.args[0]
    if isinstance(value, ast.Name) and value.id != node.id:
        return _made_by_name(site, value, owner)
    if isinstance(value, ast.Call) and site.resolve(value.func, owner) in GRADIENTS:
        return value
    return None
