"""Facts about function definitions, from `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.names import Module, Scope

JIT = "jax.jit"

_NESTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Everything in the body that is not part of a function or class inside it."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _NESTED):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def returns_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Return]:
    """The function's own `return` statements, in order."""
    return (node for node in own_nodes(function) if isinstance(node, ast.Return))


def is_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function yields."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function))


def is_jit_decorator(names: Module, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator is `@jax.jit`, `@jax.jit(...)` or `@partial(jax.jit, ...)`."""
    if names.resolve(decorator, scope) == JIT:
        return True
    if not isinstance(decorator, ast.Call):
        return False
    if names.resolve(decorator.func, scope) == JIT:
        return not decorator.args
    is_partial = names.resolve(decorator.func, scope) == "functools.partial"
    return is_partial and len(decorator.args) == 1 and names.resolve(decorator.args[0], scope) == JIT
