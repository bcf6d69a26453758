"""The functions and methods that a piece of a program calls, transitively, where it is seen which these are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.analysis.objects.object_classes import ObjectClasses
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reached, VisibleReach
from mmrewrite.source.names import Scope


class FunctionReach(VisibleReach):
    """Looks into functions alone: what else a name is bound to was computed before, or is not known to be called."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self._classes = ObjectClasses(project)

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """The nodes that the names in a function lead to, without repetition; none for anything else."""
        return super().direct(reached) if self._is_function(reached.facts, reached.node) else ()

    def _is_function(self, facts: Facts, node: ast.AST) -> bool:
        """Whether a node defines a function, or gives one another name."""
        if not isinstance(node, ast.Assign):
            return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node.value, ast.Call):
            return facts.names.resolve(node.value.func, facts.names.scopes[node]) == "functools.partial"
        return isinstance(node.value, ast.Lambda | ast.Name | ast.Attribute)

    def _bound_by(self, facts: Facts, statement: ast.stmt, owner: Scope | None) -> ast.stmt:
        return statement

    def _of_object(self, facts: Facts, node: ast.Attribute, scope: Scope) -> Iterator[Reached]:
        """What an attribute is in the class of its object, or in one that extends it."""
        found = self._classes.of(node.value, facts, scope)
        if found is not None:
            for each in (found, *self._classes.extended(*found, node.attr)):
                yield from self._member(*each, node.attr)
