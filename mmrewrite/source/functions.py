"""What the definition of a function says: its returns, parameters, decorators, and whether its calls are alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.source.names import Module
from mmrewrite.source.walk import children

_VARYING = frozenset(("builtins.next", "builtins.open", "builtins.input"))
_VARYING_MODULES = ("numpy.random.", "random.", "time.")

_NESTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of the body, without those in the bodies of functions and classes inside it."""
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


def function_around(names: Module, statement: ast.stmt) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that a statement runs in, the innermost one."""
    around = names.around(statement)
    return next((holder for holder in around if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef)), None)


def required_parameters(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    """Names of the parameters without a default."""
    return [parameter.arg for parameter, default in with_defaults(function.args) if default is None]


def with_defaults(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function, without `*args` and `**kwargs`, each with its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    none = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*none, *arguments.defaults, *arguments.kw_defaults]
    return list(zip([*positional, *arguments.kwonlyargs], defaults, strict=True))


def own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, outer first, without those of the statements inside it."""
    return (node for node, _ in placed_expressions(statement))


def placed_expressions(statement: ast.stmt) -> Iterator[tuple[ast.AST, bool]]:
    """`own_expressions`, each with whether an f-string holds it."""
    stack: list[tuple[ast.AST, bool]] = [(statement, False)]
    while stack:
        node, in_text = stack.pop()
        if node is not statement:
            yield node, in_text
        in_text = in_text or isinstance(node, ast.JoinedStr)
        stack += [(child, in_text) for child in reversed(children(node)) if not isinstance(child, ast.stmt)]


def varies(names: Module, function: ast.FunctionDef | ast.Lambda) -> ast.expr | ast.stmt | None:
    """The first node that makes calls differ: global state, files, the clock, or random numbers of the host.

    Such a function must not be traced, since a trace would keep the values of its first call.
    """
    scope = names.inner[function]
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            return node
        if isinstance(node, ast.Call):
            found = names.resolve(node.func, scope) or ""
            if found in _VARYING or found.startswith(_VARYING_MODULES):
                return node
    return None
