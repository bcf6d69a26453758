"""Run one call as a task on a slice of the mesh.

    y = self.encoder(x)  # mm: task(stage=0)
    ->  y = mm.task(self.encoder, task=mm.Task(name="encoder", mesh_slice={"stage": 0}))(x)

To check: the call that became the task is the one that is meant.

Refused: a statement with two calls that could be meant, because only one of them is the task.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html for slices of a mesh.
"""

from __future__ import annotations

import ast

from mmcodemods._task import TaskCodemod
from mmrewrite.analysis.loops.layer_calls import callee_name, outermost_callees


class PlaceTask(TaskCodemod):
    """Wraps the callee of the statement's call."""

    directive = "task"

    def rewrite(self) -> None:
        """Find the one call to place."""
        call = self.call_to_place()
        name = None if self.hint.argument("name") else f'"{self.site.task_name(callee_name(call.func))}"'
        self.place_call(self.site.statement, call, self.task_text(name))

    def call_to_place(self) -> ast.Call:
        """The only call of the program's own code, else the only call."""
        calls = outermost_callees(list(self.site.calls(self.site.statement)))
        own = [call for call in calls if not self.site.is_library(call.func)]
        candidates = own or calls
        if not candidates:
            self.refuse("no call here to run as a task; call a function, or put the hint on a `def`")
        if len(candidates) > 1:
            names = ", ".join(f"`{self.site.text(call)}`" for call in candidates)
            self.refuse(f"more than one call could be the task: {names}; give each a statement of its own")
        return candidates[0]
