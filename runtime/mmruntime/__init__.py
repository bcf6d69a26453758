"""Run programs for several submeshes on stock JAX.

Names are imported on first use (PEP 562), so that `mmruntime.schedules` works without JAX. `_HOMES` says in which file
each function is that programs call; `_check` has the checks of their arguments, and how such an error is worded.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmruntime._core.mesh import TaskMesh as TaskMesh
    from mmruntime._core.multimesh import MultiMesh as MultiMesh
    from mmruntime._core.multimesh import slice_global_mesh as slice_global_mesh
    from mmruntime._core.registry import Context as Context
    from mmruntime._core.registry import clear_tasks as clear_tasks
    from mmruntime._core.registry import register_task as register_task
    from mmruntime._core.registry import tasks as tasks
    from mmruntime._core.switches import autoshard as autoshard
    from mmruntime._core.switches import context as context
    from mmruntime._core.switches import enable_fast_path as enable_fast_path
    from mmruntime._core.switches import enable_recomputation as enable_recomputation
    from mmruntime._core.switches import ignore_transforms as ignore_transforms
    from mmruntime._core.switches import (
        replicate_parameters_smaller_than_num_elements as replicate_parameters_smaller_than_num_elements,
    )
    from mmruntime._core.task import Task as Task
    from mmruntime._core.task import stage as stage
    from mmruntime._frontend.constraint import out_sharding as out_sharding
    from mmruntime._frontend.constraint import reshard as reshard
    from mmruntime._frontend.constraint import with_sharding_constraint as with_sharding_constraint
    from mmruntime._frontend.init import init as init
    from mmruntime._frontend.init import init_test as init_test
    from mmruntime._frontend.loops.microbatch import microbatch as microbatch
    from mmruntime._frontend.loops.microbatch_loop import microbatch_loop as microbatch_loop
    from mmruntime._frontend.loops.microbatch_scan import microbatch_scan as microbatch_scan
    from mmruntime._frontend.shard_map import custom_partitioning as custom_partitioning
    from mmruntime._frontend.shard_map import shard_map as shard_map
    from mmruntime._frontend.stage_scan import stage_scan as stage_scan
    from mmruntime._frontend.stage_sequential import stage_sequential as stage_sequential
    from mmruntime._frontend.task_call import task as task
    from mmruntime._step.gather import gather as gather
    from mmruntime._step.mjit import mjit as mjit
    from mmruntime._step.parallelize import parallelize as parallelize

_HOMES = {
    "Context": "_core.registry",
    "MultiMesh": "_core.multimesh",
    "Task": "_core.task",
    "TaskMesh": "_core.mesh",
    "autoshard": "_core.switches",
    "clear_tasks": "_core.registry",
    "context": "_core.switches",
    "custom_partitioning": "_frontend.shard_map",
    "enable_fast_path": "_core.switches",
    "enable_recomputation": "_core.switches",
    "ignore_transforms": "_core.switches",
    "gather": "_step.gather",
    "init": "_frontend.init",
    "init_test": "_frontend.init",
    "microbatch": "_frontend.loops.microbatch",
    "microbatch_loop": "_frontend.loops.microbatch_loop",
    "microbatch_scan": "_frontend.loops.microbatch_scan",
    "mjit": "_step.mjit",
    "out_sharding": "_frontend.constraint",
    "parallelize": "_step.parallelize",
    "register_task": "_core.registry",
    "replicate_parameters_smaller_than_num_elements": "_core.switches",
    "reshard": "_frontend.constraint",
    "shard_map": "_frontend.shard_map",
    "slice_global_mesh": "_core.multimesh",
    "stage": "_core.task",
    "stage_scan": "_frontend.stage_scan",
    "stage_sequential": "_frontend.stage_sequential",
    "task": "_frontend.task_call",
    "tasks": "_core.registry",
    "with_sharding_constraint": "_frontend.constraint",
}
_MODULES = ("compat", "flax", "schedules")
_IN_FLAX = ("parallelize_step", "shard_axes")

_PLUMBING = "it set up MultiMesh's own compiler and runtime, which stock JAX does not need. Leave it out."
# Names of MultiMesh that this package does not have, and what to do instead.
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
    if name in _IN_FLAX:
        return f"; it is in mmruntime.flax: write mm.flax.{name}."
    near = importlib.import_module(f"{__name__}._check").nearest(name, (*_HOMES, *_MODULES))
    return f"; did you mean {near!r}?" if near else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


if sys.modules.get("jax") is not None:
    # What adds to the key of `jax.jit`'s caches is there before anything is traced.
    importlib.import_module(f"{__name__}._core.switches")
