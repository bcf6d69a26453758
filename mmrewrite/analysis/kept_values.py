"""Stores that are the same however often they are run: what a table keeps by its key, and what is made once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Scope


def is_kept_by_key(node: ast.Subscript, facts: Facts, scope: Scope) -> bool:
    """Whether a store in a dictionary happens once for each key, and what it stores is computed from the key alone."""
    table, key, value = ast.unparse(node.value), ast.unparse(node.slice), _stored(node, scope)
    root = next((each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)), "")
    used = _parameters_in(value, facts, scope, scope.owner(root)) if value is not None else None
    if used is None or not used <= _parameters_in(node.slice, facts, scope):
        return False
    for holder, inner in _holders(node, facts, scope):
        match holder:
            case ast.If(test=ast.Compare(left=left, ops=[operator], comparators=[other])) if (
                ast.unparse(left) == key and ast.unparse(other) == table
            ):
                wanted = holder.body if isinstance(operator, ast.NotIn) else holder.orelse
                return isinstance(operator, ast.In | ast.NotIn) and inner in wanted
            case ast.If(test=ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)])):
                return inner in holder.body and f"{table}.get({key})" in _values_of(left, scope)
            case ast.Try(handlers=handlers) if any(
                isinstance(each.type, ast.Name) and each.type.id == "KeyError" and inner in each.body
                for each in handlers
            ):
                return True
            case _:
                pass
    return False


def is_made_once(node: ast.AST, facts: Facts, scope: Scope, name: str | None = None) -> bool:
    """Whether an assignment happens where there is no value yet, and its value is computed from nothing else."""
    text = ast.unparse(node) if isinstance(node, ast.Attribute) else name
    value = _stored(node, scope)
    if value is None or _parameters_in(value, facts, scope) - {"self", "cls"}:
        return False
    for holder, inner in _holders(node, facts, scope):
        if not isinstance(holder, ast.If) or inner not in holder.body:
            continue
        match holder.test:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                return ast.unparse(left) == text
            case ast.UnaryOp(
                op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=[one, ast.Constant(value=str(attr))])
            ):
                return f"{ast.unparse(one)}.{attr}" == text
            case _:
                pass
    return False


def statement_of(node: ast.AST, scope: Scope) -> ast.stmt | None:
    """The innermost statement of a function that holds a node."""
    return next((each for each in ast.walk(scope.node) if isinstance(each, ast.stmt) and _is_direct(each, node)), None)


def _stored(node: ast.AST, scope: Scope) -> ast.expr | None:
    """What a plain assignment stores in a target."""
    statement = statement_of(node, scope)
    is_plain = isinstance(statement, ast.Assign) and node in statement.targets
    return statement.value if is_plain and isinstance(statement, ast.Assign) else None


def _holders(node: ast.AST, facts: Facts, scope: Scope) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """The statements around a node in its function, innermost first, each with the one in it that holds the node."""
    names = facts.names
    inner = statement_of(node, scope)
    while inner is not None and inner in names.parents and names.parents[inner] is not scope.node:
        yield names.parents[inner], inner
        inner = names.parents[inner]


def _is_direct(statement: ast.AST, node: ast.AST) -> bool:
    """Whether a statement is the innermost one that holds a node."""
    if not isinstance(statement, ast.stmt):
        return False
    if statement is node:
        return True
    stack = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while stack:
        part = stack.pop()
        if part is node:
            return True
        stack.extend(child for child in ast.iter_child_nodes(part) if not isinstance(child, ast.stmt))
    return False


def _values_of(node: ast.expr, scope: Scope) -> set[str]:
    """The source of an expression, or of what is assigned to a name."""
    if isinstance(node, ast.NamedExpr):
        return {ast.unparse(node.value)}
    if isinstance(node, ast.Name):
        owner = scope.owner(node.id)
        bindings = owner.bindings[node.id] if owner is not None else []
        return {ast.unparse(each.value) for each in bindings if each.value is not None}
    return {ast.unparse(node)}


def _parameters_in(node: ast.expr, facts: Facts, scope: Scope, beside: Scope | None = None) -> set[str]:
    """The parameters, and other names whose value is not seen, that an expression is computed from.

    Functions that are parameters of `beside` do not count: `f` of a decorator that keeps what `f` returns.
    """
    found: set[str] = set()
    queue: list[ast.AST] = [node]
    seen: set[str] = set()
    while queue:
        part = queue.pop()
        match part:
            case ast.Call(func=ast.Name(id=function)) if beside is not scope and scope.owner(function) is beside:
                queue += [*part.args, *part.keywords]
                continue
        if isinstance(part, ast.Name) and part.id not in seen:
            seen.add(part.id)
            owner = scope.owner(part.id)
            if owner is None or owner is facts.names.scope:
                continue
            for binding in owner.bindings[part.id]:
                if binding.value is None:
                    found.add(part.id)
                else:
                    queue.append(binding.value)
        queue.extend(ast.iter_child_nodes(part))
    return found
