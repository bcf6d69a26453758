"""Take `checkpoint` and `remat` from `jax` itself, since `jax.ad_checkpoint` has lost them.

    jax.ad_checkpoint.checkpoint(f, policy=policy)
    ->  jax.checkpoint(f, policy=policy)

Other names of `jax.ad_checkpoint`, such as `checkpoint_name`, stay.

To check: nothing; it is the same function.

Refused: nothing; code that chooses by the version of JAX is left alone.
See https://docs.jax.dev/en/latest/_autosummary/jax.checkpoint.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod


class MoveCheckpoint(ModernizeCodemod):
    """Moves imports, and names that are written with their module."""

    moved: ClassVar[Mapping[str, str]] = {
        "jax.ad_checkpoint.checkpoint": "jax.checkpoint",
        "jax.ad_checkpoint.remat": "jax.remat",
    }

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """The module alone: the word `checkpoint` is in many files that have nothing to do with this."""
        return (b"ad_checkpoint",)
