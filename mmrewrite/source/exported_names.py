"""What a module says in `__all__` that `from ... import *` takes from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.source.names import Module

# What these are given stays as it is.
_READERS = frozenset(("enumerate", "frozenset", "iter", "len", "list", "print", "set", "sorted", "tuple"))


@dataclass(frozen=True)
class ExportedNames:
    """The names in `__all__`.

    Attributes:
        names: Those that it certainly has.
        is_whole: Whether it certainly has no others.
    """

    names: frozenset[str]
    is_whole: bool

    def has(self, name: str) -> bool:
        """Whether a name is certain to be among them."""
        return name in self.names


def exported_names(module: Module) -> ExportedNames | None:
    """The names in a module's `__all__`; None if it has none, so that all are taken but those with a leading `_`."""
    if "__all__" not in module.identifiers:
        return None
    texts: list[str | None] = []
    seen: set[ast.AST] = set()
    for statement in module.tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__") as name], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__") as name, value=ast.expr() as value)
            ):
                texts = [*_texts(value)]
            case ast.AugAssign(target=ast.Name(id="__all__") as name, op=ast.Add(), value=value):
                texts += _texts(value)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(id="__all__") as name, "extend"), [value], [])):
                texts += _texts(value)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(id="__all__") as name, "append"), [value], [])):
                texts += _texts(ast.Tuple([value]))
            case _:
                continue
        seen.add(name)
    seen |= _only_read(module.tree)
    mentions = (node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == "__all__")
    is_imported = any(binding.kind == "import" for binding in module.scope.bindings.get("__all__", ()))
    if is_imported or not seen.issuperset(mentions):
        # Something else may change it: `if old: __all__ = [...]`, `__all__.remove(...)`.
        return ExportedNames(frozenset(), is_whole=False)
    return ExportedNames(frozenset(text for text in texts if text is not None), is_whole=None not in texts)


def _texts(value: ast.expr) -> Iterator[str | None]:
    """The texts in what is assigned, None for each part that is not written out."""
    match value:
        case ast.List(elts) | ast.Tuple(elts):
            for each in elts:
                if isinstance(each, ast.Starred):
                    yield from _texts(each.value)
                else:
                    yield each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else None
        case ast.BinOp(left, ast.Add(), right):
            yield from _texts(left)
            yield from _texts(right)
        case ast.Call(ast.Name("list" | "sorted" | "tuple"), [inner], []):
            yield from _texts(inner)
        case _:
            yield None


def _only_read(tree: ast.Module) -> set[ast.AST]:
    """The expressions that nothing changes by way of where they stand."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name), args) if name in _READERS:
                found.update(args)
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
                found.add(iterated)
            case ast.Compare(comparators=compared):
                found.update(compared)
            case _:
                pass
    return found
