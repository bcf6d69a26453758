"""Where a node of the syntax tree begins and ends in the text."""

from __future__ import annotations

import ast

from mmrewrite.source.text import SourceText


def span(source: SourceText, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> tuple[int, int]:
    """Offsets of a node's first character and of the one after its last."""
    end_line = node.end_lineno or node.lineno
    return source.offset(node.lineno, node.col_offset), source.offset(end_line, node.end_col_offset or 0)


def first_line(node: ast.expr | ast.stmt) -> int:
    """Line on which a node begins, decorators included."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else node.lineno
