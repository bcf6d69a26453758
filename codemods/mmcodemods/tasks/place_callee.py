"""Run one callee as a task, inside an expression.

    y = hints.task(self.encoder, stage=0)(x)
    ->  y = mm.task(self.encoder, task=mm.Task(name="encoder", mesh_slice={"stage": 0}))(x)

To check: the callee computes with its arguments alone, and its slice of the mesh is the one that is meant.

Refused: a class, because its calls make objects; write `@hints.task(...)` above a Flax module instead.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html for slices of a mesh.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._layer_loop import index
from mmcodemods._task import TaskCodemod
from mmrewrite.analysis.loops.layer_calls import callee_name
from mmrewrite.directives.vocabulary import CALL


class PlaceCallee(TaskCodemod):
    """Replaces the call of the hint by one of the runtime."""

    directive = "task"
    kinds = frozenset((CALL,))
    run_after = ("place_task",)

    def rewrite(self) -> None:
        """Find the callee, and a name for the task."""
        call = self.hint.call
        assert call is not None
        callee = call.args[0]
        if self.is_class(callee):
            self.refuse(f"`{self.site.text(callee)}` is a class; write `@hints.task(...)` above it", callee)
        name = None if self.hint.argument("name") else self.name(callee)
        self._task = self.task_text(name)
        self._target = self.site.call(self.site.statement, call)
        self.site.transform(self.site.statement, self)

    def is_class(self, callee: ast.expr) -> bool:
        """Whether the callee is a class of this project."""
        binding = self.site.facts.names.binding(callee.id, self.site.scope) if isinstance(callee, ast.Name) else None
        if binding is not None and binding.target is not None:
            found = self.site.project.definition(binding.target, self.site.facts)
            binding = found[1] if found else None
        return binding is not None and isinstance(binding.node, ast.ClassDef)

    def name(self, callee: ast.expr) -> str:
        """The name as source text, with the index of the iteration if the slice may depend on it."""
        plain = self.site.task_name(callee_name(callee))
        loop = next((holder for holder in self.site.facts.names.around(self.site.statement)), None)
        if isinstance(loop, ast.For) and not all(isinstance(argument.value, ast.Constant) for _, argument in self.axes):
            position = index(self.site, loop)
            if position.target is None:
                return f'f"{plain}_{{{position.index}}}"'
        return f'"{plain}"'

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`hints.task(f, ...)` becomes `mm.task(f, task=...)`."""
        if original_node is not self._target:
            return updated_node
        return self.generated(f"{self.site.runtime}.task", updated_node.args[0].value, task=self._task)
