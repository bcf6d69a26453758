"""What code leads to, when attributes may be any method or field of their name in the project."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.project import Facts, Project
from mmrewrite.regions import Reach, Reached


class WideReach(Reach):
    """Errs further towards too much: `trainer.step(x)` leads to every method `step` and every `self.step = ...`."""

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses]) -> None:
        super().__init__(project)
        self.project = project
        self._given = {id(module.facts) for module in modules.values()}
        self._modules = modules
        self.members: dict[str, list[Reached]] = {}
        for module in modules.values():
            for node in ast.walk(module.facts.tree):
                if isinstance(node, ast.FunctionDef) and isinstance(module.parents.get(node), ast.ClassDef):
                    self.members.setdefault(node.name, []).append(Reached(module.facts, node))
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    statement = module.statement_of(node)
                    if not isinstance(statement, ast.For | ast.With):
                        self.members.setdefault(node.attr, []).append(Reached(module.facts, statement))

    def _names_in(self, reached: Reached) -> Iterator[Reached]:
        yield from super()._names_in(reached)
        for node in ast.walk(reached.node):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield from self.members.get(node.attr, ())

    def closure(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> set[ast.AST]:
        """`nodes` and every definition that they lead to."""
        return {reached.node for node in nodes for reached in self.from_node(module.facts, node)}

    def not_given(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> list[Facts]:
        """Modules that `nodes` lead to, and that are not among those which may change."""
        found = {
            reached.facts.path: reached.facts
            for node in nodes
            for reached in self.from_node(module.facts, node)
            if id(reached.facts) not in self._given
        }
        return [found[path] for path in sorted(found)]
