"""Replace the mesh context `with mesh:` by shardings that name the mesh, or by another context.

    with Mesh(devices, ("data",)) as mesh:
        y = step(x)
    ->  mesh = Mesh(devices, ("data",))
        y = step(x)

The context goes away if every `pjit` and every constraint that it reaches can name the mesh: their specs become
`NamedSharding(mesh, spec)`, which is exact whatever else runs there.

Otherwise it becomes `with jax.set_mesh(mesh):`, if nothing in it creates arrays or computes outside of functions that
are compiled with specs.

Otherwise it becomes `with compat.mesh_context(mesh):`, which moves no arrays; `compat.pjit` and
`compat.with_sharding_constraint` look the mesh up when they are called, and so do the sharding hints of Flax's linen.

To check: code that is called inside of the context from places that are not in view.

Refused: contexts that reach code that chooses by the version of JAX, or libraries that look only for the mesh of
`jax.set_mesh`; environments other than `ResourceEnv(mesh, ...)`; call chains of an `xmap`.
See https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html for `jax.set_mesh`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.statements import drop_item, make_above, take_out_of_with, value_end
from mmmodernize.meshes.mesh_contexts import ENVIRONMENT, STATEMENT, WITH, MeshContext, MeshContexts
from mmmodernize.meshes.mesh_regions import COMPAT, NAMED, SET, MeshRegions
from mmmodernize.sites.decision import LEFT_WITH_REGION
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses


class ReplaceMeshContext(ModernizeCodemod):
    """Rewrites one context in the style of its region."""

    regional = True
    changed_in: ClassVar = {"": ("jax", "0.10.1", "warns")}
    extra_markers = (b"mesh", b"Mesh")

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Every mesh context of a module."""
        # Regions are of the whole project, and few modules have contexts.
        if context.analysis(MeshContexts).of(module):
            found = (each for each in context.analysis(MeshRegions).contexts if each.module is module)
            yield from (Location(module, each.node) for each in found)

    def rewrite(self) -> None:
        """Follow the plan of the region."""
        regions = self.site.context.analysis(MeshRegions)
        plan, context = regions.plan(self.site.node), regions.context(self.site.node)
        assert context is not None
        if plan.reason is not None:
            self.refuse(plan.reason)
        if plan.style == NAMED:
            self._remove(context, plan.mesh)
        elif plan.style == SET:
            self.site.needs("0.7.1", "jax.set_mesh")
            self._set(context)
        elif plan.style == COMPAT:
            self._make_compat(context, plan.why_compat, plan.mesh)
        else:
            self.refuse(LEFT_WITH_REGION)

    def _remove(self, context: MeshContext, name: str | None) -> None:
        holder, item = context.holder, context.item
        assert isinstance(holder, ast.With) and item is not None
        is_named = (context.is_computed and name is not None) or context.name is not None
        made = f"{name if context.name is None else context.name.id} = " if is_named else ""
        if len(holder.items) == 1:
            take_out_of_with(self.site, holder, made)
        elif made:
            make_above(self.site, holder, made)
        else:
            drop_item(self.site, holder, item)

    def _set(self, context: MeshContext) -> None:
        site, node = self.site, context.node
        set_mesh = site.spell("jax.set_mesh")
        if context.kind == WITH:
            assert context.item is not None
            name = context.name
            if context.item.optional_vars is not None and name is None:
                self.refuse("`as` gives the mesh to something that is not a name; give it in a statement above")
            site.wrap(node, f"{set_mesh}({f'{name.id} := ' if name is not None else ''}", ")")
            if name is not None:
                assert isinstance(context.holder, ast.With)
                site.edit(value_end(site, context.holder, context.item), site.span(name)[1], "")
                site.meant.set(context.item, optional_vars=None)
        elif context.kind == STATEMENT:
            self._put_in_call(context.holder, node, set_mesh)
        elif context.kind == ENVIRONMENT:
            self._assign(context, set_mesh)
        else:
            site.wrap(node, f"{set_mesh}(", ")")

    def _make_compat(self, context: MeshContext, why: str, name: str | None) -> None:
        if context.kind == ENVIRONMENT:
            self._assign(context, self.site.spell_compat("assign_mesh", why))
        else:
            enter = self.site.spell_compat("mesh_context", why)
            self.site.wrap(context.node, f"{enter}(", ")")
            if name is not None:
                assert isinstance(context.holder, ast.With)
                assert context.item is not None
                end = value_end(self.site, context.holder, context.item)
                self.site.edit(end, end, f" as {name}")
                self.site.meant.set(context.item, optional_vars=ast.Name(name, ast.Store()))

    def _assign(self, context: MeshContext, function: str) -> None:
        """Replace `thread_resources.env = ResourceEnv(mesh, ...)` by a call."""
        mesh = self.site.context.analysis(MeshRegions).environment_mesh(context)
        assert mesh is not None
        self._put_in_call(context.holder, mesh, function)

    def _put_in_call(self, statement: ast.AST, mesh: ast.expr, function: str) -> None:
        assert isinstance(statement, ast.stmt)
        (start, end), (mesh_start, mesh_end) = self.site.span(statement), self.site.span(mesh)
        self.site.edit(start, mesh_start, f"{function}(")
        self.site.edit(mesh_end, end, ")")
        self.site.meant.put_in_call(statement, mesh, function)
