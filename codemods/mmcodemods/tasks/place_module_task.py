"""Run a Flax module as a task; its parameters keep their paths.

    # mm: task(stage=0)
    class Encoder(nn.Module): ...
    ->  @functools.partial(mm.flax.task, task=mm.Task(name="Encoder", mesh_slice={"stage": 0}), keep_paths=True)
        class Encoder(nn.Module): ...

To check: the module may run on this slice of the mesh wherever it is used.

Refused: a class that is not visibly a `flax.linen.Module`, because nothing says which of its methods is the task.
See https://flax-linen.readthedocs.io/en/latest/api_reference/flax.linen/module.html for modules.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._task import TaskCodemod
from mmrewrite.directives.vocabulary import CLASS
from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Scope

MODULE = "flax.linen.Module"


class PlaceModuleTask(TaskCodemod):
    """Adds a class decorator."""

    directive = "task"
    kinds = frozenset((CLASS,))

    def rewrite(self) -> None:
        """Check that the class is a Flax module."""
        module = self.site.statement
        if not isinstance(module, ast.ClassDef) or not self.is_module(module, self.site.facts, self.site.scope, ()):
            self.refuse(
                "this class is not visibly a `flax.linen.Module`; put the hint on its `def __call__`, or on the calls"
            )
        self.site.refuse_configured(module)
        name = None if self.hint.argument("name") else f'"{self.site.task_name(module.name)}"'
        task, runtime = self.task_text(name), self.site.runtime
        self.decorator = self.generated(self.site.partial, f"{runtime}.flax.task", task=task, keep_paths="True")
        self.position = self.decorator_position(module.decorator_list)
        self.site.transform(module, self)

    def is_module(self, node: ast.ClassDef, facts: Facts, scope: Scope, seen: tuple[ast.ClassDef, ...]) -> bool:
        """Whether one of the bases is `nn.Module`, also by way of classes of the project."""
        for base in node.bases:
            found = facts.names.resolve(base, scope)
            if found == MODULE:
                return True
            binding = facts.names.binding(base.id, scope) if isinstance(base, ast.Name) else None
            place = (facts, binding) if binding is not None and binding.target is None else None
            if place is None and found is not None:
                place = self.site.project.definition(found, facts)
            if place is None:
                continue
            where, inherited = place
            if inherited is not None and isinstance(inherited.node, ast.ClassDef) and inherited.node not in seen:
                outer = where.scope_of(inherited.node)
                if self.is_module(inherited.node, where, outer, (*seen, node)):
                    return True
        return False

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """Add the decorator."""
        decorators = list(updated_node.decorators)
        decorators.insert(self.position, cst.Decorator(self.decorator))
        return updated_node.with_changes(decorators=decorators)
