"""The classes of a project that the objects of a piece of code are of, as far as their making can be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.analysis.objects.function_uses import FunctionUses
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.functions import returns_of
from mmrewrite.source.names import Binding, Scope, all_arguments

# Their modules keep attributes in a way of their own: copies in each `apply`, state that transformations see, or none.
_MODULES_OF = ("equinox.", "flax.", "haiku.", "jax.", "penzai.")
# Methods of collections whose result is a collection or an iterator.
_VIEWS = frozenset(("copy", "items", "keys", "values"))
# Literals and what is made by writing it out.
_DISPLAYS = (
    ast.Constant | ast.Dict | ast.DictComp | ast.GeneratorExp | ast.JoinedStr | ast.Lambda | ast.List | ast.ListComp
    | ast.Set | ast.SetComp | ast.Tuple
)  # fmt: skip

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

FoundClass = tuple[Facts, ast.ClassDef]


class ObjectClasses:
    """Looks for the class of an object where it is made, annotated, or stored by the class that has it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._uses = FunctionUses(project)

    def of(
        self, node: ast.expr, facts: Facts, scope: Scope, seen: frozenset[ast.AST] = frozenset()
    ) -> FoundClass | None:
        """The class of the project that an object is of; `seen` are expressions that stand for it, as in a circle."""
        if node in seen:
            return None
        seen |= {node}
        if isinstance(node, ast.Call):
            return self.of_value(facts, node, scope, seen)
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value, facts, scope, seen)
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
                return self.of(value, found[0], found[0].names.scope, seen) if found and value is not None else None
            return self.of(binding.value, facts, owner, seen) if binding.value is not None else None
        if isinstance(node, ast.Attribute):
            name = facts.names.resolve(node, scope)
            made = self._project.definition(name, facts) if name is not None else None
            if made is not None and made[1].value is not None:
                return self.of(made[1].value, made[0], made[0].names.scope, seen)
            holder = self.of(node.value, facts, scope, seen)
            return self._of_attribute(*holder, node.attr, seen) if holder is not None else None
        return None

    def may_be_of_the_project(
        self, node: ast.expr, facts: Facts, scope: Scope, seen: frozenset[ast.AST] = frozenset()
    ) -> bool:
        """Whether an object whose class is not found may be of one of the project: no library is seen to make it."""
        if node in seen:
            return False
        seen |= {node}
        if isinstance(node, _DISPLAYS):
            return False
        scope = facts.names.read_in.get(node, scope)
        named = node.func if isinstance(node, ast.Call) else node
        name = facts.names.resolve(named, scope)
        if name is not None:
            return self._project.holds(name, facts) and (named is not node or not self._is_plain(name, facts))
        if self._is_rebuilt(node, facts, scope):
            return False
        match node:
            case ast.Attribute(value=holder, attr=attribute):
                found = self.of(holder, facts, scope)
                if found is not None and self._is_annotated_otherwise(*found, attribute):
                    return False
                values = list(self._values_of(*found, attribute)) if found is not None else []
                return not values or any(self.may_be_of_the_project(*each, seen) for each in values)
            case ast.Subscript(value=holder, slice=ast.Slice()):
                return self.may_be_of_the_project(holder, facts, scope, seen)
            case ast.Call(func=ast.Attribute(value=holder, attr=method)) if method in _VIEWS:
                return self.may_be_of_the_project(holder, facts, scope, seen)
        owner = scope.owner(node.id) if isinstance(node, ast.Name) else None
        for binding in owner.bindings[node.id] if owner is not None and isinstance(node, ast.Name) else ():
            if binding.kind in ("class", "function"):
                continue
            if binding.value is None or self.may_be_of_the_project(binding.value, facts, owner or scope, seen):
                return True
        return owner is None

    def _is_plain(self, name: str, near: Facts) -> bool:
        """Whether a name is that of a function or a class itself, which has no methods of the project."""
        found = self._project.definition(name, near)
        node = found[1].node if found is not None else None
        if isinstance(node, ast.ClassDef):
            return not node.decorator_list and not node.keywords
        return isinstance(node, _FUNCTIONS) and not node.decorator_list

    def _is_annotated_otherwise(self, facts: Facts, definition: ast.ClassDef, name: str) -> bool:
        """Whether a class says that an attribute is of a type that is not the project's, such as `list[Block]`."""
        for where, owner in self.with_bases(facts, definition):
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                    whole = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
                    kind = where.names.resolve(whole, where.names.scope)
                    return kind not in (None, "typing.Any", "builtins.object") and not self._project.holds(
                        str(kind), where
                    )
        return False

    def _is_rebuilt(self, node: ast.expr, facts: Facts, scope: Scope) -> bool:
        """Whether an expression is a parameter of a compiled function, or a part of one: JAX rebuilds these."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        binding = facts.names.binding(node.id, scope) if isinstance(node, ast.Name) else None
        owner = scope.owner(binding.name) if binding is not None else None
        is_parameter = binding is not None and binding.kind == "parameter"
        return is_parameter and owner is not None and self._uses.is_compiled(facts, owner.node)

    def defining(self, facts: Facts, method: str) -> tuple[FoundClass, ...]:
        """The classes of a program that have a method, but for modules of Flax and the like."""
        return self._defining(facts).get(method, ())

    def _defining(self, facts: Facts) -> dict[str, tuple[FoundClass, ...]]:
        return self._project.once(("methods of classes", facts.path), lambda: self._find_defining(facts))

    def _find_defining(self, facts: Facts) -> dict[str, tuple[FoundClass, ...]]:
        found: dict[str, tuple[FoundClass, ...]] = {}
        for module in self._uses.program(facts):
            definitions = [node for node in module.names.inner if isinstance(node, ast.ClassDef)]
            for definition in definitions:
                if self.is_of_a_library(module, definition):
                    continue
                for name in {each.name for each in definition.body if isinstance(each, _FUNCTIONS)}:
                    found[name] = (*found.get(name, ()), (module, definition))
        return found

    def is_defined(self, facts: Facts, method: str) -> bool:
        """Whether any class of a program has a method, modules of Flax and the like among them."""
        return method in self._project.once(("names of methods", facts.path), lambda: self._find_names(facts))

    def _find_names(self, facts: Facts) -> set[str]:
        owners = (node for module in self._uses.program(facts) for node in module.names.inner)
        parts = (part for owner in owners if isinstance(owner, ast.ClassDef) for part in owner.body)
        return {part.name for part in parts if isinstance(part, _FUNCTIONS)}

    def extended(self, facts: Facts, definition: ast.ClassDef, method: str) -> Iterator[FoundClass]:
        """The classes of a program that extend a class and have a method of their own."""
        for where, other in self.defining(facts, method):
            if other is not definition and any(base is definition for _, base in self.with_bases(where, other)):
                yield where, other

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

    def _of_attribute(
        self, facts: Facts, definition: ast.ClassDef, name: str, seen: frozenset[ast.AST]
    ) -> FoundClass | None:
        for where, owner in self.with_bases(facts, definition):
            for node in ast.walk(owner):
                if not isinstance(node, ast.stmt):
                    continue
                targets = node.targets if isinstance(node, ast.Assign) else []
                if any(_is_attribute(each, name, node, owner) for each in targets):
                    assert isinstance(node, ast.Assign)
                    found = self.of(node.value, where, where.names.scopes.get(node, where.names.scope), seen)
                    if found is not None:
                        return found
                if isinstance(node, ast.AnnAssign) and (
                    (isinstance(node.target, ast.Name) and node.target.id == name)
                    or (isinstance(node.target, ast.Attribute) and node.target.attr == name)
                ):
                    return self.named(node.annotation, where, where.names.scopes.get(node, where.names.scope))
        return None

    def _values_of(self, facts: Facts, definition: ast.ClassDef, name: str) -> Iterator[tuple[ast.expr, Facts, Scope]]:
        """What a class and its bases assign to an attribute."""
        for where, owner in self.with_bases(facts, definition):
            for node in ast.walk(owner):
                scope = where.names.scopes.get(node, where.names.scope) if isinstance(node, ast.stmt) else None
                if isinstance(node, ast.Assign) and scope is not None:
                    if any(_is_attribute(each, name, node, owner) for each in node.targets):
                        yield node.value, where, scope
                elif isinstance(node, ast.AnnAssign) and scope is not None and node.value is not None:
                    yield from [(node.value, where, scope)] if _is_attribute(node.target, name, node, owner) else ()

    def of_value(
        self, facts: Facts, value: ast.expr | None, scope: Scope, seen: frozenset[ast.AST] = frozenset()
    ) -> FoundClass | None:
        """The class that an expression calls, or of which the function is that it calls gives an object."""
        if not isinstance(value, ast.Call):
            return None
        found = self.named(value.func, facts, scope)
        if found is not None:
            return found
        function = self._function(value.func, facts, scope)
        if function is None:
            return None
        where, definition = function
        inner = where.names.inner[definition]
        made = (
            self.of(each.value, where, inner, seen)
            for each in returns_of(definition)
            if each.value is not None and each.value not in seen
        )
        return next(filter(None, made), None)

    def _function(
        self, node: ast.expr, facts: Facts, scope: Scope
    ) -> tuple[Facts, ast.FunctionDef | ast.AsyncFunctionDef] | None:
        binding = facts.names.binding(node.id, scope) if isinstance(node, ast.Name) else None
        if binding is not None and isinstance(binding.node, _FUNCTIONS):
            return facts, binding.node
        name = facts.names.resolve(node, scope)
        found = self._project.definition(name, facts) if name is not None else None
        return (found[0], found[1].node) if found is not None and isinstance(found[1].node, _FUNCTIONS) else None

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


def _is_attribute(target: ast.expr, name: str, statement: ast.stmt, definition: ast.ClassDef) -> bool:
    """Whether an assignment in a class sets an attribute: `self.name` in a method, or `name` in its body."""
    if isinstance(target, ast.Attribute):
        return target.attr == name
    return isinstance(target, ast.Name) and target.id == name and statement in definition.body
