"""Make meshes with `jax.sharding.Mesh`, which `maps.Mesh`, `maps.mesh` and `pxla.Mesh` have become.

    mesh = maps.Mesh(devices, ("data", "model"))
    ->  mesh = jax.sharding.Mesh(devices, ("data", "model"))

`jax.make_mesh` is not written: its axes are of another type. `maps.mesh(devices, names)` was a context manager; a mesh
is one too, so what is around it is the business of `replace_mesh_context`.

Refused: nothing by itself; a mesh in a region of which a part must stay keeps its old name.
See https://docs.jax.dev/en/latest/jax.sharding.html for the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.contexts import OLD_MESHES
from mmrewrite.modernize.site import Context, Place
from mmrewrite.modernize.uses import ModuleUses


class ReplaceOldMesh(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = OLD_MESHES
    regional = True

    @classmethod
    def find(cls, module: ModuleUses, context: Context) -> Iterator[Place]:
        """Every use, since those that stay keep the import."""
        for use in module.uses(OLD_MESHES):
            yield Place(module, use.node, use)

    def rewrite(self) -> None:
        """Uses through an import keep the alias; others get the new name."""
        use = self.use
        if use.is_direct and "." in self.site.text(use.node):
            self.site.replace(use.node, self.site.spell(OLD_MESHES[use.name]))
