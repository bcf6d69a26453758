"""Annotations, also those that are written as texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.source.text import expression_in


def parsed_annotation(annotation: ast.expr) -> ast.expr | None:
    """An annotation, also one that is a text; None for a text that is no expression."""
    if not (isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)):
        return annotation
    return expression_in(annotation.value)


def classes_in(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The names of the classes in an annotation, without that of `None`."""
    match parsed_annotation(annotation) if annotation is not None else None:
        case ast.Constant(value=None):
            pass
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from classes_in(left)
            yield from classes_in(right)
        case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner):
            yield from classes_in(inner)
        case ast.Subscript(value=generic):
            yield generic
        case ast.expr() as node:
            yield node
        case _:
            pass
