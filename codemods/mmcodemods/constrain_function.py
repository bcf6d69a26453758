"""Fix the layouts of a function's parameters and of what it returns.

    # mm: shard(x=("batch", None), out=("batch", "hidden"))
    def layer(params, x):
        return x @ params
    ->  def layer(params, x):
            x = mm.with_sharding_constraint(x, P("batch", None))
            return mm.with_sharding_constraint(x @ params, P("batch", "hidden"))

Refused: generators, and results that are several values, because one layout describes one array.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for what a constraint is.
"""

from __future__ import annotations

import ast

from mmrewrite.collect import Argument
from mmrewrite.constraints import ReturnConstraintCodemod
from mmrewrite.functions import is_generator, returns_of
from mmrewrite.names import all_arguments
from mmrewrite.vocabulary import DEF, nearest

RESULT = "out"


class ConstrainFunction(ReturnConstraintCodemod):
    """Constrains parameters where the body begins, and the value of every `return`."""

    directive = "shard"
    kinds = frozenset((DEF,))
    run_after = ("constrain_value", "place_task")

    def rewrite(self) -> None:
        """Check the names, then every `return`."""
        function = self.site.statement
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if self.hint.positional:
            self.site.error(
                "on a `def`, say what has this layout: `shard(x=(...), out=(...))`", self.hint.positional[0]
            )
        parameters = [argument.arg for argument in all_arguments(function.args)]
        for name, argument in self.hint.named:
            if name not in parameters and name != RESULT:
                self.site.error(
                    f"`{function.name}` has no parameter `{name}`{nearest(name, [*parameters, RESULT])}", argument
                )
        if RESULT in parameters and self.hint.argument(RESULT):
            self.site.error(f"`{function.name}` has a parameter `{RESULT}`: rename it", self.hint.argument(RESULT))
        if is_generator(function):
            self.refuse("a generator returns no array; put `shard` on the statements inside")
        self.constrain_parameters(function)
        result = self.hint.argument(RESULT)
        if result is not None:
            self.layout = self.layout_text(result)
            self.constrain_results(function)

    def layout_text(self, argument: Argument) -> str:
        """`P("batch", None)` for `("batch", None)`."""
        value = argument.value
        if not isinstance(value, ast.Tuple):
            self.site.error('a layout is a tuple of logical names: `("batch", None)`', argument)
        inner = argument.text[1:-1].strip().removesuffix(",")
        return f"{self.site.partition_spec}({inner})"

    def constrain_parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """New statements after the docstring."""
        named = [(name, argument) for name, argument in self.hint.named if name != RESULT]
        if not named:
            return
        body = function.body
        documented = (
            isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        )
        for name, argument in named:
            wrapper = f"{self.site.runtime}.with_sharding_constraint"
            code = f"{name} = {wrapper}({name}, {self.layout_text(argument)})"
            if documented and len(body) == 1:
                self.refuse("this function only has a docstring; there is nothing to constrain")
            self.site.insert_above(code, body[1] if documented else body[0])

    def constrain_results(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Every `return`, if each returns one value."""
        returns = list(returns_of(function))
        if not returns:
            self.refuse(f"`{function.name}` returns nothing that could have a layout")
        for statement in returns:
            if statement.value is None or isinstance(statement.value, ast.Tuple | ast.List | ast.Dict):
                self.refuse("this `return` does not return one array; hint the values before it", statement)
            self.site.transform(statement, self)
