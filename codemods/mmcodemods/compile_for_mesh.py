"""Compile a step for the whole mesh, so that its tasks run on their slices.

    step = jax.jit(step, donate_argnums=0)  # mm: mjit
    ->  step = mm.mjit(step, mesh=mesh, donate_argnums=0)

Refused: arguments of `jax.jit` that say where arrays lie, because the mesh and the tasks decide that; a step for which
no mesh can be found. Reported: a step that reaches a task but is compiled by plain `jax.jit`, where tasks are inlined.
See https://docs.jax.dev/en/latest/_autosummary/jax.jit.html for what is compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from mmrewrite.codemod import MeshCodemod
from mmrewrite.functions import JIT, is_jit_decorator
from mmrewrite.meshes import mesh_expression
from mmrewrite.project import Facts, Project
from mmrewrite.regions import Reach, holds
from mmrewrite.values import Refusal
from mmrewrite.vocabulary import DEF, STATEMENT, kind_of

CARRIED = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")


class CompileForMesh(MeshCodemod):
    """Replaces `jax.jit` by `mm.mjit`, as a call or as a decorator."""

    directive = "mjit"
    kinds = frozenset((STATEMENT, DEF))
    run_after = ("declare_mesh",)

    def rewrite(self) -> None:
        """Find the `jax.jit` and the mesh."""
        statement = self.site.statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self.position, decorator = self.decorator(statement)
            self.arguments = self.carried(decorator) if isinstance(decorator, ast.Call) else {}
        else:
            call = self.jit_call(statement)
            if not call.args or isinstance(call.args[0], ast.Starred):
                self.refuse("this `jax.jit` has no function to compile; pass it by position", call)
            self.arguments = self.carried(call)
            self.target = self.site.call(statement, call)
        self.arguments = {"mesh": mesh_expression(self.site), **self.arguments}
        self.site.transform(statement, self)

    def decorator(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, ast.expr]:
        """The decorator that compiles the function."""
        for index, decorator in enumerate(function.decorator_list):
            if is_jit_decorator(self.site.facts.names, decorator, self.site.scope):
                return index, decorator
        self.refuse("`mjit` replaces `jax.jit`, and this function has no such decorator; add `@jax.jit`")

    def jit_call(self, statement: ast.stmt) -> ast.Call:
        """The only `jax.jit(...)` of the statement."""
        calls = [call for call in self.site.calls(statement) if self.site.resolve(call.func) == JIT]
        if len(calls) == 1:
            return calls[0]
        if calls:
            self.refuse("more than one `jax.jit` in this statement; give each a statement of its own")
        self.refuse("`mjit` replaces `jax.jit`, and there is none here; hint the statement that calls `jax.jit`")

    def carried(self, call: ast.Call) -> dict[str, str]:
        """Arguments of `jax.jit` that `mm.mjit` takes as well, as source text."""
        carried = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                self.refuse("`**` hides what `jax.jit` is told; write its arguments out", call)
            if keyword.arg not in CARRIED:
                self.refuse(
                    f"`mjit` has no `{keyword.arg}=`: the mesh and the tasks decide where arrays lie; remove it", call
                )
            carried[keyword.arg] = self.site.text(keyword.value)
        return carried

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`jax.jit(step, ...)` becomes `mm.mjit(step, mesh=mesh, ...)`."""
        if isinstance(self.site.statement, ast.FunctionDef | ast.AsyncFunctionDef) or original_node is not self.target:
            return updated_node
        function = updated_node.args[0].value
        return self.generated(f"{self.site.runtime}.mjit", function, **self.arguments)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """`@jax.jit` becomes `@functools.partial(mm.mjit, mesh=mesh)`."""
        decorators = list(updated_node.decorators)
        call = self.generated(self.site.partial, f"{self.site.runtime}.mjit", **self.arguments)
        decorators[self.position] = decorators[self.position].with_changes(decorator=call)
        return updated_node.with_changes(decorators=decorators)

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterator[Refusal]:
        """Steps that reach a task and are compiled by plain `jax.jit`."""
        tasks = [
            (facts, hint.statement)
            for facts in modules
            for hint in facts.hints.hints
            if hint.directive in ("task", "stages")
        ]
        for facts in modules if tasks else ():
            hinted = {hint.statement for hint in facts.hints.hints if hint.directive == "mjit"}
            for function in _plain_steps(facts, hinted):
                reached = list(reach.from_node(facts, function))
                if any(holds(item, where, task) for item in reached for where, task in tasks):
                    column = function.col_offset + 1
                    reason = (
                        f"`{function.name}` reaches a task, and plain `jax.jit` would inline it: all of it runs where "
                        "its arguments are; write `# mm: mjit` where it is compiled"
                    )
                    yield Refusal(facts.path, function.lineno, column, reason, "compile_for_mesh")


def _plain_steps(facts: Facts, hinted: set[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Functions that plain `jax.jit` compiles, by decorator or by a call with their name."""
    names = facts.names
    found: dict[ast.FunctionDef, None] = {}
    for statement, scope in names.scopes.items():
        if statement in hinted:
            continue
        if isinstance(statement, ast.FunctionDef):
            if any(is_jit_decorator(names, decorator, scope) for decorator in statement.decorator_list):
                found[statement] = None
        elif kind_of(statement) == STATEMENT:
            for node in ast.walk(statement):
                if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Name):
                    continue
                if names.resolve(node.func, scope) == JIT:
                    binding = next(
                        iter((scope.owner(node.args[0].id) or scope).bindings.get(node.args[0].id, ())), None
                    )
                    if binding is not None and isinstance(binding.node, ast.FunctionDef):
                        found[binding.node] = None
    yield from found
