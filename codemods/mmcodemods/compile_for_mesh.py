"""Compile a step for the whole mesh, so that its tasks run on their slices.

    step = jax.jit(step, donate_argnums=0)  # mm: mjit
    ->  step = mm.mjit(step, mesh=mesh, donate_argnums=0)

Refused: shardings and devices among the arguments of `jax.jit`, because the mesh and the tasks decide them; `nnx.jit`
and others, which do more than compile; a step without a mesh. Reported: a step that reaches a task but is compiled by
plain `jax.jit`, where tasks are inlined.
See https://docs.jax.dev/en/latest/_autosummary/jax.jit.html for what is compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from mmrewrite.analysis.jit_calls import carried, jit_call, jit_decorator
from mmrewrite.analysis.meshes import mesh_expression
from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import DEF, STATEMENT, Role, kind_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, Reached, holds
from mmrewrite.results import Refusal
from mmrewrite.source.functions import JIT, is_jit_decorator


class CompileForMesh(MeshCodemod):
    """Replaces `jax.jit` by `mm.mjit`, as a call or as a decorator."""

    directive = "mjit"
    kinds = frozenset((STATEMENT, DEF))
    run_after = ("declare_mesh",)

    def rewrite(self) -> None:
        """Find the `jax.jit` and the mesh."""
        statement = self.site.statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            position = jit_decorator(self.site, statement)
            if position is None:
                self.refuse("`mjit` replaces `jax.jit`, and this function has no such decorator; add `@jax.jit`")
            self.position, decorator = position, statement.decorator_list[position]
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            self.arguments = carried(self.site, keywords, decorator)
        else:
            jit = jit_call(self.site, self.directive)
            self.arguments = carried(self.site, jit.keywords, jit.call)
            self.target = self.site.call(statement, jit.call)
        self.arguments = {"mesh": mesh_expression(self.site), **self.arguments}
        self.site.transform(statement, self)

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
        """Steps that reach a task and are compiled by plain `jax.jit`, but not as a part of a step for the mesh."""
        tasks = [(facts, hint.statement) for facts in modules for hint in facts.hints.hints if hint.record.places_code]
        steps = [
            item
            for facts in modules
            for hint in facts.hints.hints
            if hint.record.role is Role.COMPILE
            for item in reach.from_node(facts, hint.statement)
        ]
        for facts in modules if tasks else ():
            hinted = {hint.statement for hint in facts.hints.hints if hint.record.role is Role.COMPILE}
            for function in _plain_steps(facts, hinted):
                reached = list(reach.from_node(facts, function))
                if not _is_called_in(steps, facts, function) and any(
                    holds(item, where, task) for item in reached for where, task in tasks
                ):
                    column = function.col_offset + 1
                    reason = (
                        f"`{function.name}` reaches a task, and plain `jax.jit` would inline it: all of it runs where "
                        "its arguments are; write `# mm: mjit` where it is compiled"
                    )
                    yield Refusal(facts.path, function.lineno, column, reason, "compile_for_mesh")


def _is_called_in(steps: Sequence[Reached], facts: Facts, function: ast.FunctionDef) -> bool:
    """Whether a step for the mesh calls a function: then the function's own `jax.jit` is part of that step."""
    holder = next(iter(facts.names.around(function)), None)
    if not any(holds(item, facts, function) for item in steps):
        return False
    if not isinstance(holder, ast.ClassDef) or function.name == "__call__":
        return True
    # All methods of a class count as reached; this one only if some attribute has its name.
    nodes = (node for item in steps for node in ast.walk(item.node))
    return any(isinstance(node, ast.Attribute) and node.attr == function.name for node in nodes)


def _plain_steps(facts: Facts, hinted: set[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Functions that plain `jax.jit` compiles, as a decorator or in a call with their name."""
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
