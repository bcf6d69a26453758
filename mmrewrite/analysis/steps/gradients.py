"""Find the gradient function that a statement makes or calls, and the calls that show its arguments."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mmrewrite.codemod.site import Site
from mmrewrite.directives.vocabulary import STATEMENT, kind_of
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.names import Binding, Module, Scope

GRADIENTS = frozenset(
    (
        "jax.grad",
        "jax.value_and_grad",
        "flax.nnx.grad",
        "flax.nnx.value_and_grad",
        "equinox.filter_grad",
        "equinox.filter_value_and_grad",
    )
)

_LOOPS = ast.For | ast.AsyncFor | ast.While
# From inside of these, an exception may go on below.
_CATCHING = ast.Try | ast.TryStar | ast.With | ast.AsyncWith


@dataclass(frozen=True, eq=False)
class Use:
    """A call of a gradient function, and the simple statement that holds it."""

    call: ast.Call
    statement: ast.stmt


@dataclass(frozen=True, eq=False)
class Gradient:
    """A gradient function, `jax.grad(function, ...)`, and its calls.

    Attributes:
        function: The function that is differentiated.
        argnums: Positions of the differentiated arguments; empty where they are computed and the hint has `argnum=`.
        wrapped_call: The call to wrap: `jax.grad(...)` itself or, if `by_name`, a call of a name for it.
        by_name: Whether the hinted statement calls the gradient function by a name.
        uses: The calls that can be seen.
        complete: Whether these are all.
    """

    function: ast.expr
    argnums: frozenset[int]
    wrapped_call: ast.Call
    by_name: bool
    uses: tuple[Use, ...]
    complete: bool

    @property
    def calls(self) -> list[ast.Call]:
        """The calls without their statements."""
        return [use.call for use in self.uses]


@dataclass(frozen=True, eq=False)
class _Maker:
    """The expression that makes a gradient function: the call `jax.grad(f)`, or a decorator of a `def`."""

    function: ast.expr | None
    arguments: ast.Call | None


def find_gradient(site: Site) -> Gradient:
    """The gradient function that the hinted statement makes or calls; refuses a statement without exactly one."""
    calls = list(site.calls(site.statement))
    made = [call for call in calls if site.resolve(call.func) in GRADIENTS]
    if len(made) > 1:
        site.refuse("more than one gradient in this statement; give each a statement of its own")
    if made:
        uses, complete = _uses(site, made[0], calls)
        maker = _Maker(_function(site, made[0]), made[0])
        return _gradient(site, maker, made[0], by_name=False, uses=uses, complete=complete)
    named = [(call, _made_by_name(site, call.func, site.scope)) for call in calls]
    found = [(call, maker) for call, maker in named if maker is not None]
    if len(found) != 1:
        _refuse_bound_twice(site, calls)
        _refuse_gradients_of_objects(site, calls)
        site.refuse(
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here; hint the statement that calls one, by name "
            "or directly"
        )
    call, maker = found[0]
    assert isinstance(call.func, ast.Name)
    name, owner = call.func.id, site.scope.owner(call.func.id)
    loads = _loads(site, name, owner, _binding_in_block(site, name))
    return _gradient(site, maker, call, by_name=True, uses=(Use(call, site.statement),), complete=loads == 1)


def _refuse_bound_twice(site: Site, calls: list[ast.Call]) -> None:
    for call in calls:
        if not isinstance(call.func, ast.Name):
            continue
        name, owner = call.func.id, site.scope.owner(call.func.id)
        bindings = owner.bindings[name] if owner is not None and _binding_in_block(site, name) is None else []
        values = [binding.value for binding in bindings if isinstance(binding.value, ast.Call)]
        if len(bindings) > 1 and any(site.resolve(value.func, owner) in GRADIENTS for value in values):
            lines = ", ".join(f"line {binding.statement.lineno}" for binding in bindings if binding.statement)
            site.refuse(f"`{name}` has several meanings ({lines}); give this gradient function a name of its own", call)


def _refuse_gradients_of_objects(site: Site, calls: list[ast.Call]) -> None:
    """Refuses `scale.value_and_grad(f)` of an object such as Flax's `DynamicScale`, called by name or directly."""
    for call in calls:
        value: ast.expr | None = call
        if isinstance(call.func, ast.Name):
            binding = site.facts.names.binding(call.func.id, site.scope) or _binding_in_block(site, call.func.id)
            value = binding.value if binding is not None else None
        function = value.func if isinstance(value, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == "value_and_grad" and site.resolve(function) is None:
            text = site.text(function)
            site.refuse(
                f"`{text}` takes the gradient itself, and no microbatches can be put between; if it is that of a "
                "`DynamicScale`, take the gradient of the scaled loss with `jax.value_and_grad`, hint that, and give "
                'what it returns to the `DynamicScale`, as "Scale the loss" in docs/recipes.md does',
                call,
            )


def is_gradient_decorator(names: Module, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator differentiates: `@jax.grad`, `@partial(jax.grad, ...)`, `@eqx.filter_grad(...)`."""
    found = names.resolve(decorator, scope)
    if isinstance(decorator, ast.Call):
        found = names.resolve(decorator.func, scope)
        if found == "functools.partial" and len(decorator.args) == 1:
            found = names.resolve(decorator.args[0], scope)
    return found in GRADIENTS


def _function(site: Site, maker: ast.Call) -> ast.expr | None:
    keywords = {keyword.arg: keyword.value for keyword in maker.keywords}
    if None in keywords or any(isinstance(argument, ast.Starred) for argument in maker.args):
        site.refuse("jax.grad(*args): cannot tell what is differentiated; write its arguments out", maker)
    function = maker.args[0] if maker.args else keywords.get("fun", keywords.get("f"))
    if function is None:
        site.refuse("this gradient has no function to differentiate; write `jax.value_and_grad(loss_fn)`", maker)
    return function


def _gradient(
    site: Site, maker: _Maker, wrapped: ast.Call, by_name: bool, uses: tuple[Use, ...], complete: bool
) -> Gradient:
    keywords, positional = {}, []
    if maker.arguments is not None:
        keywords = {keyword.arg: keyword.value for keyword in maker.arguments.keywords}
        positional = maker.arguments.args
    argnums = keywords.get("argnums", positional[1] if len(positional) > 1 else None)
    return Gradient(
        maker.function or wrapped.func,
        _argnums(site, argnums),
        wrapped,
        by_name,
        uses,
        complete,
    )


def _argnums(site: Site, node: ast.expr | None) -> frozenset[int]:
    if node is None:
        return frozenset((0,))
    values = [_position(site, each) for each in (node.elts if isinstance(node, ast.Tuple | ast.List) else [node])]
    found = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, int)]
    if len(found) != len(values):
        if site.hint.argument("argnum") is not None:
            return frozenset()
        site.refuse("`argnums` is computed, so the batch cannot be told from what is differentiated; write `argnum=`")
    return frozenset(found)


def _position(site: Site, node: ast.expr) -> ast.expr:
    """The position in `nnx.DiffState(0, nnx.Param)`."""
    if isinstance(node, ast.Call) and node.args and site.resolve(node.func) == "flax.nnx.DiffState":
        return node.args[0]
    return node


def _uses(site: Site, made: ast.Call, calls: list[ast.Call]) -> tuple[tuple[Use, ...], bool]:
    """Calls of the gradient function `made`, in the statement itself or by its name; and whether these are all."""
    holder = made
    while True:
        # `jax.jit(jax.grad(f))` is called with the same arguments.
        jitted = next(
            (call for call in calls if holder in call.args[:1] and site.resolve(call.func) == "jax.jit"), None
        )
        if jitted is None:
            break
        holder = jitted
    direct = tuple(Use(call, site.statement) for call in calls if call.func is holder)
    if direct:
        return direct, True
    statement = site.statement
    if isinstance(statement, ast.Assign) and statement.value is holder and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        owner = site.scope.owner(name)
        bindings = owner.bindings[name] if owner is not None and owner is site.scope else []
        own = next((each for each in bindings if each.statement is statement), None) if len(bindings) > 1 else None
        uses = tuple(_uses_of(site, name, owner, own))
        return uses, len(statement.targets) == 1 and _loads(site, name, owner, own) == len(uses)
    return (), False


def _uses_of(site: Site, name: str, owner: Scope | None, binding: Binding | None) -> Iterator[Use]:
    for statement in _readers(site, name, owner, binding):
        if kind_of(statement) == STATEMENT:
            for call in site.calls(statement):
                if isinstance(call.func, ast.Name) and call.func.id == name:
                    yield Use(call, statement)


def _loads(site: Site, name: str, owner: Scope | None, binding: Binding | None) -> int:
    """How often a name of `owner` is read, where `binding` may hold if that is given."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for statement in _readers(site, name, owner, binding)
        for node in own_expressions(statement)
    )


def _readers(site: Site, name: str, owner: Scope | None, binding: Binding | None) -> Iterator[ast.stmt]:
    """The statements that see a name of `owner`; of a binding in the hint's block, those where it may hold.

    That is below it in the block, up to the next statement of the block that binds the name, and if there is none, also
    below the block. Functions that read the name may run at any time.
    """
    begin, end, after = 0, 0, 0
    if binding is not None and binding.statement is not None:
        block, holder = _block(site), next(iter(site.facts.names.around(site.statement)), None)
        begin, end = binding.statement.lineno, max((each.end_lineno or 0) for each in block)
        after = (holder.end_lineno or end) if holder is not None else end
        again = _bound_again(site, name, binding.statement)
        if again is not None:
            end, after = again.end_lineno or again.lineno, sys.maxsize
        else:
            # What the last iteration of a loop bound is seen above, too.
            loops = [each.lineno for each in _around_in_function(site) if isinstance(each, _LOOPS)]
            begin = min(begin, *loops) if loops else begin
    for statement, scope in site.facts.names.scopes.items():
        is_reader = begin <= statement.lineno <= end or statement.lineno > after or scope is not owner
        if scope.owner(name) is owner and is_reader:
            yield statement


def _bound_again(site: Site, name: str, first: ast.stmt) -> ast.Assign | None:
    """The next assignment of a name in the hint's block, if nothing can leave the block before it."""
    block = _block(site)
    for index in range(block.index(first) + 1, len(block)):
        statement = block[index]
        if isinstance(statement, ast.Assign):
            targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if name in targets:
                return None if any(isinstance(each, _CATCHING) for each in _around_in_function(site)) else statement
        if any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(statement)):
            return None
    return None


def _around_in_function(site: Site) -> Iterator[ast.stmt]:
    """The statements around the hint's, up to the function that it is in."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return takewhile(lambda each: not isinstance(each, functions), site.facts.names.around(site.statement))


def _block(site: Site) -> Sequence[ast.stmt]:
    """The list of statements that holds the hint's."""
    holder: ast.AST = next(iter(site.facts.names.around(site.statement)), site.facts.tree)
    parts = [holder, *getattr(holder, "handlers", ()), *getattr(holder, "cases", ())]
    blocks = (getattr(part, name, ()) for part in parts for name in ("body", "orelse", "finalbody"))
    return next(block for block in blocks if isinstance(block, list) and site.statement in block)


def _binding_in_block(site: Site, name: str) -> Binding | None:
    """The binding of a name with several that holds at the hint: the last above it in its own block, if none between
    them is inside another statement."""
    owner = site.scope.owner(name)
    if owner is None or owner is not site.scope or len(owner.bindings[name]) < 2:
        return None
    block = _block(site)
    above = block[: block.index(site.statement)]
    spans = {id(each): index for index, each in enumerate(above)}
    found = [binding for binding in owner.bindings[name] if id(binding.statement) in spans]
    if not found:
        return None
    last = max(found, key=lambda binding: spans[id(binding.statement)])
    between = [id(node) for statement in above[spans[id(last.statement)] + 1 :] for node in ast.walk(statement)]
    return None if any(id(binding.statement) in between for binding in owner.bindings[name]) else last


def _made_by_name(site: Site, node: ast.expr, scope: Scope) -> _Maker | None:
    """The maker of the gradient function that a name resolves to, through `jax.jit` and aliases."""
    if not isinstance(node, ast.Name):
        return None
    binding = site.facts.names.binding(node.id, scope) or _binding_in_block(site, node.id)
    value = binding.value if binding else None
    owner = scope.owner(node.id) or scope
    if binding is not None and isinstance(binding.node, ast.FunctionDef):
        for decorator in binding.node.decorator_list:
            if is_gradient_decorator(site.facts.names, decorator, owner):
                return _Maker(node, decorator if isinstance(decorator, ast.Call) else None)
    while isinstance(value, ast.Call) and site.resolve(value.func, owner) == "jax.jit" and value.args:
        value = value.args[0]
    if isinstance(value, ast.Name) and value.id != node.id:
        return _made_by_name(site, value, owner)
    if isinstance(value, ast.Call) and site.resolve(value.func, owner) in GRADIENTS:
        return _Maker(_function(site, value), value)
    return None
