"""Run a function as a task, wherever it is called.

    # mm: task(stage=0)
    def encode(params, x): ...
    ->  @functools.partial(mm.task, task=mm.Task(name="encode", mesh_slice={"stage": 0}))
        def encode(params, x): ...

To check: the function may run on this slice of the mesh wherever it is called.

Refused: `async def` and generators, because a task is one call that returns arrays.
See https://docs.jax.dev/en/latest/gradient-checkpointing.html for why `jax.checkpoint` stays inside the task.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._task import TaskCodemod
from mmrewrite.directives.vocabulary import DEF
from mmrewrite.source.functions import is_generator


class PlaceFunctionTask(TaskCodemod):
    """Adds the innermost decorator, except that rematerialisation stays inside the task."""

    directive = "task"
    kinds = frozenset((DEF,))

    def rewrite(self) -> None:
        """Find the place among the decorators."""
        function = self.site.statement
        if not isinstance(function, ast.FunctionDef) or is_generator(function):
            self.refuse("a task returns arrays from one call; an `async def` or a generator cannot be one")
        self.site.refuse_configured(function)
        name = function.name
        holder = next(iter(self.site.facts.names.around(function)), None)
        if name == "__call__" and isinstance(holder, ast.ClassDef):
            name = holder.name
        own_name = self.hint.argument("name")
        task = self.task_text(None if own_name else f'"{self.site.task_name(name)}"')
        self.position = self.decorator_position(function.decorator_list)
        self.decorator = self.generated(self.site.partial, f"{self.site.runtime}.task", task=task)
        self.site.transform(function, self)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Insert the decorator."""
        decorators = list(updated_node.decorators)
        decorators.insert(self.position, cst.Decorator(self.decorator))
        return updated_node.with_changes(decorators=decorators)
