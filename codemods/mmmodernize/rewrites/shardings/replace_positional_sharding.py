"""Replace `PositionalSharding` by shardings of a mesh, or keep its chains on a class of the runtime.

    sharding = PositionalSharding(jax.devices()[:8])
    x = jax.device_put(x, sharding.reshape(4, 2).replicate(1))
    ->  sharding = NamedSharding(Mesh(jax.devices()[:8], ("x",)), P("x"))
        x = jax.device_put(x, NamedSharding(Mesh(sharding.mesh.devices.reshape(4, 2), ("x", "y")), P("x", None)))

JAX no longer has a sharding that is reshaped, transposed and replicated like an array. The grid of one that is only
made and reshaped is a mesh, and a spec says what was replicated or transposed, so every device holds the same part of
an array as before. That is written where all that becomes of the sharding is seen: methods with numbers, names, and
functions of JAX that take a sharding. A sharding whose first dimension cuts nothing also took arrays of lower rank, so
there the rank of the array must be seen, too.

Otherwise the class of the runtime does the same to a `NamedSharding`, whatever shapes the program computes and wherever
it passes a sharding, and all shardings of one device list can be combined:

    def halves(devices):
        return PositionalSharding(devices).reshape(2, -1)
    ->  def halves(devices):
            return compat.PositionalSharding(devices).reshape(2, -1)

To check: code that reads the class of the sharding.

Refused: a `target-jax` before 0.10, on which the runtime does not install, where the class of the runtime is needed.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.device_grids import POSITIONAL_SHARDINGS, DeviceGrids

_NO_NAMES = "its dimensions are those of arrays by position; write a `NamedSharding` of a mesh of these devices"


class ReplacePositionalSharding(ModernizeCodemod):
    """Replaces the class by the runtime's, or the call and what is made of it by shardings of a mesh."""

    names: ClassVar[tuple[str, ...]] = POSITIONAL_SHARDINGS

    def rewrite(self) -> None:
        """Replace the name, or the chains that begin with it."""
        site = self.site
        if not self.use.is_direct:
            return
        found = site.context.analysis(DeviceGrids).plan(site.module, site.call) if site.call is not None else _NO_NAMES
        if isinstance(found, str):
            site.needs("0.10", "`mmruntime.compat`")
            site.replace(self.use.node, site.spell_compat("PositionalSharding", found))
            return
        for each in found:
            site.replace(each.node, each.text(site))
