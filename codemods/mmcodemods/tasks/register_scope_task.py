"""Run the code of a named scope as a task; the model stays untouched.

    with jax.named_scope("encoder"):  # mm: task(stage=0)
        h = encode(x)
    ->  mesh.register_task("encoder", task=mm.Task(mesh_slice={"stage": 0}))

`with hints.task("encoder", stage=0):` without a named scope gets one of that name.

To check: no other scope of the program has this name.

Refused: a scope whose name is computed, because the registration is made before it has a value.
See https://docs.jax.dev/en/latest/_autosummary/jax.named_scope.html for named scopes.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._task import TaskCodemod
from mmrewrite.codemod.base import expression, spaced
from mmrewrite.directives.vocabulary import WITH


class RegisterScopeTask(TaskCodemod):
    """Registers the task below the module's mesh, else with the runtime, above the definition around the block."""

    directive = "task"
    kinds = frozenset((WITH,))
    run_after = ("declare_mesh",)
    new_item: str | None = None

    def rewrite(self) -> None:
        """Write the registration; the block stays as it is."""
        scopes = self.scopes()
        item = self.hint.call
        own_name = self.hint.argument("name")
        if item is not None and not scopes:
            if own_name is None:
                self.site.error('a block needs a name: `with hints.task("encoder", stage=0):`')
            name, task = own_name.text, self.nameless_task_text()
            self.new_item = f"{self.site.named_scope}({name})"
        else:
            name, task = self.scope_name(scopes), self.task_text(None)
        self.check_values()
        if item is not None:
            self.site.transform(self.site.statement, self)
        holder = self.site.facts.names.top_level(self.site.statement)
        mesh = self.site.ready_mesh([*self.site.scope.chain()])
        if mesh is None:
            self.site.insert_above(f"{self.site.runtime}.register_task({name}, task={task})", holder)
        else:
            code = f"{mesh.name}.register_task({name}, task={task})"
            if mesh.hint is None:
                self.site.insert_below(code, mesh.statement)
            else:
                self.site.insert_with(code, mesh.hint)

    def scopes(self) -> list[ast.Call]:
        """The named scopes of the block."""
        return [
            item.context_expr
            for item in self.items()
            if isinstance(item.context_expr, ast.Call)
            and self.site.resolve(item.context_expr.func) == "jax.named_scope"
        ]

    def items(self) -> list[ast.withitem]:
        """The context managers of the block."""
        block = self.site.statement
        assert isinstance(block, ast.With | ast.AsyncWith)
        return block.items

    def scope_name(self, scopes: list[ast.Call]) -> str:
        """The name of the only scope, as source text."""
        if len(scopes) != 1:
            self.refuse('`task` on a `with` block is about `with jax.named_scope("..."):`; this block has none')
        values = [*scopes[0].args, *(keyword.value for keyword in scopes[0].keywords if keyword.arg == "name")]
        if len(values) != 1 or not isinstance(values[0], ast.Constant):
            self.refuse("the name of this scope is computed; write it as a string")
        return self.site.text(values[0])

    def check_values(self) -> None:
        """Refuses local names in the slice, since the registration is made at module level."""
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

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        """`with hints.task("encoder", stage=0):` becomes `with jax.named_scope("encoder"):`, or goes from the items."""
        position = next(index for index, item in enumerate(self.items()) if item.context_expr is self.hint.call)
        items = list(updated_node.items)
        if self.new_item is not None:
            items[position] = items[position].with_changes(item=expression(self.new_item))
        else:
            del items[position]
            items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        space = updated_node.whitespace_after_with
        if isinstance(updated_node.lpar, cst.MaybeSentinel):
            space = cst.ensure_type(spaced(space), cst.SimpleWhitespace)
        return updated_node.with_changes(items=items, whitespace_after_with=space)
