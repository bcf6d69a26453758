"""Put a mesh in context with `jax.set_mesh`, today's name of `use_mesh`.

    with jax.sharding.use_mesh(mesh):
    ->  with jax.set_mesh(mesh):

To check: nothing; it is the same context.

Refused: a `target-jax` before 0.7.1, which has no `jax.set_mesh`.
See https://docs.jax.dev/en/latest/_autosummary/jax.set_mesh.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod


class ReplaceUseMesh(ModernizeCodemod):
    """Replaces the name and leaves the argument alone."""

    names: ClassVar[tuple[str, ...]] = ("jax.sharding.use_mesh", "jax.sharding.set_mesh", "jax.use_mesh")

    def rewrite(self) -> None:
        """Replace the name."""
        if self.use.is_direct:
            self.site.needs("0.7.1", "`jax.set_mesh`")
            self.site.replace(self.use.node, self.site.spell("jax.set_mesh"))
