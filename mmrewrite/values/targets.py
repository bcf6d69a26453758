"""What a target of an assignment, a loop, a context or a pattern takes of the value that is given to it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding
from mmrewrite.values.value import ANY_ITEM, ELEMENT, ENTERED, REST, Access, Path, attribute, item

# In a pattern, what stands in the brackets of these is the value itself.
_MATCH_THEMSELVES = frozenset(
    f"builtins.{each.__name__}" for each in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
)


class Taken(NamedTuple):
    """An expression, or a statement such as `x += y`, and the steps from its value to what a target gets."""

    source: ast.expr | ast.AugAssign
    path: Path


def of_binding(module: ModuleUses, binding: Binding) -> Taken | None:
    """What a binding of a name takes, None if that is no part of a value, as with an exception that is caught."""
    if binding.value is not None:
        return Taken(binding.value, ())
    node = binding.node
    if isinstance(node, ast.Assign):
        # The name stands among targets that are unpacked.
        for target in node.targets:
            steps = _to_name(target, binding.name)
            if steps is not None:
                return Taken(node.value, steps)
        return None
    return of_target(module, node)


def of_target(module: ModuleUses, target: ast.AST) -> Taken | None:
    """What a target takes: a name, an attribute, an item or a pattern."""
    path: Path = ()
    node = target
    for holder in module.above(target):
        match holder:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                path = (_place(targets, node), *path)
            case ast.Starred():
                pass
            case ast.Assign(value=source) | ast.NamedExpr(value=source):
                return Taken(source, path)
            case ast.AnnAssign(value=value):
                return Taken(value, path) if value is not None else None
            case ast.AugAssign():
                return Taken(holder, path)
            case ast.For(iter=source) | ast.AsyncFor(iter=source) | ast.comprehension(iter=source):
                return Taken(source, (ELEMENT, *path))
            case ast.withitem(context_expr=source):
                return Taken(source, (ENTERED, *path))
            case ast.MatchSequence(patterns=patterns):
                path = (_place(patterns, node), *path)
            case ast.MatchMapping(keys=keys, patterns=patterns):
                key = next((key for key, pattern in zip(keys, patterns, strict=True) if pattern is node), None)
                path = (item(key.value) if isinstance(key, ast.Constant) else ANY_ITEM, *path)
            case ast.MatchClass(cls=kind, patterns=[first]) if first is node and _matches_itself(module, kind):
                pass
            case ast.MatchClass(patterns=places, kwd_attrs=names, kwd_patterns=patterns):
                name = next((name for name, pattern in zip(names, patterns, strict=True) if pattern is node), None)
                path = (attribute(name) if name is not None else _place(places, node), *path)
            case ast.Match(subject=source):
                return Taken(source, path)
            case ast.MatchAs() | ast.MatchOr() | ast.match_case():
                pass
            case _:
                return None
        node = holder
    return None


def _matches_itself(module: ModuleUses, kind: ast.expr) -> bool:
    name = module.full_name(kind) if isinstance(kind, ast.Name) else None
    return name in _MATCH_THEMSELVES


def written(module: ModuleUses, node: ast.expr) -> ast.expr:
    """An expression, or the constant for which its name stands."""
    binding = module.facts.names.binding(node.id, module.scope_of(node)) if isinstance(node, ast.Name) else None
    return binding.value if binding is not None and isinstance(binding.value, ast.Constant) else node


def _to_name(target: ast.expr, name: str) -> Path | None:
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, ast.Starred):
        return _to_name(target.value, name)
    for each in target.elts if isinstance(target, ast.Tuple | ast.List) else ():
        steps = _to_name(each, name)
        if steps is not None:
            assert isinstance(target, ast.Tuple | ast.List)
            return (_place(target.elts, each), *steps)
    return None


def _place(targets: Sequence[ast.AST], target: ast.AST) -> Access:
    place = targets.index(target)
    stars = [index for index, each in enumerate(targets) if isinstance(each, ast.Starred | ast.MatchStar)]
    if place in stars:
        return REST
    return item(place - len(targets) if stars and place > stars[0] else place)
