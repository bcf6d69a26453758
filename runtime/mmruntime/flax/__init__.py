"""Tasks and steps for Flax modules, linen and nnx; imported as `mm.flax`."""

from __future__ import annotations

from typing import Any

from mmruntime import _check
from mmruntime._frontend.constraint import with_sharding_constraint as with_sharding_constraint
from mmruntime.flax._module import shard_axes as shard_axes
from mmruntime.flax._module import task as task
from mmruntime.flax._step import parallelize_step as parallelize_step

__all__ = ["parallelize_step", "shard_axes", "task", "with_sharding_constraint"]


def __getattr__(name: str) -> Any:
    near = _check.nearest(name, __all__)
    guess = f"; did you mean {near!r}?" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{guess}")
