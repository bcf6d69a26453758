"""Report methods of a module of Flax nnx that a transformation is given with their object.

    step = nnx.jit(model.step)
    ->  train.py:1:16: since Flax 0.12.1 `nnx.jit` takes no method with its object; ...

Such a method holds its module where the transformation does not see it, so Flax raises since then.

To check: nothing.

Refused: every such method; the call is to pass the module.
See https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/transforms.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import calls_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx import is_nnx_module
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import By, Function, Value

_TRANSFORMATIONS = tuple(
    f"flax.nnx.{name}"
    for name in (
        *("checkify", "custom_vjp", "eval_shape", "grad", "jit", "jvp", "make_jaxpr", "pmap", "remat", "scan"),
        *("shard_map", "value_and_grad", "vjp", "vmap"),
    )
)


class ReportBoundMethods(ModernizeCodemod):
    """Writes nothing."""

    changed_in: ClassVar = {"": ("flax", "0.12.1", "stops")}
    extra_markers: ClassVar = (b"nnx",)
    beside: ClassVar = _TRANSFORMATIONS

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The first arguments of transformations that are methods of a module."""
        for use in module.uses(_TRANSFORMATIONS):
            for form in calls_of(module, use.node):
                # `nnx.jit(donate_argnums=0)(model.step)`
                curried = module.call_at(form.call) if not form.positional else None
                given = [*form.positional[:1], *(curried.args[:1] if curried is not None else ())]
                given += [each.value for each in form.keywords if each.arg == "f"]
                # Of a decorator, what stands below it is no expression.
                yield from (
                    Location(module, each, use, use.name)
                    for each in given
                    if each in module.parents and _method(context, module, each)
                )

    def rewrite(self) -> None:
        """Report the method."""
        node = self.site.node
        assert isinstance(node, ast.expr)
        found = _method(self.site.context, self.site.module, node)
        transformation = self.site.text(self.use.node)
        self.refuse(
            f"since Flax 0.12.1 `{transformation}` takes no method with its object; write "
            f"`{transformation}({found})`, and pass the module as the first argument of the call"
        )


def _method(context: ModernizeContext, module: ModuleUses, node: ast.expr) -> str | None:
    """The class and the name of the method that a value is, with its object; None if it is not seen to be one."""
    flow = context.flow

    def test(value: Value) -> str | None:
        head, steps = value.head, [step.kind for step in value.path]
        if not isinstance(head, Function) or steps != [By.BOUND]:
            return None
        holder = value.module.parents.get(head)
        is_one = isinstance(holder, ast.ClassDef) and is_nnx_module(flow, value.module, holder)
        return f"{holder.name}.{head.name}" if is_one and isinstance(holder, ast.ClassDef) else None

    return next(iter(flow.may(Value(module, node), test).answers), None)
