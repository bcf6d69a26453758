"""The names, attributes and imports of a module, by the statement that holds them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from mmrewrite.source.walk import children

_MENTIONS = ast.Name | ast.Attribute | ast.Import | ast.ImportFrom


class Mentions:
    """The names, attributes and imports of a module, collected once: those of a statement are one slice of a list."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes: list[ast.AST] = []
        self._spans: dict[ast.AST, tuple[int, int]] = {}
        stack: list[tuple[ast.AST, int | None]] = [(tree, None)]
        while stack:
            node, start = stack.pop()
            if start is not None:
                # The second visit, when all its children are in the list.
                self._spans[node] = (start, len(self._nodes))
                continue
            if isinstance(node, ast.stmt | ast.mod):
                stack.append((node, len(self._nodes)))
            if isinstance(node, _MENTIONS):
                self._nodes.append(node)
            stack += [(child, None) for child in children(node)]

    def inside(self, node: ast.AST) -> Sequence[ast.AST] | None:
        """The names, attributes and imports in a statement, outer nodes first; None for other nodes."""
        span = self._spans.get(node)
        return None if span is None else self._nodes[slice(*span)]
