"""Whether the source shows that a tree may hold `None`."""

from __future__ import annotations

import ast

from mmmodernize.meshes.partition_specs import TREE_MAPS, parts_of
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope


def may_hold_none(context: ModernizeContext, module: ModuleUses, tree: ast.expr) -> bool:
    """Whether `None` is written in `tree`, in a value of its name, or in a function of the project that returns it.

    Parameters and values from libraries show nothing.
    """
    return _Search(context).in_tree(module, tree)


class _Search:
    def __init__(self, context: ModernizeContext) -> None:
        self.context = context
        self.seen: set[object] = set()

    def in_tree(self, module: ModuleUses, node: ast.AST) -> bool:
        if node in self.seen:
            return False
        self.seen.add(node)
        if isinstance(node, ast.Constant):
            return node.value is None
        if isinstance(node, ast.Name):
            return self._in_name(module, node.id, module.scope_of(node))
        if isinstance(node, ast.Call):
            return self._in_call(module, node)
        return any(self.in_tree(module, part) for part in parts_of(node))

    def _in_name(self, module: ModuleUses, name: str, scope: Scope) -> bool:
        owner = scope.owner(name)
        if owner is None or (owner.node, name) in self.seen:
            return False
        self.seen.add((owner.node, name))
        values = [binding.value for binding in owner.bindings[name] if binding.kind != "import" and binding.value]
        if any(self.in_tree(module, value) for value in values):
            return True
        return any(
            self.in_tree(module, node.value)
            for node in ast.walk(owner.node)
            if isinstance(node, ast.Assign)
            and any(_is_part_of(target, name) for target in node.targets)
            and module.scope_of(node.value).owner(name) is owner
        )

    def _in_call(self, module: ModuleUses, call: ast.Call) -> bool:
        scope = module.scope_of(call)
        found = module.facts.names.resolve(call.func, scope)
        if found == "builtins.dict":
            return any(self.in_tree(module, part) for part in (*call.args, *(k.value for k in call.keywords)))
        if found in TREE_MAPS and call.args and isinstance(call.args[0], ast.Lambda):
            return self.in_tree(module, call.args[0].body)
        place = self.context.project.definition(found, module.facts) if found is not None else None
        if place is None or not isinstance(place[1].node, ast.FunctionDef):
            return False
        other = self.context.modules.get(place[0].path) or ModuleUses(place[0])
        returned = (node.value for node in ast.walk(place[1].node) if isinstance(node, ast.Return) and node.value)
        return any(self.in_tree(other, value) for value in returned)


def _is_part_of(target: ast.expr, name: str) -> bool:
    """Whether `target` is a part of `name`: an element, an attribute, or a part of these."""
    if not isinstance(target, ast.Subscript | ast.Attribute):
        return False
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return isinstance(target, ast.Name) and target.id == name
