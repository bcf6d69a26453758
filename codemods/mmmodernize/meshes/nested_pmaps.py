"""Nested `pmap`s: those of a function that uses `pmap` itself. JAX does not run them any more."""

from __future__ import annotations

import ast

from mmmodernize.calls.call_forms import given_to
from mmmodernize.meshes.mapped_gradients import PMAP, MappedFunctions
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses


class NestedPmaps:
    """The `pmap`s of a project that map a function with another `pmap` inside, or are inside of one."""

    def __init__(self, context: ModernizeContext) -> None:
        self._reasons: dict[ast.AST, str] = {}
        mapping = MappedFunctions(context.project, dict(context.modules))
        for module in context.modules.values():
            for use in module.uses((PMAP,)):
                function = given_to(module, use.node, "fun")
                for other, node in mapping.of(module, function).pmaps if function is not None else ():
                    if node is use.node:
                        continue
                    self._reasons.setdefault(
                        use.node, _reason(f"maps a function that uses it at {_place(other, node)}")
                    )
                    self._reasons.setdefault(
                        node, _reason(f"is used by a function that is mapped at {_place(module, use.node)}")
                    )

    def reason(self, node: ast.AST) -> str | None:
        """Why a use of `pmap` must stay if it is nested, else None."""
        return self._reasons.get(node)


def _reason(what: str) -> str:
    return (
        f"this `jax.pmap` {what}, and JAX does not run one inside of the other any more; write one `jax.shard_map` "
        "over a mesh with an axis for each"
    )


def _place(module: ModuleUses, node: ast.expr) -> str:
    return f"{module.facts.path}:{node.lineno}"
