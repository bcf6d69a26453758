"""Make meshes with `jax.sharding.Mesh` instead of `maps.Mesh`, `maps.mesh` or `pxla.Mesh`.

    mesh = maps.Mesh(devices, ("data", "model"))
    ->  mesh = Mesh(devices, ("data", "model"))

`jax.make_mesh` would not do: the type of its axes is another one. `maps.mesh(devices, names)` was a context manager,
and so is a mesh; `replace_mesh_context` rewrites the `with` around it.

To check: nothing; it is the same class.

Refused: meshes in the call chain of an `xmap`, which has no replacement.
See https://docs.jax.dev/en/latest/jax.sharding.html for the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.shared_names import OLD_MESHES
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses


class ReplaceOldMesh(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = OLD_MESHES
    beside: ClassVar = ()

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Every use, since one that stays keeps its import."""
        for use in module.uses(OLD_MESHES):
            yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Uses through an import keep the alias; others get the new name."""
        use = self.use
        if use.is_direct and "." in self.site.text(use.node):
            self.site.replace(use.node, self.site.spell(OLD_MESHES[use.name]))
