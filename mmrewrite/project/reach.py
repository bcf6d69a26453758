"""The definitions that a piece of a program leads to, transitively and across modules."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project, imported_names
from mmrewrite.source.names import Binding, Scope, all_arguments, dotted_name, root_of
from mmrewrite.source.walk import walk

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Reached:
    """A node that some code leads to: a definition, or the statement that assigns a local name.

    `is_parameter` says that the name is a parameter, and the node the function that has it.
    """

    facts: Facts
    node: ast.AST
    is_parameter: bool = False


# From so many bindings on, what reads a name leads to all of them by one node: a file may have thousands of each.
_MANY = 16


class Several(ast.AST):
    """Stands for several nodes where much leads to all of them."""

    def __init__(self, nodes: Iterable[Reached]) -> None:
        super().__init__()
        self.nodes = tuple(nodes)


class Reach:
    """Follows names through a project, without flow analysis: it reaches too much rather than too little.

    Attributes:
        has_shared: Whether names with many bindings share what they lead to.
    """

    has_shared: ClassVar[bool] = True

    def __init__(self, project: Project) -> None:
        self._project = project
        self._direct: dict[ast.AST, tuple[Reached, ...]] = {}
        self._shared: dict[tuple[str, Scope], Reached] = {}

    def from_node(self, facts: Facts, node: ast.AST, seen: set[ast.AST] | None = None) -> Iterator[Reached]:
        """The node itself and all that it leads to, transitively, without what was `seen`, which grows."""
        seen = set() if seen is None else seen
        queue, followed = [Reached(facts, node)], set[ast.AST]()
        while queue:
            reached = queue.pop()
            if reached.node not in seen:
                seen.add(reached.node)
                if not isinstance(reached.node, Several):
                    yield reached
                around = reached.facts.names.around(reached.node) if isinstance(reached.node, ast.stmt) else ()
                # What is inside of another was followed with that.
                if followed.isdisjoint(around):
                    followed.add(reached.node)
                    queue.extend(self.direct(reached))

    def from_expression(self, facts: Facts, node: ast.expr, scope: Scope) -> Iterator[Reached]:
        """All that the names in an expression lead to, transitively; `scope` is where it stands."""
        for start in self._names_of(facts, walk(node), facts.names.inner.get(node, scope)):
            yield from self.from_node(start.facts, start.node)

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """The nodes that the names in a node lead to, without repetition."""
        if isinstance(reached.node, Several):
            return reached.node.nodes
        if reached.node not in self._direct:
            # Of repeated nodes the last stays: `from_node` pops that one first.
            found = {(item.node, item.is_parameter): item for item in reversed([*self._names_in(reached)])}
            self._direct[reached.node] = tuple(reversed(found.values()))
        return self._direct[reached.node]

    def _names_in(self, reached: Reached) -> Iterable[Reached]:
        return self._names_of(reached.facts, self._walk(reached), self._scope(reached))

    def _names_of(self, facts: Facts, nodes: Iterable[ast.AST], scope: Scope) -> Iterator[Reached]:
        seen: set[tuple[str, Scope]] = set()
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                # A class holds methods, whose parameters are no names of the module.
                inner = facts.names.read_in.get(node, scope)
                if (node.id, inner) not in seen:
                    seen.add((node.id, inner))
                    yield from self._of_name(facts, node.id, inner)
            elif isinstance(node, ast.Attribute):
                if (dotted := dotted_name(node)) is not None:
                    inner = facts.names.read_in.get(root_of(node), scope)
                    if (dotted, inner) not in seen:
                        seen.add((dotted, inner))
                        yield from self._of_attribute(facts, dotted, inner)
                        yield from self._of_object(facts, node, scope)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._of_import(facts, node)

    def _of_name(self, facts: Facts, name: str, scope: Scope) -> Iterator[Reached]:
        owner = scope.owner(name)
        if owner is not None and self.has_shared and len(owner.bindings[name]) >= _MANY:
            if (name, owner) not in self._shared:
                found = (each for binding in owner.bindings[name] for each in self._binding(facts, binding, owner))
                self._shared[name, owner] = Reached(facts, Several(found))
            yield self._shared[name, owner]
        else:
            for binding in owner.bindings[name] if owner else ():
                yield from self._binding(facts, binding, owner)
        if owner is None or owner is facts.names.scope:
            yield from self._of_stars(facts, name)

    def _of_stars(self, facts: Facts, name: str) -> Iterator[Reached]:
        """What the module's `from ... import *` may bind a name to."""
        queue, seen = [facts], {facts}
        while queue:
            near = queue.pop()
            for star in near.names.stars:
                found = self._project.star_module(star, near) if near.names.star_gives(star, name) else None
                if found is not None and found not in seen:
                    seen.add(found)
                    queue.append(found)
                    for binding in found.names.scope.bindings.get(name, ()):
                        yield from self._binding(found, binding, found.names.scope)

    def _of_attribute(self, facts: Facts, dotted: str, scope: Scope) -> Iterator[Reached]:
        found = facts.names.resolve_dotted(dotted, scope)
        if found:
            yield from self._definition(found, facts)

    def _of_object(self, facts: Facts, node: ast.Attribute, scope: Scope) -> Iterator[Reached]:
        """What an attribute of `self` is in the class around a method, or in the classes that it extends."""
        owner = scope.owner(node.value.id) if isinstance(node.value, ast.Name) else None
        holder = owner.parent.node if owner is not None and owner.parent is not None else None
        if owner is not None and isinstance(holder, ast.ClassDef) and isinstance(owner.node, _FUNCTIONS):
            first = next(all_arguments(owner.node.args), None)
            if first in [each.node for each in owner.bindings[ast.unparse(node.value)]]:
                yield from self._member(facts, holder, node.attr)

    def _member(self, facts: Facts, definition: ast.ClassDef, name: str) -> Iterator[Reached]:
        """What a class and its bases bind an attribute of their objects to."""
        queue, seen = [Reached(facts, definition)], {definition}
        for reached in queue:
            where, owner = reached.facts, reached.node
            assert isinstance(owner, ast.ClassDef)
            members = self._project.once(("members", owner), functools.partial(_members, where, owner))
            yield from (Reached(where, statement) for statement in members.get(name, ()))
            for base in self._names_of(where, owner.bases, where.names.scopes[owner]):
                if isinstance(base.node, ast.ClassDef) and base.node not in seen:
                    seen.add(base.node)
                    queue.append(base)

    def _of_import(self, facts: Facts, node: ast.AST) -> Iterator[Reached]:
        for imported in imported_names(node, facts):
            yield from self._definition(imported, facts)

    def _walk(self, reached: Reached) -> Iterable[ast.AST]:
        """The nodes of what was reached whose names are followed."""
        return walk(reached.node)

    def _scope(self, reached: Reached) -> Scope:
        names, node = reached.facts.names, reached.node
        if node in names.inner:
            return names.inner[node]
        if isinstance(node, ast.stmt):
            return names.scopes[node]
        return names.scope

    def _binding(self, facts: Facts, binding: Binding, owner: Scope | None) -> Iterator[Reached]:
        # Modules may import a name from each other in a circle.
        seen: set[Binding] = set()
        while binding.target is not None:
            seen.add(binding)
            found = self._bound_to(binding.target, facts)
            if found is None or found[1] in seen:
                return
            facts, binding = found
            owner = facts.names.scope
        if binding.statement is not None and binding.kind != "import":
            node = self._bound_by(facts, binding.statement, owner)
            yield Reached(facts, node, isinstance(binding.node, ast.arg))

    def _bound_by(self, facts: Facts, statement: ast.stmt, owner: Scope | None) -> ast.stmt:
        """What is reached with a name that a statement binds in a scope."""
        inside = owner is not None and owner.kind == "function"
        return statement if inside else facts.names.top_level(statement)

    def _definition(self, qualified: str, facts: Facts) -> Iterator[Reached]:
        found = self._bound_to(qualified, facts)
        if found is not None:
            where, binding = found
            yield from self._binding(where, binding, where.names.scope)

    def _bound_to(self, qualified: str, facts: Facts) -> tuple[Facts, Binding] | None:
        """What a full name is bound to, and where; None for a name that the module only imports."""
        parts = qualified.split(".")
        # The longest prefix with a definition: of `model.Encoder.apply` that is the class.
        for length in range(len(parts), 1, -1):
            found = self._project.definition(".".join(parts[:length]), facts)
            if found is not None:
                where, binding = found
                return None if where is facts and binding.target is not None else found
        return None


def _members(facts: Facts, definition: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """The statements that give objects of a class an attribute: in its body, and assignments in its methods."""
    found: defaultdict[str, list[ast.stmt]] = defaultdict(list)
    for name, bindings in facts.names.inner[definition].bindings.items():
        found[name] += [binding.statement for binding in bindings if binding.statement is not None]
    for node in walk(definition):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                stored = (each for each in walk(target) if isinstance(each, ast.Attribute))
                for attribute in stored:
                    if isinstance(attribute.ctx, ast.Store):
                        found[attribute.attr].append(node)
    return found


class VisibleReach(Reach):
    """Stops at parameters: their values come from callers, and the function around them says nothing about them.

    What nodes lead to is asked of `whole`.
    """

    def __init__(self, project: Project, whole: Reach | None = None) -> None:
        super().__init__(project)
        self._whole = whole or reach_of(project)

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """The nodes that the names in a node lead to, but for parameters, without repetition."""
        return tuple(each for each in self._whole.direct(reached) if not each.is_parameter)

    def _names_of(self, facts: Facts, nodes: Iterable[ast.AST], scope: Scope) -> Iterator[Reached]:
        return (each for each in super()._names_of(facts, nodes, scope) if not each.is_parameter)


def reach_of(project: Project) -> Reach:
    """The reach of a project, which remembers what nodes lead to; the same for each call."""
    return project.once("reach", lambda: Reach(project))


def holds(reached: Reached, facts: Facts, statement: ast.stmt) -> bool:
    """Whether `statement` of `facts` lies inside what was reached."""
    node = reached.node
    if reached.facts is not facts or not isinstance(node, ast.stmt):
        return False
    return node is statement or node in facts.names.around(statement)
