"""Make stacked arrays, one row per device, with the runtime, since JAX has no function for it any more.

    jax.device_put_replicated(params, jax.local_devices())
    ->  compat.device_put_replicated(params, jax.local_devices())

`device_put_sharded` is treated the same. The result has a leading axis of devices, as `jax.pmap` takes it. It is not a
replicated array, so `jax.device_put(x, NamedSharding(mesh, P()))` would be something else.

To check: what reads the result expects the leading axis of devices.

Refused: a `target-jax` before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/migrate_pmap.html for what became of them.
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod

_NO_FUNCTION = (
    "JAX has no function that stacks rows on devices; stack the values, and `jax.device_put` the result with a "
    "`NamedSharding` of a mesh of these devices"
)
_HELPERS = {
    f"{home}.{name}": name for home in ("jax", "jax.api") for name in ("device_put_replicated", "device_put_sharded")
}


class ReplaceDevicePutStacked(ModernizeCodemod):
    """Replaces the name by the runtime's and leaves the arguments alone."""

    names: ClassVar[tuple[str, ...]] = tuple(_HELPERS)

    def rewrite(self) -> None:
        """Replace the name."""
        if self.use.is_direct:
            self.site.replace(self.use.node, self.site.spell_compat(_HELPERS[self.use.name], _NO_FUNCTION))
