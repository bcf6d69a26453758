"""The calls of a function or class: as it is written, by `functools.partial`, and of what other calls make of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import CallForm, call_form
from mmrewrite.values.callbacks import OPERANDS
from mmrewrite.values.uses import WRAPPERS
from mmrewrite.values.value import Function

# Transformations of linen that make of a class of modules another one, which is called as it is.
_LIFTED = frozenset(
    f"flax.linen.{home}{name}"
    for home in ("", "transforms.")
    for name in ("add_metadata_axis", "checkpoint", "jit", "map_variables", "remat", "scan", "vmap")
)

# What is called with the arguments of the function that it is given.
_WRAPPERS = WRAPPERS - _LIFTED
# Methods of what `jax.jit` makes that take the arguments of the function.
_JITS, _OF_JITS = frozenset(("jax.jit", "jax.pmap")), frozenset(("eval_shape", "lower", "trace"))


def form_of(module: ModuleUses, call: ast.Call) -> CallForm:
    """The normal form of a call of a module."""
    return call_form(module.facts.names, call, module.scope_of(call))


def call_of(module: ModuleUses, node: ast.AST) -> CallForm | None:
    """The call with the arguments of a function, or the `partial` of it; None where it stands for anything else."""
    holder = module.parents.get(node)
    form = form_of(module, holder) if isinstance(holder, ast.Call) else None
    return form if form is not None and form.function is node else None


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
    is_kept = holder.args[:1] == [function] and not form_of(module, holder).is_called
    return given_to(module, holder, name) if is_kept else None


def calls_of(module: ModuleUses, function: ast.expr) -> Iterator[CallForm]:
    """The calls of what an expression stands for, and what is kept of it with arguments."""
    call = module.parents.get(function)
    if not isinstance(call, ast.Call):
        return
    form = form_of(module, call)
    if call.func is function:
        yield form
    elif call.args[:1] == [function] and not form.is_called:
        holder = module.parents.get(call)
        if isinstance(holder, Function | ast.ClassDef) and call in holder.decorator_list:
            # It is called with what it decorates, and with nothing else.
            yield replace(form, positional=(*form.positional, ast.Name(holder.name)), is_called=True)
            return
        yield form
        for found in _of_made(module, call):
            yield found if found.function is form.function else found.after(form)
    elif call.args[:1] == [function]:
        name = _transformation(module, call.func)
        if name in _LIFTED or name in _WRAPPERS:
            yield from _of_made(module, call)
        elif name is not None and name in OPERANDS:
            yield replace(form, function=function, positional=form.positional[OPERANDS[name] :])


def _transformation(module: ModuleUses, function: ast.expr) -> str | None:
    """The full name of a function, or of the transformation that `partial(jax.jit, ...)` or `jax.jit(...)` is."""
    names, scope = module.facts.names, module.scope_of(function)
    if not isinstance(function, ast.Call):
        return names.resolve(function, scope)
    form = form_of(module, function)
    name = names.resolve(form.function, scope) if not form.positional else None
    return name if name in _WRAPPERS or (name in _LIFTED and not form.is_called) else None


def keywords_of(module: ModuleUses, function: ast.expr) -> Iterator[ast.keyword]:
    """The keywords in the calls of what an expression stands for."""
    return (keyword for found in calls_of(module, function) for keyword in found.call.keywords)


def _of_made(module: ModuleUses, lifted: ast.Call) -> Iterator[CallForm]:
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
                for node in module.attributes.get(name, ()):
                    is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
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
