"""Keep optimizers of Flax nnx that hold their model.

    optimizer = nnx.Optimizer(model, optax.adam(1e-3))
    ->  optimizer = nnx.ModelAndOptimizer(model, optax.adam(1e-3), wrt=nnx.Param)

Before Flax 0.11 an optimizer held the model that it updates, and `wrt` was `nnx.Param` unless given. Since then
`nnx.Optimizer` needs `wrt` and the model at each `update`; `nnx.ModelAndOptimizer` is what it was.

To check: nothing; to follow Flax, write `nnx.Optimizer(model, tx, wrt=nnx.Param)` and `optimizer.update(model, grads)`.

Refused: `nnx.Optimizer` as a value in a module that shows no call with `wrt`; `*` and `**`; an update without the model
of one that is made out of view; a `target-jax` before 0.6.
See https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/training/optimizer.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument, make_positional, name_argument
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.values.value import By, Value, item

_OPTIMIZERS = frozenset(f"flax.nnx.{home}Optimizer" for home in ("", "optimizer.", "training.optimizer."))
_MADE = frozenset(f"{name}()" for name in _OPTIMIZERS)
_CLASS_TESTS = frozenset(("builtins.isinstance", "builtins.issubclass"))


class KeepNnxOptimizers(ModernizeCodemod):
    """Writes the class that holds its model, where the calls are those of before."""

    changed_in: ClassVar = {"": ("flax", "0.11.0", "stops")}
    extra_markers: ClassVar = (b"nnx",)
    in_project: ClassVar = "nnx"
    beside: ClassVar = _OPTIMIZERS
    # The optimizer of an update may be made, and its class named, in another module.
    words: ClassVar = ("update",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls without `wrt`, or with it by position, or whose updates are given no model; those updates; classes."""
        updates = context.analysis(_OldUpdates)
        for use in module.uses(_OPTIMIZERS):
            call = module.call_at(use.node)
            if call is None:
                if _is_value(module, use.node) and not _gives_wrt(module):
                    yield Location(module, use.node, use)
                continue
            has_wrt = any(keyword.arg == "wrt" for keyword in call.keywords)
            is_old = len(call.args) > 2 or not (has_wrt or (stars_of(call) and _gives_wrt(module)))
            if is_old or updates.is_seen:
                yield Location(module, use.node, use)
        for node in module.nodes_of(ast.Call, ast.Attribute):
            owner, by_name = _asked_as_before(node), isinstance(node, ast.Call) and bool(node.keywords)
            if owner is not None and (by_name or not updates.are_made):
                is_one = updates.may_be_optimizer(module, owner, node)
                is_told = by_name or updates.is_annotated(module, owner) or updates.takes_gradients(module, node)
                if is_one and is_told:
                    yield Location(module, node)

    def rewrite(self) -> None:
        """Write one call, one class, or one update."""
        site, call = self.site, self.site.call
        if self.site.use is None:
            self._pass_by_position()
            return
        if call is None:
            holder = site.module.parents[site.node]
            if not isinstance(holder, ast.ClassDef):
                self.refuse(
                    "since Flax 0.11 `nnx.Optimizer` needs `wrt=` where it is called, and the model at each update; "
                    "write `nnx.ModelAndOptimizer`, which is what it was"
                )
        elif stars_of(call):
            self.refuse("`*` or `**` hide whether `wrt=` is given; write `nnx.ModelAndOptimizer(model, tx, wrt=...)`")
        site.needs_package("flax", "0.11", "`nnx.ModelAndOptimizer`", jax="0.6")
        if call is not None and len(call.args) > 2:
            name_argument(site, call, 2, "wrt")
        elif call is not None and "wrt" not in {word.arg for word in call.keywords}:
            append_argument(site, call, f"wrt={site.spell('flax.nnx.Param')}")
        site.replace(self.use.node, site.spell("flax.nnx.ModelAndOptimizer"))

    def _pass_by_position(self) -> None:
        site, call = self.site, self.site.node
        updates = site.context.analysis(_OldUpdates)
        if isinstance(call, ast.Attribute):
            self.refuse(
                "since Flax 0.11 `nnx.Optimizer` holds no model; pass the model along with it, or write "
                "`nnx.ModelAndOptimizer` where it is made"
            )
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        text = site.text(call.func)
        if not updates.are_made:
            told = (
                f"since Flax 0.11 `update` of `nnx.Optimizer` takes the model before the gradients, both by position; "
                f"write `{text}(model, ...)`, or `nnx.ModelAndOptimizer` where it is made"
            )
            if not updates.is_optimizer(site.module, call.func.value):
                site.leave(f"{told}, if this is one")
            self.refuse(told)
        if call.keywords[0].arg != "grads" or not updates.is_optimizer(site.module, call.func.value):
            site.leave(
                f"since Flax 0.11 an optimizer takes gradients by position alone; write `{text}(...)` without "
                "`grads=`, if this is one"
            )
        make_positional(site, call.keywords[0])


def _is_value(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a name of the class stands where it may be called later, or is derived from."""
    holder = module.parents[node]
    if isinstance(holder, ast.Tuple):
        holder = module.parents[holder]
    is_test = isinstance(holder, ast.Call) and module.full_name(holder.func) in _CLASS_TESTS
    return not (is_test or module.in_annotation(node))


def _gives_wrt(module: ModuleUses) -> bool:
    return any(word.arg == "wrt" for word in module.nodes_of(ast.keyword))


class _OldUpdates:
    """Updates without a model: today's class never allows those."""

    def __init__(self, context: ModernizeContext) -> None:
        self._flow, self._classes = context.flow, context.analysis(ValueClasses)
        self._modules = context.modules.values()

    @cached_property
    def are_made(self) -> bool:
        """Whether the program makes optimizers, or passes their class on."""
        return any(_is_value(module, use.node) for module in self._modules for use in module.uses(_OPTIMIZERS))

    @cached_property
    def is_seen(self) -> bool:
        """Whether the program updates an optimizer so, or asks one for its model."""
        return any(
            (owner := _asked_as_before(node)) is not None and self.may_be_optimizer(module, owner, node)
            for module in self._modules
            for node in module.nodes_of(ast.Call, ast.Attribute)
        )

    def may_be_optimizer(self, module: ModuleUses, owner: ast.expr, node: ast.AST) -> bool:
        """Whether a value may be an optimizer: also one out of view that `node` updates by gradients alone."""
        if self.is_optimizer(module, owner):
            return True
        found = self._flow.may(Value(module, owner), self._is_made)
        is_unseen = bool(found.unknown) and not found.others and self._classes.of(module, owner) is None
        return bool(found.answers) or (is_unseen and self.takes_gradients(module, node))

    def takes_gradients(self, module: ModuleUses, node: ast.AST) -> bool:
        """Whether a node is a call that is given what a function of Flax for gradients gives."""
        given = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else ()
        return any(self._flow.may(Value(module, each), _is_gradient).answers for each in given)

    def is_optimizer(self, module: ModuleUses, owner: ast.expr) -> bool:
        """Whether a value is one for certain."""
        if isinstance(owner, ast.Call) and self._flow.full_name(module, owner.func) == "builtins.super":
            holder = module.class_around(owner)
            return holder is not None and not _OPTIMIZERS.isdisjoint(self._flow.bases(module, holder).outside)
        return self.is_annotated(module, owner) or bool(self._flow.must(Value(module, owner), self._is_made))

    def is_annotated(self, module: ModuleUses, owner: ast.expr) -> bool:
        """Whether an annotation says that a value is one."""
        return self._classes.of(module, owner) in _OPTIMIZERS

    def _is_made(self, value: Value) -> bool | None:
        if value.is_made and isinstance(value.head, ast.ClassDef):
            found = self._flow.bases(value.module, value.head)
            parts = [part for _, each in found.classes for part in each.body]
            is_own = any(isinstance(part, ast.FunctionDef) and part.name == "update" for part in parts)
            return (not is_own and not _OPTIMIZERS.isdisjoint(found.outside)) or None
        return value.outside in _MADE or None


def _is_gradient(value: Value) -> bool | None:
    is_made = [step.kind for step in value.path[:2]] == [By.CALL, By.CALL]
    is_part = value.head == "flax.nnx.value_and_grad" and value.path[2:3] == (item(1),)
    return (is_made and (is_part or value.head == "flax.nnx.grad")) or None


def _asked_as_before(node: ast.AST) -> ast.expr | None:
    """What a node updates without a model, or asks for its model; None if it does neither."""
    if isinstance(node, ast.Attribute) and node.attr == "model" and isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        return node.func.value if _is_without_model(node) else None
    return None


def _is_without_model(call: ast.Call) -> bool:
    words = [keyword.arg for keyword in call.keywords]
    given = len(call.args) + ("grads" in words)
    return given == 1 and not stars_of(call) and "model" not in words
