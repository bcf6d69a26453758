"""Make meshes with `jax.sharding.Mesh`, which `maps.Mesh`, `maps.mesh` and `pxla.Mesh` have become.

    mesh = maps.Mesh(devices, ("data", "model"))
    ->  mesh = jax.sharding.Mesh(devices, ("data", "model"))

`jax.make_mesh` is not written: its axes are of another type. `maps.mesh(devices, names)` was a context manager; a mesh
is one too, so what is around it is the business of `replace_mesh_context`.

Refused: meshes in modules that use `xmap`, which do not run on a JAX of today in any case.
See https://docs.jax.dev/en/latest/jax.sharding.html for the class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from mmrewrite.modernize.analysis.mesh_contexts import OLD_MESHES
from mmrewrite.modernize.analysis.old_names import XMAPS
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.site import Context, Location
from mmrewrite.modernize.uses import ModuleUses


class ReplaceOldMesh(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = OLD_MESHES

    @classmethod
    def find(cls, module: ModuleUses, context: Context) -> Iterator[Location]:
        """Every use, since those that stay keep the import."""
        for use in module.uses(OLD_MESHES):
            yield Location(module, use.node, use)

    @classmethod
    def keeps(cls, module: ModuleUses) -> Collection[str]:
        """Beside `xmap` nothing is gained by another import."""
        return OLD_MESHES.keys() if any(True for _ in module.uses(XMAPS)) else ()

    def rewrite(self) -> None:
        """Uses through an import keep the alias; others get the new name."""
        use = self.use
        if use.name in self.keeps(self.site.module):
            self.refuse("left as it is, because `xmap` and `serial_loop` in this module have no replacement")
        if use.is_direct and "." in self.site.text(use.node):
            self.site.replace(use.node, self.site.spell(OLD_MESHES[use.name]))
