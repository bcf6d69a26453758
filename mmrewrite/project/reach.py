"""What a piece of a program reaches, and which hints therefore stand or fall together.

A step and everything it reaches is one region: rewriting the model but not the step that trains it would leave a
program that nobody asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mmrewrite.directives.collect import Hint
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project, imported_names
from mmrewrite.source.names import Binding, Scope, dotted_name

COMPILE_DIRECTIVES = frozenset(("mjit", "parallelize"))
STEP_DIRECTIVES = COMPILE_DIRECTIVES | {"microbatch"}
# About the module, wherever they stand: they are no part of the statement below them.
MESH_DIRECTIVES = frozenset(("mesh", "axes", "register"))

HintKey = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Reached:
    """A definition, or the right-hand side of a local name, that some code leads to."""

    facts: Facts
    node: ast.AST


class Reach:
    """Follows names through a project. It errs towards reaching too much."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._direct: dict[ast.AST, tuple[Reached, ...]] = {}

    def from_node(self, facts: Facts, node: ast.AST) -> Iterator[Reached]:
        """The node itself and all that it leads to."""
        seen: set[ast.AST] = set()
        queue = [Reached(facts, node)]
        while queue:
            reached = queue.pop()
            if reached.node not in seen:
                seen.add(reached.node)
                yield reached
                queue.extend(self.direct(reached))

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """What it leads to at once, each once."""
        if reached.node not in self._direct:
            # Of several the last stays: it is the one that `from_node` comes to first.
            found = {item.node: item for item in reversed(list(self._names_in(reached)))}
            self._direct[reached.node] = tuple(reversed(found.values()))
        return self._direct[reached.node]

    def _names_in(self, reached: Reached) -> Iterator[Reached]:
        facts = reached.facts
        scope = self._scope(reached)
        for node in self._walk(reached):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield from self._of_name(facts, node.id, scope)
            elif isinstance(node, ast.Attribute):
                dotted = dotted_name(node)
                if dotted is not None:
                    yield from self._of_attribute(facts, dotted, scope)
            else:
                yield from self._of_import(facts, node)

    def _of_name(self, facts: Facts, name: str, scope: Scope) -> Iterator[Reached]:
        owner = scope.owner(name)
        for binding in owner.bindings[name] if owner else ():
            yield from self._binding(facts, binding, owner)

    def _of_attribute(self, facts: Facts, dotted: str, scope: Scope) -> Iterator[Reached]:
        found = facts.names.resolve_dotted(dotted, scope)
        if found:
            yield from self._definition(found, facts)

    def _of_import(self, facts: Facts, node: ast.AST) -> Iterator[Reached]:
        for imported in imported_names(node, facts):
            yield from self._definition(imported, facts)

    def _walk(self, reached: Reached) -> Iterable[ast.AST]:
        """The nodes of what was reached whose names are followed."""
        return ast.walk(reached.node)

    def _scope(self, reached: Reached) -> Scope:
        names, node = reached.facts.names, reached.node
        if node in names.inner:
            return names.inner[node]
        if isinstance(node, ast.stmt):
            return names.scopes[node]
        return names.scope

    def _binding(self, facts: Facts, binding: Binding, owner: Scope | None) -> Iterator[Reached]:
        if binding.target is not None:
            yield from self._definition(binding.target, facts)
        elif binding.statement is not None and binding.kind != "import":
            inside = owner is not None and owner.kind == "function"
            yield Reached(facts, binding.statement if inside else facts.names.top_level(binding.statement))

    def _definition(self, qualified: str, facts: Facts) -> Iterator[Reached]:
        parts = qualified.split(".")
        for length in range(len(parts), 1, -1):
            found = self._project.definition(".".join(parts[:length]), facts)
            if found is not None:
                where, binding = found
                if where is facts and binding.target is not None:
                    return
                yield from self._binding(where, binding, where.names.scope)
                return


def holds(reached: Reached, facts: Facts, statement: ast.stmt) -> bool:
    """Whether `statement` of `facts` lies inside what was reached."""
    node = reached.node
    if reached.facts is not facts or not isinstance(node, ast.stmt):
        return False
    return node is statement or node in facts.names.around(statement)


def find_regions(
    modules: Iterable[Facts], reach: Reach, hints: Iterable[tuple[Facts, Hint]]
) -> list[frozenset[HintKey]]:
    """Groups of hints, by path and offset, that are rewritten together or not at all.

    A hint that cannot be read is part of a group as well, by the offset of the definition that it is in.
    """
    groups = _Groups()
    places: dict[tuple[str, ast.stmt], list[tuple[Facts, int, bool]]] = {}
    for facts, hint in hints:
        if hint.directive not in MESH_DIRECTIVES:
            statement = facts.names.top_level(hint.statement)
            is_step = hint.directive in STEP_DIRECTIVES
            places.setdefault((facts.path, statement), []).append((facts, hint.start, is_step))
    for facts in modules:
        for error in facts.hints.errors:
            broken = _statement_at(facts, error.line)
            if broken is not None:
                place = facts.source.offset(broken.lineno, broken.col_offset)
                places.setdefault((facts.path, broken), []).append((facts, place, False))
    for (path, statement), held in places.items():
        facts, start, _ = held[0]
        for _, other_start, _ in held:
            groups.join((path, start), (path, other_start))
        reached = _hinted(places, reach.from_node(facts, statement))
        if reached <= {(path, statement)} and any(is_step for _, _, is_step in held):
            # A step that gets its model as a value: all that its module leads to may be that model.
            for other in facts.tree.body:
                reached |= _hinted(places, reach.from_node(facts, other))
        for key in reached:
            groups.join((path, start), (key[0], places[key][0][1]))
    return groups.all()


def _statement_at(facts: Facts, line: int) -> ast.stmt | None:
    """The statement of the module's body that a line, or the comment on it, belongs to."""
    return next((statement for statement in facts.tree.body if line <= (statement.end_lineno or 0)), None)


def _hinted(places: Collection[tuple[str, ast.stmt]], reached: Iterable[Reached]) -> set[tuple[str, ast.stmt]]:
    keys = {(item.facts.path, item.node) for item in reached if isinstance(item.node, ast.stmt)}
    return {key for key in places if key in keys}


class _Groups:
    def __init__(self) -> None:
        self._parent: dict[HintKey, HintKey] = {}

    def _find(self, key: HintKey) -> HintKey:
        self._parent.setdefault(key, key)
        while self._parent[key] != key:
            key = self._parent[key]
        return key

    def join(self, first: HintKey, second: HintKey) -> None:
        one, other = sorted((self._find(first), self._find(second)))
        self._parent[other] = one

    def all(self) -> list[frozenset[HintKey]]:
        found: dict[HintKey, set[HintKey]] = {}
        for key in self._parent:
            found.setdefault(self._find(key), set()).add(key)
        return [frozenset(found[key]) for key in sorted(found)]
