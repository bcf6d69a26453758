"""Walk syntax trees without what carries nothing: operators, and whether a name is read or written.

Those are some four in ten nodes, and `ast.iter_child_nodes` asks each node for fields that hold none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_NO_CODE = frozenset(("ctx", "op", "ops"))
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes of a node, in the order of `ast.iter_child_nodes`."""
    fields = _FIELDS.get(type(node))
    if fields is None:
        fields = _FIELDS[type(node)] = tuple(name for name in node._fields if name not in _NO_CODE)
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in the order of `ast.walk`."""
    nodes = [node]
    for each in nodes:
        yield each
        nodes += children(each)
