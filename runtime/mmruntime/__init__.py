"""Run programs that are written for several submeshes, on the JAX that pip installs.

`mmruntime.schedules` needs no JAX; everything else is imported on first use.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmruntime._call import task as task
    from mmruntime._constraint import with_sharding_constraint as with_sharding_constraint
    from mmruntime._contexts import autoshard as autoshard
    from mmruntime._contexts import context as context
    from mmruntime._contexts import enable_fast_path as enable_fast_path
    from mmruntime._contexts import enable_recomputation as enable_recomputation
    from mmruntime._contexts import ignore_transforms as ignore_transforms
    from mmruntime._contexts import (
        replicate_parameters_smaller_than_num_elements as replicate_parameters_smaller_than_num_elements,
    )
    from mmruntime._init import init as init
    from mmruntime._manual import custom_partitioning as custom_partitioning
    from mmruntime._manual import shard_map as shard_map
    from mmruntime._mesh import TaskMesh as TaskMesh
    from mmruntime._microbatch import microbatch as microbatch
    from mmruntime._microbatch_loop import microbatch_loop as microbatch_loop
    from mmruntime._microbatch_scan import microbatch_scan as microbatch_scan
    from mmruntime._mjit import mjit as mjit
    from mmruntime._multimesh import MultiMesh as MultiMesh
    from mmruntime._multimesh import slice_global_mesh as slice_global_mesh
    from mmruntime._parallelize import parallelize as parallelize
    from mmruntime._registry import Context as Context
    from mmruntime._registry import clear_tasks as clear_tasks
    from mmruntime._registry import register_task as register_task
    from mmruntime._registry import tasks as tasks
    from mmruntime._stage_scan import stage_scan as stage_scan
    from mmruntime._task import Task as Task
    from mmruntime._task import stage as stage

_HOMES = {
    "Context": "_registry",
    "MultiMesh": "_multimesh",
    "Task": "_task",
    "TaskMesh": "_mesh",
    "autoshard": "_contexts",
    "clear_tasks": "_registry",
    "context": "_contexts",
    "custom_partitioning": "_manual",
    "enable_fast_path": "_contexts",
    "enable_recomputation": "_contexts",
    "ignore_transforms": "_contexts",
    "init": "_init",
    "microbatch": "_microbatch",
    "microbatch_loop": "_microbatch_loop",
    "microbatch_scan": "_microbatch_scan",
    "mjit": "_mjit",
    "parallelize": "_parallelize",
    "register_task": "_registry",
    "replicate_parameters_smaller_than_num_elements": "_contexts",
    "shard_map": "_manual",
    "slice_global_mesh": "_multimesh",
    "stage": "_task",
    "stage_scan": "_stage_scan",
    "task": "_call",
    "tasks": "_registry",
    "with_sharding_constraint": "_constraint",
}
_MODULES = ("compat", "flax", "schedules")

_PLUMBING = "it set up MultiMesh's own compiler and runtime, which JAX needs nothing of. Leave it out."
# Names that MultiMesh has or had, and this package does not.
_ABSENT = {
    "MeshWrapper": "MultiMesh took its place.",
    "compile_hlo_module": "mm.mjit(step, mesh=mesh).plan(*shapes) compiles without running and says what it needs.",
    "enable_task_fusion": "neighbouring tasks of one submesh are always one stage. Leave it out.",
    "mark_gradient": "gradients are found in the trace. Leave it out.",
    "mark_loss": "losses need no mark. Leave it out.",
    "no_op_custom_call": _PLUMBING,
    "only_fuse_loop_tasks": "neighbouring tasks of one submesh are always one stage. Leave it out.",
    "recompute_from_arguments_if_cost_less_than": "mm.enable_recomputation switches that, for all cheap values.",
    "register_custom_call_target": _PLUMBING,
    "set_startup_config": _PLUMBING,
    "shutdown": "there is nothing to shut down. Leave it out.",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_advice(name)}")
    globals()[name] = value
    return value


def _advice(name: str) -> str:
    if name in _ABSENT:
        return f": {_ABSENT[name]}"
    near = difflib.get_close_matches(name, (*_HOMES, *_MODULES), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
