"""Whether a value is an object of a library that knows no meshes: then its methods give none, either."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmmodernize.types.libraries import gives_no_mesh, is_none, library_name
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding

_DEEPEST = 12


@dataclass(frozen=True, eq=False)
class PlainObjects:
    """Follows values to the library that makes them. `uses_of` gives the uses of names of a module near another."""

    project: Project
    uses_of: Callable[[Facts, ModuleUses], ModuleUses]

    def is_plain(self, module: ModuleUses, node: ast.expr, depth: int = 0) -> bool:
        """Whether an expression is such an object: the result of a call, a name of one, a path."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, ast.Name):
            owner = module.scope_of(node).owner(node.id)
            bindings = owner.bindings[node.id] if owner is not None else []
            return bool(bindings) and all(self._is_plain_value(module, binding, depth + 1) for binding in bindings)
        if isinstance(node, ast.BinOp):
            # Only paths are divided by strings.
            return isinstance(node.op, ast.Div) and _is_text(node.right)
        if not isinstance(node, ast.Call):
            return False
        found = library_name(module, node.func)
        if found is None and isinstance(node.func, ast.Attribute):
            return self.is_plain(module, node.func.value, depth + 1)
        return self._makes_plain(module, node.func, depth + 1)

    def _is_plain_value(self, module: ModuleUses, binding: Binding, depth: int) -> bool:
        if isinstance(binding.node, ast.arg):
            return self._is_plain_name(module, binding.node.annotation)
        value, statement = binding.value, binding.statement
        if value is None and isinstance(statement, ast.Assign) and binding.node in ast.walk(statement.targets[0]):
            # A part of what a library returns: `files, (name,) = library.search(path)`.
            value = statement.value
        return value is not None and self.is_plain(module, value, depth)

    def _makes_plain(self, module: ModuleUses, function: ast.expr, depth: int) -> bool:
        """Whether a call makes such an object: of a library, a class that derives from one, or a function of one."""
        if depth > _DEEPEST:
            return False
        if self._is_plain_name(module, function):
            return True
        found = library_name(module, function)
        place = self.project.definition(found, module.facts) if found is not None else None
        if place is not None:
            module, binding = self.uses_of(place[0], module), place[1]
        else:
            owner = module.scope_of(function).owner(function.id) if isinstance(function, ast.Name) else None
            bindings = owner.bindings[function.id] if owner is not None and isinstance(function, ast.Name) else []
            if len(bindings) != 1:
                return False
            (binding,) = bindings
        node = binding.node
        if isinstance(node, ast.ClassDef):
            return bool(node.bases) and all(self._makes_plain(module, base, depth + 1) for base in node.bases)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            values = [value for value in _returned(node) if not is_none(value)]
            return bool(values) and all(value and self.is_plain(module, value, depth + 1) for value in values)
        # Another name of it.
        is_name = isinstance(binding.value, ast.Name | ast.Attribute) and binding.value is not function
        return is_name and binding.value is not None and self._makes_plain(module, binding.value, depth + 1)

    def _is_plain_name(self, module: ModuleUses, node: ast.expr | None) -> bool:
        found = library_name(module, node) if node is not None else None
        return found is not None and self.project.definition(found, module.facts) is None and gives_no_mesh(found)


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr | None]:
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Return):
            yield node.value
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
