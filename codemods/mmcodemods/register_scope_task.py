"""Run what a named scope holds as a task, the model untouched.

    with jax.named_scope("encoder"):  # mm: task(stage=0)
        h = encode(x)
    ->  mesh.register_task("encoder", task=mm.Task(mesh_slice={"stage": 0}))

Refused: a scope whose name is computed, because the registration is made before it has a value.
See https://docs.jax.dev/en/latest/_autosummary/jax.named_scope.html for named scopes.
"""

from __future__ import annotations

import ast

from mmrewrite.project import Mesh
from mmrewrite.tasks import TaskCodemod
from mmrewrite.vocabulary import WITH


class RegisterScopeTask(TaskCodemod):
    """Registers the task below the module's mesh, else with the runtime above the definition that holds the block."""

    directive = "task"
    kinds = frozenset((WITH,))
    run_after = ("declare_mesh",)

    def rewrite(self) -> None:
        """Write the registration; the block stays as it is."""
        name = self.scope_name()
        self.check_values()
        holder = self.site.facts.names.top_level(self.site.statement)
        task = self.task_text(None)
        mesh = self.mesh()
        if mesh is None:
            self.site.insert_above(f"{self.site.runtime}.register_task({name}, task={task})", holder)
        else:
            code = f"{mesh.name}.register_task({name}, task={task})"
            if mesh.hint is None:
                self.site.insert_below(code, mesh.statement)
            else:
                self.site.insert_with(code, mesh.hint)

    def scope_name(self) -> str:
        """The name as source text."""
        block = self.site.statement
        assert isinstance(block, ast.With | ast.AsyncWith)
        names = [item.context_expr for item in block.items]
        calls = [
            call for call in names if isinstance(call, ast.Call) and self.site.resolve(call.func) == "jax.named_scope"
        ]
        if len(calls) != 1:
            self.refuse('`task` on a `with` block is about `with jax.named_scope("..."):`; this block has none')
        values = [*calls[0].args, *(keyword.value for keyword in calls[0].keywords if keyword.arg == "name")]
        if len(values) != 1 or not isinstance(values[0], ast.Constant):
            self.refuse("the name of this scope is computed; write it as a string")
        return self.site.text(values[0])

    def mesh(self) -> Mesh | None:
        """A mesh of this module, at module level or in the function around the block."""
        visible = [mesh for mesh in self.site.facts.meshes if mesh.scope in tuple(self.site.scope.chain())]
        ready = [mesh for mesh in visible if mesh.hint is None or mesh.hint in self.site.draft.done]
        return ready[0] if ready else None

    def check_values(self) -> None:
        """The slice is computed where the registration stands, not in the block."""
        for name, argument in self.axes:
            for node in ast.walk(argument.value):
                if isinstance(node, ast.Name) and self.site.scope.owner(node.id) not in (
                    None,
                    self.site.facts.names.scope,
                ):
                    self.refuse(
                        f"`{name}={argument.text}` uses `{node.id}`, which has no value where the task is registered; "
                        "write a number or a name of the module"
                    )
