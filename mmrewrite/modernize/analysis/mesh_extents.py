"""The code that runs in each mesh context, also where the context outlasts the function that enters it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from mmrewrite.modernize.analysis.mesh_contexts import STATEMENT, WITH, MeshContext, rest_of
from mmrewrite.modernize.analysis.old_names import PARTIALS, PJIT
from mmrewrite.modernize.analysis.reach import WideReach
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.project.reach import Reached
from mmrewrite.source.names import all_arguments

# Nodes of one module.
Unit = tuple[ModuleUses, tuple[ast.AST, ...]]

_ENTER = frozenset(("enter_context", "__enter__"))
_CONTEXT_MANAGERS = frozenset(("contextlib.contextmanager", "contextlib.asynccontextmanager"))


class ContextExtents:
    """Finds the callers of functions that leave a mesh in context: by a `yield` in `with mesh:`, or by hand."""

    def __init__(self, contexts: Collection[MeshContext], modules: Mapping[str, ModuleUses], reach: WideReach) -> None:
        self._modules, self._reach = modules, reach
        self._extents = {context: tuple(self._find(context)) for context in contexts}

    def of(self, context: MeshContext) -> tuple[Unit, ...]:
        """The code that runs in a context, and what may."""
        return self._extents[context]

    def _find(self, context: MeshContext) -> Iterator[Unit]:
        yield context.module, context.body
        yield from self._handed_to(context)
        if not context.outlasts:
            return
        holders = [node for node in context.module.above(context.node) if isinstance(node, _DEFINITIONS)]
        if not holders or not self._is_context_manager(context, holders[0]):
            # Whatever runs later may run in it.
            yield from ((module, (module.facts.tree,)) for module in self._modules.values())
            return
        openings = self._openings
        leading = self._reach.leading_to(holders)
        yield from ((module, body) for module, expression, body in openings if expression in leading)

    def _handed_to(self, context: MeshContext) -> Iterator[Unit]:
        """Functions that calls hand to the function around a context, which may call them in it."""
        around = [node for node in context.module.above(context.node) if isinstance(node, _TAKE_FUNCTIONS)]
        if not any(isinstance(node, ast.ClassDef) or _has_parameters(node) for node in around):
            return
        leading = self._reach.leading_to(around)
        for module, targets, functions in self._calls:
            if not leading.isdisjoint(targets):
                yield module, functions

    @cached_property
    def _calls(self) -> list[tuple[ModuleUses, set[ast.AST], tuple[ast.AST, ...]]]:
        """The calls that take functions: the definitions that are called, and the functions."""
        self._reach.closure_of((module, module.facts.tree) for module in self._modules.values())
        found: list[tuple[ModuleUses, set[ast.AST], tuple[ast.AST, ...]]] = []
        called: list[tuple[ModuleUses, ast.AST]] = []
        for module in self._modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Call):
                    arguments = (*node.args, *(word.value for word in node.keywords))
                    functions = tuple(part for part in arguments if _is_function(module, part))
                    if functions:
                        targets = {reached.node for reached in self._reach.direct(Reached(module.facts, node.func))}
                        called.append((module, node.func))
                        found.append((module, targets, functions))
        # All at once: each closure by itself would go through most of the project.
        self._reach.closure_of(called)
        return found

    def _is_context_manager(self, context: MeshContext, function: ast.AST) -> bool:
        """Whether the context lasts as long as a `with` over a call of the function around it."""
        if context.kind == STATEMENT:
            return isinstance(function, ast.FunctionDef) and function.name == "__enter__"
        if context.kind != WITH or not isinstance(function, ast.FunctionDef):
            return False
        module = context.module
        named = {module.facts.names.resolve(node, module.scope_of(node)) for node in function.decorator_list}
        return bool(named & _CONTEXT_MANAGERS)

    @cached_property
    def _openings(self) -> list[tuple[ModuleUses, ast.AST, tuple[ast.AST, ...]]]:
        """Every expression that enters a context, and the code that runs in it."""
        found: list[tuple[ModuleUses, ast.AST, tuple[ast.AST, ...]]] = []
        for module in self._modules.values():
            for node in module.nodes:
                if isinstance(node, ast.With | ast.AsyncWith):
                    found += [(module, item.context_expr, tuple(node.body)) for item in node.items]
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += [(module, decorator, (node,)) for decorator in node.decorator_list]
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ENTER:
                    # The stack may be left anywhere.
                    expression = node.args[0] if node.args else node.func.value
                    found.append((module, expression, _after(module, node)))
        self._reach.closure_of((module, expression) for module, expression, _ in found)
        return found


def _has_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(argument.arg not in ("self", "cls") for argument in all_arguments(function.args))


def _is_function(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value may be a function that the project defines: a `lambda`, or a name that is called as well."""
    if isinstance(node, ast.Lambda | ast.Attribute):
        return True
    if isinstance(node, ast.Call):
        return module.facts.names.resolve(node.func, module.scope_of(node)) in _WRAPPERS
    if not isinstance(node, ast.Name):
        return False
    owner = module.scope_of(node).owner(node.id)
    for binding in owner.bindings[node.id] if owner is not None else ():
        value = binding.value
        if binding.kind in ("function", "import") or isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call) and (_is_function(module, value) or node.id in module.called):
            return True
    return False


_WRAPPERS = frozenset((*PJIT, *PARTIALS, "jax.jit", "jax.pmap", "jax.vmap", "jax.grad", "jax.value_and_grad"))
_TAKE_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _after(module: ModuleUses, call: ast.Call) -> tuple[ast.AST, ...]:
    is_at_module_level = module.scope_of(call).kind == "module"
    return rest_of(module, module.statement_of(call)) if is_at_module_level else (module.facts.tree,)
