"""Replicate over devices with a `NamedSharding` instead of `GSPMDSharding.get_replicated`.

    GSPMDSharding.get_replicated(devices)
    ->  NamedSharding(Mesh(devices, ("devices",)), PartitionSpec())

To check: the devices are those that other shardings of the program have, in the same order.

Refused: `GSPMDSharding(devices, op_sharding)`, whose layout is a value of XLA, and `isinstance` tests for the class:
arrays have `NamedSharding`s today.
See https://docs.jax.dev/en/latest/jax.sharding.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.edits.arguments import append_argument

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
            self.refuse(
                "arrays have a `NamedSharding` today, so this test or constructor has no equal; for a layout that only "
                "XLA can say, there is `jax.extend.sharding.GSPMDSharding`"
            )
        if call is None or len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            self.refuse("write `get_replicated(devices)` with the devices alone, for which there is a replacement")
        sharding, mesh = self.site.spell("jax.sharding.NamedSharding"), self.site.spell("jax.sharding.Mesh")
        self.site.replace(self.use.node, f"{sharding}({mesh}")
        append_argument(self.site, call, f'("devices",)), {self.site.spell("jax.sharding.PartitionSpec")}()')
