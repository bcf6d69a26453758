"""Fix the layout of a value by logical axis names.

    h = f(x)  # mm: shard("batch", None, "hidden")
    ->  h = mm.with_sharding_constraint(f(x), P("batch", None, "hidden"))

To check: each logical axis is the dimension that its position says.

Refused: several values at once, because one layout describes one array.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for what a constraint is.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._constraint import ReturnConstraintCodemod, names_alone


class ConstrainValue(ReturnConstraintCodemod):
    """Wraps the right-hand side of an assignment, or the value of a `return`."""

    directive = "shard"
    run_after = ("place_task", "stage_loop", "place_layer_tasks")

    def rewrite(self) -> None:
        """Check that the statement has one value."""
        self.refuse_lambda()
        if self.hint.named:
            name, argument = self.hint.named[0]
            message = (
                f"`{name}=` names a parameter, and this is no `def`; write the layout alone: "
                f"`shard({names_alone(argument.value, argument.text)})`"
            )
            self.site.error(message, argument)
        statement = self.site.statement
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
            self.refuse("`shard` is about the value of an assignment or a `return`; this statement has none")
        value = statement.value
        if value is None:
            self.refuse("`shard` is about a value, and this statement has none; hint an assignment or a `return`")
        if isinstance(value, ast.Yield | ast.YieldFrom | ast.Tuple | ast.List | ast.Dict | ast.Starred):
            self.refuse(f"`{self.site.text(value)}` is not one array; bind the array to a name and hint there")
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Tuple | ast.List) for target in targets):
            self.refuse("several names are assigned here, and one layout describes one array; hint each on its own")
        self.site.check_logical_names(self.hint.arguments)
        layout = ", ".join(argument.text for argument in self.hint.arguments)
        self.layout = f"{self.site.partition_spec}({layout})"
        self.site.transform(statement, self)

    def refuse_lambda(self) -> None:
        """Refuse the layout of a `lambda`, of its parameters or of its result, for which it must be a `def`."""
        if not isinstance(getattr(self.site.statement, "value", None), ast.Lambda):
            return
        arguments = self.hint.arguments
        if self.hint.named:
            layout, what = ", ".join(f"{each.name}={each.text}" if each.name else each.text for each in arguments), ""
        else:
            names = [argument.text for argument in arguments]
            layout, what = f"out=({', '.join(names)}{',' if len(names) == 1 else ''})", ", which lays out its result"
        self.refuse(f"a `lambda` is no array; write it as a `def`, and `# mm: shard({layout})` above that{what}")

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        """`h = f(x)`."""
        return updated_node.with_changes(value=self.constrained(updated_node.value))

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        """`h: Array = f(x)`."""
        return updated_node.with_changes(value=self.constrained(updated_node.value))
