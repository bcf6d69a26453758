"""Walk syntax trees without what carries nothing: operators, and whether a name is read or written.

Those are some four in ten nodes, and `ast.iter_child_nodes` asks each node for fields that hold none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_NO_CODE = frozenset(("ctx", "op", "ops"))
# What these hold is text or a number, in every kind of node that has them.
_NO_NODES = frozenset(
    (
        *("arg", "asname", "attr", "conversion", "id", "is_async", "kind", "kwd_attrs", "level", "module", "rest"),
        *("simple", "tag", "type_comment"),
    )
)
# As above, but for kinds of nodes that have a node there.
_NO_NODES_BUT_IN = {"name": frozenset(("TypeAlias",)), "names": frozenset(("Import", "ImportFrom"))}
# Lists in which None stands for a key or a default that there is none of.
_WITH_GAPS = frozenset(("keys", "kw_defaults"))
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}


def children(node: ast.AST) -> Sequence[ast.AST]:
    """The child nodes of a node, in the order of `ast.iter_child_nodes`."""
    fields = _FIELDS.get(type(node))
    if fields is None:
        fields = _FIELDS[type(node)] = _fields_with_nodes(type(node))
    if not fields:
        return ()
    found: list[ast.AST] = []
    # Fields that are not set are those of the class: None.
    held = vars(node)
    for name in fields:
        value = held.get(name)
        if value:
            if type(value) is list:
                found += [item for item in value if item is not None] if name in _WITH_GAPS else value
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def _fields_with_nodes(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(
        name
        for name in kind._fields
        if name not in _NO_CODE
        and name not in _NO_NODES
        and kind.__name__ in _NO_NODES_BUT_IN.get(name, (kind.__name__,))
    )


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in the order of `ast.walk`."""
    nodes = [node]
    for each in nodes:
        yield each
        nodes += children(each)
