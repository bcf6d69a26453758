"""What runs layers one after the other where it is called: scans that Flax made, and each `Sequential`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from mmrewrite.codemod.site import Site
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import call_form
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.value import By, CallArguments, Decorated, Value

SEQUENTIALS = frozenset(
    ("flax.linen.Sequential", "flax.nnx.Sequential", "haiku.Sequential", "equinox.nn.Sequential"),
)
_LIFTED = frozenset(("flax.linen.scan", "flax.linen.transforms.scan"))
# Rematerialisation computes the same values a second time; the scan stays what it is.
_TRANSPARENT = frozenset(("flax.linen.remat", "flax.linen.checkpoint", "flax.nnx.remat"))


def is_lifted_scan(site: Site, node: ast.expr) -> bool:
    """Whether what is called is a module of `nn.scan(Block, ...)(...)`, or a function or method that `nn.scan` made."""
    flow = values_of(site.project)

    def is_scan(value: Value) -> bool:
        if isinstance(value.head, ast.ClassDef) and value.is_made:
            return _has_scanned_call(flow, value.module, value.head)
        calls = _calls(value)
        # `nn.scan(Block)` is a class, and `nn.scan(f)` is what is called.
        is_function = len(calls) == 1 and _is_function(flow, calls[0])
        return value.head in _LIFTED and (len(calls) > 1 or is_function)

    return _is_made(site, node, is_scan)


def is_nnx_scan(site: Site, node: ast.expr) -> bool:
    """Whether what is called is a function that `nnx.scan` made, as a decorator or in a call."""
    return _is_made(
        site,
        node,
        lambda value: value.head == "flax.nnx.scan" and any(call.positional for call in _calls(value)),
    )


def is_sequential(site: Site, node: ast.expr) -> bool:
    """Whether what is called is a `Sequential` of Flax, Haiku or Equinox, which calls its layers itself."""
    return _is_made(site, node, lambda value: value.head in SEQUENTIALS and len(_calls(value)) == 1)


def _calls(value: Value) -> list[CallArguments]:
    """The calls that made a value of something of a library, but for one of a method of what they give."""
    steps = value.path[:-1] if value.path and value.path[-1].kind is By.ATTRIBUTE else value.path
    return [step.what for step in steps] if all(step.kind is By.CALL for step in steps) else []


def _is_function(flow: ValueFlow, call: CallArguments) -> bool:
    """Whether what a call is given first is a function, rather than a class of modules."""

    def definition(value: Value) -> bool | None:
        head = value.head.definition if isinstance(value.head, Decorated) else value.head
        is_function = isinstance(head, ast.FunctionDef | ast.Lambda)
        return is_function if is_function or isinstance(head, ast.ClassDef | str) else None

    first = call.at(0, "target")
    return first is not None and set(flow.may(first, definition).answers) == {True}


def _has_scanned_call(flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef) -> bool:
    """Whether the `__call__` of a class has the decorator `partial(nn.scan, ...)`."""
    methods = (each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__call__")
    decorators = (each for method in methods for each in method.decorator_list if isinstance(each, ast.Call))
    forms = (call_form(module.facts.names, each, module.scope_of(each)) for each in decorators)
    return any(not form.is_called and flow.full_name(module, form.function) in _LIFTED for form in forms)


def _is_made(site: Site, node: ast.expr, test: Callable[[Value], bool]) -> bool:
    """Whether an expression is what a test is true of, but for what code out of view may pass for it."""
    flow = values_of(site.project)

    def inside(value: Value) -> list[Value]:
        is_given = value.head in _TRANSPARENT and bool(value.path) and value.path[0].kind is By.CALL
        first = value.path[0].what.first() if is_given else None
        return [first.done(*value.path[1:])] if first is not None else []

    found = flow.may(flow.value_in(site.facts, node), lambda value: True if test(value) else None, also=inside)
    others = [each for each in found.others if not (_is_none(each) or inside(each))]
    unknown = [each for each in found.unknown if each.value is None or not isinstance(each.value.head, ast.arg)]
    return bool(found.answers) and not others and not [each for each in unknown if not each.is_open]


def _is_none(value: Value) -> bool:
    return isinstance(value.expression, ast.Constant) and value.expression.value is None
