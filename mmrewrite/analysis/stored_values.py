"""What code puts into a container or an object that one of its names stands for, and what unpacking takes out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Methods of containers by which their arguments become parts of them.
_STORING = frozenset(
    ("add", "append", "appendleft", "extend", "extendleft", "insert", "put", "put_nowait", "setdefault", "update")
)


@dataclass(frozen=True)
class StoredPart:
    """An expression that becomes a part of what a name stands for: an attribute of it, or any other part."""

    name: str
    attribute: str | None
    value: ast.expr


def stored_values(body: Sequence[ast.AST]) -> tuple[StoredPart, ...]:
    """What some code puts into what its names stand for."""
    return tuple(each for root in body for node in ast.walk(root) for each in _stored_by(node))


def _stored_by(node: ast.AST) -> Iterator[StoredPart]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _stored_in(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _stored_in(target, value)
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield StoredPart(name, None, value)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _STORING:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield StoredPart(name, None, argument)
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr=attribute), attr=method)
        ) if method in _STORING:
            # The attribute is something that has these in it.
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield StoredPart(name, attribute, ast.List(arguments, ast.Load()))
        case _:
            pass


def _stored_in(target: ast.expr, value: ast.expr) -> Iterator[StoredPart]:
    match target:
        case ast.Subscript(value=ast.Name(id=name)):
            yield StoredPart(name, None, value)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            yield StoredPart(name, attribute, value)
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr=attribute)):
            yield StoredPart(name, attribute, ast.List([value], ast.Load()))
        case _:
            pass


def binds(target: ast.expr, name: str) -> bool:
    """Whether a target, or one in it, is a name."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))


def unpacked(target: ast.expr, name: str, source: ast.expr) -> ast.expr | None:
    """The item of a display that an assignment of it binds to a name.

    None where `source` is not written out, or where stars hide which it is.

    Args:
        target: What `source` is unpacked into.
        name: The name in `target`.
        source: The value of the assignment.
    """
    if isinstance(target, ast.Name) and target.id == name:
        return source
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    if not isinstance(source, ast.Tuple | ast.List) or any(
        isinstance(each, ast.Starred) for each in (*source.elts, *target.elts)
    ):
        return None
    for part, item in zip(target.elts, source.elts, strict=False):
        if binds(part, name):
            return unpacked(part, name, item)
    return None


def gone_through(target: ast.expr, name: str, source: ast.expr, function: str | None) -> list[ast.expr] | None:
    """The expressions, parts of which a loop binds to a name of its target; None where that cannot be told.

    Args:
        target: The target of the loop.
        name: The name in `target`.
        source: What the loop goes through.
        function: The full name of the function that `source` calls, if it is a call.
    """
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(source, ast.Call):
        return None
    if any(isinstance(each, ast.Starred) for each in (*target.elts, *source.args)):
        return None
    place = next((i for i, part in enumerate(target.elts) if binds(part, name)), None)
    if place is None:
        return None
    if function == "builtins.zip" and place < len(source.args):
        return [source.args[place]]
    if function == "builtins.enumerate" and source.args:
        return [source.args[0]] if place == 1 else []
    if isinstance(source.func, ast.Attribute) and source.func.attr == "items" and not source.args:
        return [source.func.value] if place == 1 else []
    return None
