"""Code under a mesh with explicit axes that the program sets, and that computes with what a step returns.

JAX refuses that: what steps return is on the mesh of the steps. Only what is in view is told; all else, the run tells.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.directives.vocabulary import Role
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.functions import own_expressions
from mmrewrite.source.spans import blocks_of, span
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import By, Decorated, Value

_SETS = frozenset(("jax.set_mesh", "jax.sharding.set_mesh", "jax.sharding.use_mesh"))
_MARKERS = (b"set_mesh", b"use_mesh")
_COMPUTE = frozenset(
    f"jax.numpy.{name}"
    for name in ("add", "exp", "log", "log10", "max", "mean", "min", "sqrt", "square", "stack", "sum", "linalg.norm")
)

_PARTS = frozenset((By.ITEM, By.ELEMENT, By.REST))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class OtherMesh:
    """A statement that computes with what a step returns, at a line and a column of a module."""

    facts: Facts
    statement: ast.stmt
    position: tuple[int, int]
    reason: str


def on_other_meshes(project: Project, modules: Sequence[Facts]) -> Iterator[OtherMesh]:
    """Such expressions in the blocks under `jax.set_mesh(...)`, and in the functions that these call by name."""
    steps = {hint.statement for facts in modules for hint in facts.hints.hints if hint.record.role is Role.COMPILE}
    for facts in modules if steps else ():
        if any(marker in facts.file.data for marker in _MARKERS):
            yield from _OtherMeshFinder(project, facts, steps).found()


class _OtherMeshFinder:
    def __init__(self, project: Project, facts: Facts, steps: set[ast.stmt]) -> None:
        self._facts, self._names, self._steps = facts, facts.names, steps
        self._flow = values_of(project)
        self._module = self._flow.uses_of(facts)
        # Where steps are made that no decorator compiles.
        self._made = {node for step in steps for node in own_expressions(step) if isinstance(node, ast.Call)}

    def found(self) -> Iterator[OtherMesh]:
        told: set[ast.AST] = set()
        for statement in self._names.scopes:
            call = self._set_by(statement)
            if call is None or not self._is_explicit(call):
                continue
            for inside in self._under(statement):
                result = self._computes_with_a_result(inside) if inside not in told else None
                if result is not None:
                    told.add(inside)
                    yield self._told(inside, result, call)

    def _set_by(self, statement: ast.stmt) -> ast.Call | None:
        """The call by which a statement sets a mesh."""
        values = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
        values += [statement.value] if isinstance(statement, ast.Expr) else []
        scope = self._names.scopes[statement]
        calls = (each for each in values if isinstance(each, ast.Call) and each.args)
        return next((each for each in calls if self._names.resolve(each.func, scope) in _SETS), None)

    def _is_explicit(self, call: ast.Call) -> bool:
        """Whether a call certainly sets a mesh whose axes are all explicit, as `jax.make_mesh` makes them."""

        def test(value: Value) -> bool | None:
            if value.head != "jax.make_mesh" or [step.kind for step in value.path] != [By.CALL]:
                return None
            made = value.path[0].what
            types = made.at(2, "axis_types")
            shown = (
                {each.attr for each in ast.walk(types.expression) if isinstance(each, ast.Attribute)} if types else ()
            )
            return made.node is not None and ("Explicit" in shown and "Auto" not in shown if types else True)

        return self._flow.must(self._flow.value_in(self._facts, call.args[0]), test) is True

    def _under(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """The statements that run under the mesh that one sets, as far as they are in view."""
        if isinstance(statement, ast.With):
            queue = [*statement.body]
        else:
            block = next(
                each for each in blocks_of(self._names.parents.get(statement) or self._facts.tree) if statement in each
            )
            queue = block[block.index(statement) + 1 :]
        called: set[ast.AST] = set()
        for inside in queue:
            if isinstance(inside, _Function | ast.ClassDef) or self._set_by(inside) is not None:
                continue
            yield inside
            for call in self._names.calls.get(inside, ()):
                _, function = self._flow.function_at(self._module, call.func) or (None, None)
                if function is not None and function not in called:
                    called.add(function)
                    queue += function.body if function in self._names.scopes and function not in self._steps else []
            queue += [each for block in blocks_of(inside) for each in block]

    def _computes_with_a_result(self, statement: ast.stmt) -> ast.expr | None:
        """A result of a step that a statement computes with, unless a hint has it gathered."""
        if any(hint.statement is statement and hint.record.role is Role.GATHER for hint in self._facts.hints.hints):
            return None
        operands = [statement.value] if isinstance(statement, ast.AugAssign) else []
        scope = self._names.scopes[statement]
        for node in own_expressions(statement):
            if isinstance(node, ast.BinOp):
                operands += [node.left, node.right]
            elif isinstance(node, ast.Call) and self._names.resolve(node.func, scope) in _COMPUTE:
                operands += node.args
        return next((each for each in operands if self._is_result(each)), None)

    def _is_result(self, node: ast.expr) -> bool:
        """Whether an expression certainly is what a step returns, or a part of it."""

        def test(value: Value) -> bool | None:
            kinds = [step.kind for step in value.path]
            if isinstance(value.head, Decorated):
                is_step, rest = value.head.definition in self._steps and kinds[:1] == [By.CALL], kinds[1:]
            else:
                is_step, rest = kinds[:2] == [By.CALL, By.CALL] and value.path[0].what.node in self._made, kinds[2:]
            return (is_step and _PARTS.issuperset(rest)) or None

        return self._flow.must(self._flow.value_in(self._facts, node), test) is True

    def _told(self, statement: ast.stmt, result: ast.expr, call: ast.Call) -> OtherMesh:
        source = self._facts.source
        position = source.position(span(source, result)[0])
        shown, name = ast.unparse(result), result.id if isinstance(result, ast.Name) else "value"
        above = "" if shown == name else f"bind it to a name above, `{name} = {shown}`, and "
        reason = (
            f"this computes with what a step returns, `{shown}`, on the mesh of the steps, and line {call.lineno} sets "
            f"one with explicit axes, under which JAX takes no array of another; {above}write `# mm: gather({name})` "
            "on this statement, or compute outside of that mesh"
        )
        return OtherMesh(self._facts, statement, position, reason)
