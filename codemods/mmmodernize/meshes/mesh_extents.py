"""The code that runs in each mesh context, also where the context outlasts the function that enters it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from mmmodernize.calls.call_forms import form_of
from mmmodernize.calls.components import bits, combined, marks_of
from mmmodernize.calls.wide_reach import Unit, WideReach
from mmmodernize.meshes.mesh_contexts import STATEMENT, WITH, MeshContext, rest_of
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import all_arguments
from mmrewrite.values.uses import WRAPPERS

_ENTER = frozenset(("enter_context", "__enter__"))
_CONTEXT_MANAGERS = frozenset(("contextlib.contextmanager", "contextlib.asynccontextmanager"))


class ContextExtents:
    """Finds the callers of functions that leave a mesh in context: by a `yield` in `with mesh:`, or by hand."""

    def __init__(self, contexts: Collection[MeshContext], modules: Mapping[str, ModuleUses], reach: WideReach) -> None:
        self._contexts, self._modules, self._reach = contexts, modules, reach

    def of(self, context: MeshContext) -> tuple[Unit, ...]:
        """The code that runs in a context, and what may."""
        return self._extents[context]

    @cached_property
    def _extents(self) -> Mapping[MeshContext, tuple[Unit, ...]]:
        handed = self._find_handed(self._contexts)
        opened = self._find_opened([context for context in self._contexts if self._is_opened(context)])
        return {context: tuple(self._find(context, handed, opened)) for context in self._contexts}

    def _find(
        self,
        context: MeshContext,
        handed: Mapping[MeshContext, Sequence[Unit]],
        opened: Mapping[MeshContext, Sequence[Unit]],
    ) -> Iterator[Unit]:
        yield context.module, context.body
        yield from handed.get(context, ())
        if context in opened:
            yield from opened[context]
        elif context.outlasts:
            # Whatever runs later may run in it.
            yield self._everything

    @cached_property
    def _everything(self) -> Unit:
        return self._reach.unit((module, (module.facts.tree,)) for module in self._modules.values())

    def _find_handed(self, contexts: Collection[MeshContext]) -> dict[MeshContext, list[Unit]]:
        """Functions that calls hand to the function around a context, which may call them in it."""
        around = {context: [*_around(context, _TAKE_FUNCTIONS)] for context in contexts}
        taking = [context for context, nodes in around.items() if any(map(_takes_functions, nodes))]
        if not taking:
            return {}
        # What is called, and the functions that it is given.
        calls = [
            (module, self._reach.targets(module, function), functions)
            for module in self._modules.values()
            for function, functions in _handing(module)
        ]
        leading = self._reach.leading(marks_of(around[context] for context in taking))
        by_contexts: dict[int, list[Unit]] = {}
        for module, targets, functions in calls:
            by_contexts.setdefault(combined(leading, targets), []).append((module, functions))
        by_contexts.pop(0, None)
        found: dict[MeshContext, list[Unit]] = {}
        for mask, units in by_contexts.items():
            unit = self._reach.unit(units)
            for number in bits(mask):
                found.setdefault(taking[number], []).append(unit)
        return found

    def _is_opened(self, context: MeshContext) -> bool:
        """Whether other code enters the context, by calling the function around it, and decides how long it lasts."""
        if not context.outlasts:
            return False
        holder = next(_around(context, _DEFINITIONS), None)
        return holder is not None and self._is_context_manager(context, holder)

    def _find_opened(self, contexts: Sequence[MeshContext]) -> dict[MeshContext, list[Unit]]:
        """The code that runs in what opens contexts."""
        found: dict[MeshContext, list[Unit]] = {context: [] for context in contexts}
        if not contexts:
            return found
        openings = [(module, *opening) for module in self._modules.values() for opening in _openings(module)]
        self._reach.visit((module, [expression]) for module, expression, _ in openings)
        leading = self._reach.leading(marks_of(_around(context, _DEFINITIONS) for context in contexts))
        for module, expression, body in openings:
            for number in bits(leading(expression)):
                found[contexts[number]].append((module, body))
        return found

    def _is_context_manager(self, context: MeshContext, function: ast.AST) -> bool:
        """Whether the context lasts as long as a `with` over a call of the function around it."""
        if context.kind == STATEMENT:
            return isinstance(function, ast.FunctionDef) and function.name == "__enter__"
        if context.kind != WITH or not isinstance(function, ast.FunctionDef):
            return False
        module = context.module
        named = {module.full_name(node) for node in function.decorator_list}
        return bool(named & _CONTEXT_MANAGERS)


def _handing(module: ModuleUses) -> Iterator[tuple[ast.expr, tuple[ast.AST, ...]]]:
    """The calls that take functions: what is called, and the functions."""
    for node in module.nodes_of(ast.Call):
        arguments = (*node.args, *(word.value for word in node.keywords))
        functions = tuple(part for part in arguments if _is_function(module, part))
        if functions:
            yield node.func, functions


def _openings(module: ModuleUses) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Every expression of a module that enters a context, and the code that runs in it."""
    for node in module.nodes_of(*_OPENING):
        if isinstance(node, ast.With | ast.AsyncWith):
            yield from ((item.context_expr, tuple(node.body)) for item in node.items)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((decorator, (node,)) for decorator in node.decorator_list)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ENTER:
            # The stack may be left anywhere.
            yield node.args[0] if node.args else node.func.value, _after(module, node)


def _around(context: MeshContext, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """The nodes of some kinds that hold a context, innermost first."""
    return (node for node in context.module.above(context.node) if isinstance(node, kinds))


def _takes_functions(node: ast.AST) -> bool:
    """Whether a function or a class may be handed functions: a class by any of its methods."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return isinstance(node, ast.ClassDef)
    return any(argument.arg not in ("self", "cls") for argument in all_arguments(node.args))


def _is_function(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value may be a function that the project defines: a `lambda`, or a name that is called as well."""
    if isinstance(node, ast.Lambda | ast.Attribute):
        return True
    if isinstance(node, ast.Call):
        name = module.full_name(node.func)
        return name in WRAPPERS or not form_of(module, node).is_called
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


_TAKE_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OPENING = (ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef, ast.Call)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _after(module: ModuleUses, call: ast.Call) -> tuple[ast.AST, ...]:
    is_at_module_level = module.scope_of(call).kind == "module"
    return rest_of(module, module.statement_of(call)) if is_at_module_level else (module.facts.tree,)
