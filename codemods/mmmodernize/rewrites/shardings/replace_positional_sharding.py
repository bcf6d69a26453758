"""Replace `PositionalSharding` by the class of the runtime that does the same.

    sharding = PositionalSharding(jax.devices()[:8])
    x = jax.device_put(x, sharding.reshape(4, 2).replicate(1))
    ->  sharding = compat.PositionalSharding(jax.devices()[:8])
        x = jax.device_put(x, sharding.reshape(4, 2).replicate(1))

JAX no longer has a sharding that is reshaped, transposed and replicated like an array. That of `mmruntime.compat` is a
`NamedSharding` which does, whatever shapes the program computes and wherever it passes a sharding, so that every device
holds the same part of an array as before. In new code, write a `NamedSharding` of a mesh of these devices.

To check: the program has `mmrewrite[runtime]` where it runs, as it imports `mmruntime.compat`.

Refused: a `target-jax` before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html
"""

from __future__ import annotations

from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod

_WHY = "its dimensions are those of arrays by position; write a `NamedSharding` of a mesh of these devices"


class ReplacePositionalSharding(ModernizeCodemod):
    """Replaces the class by the runtime's."""

    names: ClassVar[tuple[str, ...]] = (
        "jax.sharding.PositionalSharding",
        "jax.experimental.sharding.PositionalSharding",
        "jax._src.sharding.PositionalSharding",
        "jax._src.sharding_impls.PositionalSharding",
    )

    def rewrite(self) -> None:
        """Replace the name."""
        if self.use.is_direct:
            self.site.replace(self.use.node, self.site.spell_compat("PositionalSharding", _WHY))
