"""Which constraints find their mesh in a `compat.mesh_context` by themselves.

There `jax.lax.with_sharding_constraint(x, P(...))` does what `compat.with_sharding_constraint` does: JAX looks for the
mesh of `jax.set_mesh` first, and then for that of `with mesh:`, which `compat.mesh_context` sets. They differ where
both are set, as the one takes the former and the other the innermost, and in the error for neither. Functions that
are compiled for a mesh are no such place: `compat.mesh_context` in them hides that mesh.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Set
from functools import cached_property
from typing import TYPE_CHECKING

from mmmodernize.meshes.mesh_contexts import MeshContext
from mmmodernize.meshes.mesh_members import Member
from mmmodernize.meshes.plain_sites import PlainSites
from mmmodernize.names.shared_names import OLD_CONSTRAINTS

if TYPE_CHECKING:
    from mmmodernize.meshes.mesh_regions import MeshRegions

_OLD_KEYWORD = "axis_resources"


class PlainConstraints:
    """Decides about the constraints of one region.

    Args:
        regions: What is known of all sites.
        run_by: What a context that becomes `jax.set_mesh` runs outside of compiled functions.
        found: What becomes of the other sites.
    """

    def __init__(self, regions: MeshRegions, run_by: Callable[[MeshContext], Set[ast.AST]], found: PlainSites) -> None:
        self._regions, self._run_by, self._found = regions, run_by, found

    def why_compat(self, member: Member) -> str | None:
        """Why a constraint must be that of `compat`, in words for a message, else None."""
        place = member.place
        if self._regions.sets_a_mesh is not None:
            other = self._regions.sets_a_mesh
            return f"{place} may find the mesh that {other} sets, and not that of the innermost context"
        if self._may_have_the_old_keyword(member):
            return f"{place} may be called with `{_OLD_KEYWORD}`, which is `shardings` today"
        handler = self._regions.meshless_calls.takes_a_value_error(member)
        if handler is not None and self._is_old_name(member):
            return f"{handler} expects the `ValueError` of a missing mesh, which is a `RuntimeError` today"
        for context in self._found.reached_by[member]:
            if context in self._entered_in_set_mesh:
                return f"{place}: {context.place} may enter a second mesh in that of `jax.set_mesh`"
        return None

    def _is_old_name(self, member: Member) -> bool:
        """Whether a constraint is that of `pjit`, which raised `ValueError` at first; that of `jax.lax` never did."""
        if not isinstance(member.node, ast.expr):
            return True
        return member.module.full_name(member.node) in OLD_CONSTRAINTS

    def _may_have_the_old_keyword(self, member: Member) -> bool:
        if member.call is not None and member.call.is_called:
            return "**" in member.call.stars
        if any(string.value == _OLD_KEYWORD for module in self._regions.modules.values() for string in module.strings):
            # As in `f(x, **{"axis_resources": spec})`.
            return True
        return any(
            keyword.arg == _OLD_KEYWORD
            for module in self._regions.modules.values()
            for other in module.nodes_of(ast.Call)
            if module.full_name(other.func) in (None, "builtins.dict")
            for keyword in other.keywords
        )

    @cached_property
    def _entered_in_set_mesh(self) -> set[MeshContext]:
        """The contexts that stay, and that are entered in one that becomes `jax.set_mesh`, but while tracing."""
        found = self._found
        run = {node for context in found.ambient for node in self._run_by(context)}
        return {
            member.context
            for member in found.members
            if member.context is not None
            and member.context not in (*found.ambient, *found.removed)
            and not run.isdisjoint(member.holders)
        }
