"""Mark the lists of modules that Flax took for data by itself.

    self.layers = [nnx.Linear(8, 8, rngs=rngs) for _ in range(4)]
    ->  self.layers = nnx.data([nnx.Linear(8, 8, rngs=rngs) for _ in range(4)])

Before Flax 0.12 every list, tuple and dictionary that a module holds was looked through for variables. Since then one
is static unless it is marked, and raises where it holds variables, modules or arrays. `nnx.data` leaves the value as it
is, and so the paths in the state.

A container is marked if the class is a module and the source shows that the container holds modules or variables: as it
is written, by `append`, through a name, or as the result or the argument of a function.

To check: nothing else; where Flax finds another container with data it raises, and names the attribute.

Refused: nothing. A container whose items are made by functions that cannot be seen is left alone and reported.
See https://flax.readthedocs.io/en/latest/guides/pytree.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.shared_flow import SharedFlow
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx_modules import is_nnx_module
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.stores import Store
from mmrewrite.values.value import ANY_ITEM, By, Own, Value, attribute

_NNX = "flax.nnx."
_CONTAINERS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp)
# Functions that make a container of the items of another.
_COPIES = frozenset(f"builtins.{name}()" for name in ("dict", "list", "reversed", "sorted", "tuple"))
# Functions that make arrays, which Flax takes for data as well.
_ARRAYS = ("jax.numpy.", "jax.random.")
# Containers may hold others, so deep.
_DEEPEST = 3


class KeepDataAttributes(ModernizeCodemod):
    """Wraps what is assigned to attributes of a module."""

    changed_in: ClassVar = {"": ("flax", "0.12.0", "stops")}

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """A file without nnx has no site."""
        return (b"nnx",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Containers that methods of modules assign to attributes."""
        for name, store in context.analysis(SharedFlow).stores.in_module(module):
            value = _assigned(context, name, store)
            if value is not None and _holds(context, name, store, value) is not False:
                yield Location(module, value)

    def rewrite(self) -> None:
        """Wrap one container."""
        site = self.site
        assert isinstance(site.node, ast.expr)
        kinds = [
            _holds(site.context, name, store, site.node)
            for name, store in site.context.analysis(SharedFlow).stores.in_module(site.module)
            if _assigned(site.context, name, store) is site.node
        ]
        if True not in kinds:
            site.leave("since Flax 0.12 a list with variables, modules or arrays is written `nnx.data([...])`")
        site.needs_package("flax", "0.11", "`nnx.data`", jax="0.10")
        site.wrap(site.node, f"{site.spell('flax.nnx.data')}(", ")")


def _assigned(context: ModernizeContext, name: str, store: Store) -> ast.expr | None:
    """What a method of a module assigns to an attribute of `self`, None if that is declared or cannot be wrapped."""
    owner, module = store.holder, store.module
    if owner is None or not is_nnx_module(context.analysis(SharedFlow), module, owner):
        return None
    for part in owner.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id == name:
            declared = part.annotation.value if isinstance(part.annotation, ast.Subscript) else part.annotation
            # As in `layers: nnx.Data[list]`.
            if (context.analysis(SharedFlow).full_name(module, declared) or "").startswith(_NNX):
                return None
    value = store.value or context.analysis(SharedFlow).source_of(store)
    return None if value is None or isinstance(value, ast.Constant) else value


def _holds(context: ModernizeContext, name: str, store: Store, value: ast.expr) -> bool | None:
    """Whether a container holds modules or variables; None if some item is made by a function out of view."""
    flow = context.analysis(SharedFlow)
    start = Value(store.module, value)
    if not flow.may(start, lambda each: _is_container(flow, each)).answers:
        return False
    assert store.holder is not None
    attributes = Value(store.module, Own(store.holder, is_class=False), (attribute(name), ANY_ITEM))
    kinds = {kind for each in (start.done(ANY_ITEM), attributes) for kind in _kinds(context, each, 0)}
    return True if True in kinds else None if None in kinds else False


def _is_container(flow: ValueFlow, value: Value) -> bool | None:
    """Whether a value is a container that the source shows, None where the values behind it say so."""
    if isinstance(value.head, _CONTAINERS) and not value.path:
        return True
    if isinstance(value.head, ast.BinOp) and not value.path:
        parts = (Value(value.module, each, (), value.frame) for each in (value.head.left, value.head.right))
        return any(isinstance(each.head, _CONTAINERS) for each in parts) or None
    return True if value.outside in _COPIES else None


def _kinds(context: ModernizeContext, items: Value, depth: int) -> Iterator[bool | None]:
    """Whether items are modules or variables; None for an array, and for what a function out of view makes."""
    flow = context.analysis(SharedFlow)
    found = flow.may(items, lambda value: value if _is_container(flow, value) else None)
    for inner in found.answers if depth < _DEEPEST else ():
        yield from _kinds(context, inner.done(ANY_ITEM), depth + 1)
    for value in found.others:
        head = value.head
        is_call = [step.kind for step in value.path] == [By.CALL]
        if isinstance(head, str) and is_call:
            is_of_nnx = head.startswith(_NNX) and head.rpartition(".")[2][:1].isupper()
            yield True if is_of_nnx else None if head.startswith(_ARRAYS) else False
        elif isinstance(head, ast.ClassDef) and is_call:
            yield is_nnx_module(flow, value.module, head)
    for each in found.unknown:
        if each.value is not None and any(step.kind is By.CALL for step in each.value.path) and not each.is_open:
            yield None
