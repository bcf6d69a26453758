"""Replicate over devices with a `NamedSharding` instead of `GSPMDSharding.get_replicated`.

    GSPMDSharding.get_replicated(devices)
    ->  NamedSharding(Mesh(devices, ("devices",)), PartitionSpec())

`GSPMDSharding(devices, op_sharding)`, whose layout is a value of XLA, is in `jax.extend.sharding` today. In a module
that has one, `get_replicated` stays a method of it: a `NamedSharding` equals no sharding of that class.

To check: the devices are those that other shardings of the program have, in the same order.

Refused: the class for a `target-jax` before 0.7; tests for it, since arrays have `NamedSharding`s today. In programs
for MultiMesh, whose layouts were of it, they become tests for that of `jax.extend`, which no layout of `mmruntime` is.
See https://docs.jax.dev/en/latest/jax.sharding.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmmodernize.meshes.multimesh_uses import is_carried
from mmrewrite.source.calls import stars_of

_CLASSES = (
    "jax.sharding.GSPMDSharding",
    "jax.sharding.OpShardingSharding",
    "jax.experimental.sharding.OpShardingSharding",
    "jax._src.sharding.GSPMDSharding",
    "jax._src.sharding_impls.GSPMDSharding",
)


class ReplaceGspmdSharding(ModernizeCodemod):
    """Wraps the devices of `get_replicated` into a mesh of one axis."""

    names: ClassVar[tuple[str, ...]] = tuple(name for owner in _CLASSES for name in (owner, f"{owner}.get_replicated"))

    def rewrite(self) -> None:
        """Two names go in front of the devices, the axis and the spec behind them."""
        call = self.site.call
        if self.use.name in _CLASSES:
            if call is None and not is_carried(self.site.module):
                self.refuse(
                    "arrays have a `NamedSharding` today, so a test for this class has no equal; compare index maps "
                    "(`sharding.devices_indices_map(shape)`), or ask `sharding.is_equivalent_to(other, ndim)`"
                )
            self._move("GSPMDSharding")
            return
        makes_others = any(use.name in _CLASSES for use in self.site.module.uses(frozenset(self.names)))
        if makes_others and self.site.target >= (0, 7, 0):
            self._move("GSPMDSharding.get_replicated")
            return
        if call is None or len(call.args) != 1 or call.keywords or stars_of(call):
            self.refuse("write `get_replicated(devices)` with the devices alone, for which there is a replacement")
        sharding, mesh = self.site.spell("jax.sharding.NamedSharding"), self.site.spell("jax.sharding.Mesh")
        self.site.wrap(call, f"{sharding}(", f", {self.site.spell('jax.sharding.PartitionSpec')}())")
        self.site.replace(self.use.node, mesh)
        append_argument(self.site, call, '("devices",)')

    def _move(self, name: str) -> None:
        self.site.needs("0.7.0", "`jax.extend.sharding.GSPMDSharding`")
        if self.use.is_direct:
            home = self.site.draft.imports.member("jax.extend", "sharding", ("jex_sharding",))
            self.site.replace(self.use.node, f"{home}.{name}")
