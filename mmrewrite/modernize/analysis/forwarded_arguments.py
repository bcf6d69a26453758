"""The callers of a function that forwards its `**` parameter, and the arguments that they pass in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.modernize.analysis.partition_specs import call_of, is_alias
from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.modernize.uses import ModuleUses


@dataclass(frozen=True, eq=False)
class Caller:
    """One use of a function. Without a `call` it is a plain decorator, or a use that cannot be followed.

    `first` is the function's first argument: an expression, or the definition that is decorated.
    """

    module: ModuleUses
    node: ast.expr
    call: ast.Call | None
    first: ast.AST | None
    is_seen: bool

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.module.facts.path}:{self.node.lineno}"

    def keyword(self, name: str) -> ast.expr | None:
        """The argument for the parameter `name`, None if there is none."""
        words = self.call.keywords if self.call is not None else ()
        return next((word.value for word in words if word.arg == name), None)


def forwarder(module: ModuleUses, call: ast.Call) -> ast.FunctionDef | None:
    """The function of a module that forwards its `**` parameter to a call, and does nothing else with it.

    None if there is none, or if the call has other arguments that are starred.
    """
    hidden = [word.value for word in call.keywords if word.arg is None]
    if len(hidden) != 1 or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    (value,) = hidden
    if not isinstance(value, ast.Name):
        return None
    owner = module.scope_of(call).owner(value.id)
    function = owner.node if owner is not None else None
    if not isinstance(function, ast.FunctionDef) or module.parents.get(function) is not module.facts.tree:
        return None
    is_its_own = function.args.kwarg is not None and function.args.kwarg.arg == value.id
    named = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == value.id]
    return function if is_its_own and named == [value] and not function.decorator_list else None


def callers(context: ModernizeContext, module: ModuleUses, function: ast.FunctionDef) -> Iterator[Caller]:
    """The uses of a function in all modules of the run, but for assignments that make an alias.

    Whatever has its name and may be it, such as an attribute of an unknown object, counts as a use with
    `is_seen=False`.
    """
    for other in context.modules.values():
        uses = [use.node for use in other.uses((f"{module.facts.names.name}.{function.name}",))]
        yield from (_caller(other, node) for node in uses if not is_alias(other, node))
        for node in other.nodes:
            if node not in uses and _is_called(node, function.name):
                assert isinstance(node, ast.expr)
                if other.facts.names.resolve(node, other.scope_of(node)) is None:
                    yield Caller(other, node, None, None, is_seen=False)


def _is_called(node: ast.AST, name: str) -> bool:
    """Whether something is read that has a name, or an attribute of that name."""
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _caller(module: ModuleUses, node: ast.expr) -> Caller:
    call, is_partial = call_of(module, node)
    holder = module.parents[node if call is None else call]
    decorated = _decorated(holder, node if call is None else call)
    if call is None:
        return Caller(module, node, None, decorated, is_seen=decorated is not None)
    words = (*call.args[is_partial:], *(word.value if word.arg else word for word in call.keywords))
    is_seen = not any(isinstance(word, ast.Starred | ast.keyword) for word in words)
    first: ast.AST | None = next(iter(call.args[is_partial:]), decorated if is_partial else None)
    if first is None and is_partial and isinstance(holder, ast.Call) and holder.func is call:
        first = next(iter(holder.args), None)
        is_seen &= not holder.keywords or all(word.arg for word in holder.keywords)
    return Caller(module, node, call, first, is_seen)


def _decorated(holder: ast.AST, decorator: ast.expr) -> ast.AST | None:
    if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and decorator in holder.decorator_list:
        return holder
    return None
