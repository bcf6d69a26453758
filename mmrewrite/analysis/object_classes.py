"""The classes of a project that the objects of a piece of code are of, as far as their making can be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.names import Binding, Scope, all_arguments

# Their modules keep attributes in a way of their own: copies in each `apply`, state that transformations see, or none.
_MODULES_OF = ("equinox.", "flax.", "haiku.", "jax.", "penzai.")
# Aliases may form a circle, across modules too.
_DEPTH = 6

FoundClass = tuple[Facts, ast.ClassDef]


class ObjectClasses:
    """Looks for the class of an object where it is made, annotated, or stored by the class that has it."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def of(self, node: ast.expr, facts: Facts, scope: Scope, depth: int = _DEPTH) -> FoundClass | None:
        """The class of the project that an object is of."""
        if depth == 0:
            return None
        if isinstance(node, ast.Call):
            return self.of_value(facts, node, scope)
        if isinstance(node, ast.Name):
            scope = facts.names.read_in.get(node, scope)
            owner = scope.owner(node.id)
            binding = facts.names.binding(node.id, scope)
            if binding is None or owner is None:
                return None
            if binding.kind == "parameter":
                return self.of_parameter(binding, owner, facts)
            if binding.target is not None:
                found = self._project.definition(facts.names.follow(binding.target), facts)
                value = found[1].value if found is not None else None
                is_call = found is not None and isinstance(value, ast.Call)
                return self.of_value(found[0], value, found[0].names.scope) if found and is_call else None
            if isinstance(binding.value, ast.Name | ast.Attribute):
                return self.of(binding.value, facts, scope, depth - 1)
            return self.of_value(facts, binding.value, owner)
        if isinstance(node, ast.Attribute):
            holder = self.of(node.value, facts, scope, depth - 1)
            return self._of_attribute(*holder, node.attr) if holder is not None else None
        return None

    def of_parameter(self, binding: Binding, owner: Scope | None, facts: Facts) -> FoundClass | None:
        """The class of a parameter: `self`, or one with an annotation."""
        node = owner.node if owner is not None else None
        if owner is None or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        holder = owner.parent
        if holder is not None and isinstance(holder.node, ast.ClassDef) and _is_first(binding, node):
            return facts, holder.node
        annotation = next((each.annotation for each in all_arguments(node.args) if each.arg == binding.name), None)
        return self.named(annotation, facts, holder or facts.names.scope)

    def _of_attribute(self, facts: Facts, definition: ast.ClassDef, name: str) -> FoundClass | None:
        for node in ast.walk(definition):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(each, ast.Attribute) and each.attr == name for each in targets):
                assert isinstance(node, ast.Assign)
                return self.of_value(facts, node.value, facts.names.scopes.get(node, facts.names.scope))
            if isinstance(node, ast.AnnAssign) and (
                (isinstance(node.target, ast.Name) and node.target.id == name)
                or (isinstance(node.target, ast.Attribute) and node.target.attr == name)
            ):
                return self.named(node.annotation, facts, facts.names.scopes.get(node, facts.names.scope))
        return None

    def of_value(self, facts: Facts, value: ast.expr | None, scope: Scope) -> FoundClass | None:
        """The class that an expression calls."""
        return self.named(value.func, facts, scope) if isinstance(value, ast.Call) else None

    def named(self, node: ast.expr | None, facts: Facts, scope: Scope) -> FoundClass | None:
        """The class that an expression names."""
        if node is None:
            return None
        if isinstance(node, ast.Name):
            binding = facts.names.binding(node.id, scope)
            if binding is not None and isinstance(binding.node, ast.ClassDef):
                return facts, binding.node
        name = facts.names.resolve(node, scope)
        found = self._project.definition(name, facts) if name is not None else None
        return (found[0], found[1].node) if found is not None and isinstance(found[1].node, ast.ClassDef) else None

    def with_bases(self, facts: Facts, definition: ast.ClassDef) -> Iterator[FoundClass]:
        """A class and its bases in the project, in the order in which methods are looked for, but for diamonds."""
        queue, seen = [(facts, definition)], {definition}
        for where, owner in queue:
            yield where, owner
            for base in owner.bases:
                found = self.named(base, where, where.names.scopes.get(owner, where.names.scope))
                if found is not None and found[1] not in seen:
                    seen.add(found[1])
                    queue.append(found)

    def is_of_a_library(self, facts: Facts, definition: ast.ClassDef) -> bool:
        """Whether a class extends a module of Flax or the like."""
        for where, owner in self.with_bases(facts, definition):
            scope = where.names.scopes.get(owner, where.names.scope)
            if any((where.names.resolve(base, scope) or "").startswith(_MODULES_OF) for base in owner.bases):
                return True
        return False


def _is_first(binding: Binding, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return [*node.args.posonlyargs, *node.args.args][:1] == [binding.node]
