"""Make meshes with `jax.sharding.Mesh` instead of `maps.Mesh`, `maps.mesh` or `pxla.Mesh`.

    mesh = maps.Mesh(devices, ("data", "model"))
    ->  mesh = jax.sharding.Mesh(devices, ("data", "model"))

`jax.make_mesh` would not do: the type of its axes is another one. `maps.mesh(devices, names)` was a context manager,
and so is a mesh; `replace_mesh_context` rewrites the `with` around it.

Refused: meshes in modules that use `xmap`, which do not run on today's JAX in any case.
See https://docs.jax.dev/en/latest/jax.sharding.html for the class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from mmrewrite.modernize.analysis.mesh_contexts import OLD_MESHES
from mmrewrite.modernize.analysis.old_names import XMAPS
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.site import Location, ModernizeContext
from mmrewrite.modernize.uses import ModuleUses


class ReplaceOldMesh(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = OLD_MESHES

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Every use, since one that stays keeps its import."""
        for use in module.uses(OLD_MESHES):
            yield Location(module, use.node, use)

    @classmethod
    def keeps(cls, module: ModuleUses) -> Collection[str]:
        """All of them beside an `xmap`, without which the module does not import."""
        return OLD_MESHES.keys() if any(True for _ in module.uses(XMAPS)) else ()

    def rewrite(self) -> None:
        """Uses through an import keep the alias; others get the new name."""
        use = self.use
        if use.name in self.keeps(self.site.module):
            self.refuse("left as it is, because `xmap` and `serial_loop` in this module have no replacement")
        if use.is_direct and "." in self.site.text(use.node):
            self.site.replace(use.node, self.site.spell(OLD_MESHES[use.name]))
