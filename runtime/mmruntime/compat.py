"""The names that programs rewritten by `mmrewrite modernize` use where current JAX has no exact replacement.

Each does what an older JAX did, with what is only known when the program runs. Do not use them in new code.
"""

from __future__ import annotations

from mmruntime._core.auto_layout import AUTO
from mmruntime._old_jax.make_mesh import make_mesh
from mmruntime._old_jax.mesh_context import assign_mesh, current_mesh, mesh_context
from mmruntime._old_jax.none_leaves import replicate_none, tree_map
from mmruntime._old_jax.pjit import pjit
from mmruntime._old_jax.pmap import pmap
from mmruntime._old_jax.positional_sharding import PositionalSharding
from mmruntime._old_jax.shard_map import shard_map
from mmruntime._old_jax.specs_in_context import with_sharding_constraint
from mmruntime._old_jax.stacked_arrays import device_put_replicated, device_put_sharded, pmap_sharding
from mmruntime._step.multimesh_jit import multimesh_jit

__all__ = [
    "AUTO",
    "PositionalSharding",
    "assign_mesh",
    "current_mesh",
    "device_put_replicated",
    "device_put_sharded",
    "make_mesh",
    "mesh_context",
    "multimesh_jit",
    "pjit",
    "pmap",
    "pmap_sharding",
    "replicate_none",
    "shard_map",
    "tree_map",
    "with_sharding_constraint",
]
