"""Import `PartitionSpec`, `NamedSharding` and `Sharding` from `jax.sharding`, their home today.

    from jax.experimental.pjit import PartitionSpec as P
    ->  from jax.sharding import PartitionSpec as P

Uses keep their alias; `pjit.PartitionSpec` and the like get the new name.

To check: nothing; they are the same classes.

Refused: nothing; code that chooses by the version of JAX is left alone.
See https://docs.jax.dev/en/latest/jax.sharding.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod

_OLD_HOMES = (
    *("jax.experimental", "jax.experimental.maps", "jax.experimental.pjit", "jax.experimental.sharding"),
    *("jax.interpreters.pxla", "jax.interpreters.sharded_jit", "jax._src.partition_spec"),
)


class MovePartitionSpec(ModernizeCodemod):
    """Moves imports, and names that are written with their module."""

    moved: ClassVar[Mapping[str, str]] = {
        **{f"{home}.PartitionSpec": "jax.sharding.PartitionSpec" for home in _OLD_HOMES},
        "jax.experimental.sharding.NamedSharding": "jax.sharding.NamedSharding",
        "jax.experimental.sharding.MeshPspecSharding": "jax.sharding.NamedSharding",
        "jax.sharding.MeshPspecSharding": "jax.sharding.NamedSharding",
        "jax.sharding.XLACompatibleSharding": "jax.sharding.Sharding",
    }
