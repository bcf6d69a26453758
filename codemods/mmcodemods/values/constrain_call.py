"""Fix the layout of a value inside an expression, where a call names it.

    y = g(hints.shard(f(x), "batch", None))
    h = nn.with_logical_constraint(x, ("batch", "embed"))
    ->  y = g(mm.with_sharding_constraint(f(x), P("batch", None)))
        h = mm.with_sharding_constraint(x, P("batch", "embed"))

The same for `with_sharding_constraint` of `flax.linen.partitioning`, and for that of `jax.lax` with logical axis names,
in all modules that a program with hints and a mesh imports. In functions there `jax.sharding.reshard` becomes
`mm.reshard`, and `out_sharding=P(...)` of a call `out_sharding=mm.out_sharding(P(...))`: both ask for the types of one
explicit mesh, and in a step each task has a mesh of its own. Where a `jax.pmap` becomes a step for the mesh,
`flax.jax_utils.unreplicate(tree)` becomes `jax.tree.map(lambda x: x[0], tree)`: it takes what the first device holds
for one copy, and such a step keeps all copies together.

To check: each logical axis is the dimension that its position says.

Refused: rules or a mesh for a single call, because the mesh has the rules for all; constraints of `jax.lax` that mix
logical names with others, because the others would have no meaning; a call in the head of a block or in an f-string.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for what a constraint is.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._constraint import WRAPPER, ConstraintCodemod, names_alone
from mmrewrite.codemod.base import expression
from mmrewrite.directives.vocabulary import CALL, STATEMENT, kind_of
from mmrewrite.project.axis_names import RESHARD, layout_argument, sharding_keywords, stray_names, takes_one_copy
from mmrewrite.source.functions import placed_expressions


class ConstrainCall(ConstraintCodemod):
    """Replaces a call by one of the runtime."""

    directive = "shard"
    kinds = frozenset((CALL,))

    def rewrite(self) -> None:
        """Find the call and its layout."""
        call = self.hint.call
        assert call is not None
        self.reshards = self.hint.implied and self.site.resolve(call.func) == RESHARD
        typed = sharding_keywords(self.site.facts, call, self.site.scope) if self.hint.implied else []
        self.typed = {keyword.arg for keyword in typed}
        self.takes_copy = self.hint.implied and takes_one_copy(self.site.facts, call, self.site.scope)
        if self.hint.implied:
            self.check_place(call)
        if not self.reshards and not self.typed and not self.takes_copy:
            self.layout = self.read_layout(call)
        self.target = self.site.call(self.site.statement, call)
        self.site.transform(self.site.statement, self)

    def read_layout(self, call: ast.Call) -> str:
        """The `P(...)` of the hint."""
        if self.hint.implied:
            self.check_arguments(call)
        elif self.hint.named:
            name, argument = self.hint.named[0]
            self.site.error(
                f"`{name}=` names a parameter, and this is a call; write the layout alone: `shard(x, "
                f"{names_alone(argument.value, argument.text)})`",
                argument,
            )
        self.site.check_logical_names(self.hint.arguments)
        layout = ", ".join(argument.text for argument in self.hint.arguments)
        return f"{self.site.partition_spec}({layout})"

    def check_place(self, call: ast.Call) -> None:
        """A call in a statement of its own can be replaced."""
        where = "in the head of a block or a definition" if kind_of(self.site.statement) != STATEMENT else None
        if any(node is call and in_text for node, in_text in placed_expressions(self.site.statement)):
            where = "inside an f-string"
        if where is not None:
            self.refuse(f"`{self.site.text(call)}` is {where}; give its value a name above", call)

    def check_arguments(self, call: ast.Call) -> None:
        """Only a value and its layout have the same meaning for the runtime."""
        name = self.site.text(call.func)
        if not call.args or any(isinstance(argument, ast.Starred) for argument in call.args):
            self.refuse(f"cannot see what `{name}` constrains; pass the value as its first argument", call)
        stray = stray_names(self.site.facts, call, self.site.scope, self.site.facts.hints.axis_names)
        if stray:
            self.refuse(
                f"`{self.site.text(call)}` names logical axes and `{stray[0]}`, which is none of them; write the "
                f"logical name of that dimension, or give `{stray[0]}` a device axis in `axes(...)`",
                call,
            )
        layout = layout_argument(call)
        more = [self.site.text(argument) for argument in call.args[1:] if argument is not layout]
        more += [f"{keyword.arg or '**'}=" for keyword in call.keywords if keyword.value is not layout]
        if more:
            self.refuse(
                f"`{name}` has `{more[0]}` for this call alone, and the runtime knows the rules of the mesh only; "
                "remove it, or write a `shard(...)` hint instead of the call",
                call,
            )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`hints.shard(x, ...)` becomes `mm.with_sharding_constraint(x, P(...))`."""
        if original_node is not self.target:
            return updated_node
        if self.takes_copy:
            # The value keeps its lines. Behind a last comma each argument has its own.
            space, (value,) = updated_node.whitespace_before_args, updated_node.args
            if not (isinstance(value.comma, cst.Comma) and isinstance(space, cst.ParenthesizedWhitespace)):
                space = cst.SimpleWhitespace(" ")
            first = cst.Arg(expression("lambda x: x[0]"), comma=cst.Comma(whitespace_after=space))
            function = expression(f"{self.site.module('jax')}.tree.map")
            return updated_node.with_changes(func=function, args=[first, value])
        if self.reshards:
            return updated_node.with_changes(func=expression(f"{self.site.runtime}.reshard"))
        if self.typed:
            return updated_node.with_changes(args=[self.with_type(argument) for argument in updated_node.args])
        if self.hint.implied:
            value, layout = updated_node.args
            layout = layout.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT, value=expression(self.layout))
            return updated_node.with_changes(func=expression(f"{self.site.runtime}.{WRAPPER}"), args=[value, layout])
        return self.constrained(updated_node.args[0].value)

    def with_type(self, argument: cst.Arg) -> cst.Arg:
        """`out_sharding=P("data")` becomes `out_sharding=mm.out_sharding(P("data"))`."""
        if argument.keyword is None or argument.keyword.value not in self.typed:
            return argument
        return argument.with_changes(value=self.generated(f"{self.site.runtime}.out_sharding", argument.value))
