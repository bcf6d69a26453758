"""Get the mesh in context without `thread_resources`.

    mesh = pxla.thread_resources.env.physical_mesh
    ->  mesh = compat.current_mesh()

    env = maps.thread_resources.env
    return env.physical_mesh.empty
    ->  env = compat.current_mesh()
        return env.empty

`mmruntime.compat.current_mesh` returns the mesh of `jax.set_mesh(mesh)`, with its devices, also inside compiled
functions, and an empty mesh if there is none. So guards such as `if mesh.empty` and `mesh.devices.shape == ()` go on
working, which they do not with `thread_resources` under `jax.set_mesh`.

To check: code that changes `thread_resources` itself.

Refused: everything but `env.physical_mesh` and `env.shape`, also on a local name of an environment; a `target-jax`
before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html for today's context.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NoReturn

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.mesh_contexts import ENVIRONMENT, MeshContexts
from mmmodernize.names.shared_names import ENVIRONMENTS, RESOURCE_ENVS
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

_ASKED = "the mesh is asked for while the program runs; pass it to the function"


class ReplaceThreadResources(ModernizeCodemod):
    """Replaces the whole expression."""

    names = (*ENVIRONMENTS, *RESOURCE_ENVS)
    beside = ()
    regional = True

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses, but for assignments that put a mesh in context."""
        uses = list(module.uses(cls.names))
        if uses:
            contexts = context.analysis(MeshContexts).of(module)
            holders = {found.holder for found in contexts if found.kind == ENVIRONMENT}
            yield from (Location(module, use.node, use) for use in uses if use.statement not in holders)

    def rewrite(self) -> None:
        """Replace `thread_resources.env.physical_mesh`."""
        env = self.site.module.parents[self.use.node]
        holder = self.site.module.parents[env]
        if not isinstance(env, ast.Attribute) or env.attr != "env":
            self._refuse_others()
        current = f"{self.site.spell_compat('current_mesh', _ASKED)}()"
        if isinstance(holder, ast.Assign):
            self._replace_kept(holder)
            self.site.replace(env, current)
        elif not isinstance(holder, ast.Attribute) or not isinstance(holder.ctx, ast.Load):
            self._refuse_others()
        elif holder.attr == "physical_mesh":
            self.site.replace(holder, current)
        elif holder.attr == "shape":
            # The sizes of the mesh, and of loops, which went with `xmap`.
            self.site.replace(env, current)
        else:
            self._refuse_others()

    def _replace_kept(self, statement: ast.Assign) -> None:
        """Let the local name of an environment stand for its mesh."""
        site, (target, *others) = self.site, statement.targets
        owner = site.scope.owner(target.id) if isinstance(target, ast.Name) else None
        if others or owner is None or owner.kind != "function" or not isinstance(target, ast.Name):
            self._refuse_others()
        if len(owner.bindings[target.id]) > 1:
            self._refuse_others()
        for head in site.module.heads_of(target.id, owner):
            attribute = site.module.parents[head]
            if not isinstance(attribute, ast.Attribute) or attribute.attr not in ("physical_mesh", "shape"):
                self._refuse_others()
            if attribute.attr == "physical_mesh":
                site.replace(attribute, target.id)

    def _refuse_others(self) -> NoReturn:
        self.refuse("only `env.physical_mesh` and `env.shape` of `thread_resources` have successors; ask for these")
