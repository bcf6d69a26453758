"""Full names that several codemods and analyses look for."""

from __future__ import annotations

PJIT = frozenset(("jax.experimental.pjit.pjit",))
OLD_CONSTRAINTS = {"jax.experimental.pjit.with_sharding_constraint": "jax.lax.with_sharding_constraint"}
CONSTRAINTS = frozenset((*OLD_CONSTRAINTS, "jax.lax.with_sharding_constraint"))
XMAPS = frozenset(
    f"jax.experimental.maps.{name}" for name in ("xmap", "serial_loop", "SerialLoop", "Loop", "ResourceSet")
)
FROZEN_DICTS = frozenset(("flax.core.FrozenDict", "flax.core.frozen_dict.FrozenDict"))
GONE_VALUES = frozenset(f"jax.experimental.pjit.{name}" for name in ("FROM_GDA", "AUTO", "ParsedPartitionSpec"))
OLD_MESHES = {
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.experimental.maps.mesh": "jax.sharding.Mesh",
    "jax.interpreters.pxla.Mesh": "jax.sharding.Mesh",
    "jax.experimental.global_device_array.Mesh": "jax.sharding.Mesh",
    "jax.experimental.sharding.Mesh": "jax.sharding.Mesh",
    "jax._src.mesh.Mesh": "jax.sharding.Mesh",
}
MESHES = frozenset((*OLD_MESHES, "jax.sharding.Mesh", "jax.make_mesh", "jax.Mesh", "mmruntime.compat.make_mesh"))
ENVIRONMENTS = frozenset(
    f"{module}.thread_resources"
    for module in ("jax.experimental.maps", "jax.interpreters.pxla", "jax._src.mesh", "jax._src.maps")
)
RESOURCE_ENVS = frozenset(
    f"{module}.ResourceEnv" for module in ("jax.experimental.maps", "jax.interpreters.pxla", "jax._src.mesh")
)
# What puts a mesh in context as today's JAX does.
SET_A_MESH = (
    *("jax.set_mesh", "jax.use_mesh", "jax.sharding.set_mesh", "jax.sharding.use_abstract_mesh"),
    "jax.sharding.use_mesh",
)
# Names that codemods replace although importing them works, today, on every JAX from 0.10 on.
STILL_THERE = frozenset(
    (
        *("jax._src.mesh.Mesh", "jax._src.mesh.ResourceEnv", "jax._src.mesh.thread_resources"),
        *("jax._src.partition_spec.PartitionSpec", "jax._src.sharding_impls.GSPMDSharding"),
        *("jax._src.sharding_impls.GSPMDSharding.get_replicated", "jax.experimental.layout.Layout"),
        *("jax.experimental.pjit.pjit", "jax.numpy.empty", "jax.numpy.empty_like"),
        *("jax.experimental.shard_map.shard_map", "jax.host_count", "jax.host_id"),
        *("jax.interpreters.pxla.thread_resources", "jax.make_mesh", "jax.pmap", "jax.sharding.set_mesh"),
    )
)
