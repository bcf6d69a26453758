"""Keep optimizers of Flax nnx that hold their model.

    optimizer = nnx.Optimizer(model, optax.adam(1e-3))
    ->  optimizer = nnx.ModelAndOptimizer(model, optax.adam(1e-3), wrt=nnx.Param)

Before Flax 0.11 an optimizer held the model that it updates, and `wrt` was `nnx.Param` unless given. Since then
`nnx.Optimizer` needs `wrt` and the model at each `update`; `nnx.ModelAndOptimizer` is what it was.

To check: nothing; to follow Flax, write `nnx.Optimizer(model, tx, wrt=nnx.Param)` and `optimizer.update(model, grads)`.

Refused: `nnx.Optimizer` as a value in a module that shows no call with `wrt`; `*` and `**`; a `target-jax` before 0.6.
See https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/training/optimizer.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import hides_arguments
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument, name_argument
from mmmodernize.sites.site import Location, ModernizeContext, SharedFlow
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import Value

_OPTIMIZER = "flax.nnx.Optimizer"


class KeepNnxOptimizers(ModernizeCodemod):
    """Writes the class that holds its model, where the calls are those of before."""

    changed_in: ClassVar = {"": ("flax", "0.11.0", "stops")}
    extra_markers: ClassVar = (b"nnx",)
    beside: ClassVar = (_OPTIMIZER,)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls without `wrt`, or with it by position, or whose updates are given no model."""
        for use in module.uses((_OPTIMIZER,)):
            call = module.call_at(use.node)
            if call is None:
                continue
            has_wrt = any(keyword.arg == "wrt" for keyword in call.keywords)
            is_old = len(call.args) > 2 or not (has_wrt or hides_arguments(call))
            if is_old or context.analysis(_OldUpdates).is_seen:
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Write one call."""
        site, call = self.site, self.site.call
        assert call is not None
        if hides_arguments(call):
            self.refuse("`*` or `**` hide whether `wrt=` is given; write `nnx.ModelAndOptimizer(model, tx, wrt=...)`")
        site.needs_package("flax", "0.11", "`nnx.ModelAndOptimizer`", jax="0.6")
        if len(call.args) > 2:
            name_argument(site, call, 2, "wrt")
        elif "wrt" not in {word.arg for word in call.keywords}:
            append_argument(site, call, f"wrt={site.spell('flax.nnx.Param')}")
        site.replace(self.use.node, site.spell("flax.nnx.ModelAndOptimizer"))


class _OldUpdates:
    """Whether the program updates an optimizer without a model, or asks one for it: today's class never allows that."""

    def __init__(self, context: ModernizeContext) -> None:
        self._flow, self._classes = context.analysis(SharedFlow), context.analysis(ValueClasses)
        self.is_seen = any(
            owner is not None and self._may_be_optimizer(module, owner)
            for module in context.modules.values()
            for owner in (_asked_as_before(node) for node in module.nodes_of(ast.Call, ast.Attribute))
        )

    def _may_be_optimizer(self, module: ModuleUses, owner: ast.expr) -> bool:
        found = self._flow.may(Value(module, owner), lambda value: value.outside == f"{_OPTIMIZER}()" or None)
        return bool(found.answers) or self._classes.of(module, owner) == _OPTIMIZER


def _asked_as_before(node: ast.AST) -> ast.expr | None:
    """What a node updates without a model, or asks for its model; None if it does neither."""
    if isinstance(node, ast.Attribute) and node.attr == "model" and isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        return node.func.value if _is_without_model(node) else None
    return None


def _is_without_model(call: ast.Call) -> bool:
    has_both = any(keyword.arg in ("grads", "model", None) for keyword in call.keywords)
    return len(call.args) == 1 and not isinstance(call.args[0], ast.Starred) and not has_both
