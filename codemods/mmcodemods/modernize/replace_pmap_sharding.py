"""Split one dimension over devices with a `NamedSharding` instead of a `PmapSharding`.

    jax.sharding.PmapSharding.default((8, 2), sharded_dim=0)
    ->  compat.pmap_sharding((8, 2), sharded_dim=0)

Every device holds the same indices as before. The number of devices follows from the shape, so the runtime makes the
mesh.

To check: code that reads the class of the sharding.

Refused: `PmapSharding(devices, spec)`, and `isinstance` tests for the class, which no array has any more; a
`target-jax` before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/migrate_pmap.html for what became of it.
"""

from __future__ import annotations

from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod

_CLASS = "jax.sharding.PmapSharding"
_DEFAULT = f"{_CLASS}.default"


class ReplacePmapSharding(ModernizeCodemod):
    """Replaces `PmapSharding.default` by the runtime's helper."""

    names: ClassVar[tuple[str, ...]] = (_CLASS, _DEFAULT)

    def rewrite(self) -> None:
        """Replace the name; the helper takes the same arguments."""
        if self.use.name == _CLASS:
            self.refuse(
                "`PmapSharding` is gone, and `jax.pmap` gives a `NamedSharding` today; compare index maps "
                "(`sharding.devices_indices_map(shape)`) instead of classes"
            )
        if self.use.is_direct or (self.use.written or "").endswith(".default"):
            self.site.needs("0.10", "`mmruntime.compat`")
            self.site.replace(self.use.node, self.site.spell("mmruntime.compat.pmap_sharding"))
