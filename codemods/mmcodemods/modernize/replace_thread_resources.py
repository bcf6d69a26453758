"""Ask the context for its mesh without `thread_resources`.

    mesh = pxla.thread_resources.env.physical_mesh
    ->  mesh = compat.current_mesh()

`mmruntime.compat.current_mesh` is the mesh of `jax.set_mesh(mesh)`, with its devices, also inside compiled functions,
and an empty mesh where there is none: guards such as `if mesh.empty` and `mesh.devices.shape == ()` go on working,
which they do not with `thread_resources` under `jax.set_mesh`.

Refused: everything but `env.physical_mesh` and `env.shape`, such as an environment that is kept in a variable.
See https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html for the context of today.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.contexts import ENVIRONMENT, ENVIRONMENTS, RESOURCE_ENVS
from mmrewrite.modernize.regions import MeshRegions
from mmrewrite.modernize.site import Context, Place
from mmrewrite.modernize.uses import ModuleUses


class ReplaceThreadResources(ModernizeCodemod):
    """Replaces the whole expression."""

    names = (*ENVIRONMENTS, *RESOURCE_ENVS)
    regional = True

    @classmethod
    def find(cls, module: ModuleUses, context: Context) -> Iterator[Place]:
        """Uses, save those where a mesh is put in context."""
        uses = list(module.uses(cls.names))
        if uses:
            contexts = context.analysis(MeshRegions).contexts
            holders = {found.holder for found in contexts if found.kind == ENVIRONMENT}
            yield from (Place(module, use.node, use) for use in uses if use.statement not in holders)

    def rewrite(self) -> None:
        """Replace `thread_resources.env.physical_mesh`."""
        env = self.site.module.parents[self.use.node]
        mesh = self.site.module.parents[env]
        is_env = isinstance(env, ast.Attribute) and env.attr == "env"
        if not (is_env and isinstance(mesh, ast.Attribute) and isinstance(mesh.ctx, ast.Load)):
            self.refuse("only `env.physical_mesh` and `env.shape` of `thread_resources` have successors; ask for these")
        current = f"{self.site.spell('mmruntime.compat.current_mesh')}()"
        if mesh.attr == "physical_mesh":
            self.site.replace(mesh, current)
        elif mesh.attr == "shape":
            # The sizes of the mesh, and of loops, which went with `xmap`.
            self.site.replace(mesh, f"{current}.shape")
        else:
            self.refuse("only `env.physical_mesh` and `env.shape` of `thread_resources` have successors; ask for these")
