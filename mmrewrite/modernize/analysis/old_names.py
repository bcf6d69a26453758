"""Full names that several codemods and analyses look for."""

from __future__ import annotations

PJIT = frozenset(("jax.experimental.pjit.pjit",))
OLD_CONSTRAINTS = {"jax.experimental.pjit.with_sharding_constraint": "jax.lax.with_sharding_constraint"}
CONSTRAINTS = frozenset((*OLD_CONSTRAINTS, "jax.lax.with_sharding_constraint"))
XMAPS = frozenset(
    f"jax.experimental.maps.{name}" for name in ("xmap", "serial_loop", "SerialLoop", "Loop", "ResourceSet")
)
PARTIALS = frozenset(("functools.partial", "jax.tree_util.Partial"))
GONE_VALUES = frozenset(f"jax.experimental.pjit.{name}" for name in ("FROM_GDA", "AUTO", "ParsedPartitionSpec"))
