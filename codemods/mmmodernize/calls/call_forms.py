"""The calls of a function or class: as it is written, by `functools.partial`, and of what other calls make of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.library import is_partial
from mmrewrite.values.value import Function

# Transformations of linen that make of a class of modules another one, which is called as it is.
_LIFTED = frozenset(
    f"flax.linen.{home}{name}"
    for home in ("", "transforms.")
    for name in ("add_metadata_axis", "checkpoint", "jit", "map_variables", "remat", "scan", "vmap")
)


# What is called with the arguments of the function that it is given.
_WRAPPERS = frozenset(
    (
        *(f"jax.{name}" for name in ("checkpoint", "grad", "hessian", "jacfwd", "jacrev", "jit", "named_call", "pmap")),
        *("jax.remat", "jax.value_and_grad", "jax.vmap", "functools.cache", "functools.lru_cache"),
    )
)


# What calls the function that it is given with its other arguments.
_CALLERS = frozenset(("asyncio.to_thread", "atexit.register", "jax.eval_shape"))
# Methods of what `jax.jit` makes that take the arguments of the function.
_JITS, _OF_JITS = frozenset(("jax.jit", "jax.pmap")), frozenset(("eval_shape", "lower", "trace"))


@dataclass(frozen=True)
class FoundCall:
    """One call.

    Attributes:
        call: The call, or that of `partial`.
        positional: How many arguments are given by position, as far as they are written out, those of a `partial`
            that is called among them.
        is_whole: Whether all arguments are seen, and no others can follow.
        has_star: Whether `*` hides how many are given by position.
    """

    call: ast.Call
    positional: int
    is_whole: bool
    has_star: bool

    def keyword(self, name: str | None) -> ast.keyword | None:
        """The argument of a name, None if it is not given; `**` has none."""
        return next((each for each in self.call.keywords if each.arg == name), None)

    def lacks(self, name: str, place: int | None) -> bool:
        """Whether an argument is surely not given, by name or in its place; None if it has no place."""
        is_placed = place is not None and self.positional > place
        return self.is_whole and not is_placed and self.keyword(name) is None


def hides_arguments(call: ast.Call) -> bool:
    """Whether `*` or `**` may hide arguments of a call."""
    return any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)


def is_partial_of(module: ModuleUses, call: ast.AST | None, function: ast.AST) -> bool:
    """Whether a node is `functools.partial(function, ...)`."""
    if not isinstance(call, ast.Call) or call.args[:1] != [function]:
        return False
    return is_partial(module.facts.names.resolve(call.func, module.scope_of(call)))


def call_of(module: ModuleUses, node: ast.expr) -> tuple[ast.Call | None, bool]:
    """The call with the arguments of a function, and whether it is `partial(function, ...)`."""
    holder = module.parents.get(node)
    is_partial = is_partial_of(module, holder, node)
    return (holder if isinstance(holder, ast.Call) and is_partial else module.call_at(node)), is_partial


def given_to(module: ModuleUses, function: ast.expr, name: str | None = None) -> ast.expr | Function | None:
    """What a function is given first, or by a name: in a call, or by decorating it, perhaps by way of `partial`.

    A call without it is taken for one that gives a function as well, as `jax.jit(static_argnums=0)` does.
    """
    holder = module.parents.get(function)
    if isinstance(holder, Function):
        return holder if function in holder.decorator_list else None
    if not isinstance(holder, ast.Call):
        return None
    if holder.func is function:
        named = (each.value for each in holder.keywords if name is not None and each.arg == name)
        given = holder.args[0] if holder.args else next(named, None)
        return given if given is not None else given_to(module, holder, name)
    return given_to(module, holder, name) if is_partial_of(module, holder, function) else None


def calls_of(module: ModuleUses, function: ast.expr) -> Iterator[FoundCall]:
    """The calls of what an expression stands for."""
    call = module.parents.get(function)
    if not isinstance(call, ast.Call):
        return
    if call.func is function:
        yield _found(call, 0)
    elif call.args[:1] == [function]:
        name = _transformation(module, call.func)
        if is_partial(name):
            partial = _found(call, 1, is_whole=False)
            if call in getattr(module.parents.get(call), "decorator_list", ()):
                # It is called with what it decorates, in the place of the function, and with nothing else.
                yield _found(call, 0)
                return
            yield partial
            for found in _of_made(module, call):
                has_star = partial.has_star or found.has_star
                positional = 0 if has_star else partial.positional + found.positional
                is_whole = found.is_whole and not (partial.has_star or call.keywords)
                yield replace(found, positional=positional, is_whole=is_whole, has_star=has_star)
        elif name in _LIFTED or name in _WRAPPERS:
            yield from _of_made(module, call)
        elif name in _CALLERS:
            yield _found(call, 1)


def _transformation(module: ModuleUses, function: ast.expr) -> str | None:
    """The full name of a function, or of the transformation that `partial(jax.jit, ...)` or `jax.jit(...)` is."""
    name = module.facts.names.resolve(function, module.scope_of(function))
    if not isinstance(function, ast.Call):
        return name
    made = module.facts.names.resolve(function.func, module.scope_of(function))
    if is_partial(made) and len(function.args) == 1:
        found = module.facts.names.resolve(function.args[0], module.scope_of(function))
        return found if found in _WRAPPERS or found in _LIFTED else None
    return made if made in _WRAPPERS and not function.args else None


def keywords_of(module: ModuleUses, function: ast.expr) -> Iterator[ast.keyword]:
    """The keywords in the calls of what an expression stands for."""
    return (keyword for found in calls_of(module, function) for keyword in found.call.keywords)


def _of_made(module: ModuleUses, lifted: ast.Call) -> Iterator[FoundCall]:
    """The calls of what a call makes, as of `nn.scan(Cell, ...)`, there or by the name that it is assigned to."""
    yield from calls_of(module, lifted)
    match module.parents.get(lifted):
        case ast.Attribute(attr=attr) as method if attr in _OF_JITS and _transformation(module, lifted.func) in _JITS:
            yield from calls_of(module, method)
        case ast.Assign(targets=[ast.Name(id=name) as target]):
            scope = module.scope_of(target)
            values = [binding.value for binding in scope.bindings.get(name, ())]
            if all(value is lifted or _is_alike(module, value, lifted) for value in values):
                for head in module.heads_of(name, scope):
                    yield from calls_of(module, head)
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            owner = module.class_around(lifted)
            if owner is not None and module.own_values.get((owner, name)) == [lifted]:
                for node in module.nodes_of(ast.Attribute):
                    is_own = node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self"
                    if is_own and isinstance(node.ctx, ast.Load) and module.class_around(node) is owner:
                        yield from calls_of(module, node)
        case _:
            pass


def _is_alike(module: ModuleUses, value: ast.expr | None, lifted: ast.Call) -> bool:
    """Whether another value of a name is made of the same function in the same way, as in both branches of an `if`."""

    def made(call: ast.Call) -> tuple[object, ...]:
        names, scope = module.facts.names, module.scope_of(call)
        of = names.resolve(call.args[0], scope) if call.args else None
        return _transformation(module, call.func), of, len(call.args), {keyword.arg for keyword in call.keywords}

    return isinstance(value, ast.Call) and made(value) == made(lifted)


def _found(call: ast.Call, skip: int, *, is_whole: bool = True) -> FoundCall:
    has_star = any(isinstance(each, ast.Starred) for each in call.args)
    return FoundCall(call, 0 if has_star else len(call.args) - skip, is_whole and not hides_arguments(call), has_star)
