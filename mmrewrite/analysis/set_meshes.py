"""Meshes with explicit axes that a program sets for code outside of steps, where JAX refuses what steps return."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import Role
from mmrewrite.project.facts import Facts, Mesh
from mmrewrite.project.reach import Reach, holds
from mmrewrite.source.names import Binding, Scope
from mmrewrite.source.spans import span

_SETS = frozenset(("jax.set_mesh", "jax.sharding.set_mesh", "jax.sharding.use_mesh"))
_MARKERS = (b"set_mesh", b"use_mesh")
_MAKES = "jax.make_mesh"


@dataclass(frozen=True, eq=False)
class SetMesh:
    """A statement that sets a mesh with explicit axes where a step is called.

    Attributes:
        facts: The module.
        position: The line and the column of the call.
        reason: What is wrong, and what to write.
    """

    facts: Facts
    position: tuple[int, int]
    reason: str


def set_meshes(reach: Reach, modules: Sequence[Facts]) -> Iterator[SetMesh]:
    """Such statements, in the order of their modules: those whose mesh is seen to be made, and reaches a step."""
    hints = [(facts, hint) for facts in modules for hint in facts.hints.hints]
    steps = [(facts, hint.statement) for facts, hint in hints if hint.record.role is Role.COMPILE]
    meshes = [(facts, mesh) for facts in modules for mesh in facts.meshes if mesh.hint is not None]
    if not steps or len(meshes) != 1:
        return
    for facts in modules:
        if not any(marker in facts.file.data for marker in _MARKERS):
            continue
        for statement, scope in facts.names.scopes.items():
            for call in facts.names.calls.get(statement, ()):
                made = _explicit(facts, call, scope)
                if made is None or not _reaches(reach, facts, statement, call, steps):
                    continue
                position = facts.source.position(span(facts.source, call)[0])
                yield SetMesh(facts, position, _reason(facts, scope, call, made, *meshes[0]))


def _explicit(facts: Facts, call: ast.Call, scope: Scope) -> tuple[ast.Call, Binding | None] | None:
    """The `jax.make_mesh` of the mesh that a call sets, and what binds it to a name, if its axes are explicit."""
    if facts.names.resolve(call.func, scope) not in _SETS or not call.args:
        return None
    value, binding = call.args[0], None
    if isinstance(value, ast.Name):
        name = value.id
        binding = facts.names.binding(name, scope)
        if binding is None or binding.value is None:
            return None
        value, scope = binding.value, scope.owner(name) or scope
    if not isinstance(value, ast.Call) or facts.names.resolve(value.func, scope) != _MAKES:
        return None
    types = [each.value for each in value.keywords if each.arg in (None, "axis_types")] + value.args[2:3]
    # Without `axis_types` all are.
    named = {each.attr for given in types for each in ast.walk(given) if isinstance(each, ast.Attribute)}
    return (value, binding) if not types or "Explicit" in named else None


def _reaches(
    reach: Reach, facts: Facts, statement: ast.stmt, call: ast.Call, steps: Sequence[tuple[Facts, ast.stmt]]
) -> bool:
    """Whether a step is called where the mesh is set: in the block of a `with`, or in the function around the call."""
    is_block = isinstance(statement, ast.With) and any(call is item.context_expr for item in statement.items)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = next((each for each in facts.names.around(statement) if isinstance(each, functions)), facts.tree)
    reached = reach.from_node(facts, statement if is_block else around)
    return any(holds(item, where, step) for item in reached for where, step in steps)


def _reason(
    facts: Facts, scope: Scope, call: ast.Call, made: tuple[ast.Call, Binding | None], where: Facts, mesh: Mesh
) -> str:
    making, binding = made
    hint = mesh.hint
    assert isinstance(hint, Hint)
    place = f"the hint in line {hint.reference.line}" if where is facts else f"{where.path}:{hint.reference.line}"
    cause = (
        f"`{ast.unparse(call.func)}` has code outside of steps run on a mesh with explicit axes, and JAX refuses to "
        "compute there with what steps return, as in `total + loss`, which is on a mesh of its own; in the rewritten "
        "program"
    )
    given = call.args[0]
    if binding is not None and isinstance(given, ast.Name) and given.id == mesh.name and where is facts:
        made_here = f"`{given.id} = {_MAKES}(...)` (line {making.lineno} here)"
        advice = f"leave out {made_here}: `{mesh.name}` is then that of the steps"
    else:
        advice = f"write `{ast.unparse(call.func)}({mesh.name})`, with the mesh of the steps, which {place} makes"
    names = making.args[1:2] or [each.value for each in making.keywords if each.arg == "axis_names"]
    axes = [each.value for node in names for each in ast.walk(node) if isinstance(each, ast.Constant)]
    missing = [f"{axis}=..." for axis in axes if isinstance(axis, str) and axis not in (mesh.axes or ())]
    if missing:
        advice += f"; give its hint the axes that code outside of steps names: `{', '.join(missing)}`"
    return f"{cause}, {advice}"
