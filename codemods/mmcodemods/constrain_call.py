"""Fix the layout of a value in the middle of an expression.

    y = g(hints.shard(f(x), "batch", None))
    ->  y = g(mm.with_sharding_constraint(f(x), P("batch", None)))

Refused: a layout that is given by name, because this is no definition with parameters.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for what a constraint is.
"""

from __future__ import annotations

import libcst as cst

from mmrewrite.constraints import ConstraintCodemod
from mmrewrite.vocabulary import CALL


class ConstrainCall(ConstraintCodemod):
    """Replaces the call of the hint by one of the runtime."""

    directive = "shard"
    kinds = frozenset((CALL,))

    def rewrite(self) -> None:
        """Find the call and its layout."""
        call = self.hint.call
        assert call is not None
        if self.hint.named:
            name, argument = self.hint.named[0]
            self.site.error(
                f"`{name}=` names a parameter, and this is a call; write the layout alone: `shard(x, {argument.text})`",
                argument,
            )
        layout = ", ".join(argument.text for argument in self.hint.arguments)
        self.layout = f"{self.site.partition_spec}({layout})"
        self.target = self.site.call(self.site.statement, call)
        self.site.transform(self.site.statement, self)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`hints.shard(x, ...)` becomes `mm.with_sharding_constraint(x, P(...))`."""
        if original_node is not self.target:
            return updated_node
        call = self.constrained(updated_node.args[0].value)
        return call.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)
