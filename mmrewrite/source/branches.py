"""What an expression may be, where it chooses, and which of its parts stand in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def sides(value: ast.AST) -> Sequence[ast.expr]:
    """Both sides of a choice, each of which can be edited at its place, none of anything else.

    Of `a or b` the truth is asked as well, which an edit may change.
    """
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else ()


def branches(value: ast.AST | None) -> Iterator[ast.expr]:
    """The expressions that a value may be: each side of a choice, else itself."""
    match value:
        case ast.IfExp():
            for each in sides(value):
                yield from branches(each)
        case ast.BoolOp():
            for each in value.values:
                yield from branches(each)
        case ast.NamedExpr():
            yield from branches(value.value)
        case ast.expr():
            yield value
