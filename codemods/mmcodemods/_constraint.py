"""The base classes of codemods that fix the layout of a value."""

from __future__ import annotations

import ast

import libcst as cst

from mmrewrite.codemod.base import MeshCodemod, spaced

WRAPPER = "with_sharding_constraint"

# Without their parentheses these mean something else as an argument, or are a syntax error.
_NEEDS_PARENTHESES = (cst.GeneratorExp, cst.Tuple, cst.Yield, cst.StarredElement)


class ConstraintCodemod(MeshCodemod):
    """A codemod that writes `mm.with_sharding_constraint`; `layout` is the `P(...)` as source text."""

    layout: str

    def constrained(self, value: cst.BaseExpression | None) -> cst.Call:
        """The value, with its layout."""
        assert value is not None
        wrapper = f"{self.site.runtime}.{WRAPPER}"
        return self.generated(wrapper, _without_parentheses(value), self.layout)


class ReturnConstraintCodemod(ConstraintCodemod):
    """A codemod that constrains the value of a `return`."""

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        """`return f(x)`."""
        space = spaced(updated_node.whitespace_after_return)
        return updated_node.with_changes(value=self.constrained(updated_node.value), whitespace_after_return=space)


def _without_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    """`x + y` for `(x + y)` on one line; more lines keep them, with the comments inside."""
    if len(value.lpar) != 1 or isinstance(value, _NEEDS_PARENTHESES):
        return value
    spaces = (value.lpar[0].whitespace_after, value.rpar[0].whitespace_before)
    if not all(isinstance(space, cst.SimpleWhitespace) for space in spaces):
        return value
    return value.with_changes(lpar=[], rpar=[])


def names_alone(value: ast.expr, text: str) -> str:
    """A layout without the brackets around it, as `shard` takes it, one name for each dimension; else its text."""
    if isinstance(value, ast.Tuple | ast.List):
        return ", ".join(ast.unparse(each).replace("'", '"') for each in value.elts)
    return text
