"""What an expression may be, where it chooses."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def branches(value: ast.AST | None) -> Iterator[ast.expr]:
    """The expressions that a value may be: each side of a choice, else itself."""
    match value:
        case ast.IfExp():
            yield from branches(value.body)
            yield from branches(value.orelse)
        case ast.BoolOp():
            for each in value.values:
                yield from branches(each)
        case ast.NamedExpr():
            yield from branches(value.value)
        case ast.expr():
            yield value
