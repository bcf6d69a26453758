"""The definitions that code leads to, where an attribute may be any method or field of its name in the project."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from mmrewrite.modernize.analysis.old_names import PARTIALS, PJIT
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, Reached
from mmrewrite.source.names import Scope, dotted_name


class WideReach(Reach):
    """Over-approximates further: `trainer.step(x)` leads to every method `step` and every `self.step = ...`."""

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses]) -> None:
        super().__init__(project)
        self.project = project
        self._by_facts = {id(module.facts): module for module in modules.values()}
        self.members: dict[str, list[Reached]] = {}
        # Caches: the reversed edges of the graph, made when it had `_led_from` nodes, and the targets of each name.
        self._leading: dict[ast.AST, list[ast.AST]] = {}
        self._led_from = 0
        self._known: dict[Scope, dict[str, tuple[Reached, ...]]] = {}
        for module in modules.values():
            for node in module.nodes:
                if isinstance(node, ast.FunctionDef) and isinstance(module.parents.get(node), ast.ClassDef):
                    self.members.setdefault(node.name, []).append(Reached(module.facts, node))
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    statement = module.statement_of(node)
                    if not isinstance(statement, ast.For | ast.With):
                        self.members.setdefault(node.attr, []).append(Reached(module.facts, statement))

    def _names_in(self, reached: Reached) -> Iterator[Reached]:
        scope = self._scope(reached)
        known = self._known.setdefault(scope, {})
        for node in self._walk(reached):
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    if node.id not in known:
                        known[node.id] = tuple(self._of_name(reached.facts, node.id, scope))
                    yield from known[node.id]
            elif isinstance(node, ast.Attribute):
                dotted = dotted_name(node)
                if dotted is not None:
                    if dotted not in known:
                        known[dotted] = tuple(self._of_attribute(reached.facts, dotted, scope))
                    yield from known[dotted]
                if isinstance(node.ctx, ast.Load):
                    yield from self._members_of(reached, node)
            else:
                yield from self._of_import(reached.facts, node)

    def _walk(self, reached: Reached) -> Iterable[ast.AST]:
        inside = reached.facts.mentions.inside(reached.node)
        return ast.walk(reached.node) if inside is None else inside

    def _members_of(self, reached: Reached, node: ast.Attribute) -> Iterable[Reached]:
        return self.members.get(node.attr, ())

    def closure_of(self, units: Iterable[tuple[ModuleUses, ast.AST]]) -> set[ast.AST]:
        """Nodes of several modules, and every definition that one of them leads to."""
        seen: set[ast.AST] = set()
        queue = [Reached(module.facts, node) for module, node in units]
        while queue:
            reached = queue.pop()
            if reached.node not in seen:
                seen.add(reached.node)
                queue.extend(self.direct(reached))
        return seen

    def leading_to(self, targets: Iterable[ast.AST]) -> set[ast.AST]:
        """The targets, and all nodes visited so far that lead to one of them."""
        if self._led_from != len(self._direct):
            self._led_from, self._leading = len(self._direct), {}
            for node, found in self._direct.items():
                for reached in found:
                    self._leading.setdefault(reached.node, []).append(node)
        seen: set[ast.AST] = set()
        queue = list(targets)
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue.extend(self._leading.get(node, ()))
        return seen

    def closure(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> set[ast.AST]:
        """`nodes` and every definition that they lead to."""
        return {reached.node for node in nodes for reached in self.from_node(module.facts, node)}

    def not_given(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> list[Facts]:
        """Modules that `nodes` lead to and that are not among those that may change."""
        found = {
            reached.facts.path: reached.facts
            for node in nodes
            for reached in self.from_node(module.facts, node)
            if id(reached.facts) not in self._by_facts
        }
        return [found[path] for path in sorted(found)]


class NarrowReach(WideReach):
    """Over-approximates less: `self.step` leads to the `step` of its own class; other attributes only by full name."""

    def _members_of(self, reached: Reached, node: ast.Attribute) -> Iterable[Reached]:
        if not isinstance(node.value, ast.Name) or node.value.id not in ("self", "cls"):
            return ()
        module = self._by_facts.get(id(reached.facts))
        found = self.members.get(node.attr, [])
        if module is None:
            return found
        owner = _class_of(module, node)
        own = [other for other in found if other.facts is reached.facts and owner is _class_of(module, other.node)]
        return own or found


class OutsideReach(WideReach):
    """Stops at statements that run in a mesh context, such as the body of `with mesh:`."""

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses], inside: Collection[ast.AST]) -> None:
        super().__init__(project, modules)
        self._inside = inside

    def _walk(self, reached: Reached) -> Iterator[ast.AST]:
        queue = [reached.node]
        while queue:
            node = queue.pop()
            yield node
            queue += [child for child in ast.iter_child_nodes(node) if child not in self._inside]


def _class_of(module: ModuleUses, node: ast.AST) -> ast.AST | None:
    return next((holder for holder in module.above(node) if isinstance(holder, ast.ClassDef)), None)


class UncompiledReach(WideReach):
    """Stops at functions that `pjit` compiles, which run where their shardings say, whatever the context."""

    def _walk(self, reached: Reached) -> Iterator[ast.AST]:
        module = self._by_facts.get(id(reached.facts))
        queue = [reached.node]
        while queue:
            node = queue.pop()
            yield node
            compiled = list(_compiled_in(module, node)) if module is not None else []
            queue += [child for child in ast.iter_child_nodes(node) if child not in compiled]


def _compiled_in(module: ModuleUses, node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that `pjit` compiles: the function of a call, the body of a decorated definition."""
    if isinstance(node, ast.Call) and _is_pjit(module, node.func):
        yield from node.args[:1]
        yield from (keyword for keyword in node.keywords if keyword.arg == "fun")
    elif isinstance(node, ast.FunctionDef) and any(_is_pjit(module, decorator) for decorator in node.decorator_list):
        yield from node.body


def _is_pjit(module: ModuleUses, node: ast.expr) -> bool:
    names, scope = module.facts.names, module.scope_of(node)
    if isinstance(node, ast.Call):
        return names.resolve(node.func, scope) in PARTIALS and bool(node.args) and _is_pjit(module, node.args[0])
    return names.resolve(node, scope) in PJIT
