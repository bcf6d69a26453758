"""Fix the layouts of a function's parameters and of its result.

    # mm: shard(x=("batch", None), out=("batch", "hidden"))
    def layer(params, x):
        return x @ params
    ->  def layer(params, x):
            x = mm.with_sharding_constraint(x, P("batch", None))
            return mm.with_sharding_constraint(x @ params, P("batch", "hidden"))

`shard(from_annotations=True)` takes the layouts from annotations such as `x: Float[Array, "batch embed"]`; so does
`jaxtyping = true` in the configuration, for every task.

To check: each logical axis is the dimension that its position says, at every call of the function.

Refused: generators, and results that are several values, because one layout describes one array.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for what a constraint is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from mmcodemods._constraint import ReturnConstraintCodemod
from mmrewrite.directives.collect import Argument
from mmrewrite.directives.vocabulary import DEF, nearest
from mmrewrite.project.axis_names import annotated_layouts, declared_names
from mmrewrite.source.functions import is_generator, returns_of
from mmrewrite.source.names import all_arguments

RESULT, ANNOTATIONS = "out", "from_annotations"


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
        written = [(name, argument) for name, argument in self.hint.named if name != ANNOTATIONS]
        for name, argument in written:
            if name not in parameters and name != RESULT:
                self.site.error(
                    f"`{function.name}` has no parameter `{name}`{nearest(name, [*parameters, RESULT])}", argument
                )
        if RESULT in parameters and self.hint.argument(RESULT):
            self.site.error(f"`{function.name}` has a parameter `{RESULT}`: rename it", self.hint.argument(RESULT))
        self.site.check_logical_names([argument for _, argument in written])
        if is_generator(function):
            self.refuse("a generator returns no array; put `shard` on the statements inside")
        layouts = self.annotated(function) | {name: self.layout_text(argument) for name, argument in written}
        result = layouts.pop(RESULT, None)
        self.constrain_parameters(function, layouts)
        if result is not None:
            self.layout = f"{self.site.partition_spec}({result})"
            self.constrain_results(function)

    def annotated(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
        """The layouts that the function's annotations give, where the hint asks for them."""
        argument = self.hint.argument(ANNOTATIONS)
        if argument is None or (isinstance(argument.value, ast.Constant) and not argument.value.value):
            return {}
        known = declared_names(self.site.project.connected(self.site.facts), self.site.draft.axes)
        layouts = dict(annotated_layouts(self.site.facts, function, known, RESULT))
        if not layouts:
            self.refuse(
                f"no annotation of `{function.name}` names a logical axis; write jaxtyping annotations such as "
                '`x: Float[Array, "batch embed"]`, or the layouts: `shard(x=("batch", "embed"))`'
            )
        return layouts

    def layout_text(self, argument: Argument) -> str:
        """`"batch", None` for `("batch", None)`."""
        value = argument.value
        if not isinstance(value, ast.Tuple):
            self.site.error('a layout is a tuple of logical names: `("batch", None)`', argument)
        return argument.text[1:-1].strip().removesuffix(",")

    def constrain_parameters(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, layouts: Mapping[str, str]
    ) -> None:
        """New statements after the docstring."""
        if not layouts:
            return
        body = function.body
        # A docstring is one only as the first statement.
        documented = (
            isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        )
        for name, layout in layouts.items():
            wrapper = f"{self.site.runtime}.with_sharding_constraint"
            code = f"{name} = {wrapper}({name}, {self.site.partition_spec}({layout}))"
            if documented and len(body) == 1:
                self.refuse("this function only has a docstring; there is nothing to constrain")
            self.site.insert_above(code, body[1] if documented else body[0])

    def constrain_results(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Every `return`, if each returns one value."""
        returns = list(returns_of(function))
        if not returns:
            self.refuse(f"`{function.name}` returns nothing that could have a layout; leave `out=` out")
        for statement in returns:
            if statement.value is None or isinstance(statement.value, ast.Tuple | ast.List | ast.Dict):
                self.refuse("this `return` does not return one array; hint the values before it", statement)
            self.site.transform(statement, self)
