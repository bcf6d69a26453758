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
from mmrewrite.values.flow import values_of

MODULE = "flax.linen.Module"


class PlaceModuleTask(TaskCodemod):
    """Adds a class decorator."""

    directive = "task"
    kinds = frozenset((CLASS,))

    def rewrite(self) -> None:
        """Check that the class is a Flax module."""
        module = self.site.statement
        flow = values_of(self.site.project)
        home = flow.uses_of(self.site.facts)
        if not isinstance(module, ast.ClassDef) or MODULE not in flow.bases(home, module).outside:
            self.refuse(
                "this class is not visibly a `flax.linen.Module`; put the hint on its `def __call__`, or on the calls"
            )
        self.site.refuse_configured(module)
        name = None if self.hint.argument("name") else f'"{self.site.task_name(module.name)}"'
        task, runtime = self.task_text(name), self.site.runtime
        self.decorator = self.generated(self.site.partial, f"{runtime}.flax.task", task=task, keep_paths="True")
        self.position = self.decorator_position(module.decorator_list)
        self.site.transform(module, self)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """Add the decorator."""
        decorators = list(updated_node.decorators)
        decorators.insert(self.position, cst.Decorator(self.decorator))
        return updated_node.with_changes(decorators=decorators)
