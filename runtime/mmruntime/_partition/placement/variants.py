"""Tasks whose submesh depends on the microbatch: one copy of the loop's body for each distinct choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from mmruntime import _check, _compat, schedules
from mmruntime._compat import Var
from mmruntime._core.marks import LoopSpec
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import task_mesh
from mmruntime._core.task import StageSlice, Task
from mmruntime._jaxpr.ir import Op, Region, Step, tasks_of
from mmruntime._jaxpr.rewrite import renamed
from mmruntime._partition.placement.place import layer_costs

Slice = tuple[tuple[str, int], ...]


def expand_variants(step: Step, multimesh: MultiMesh) -> Step:
    """Give each microbatch a body whose tasks have fixed submeshes.

    Raises:
        ValueError: If a task's slices differ in size from each other or from its own submesh.
        TypeError: If its function does not return a mapping of axes to indices.
    """
    return step.with_regions(_fix_tasks(region, multimesh) for region in step.regions)


def _fix_tasks(region: Region, multimesh: MultiMesh) -> Region:
    tasks = [task for task in tasks_of(region.ops) if task.loop_dependent_mesh_slice is not None]
    if not tasks:
        return region
    if region.loop is None:
        fixed = {task: _outside(task, multimesh) for task in tasks}
        ops = (op if op.task is None else replace(op, task=fixed.get(op.task, op.task)) for op in region.ops)
        return replace(region, ops=tuple(ops))
    choices = [tuple(_slice(task, k, multimesh) for task in tasks) for k in range(region.loop.count)]
    variants = list(dict.fromkeys(choices))
    bodies = [{task: _fixed(task, piece) for task, piece in zip(tasks, each, strict=True)} for each in variants]
    variant_of = tuple(variants.index(choice) for choice in choices)
    return _copy_body(region, variant_of, bodies, submesh_varies=True)


def expand_replicas(step: Step, multimesh: MultiMesh) -> Step:
    """Give each microbatch of a loop whose stages have replicas a body with its own placement.

    Each submesh has one stage, in order of first use; the schedule says where each microbatch runs it.

    Raises:
        ValueError: If the loop also has tasks whose submesh depends on the microbatch.
    """
    for index, region in enumerate(step.regions):
        if region.loop is not None and region.loop.may_replicate:
            costs = layer_costs(step)
            meshes = {task: task_mesh(task, multimesh, costs) for task in tasks_of(region.ops)}
            step = step.with_region(index, _place_replicas(region, region.loop, meshes))
    return step


def _place_replicas(region: Region, loop: LoopSpec, meshes: Mapping[Task, Mesh | None]) -> Region:
    used: dict[tuple[Any, ...], Mesh] = {}
    for mesh in meshes.values():
        if mesh is not None:
            used.setdefault(tuple(mesh.devices.flat), mesh)
    schedule = _replicated(loop, len(used))
    if schedule is None:
        return region
    if region.variant_of:
        raise ValueError(
            f"microbatch: {schedule.name} chooses the submesh of each microbatch, and so do tasks with "
            "loop_dependent_mesh_slice in this loop. Give those a mesh_slice, or take another schedule."
        )
    count, targets = schedule.num_microbatches, list(used.values())
    choices = [schedule.homes[microbatch::count] for microbatch in range(count)]
    variants = list(dict.fromkeys(choices))
    stage_of = {devices: stage for stage, devices in enumerate(used)}
    bodies: list[dict[Task, Task]] = []
    for homes in variants:
        body = {}
        for task, mesh in meshes.items():
            if mesh is None:
                continue
            stage = stage_of[tuple(mesh.devices.flat)]
            if homes[stage] != stage:
                body[task] = _moved(task, targets[homes[stage]], homes[stage])
        bodies.append(body)
    variant_of = tuple(variants.index(choice) for choice in choices)
    return _copy_body(region, variant_of, bodies, submesh_varies=False)


def _replicated(loop: LoopSpec, num_submeshes: int) -> schedules.Schedule | None:
    """The schedule of a loop, None if its stages have no replicas or it is not for these submeshes."""
    if num_submeshes < 1 or loop.custom is not None:
        return None
    schedule = loop.schedule
    if isinstance(schedule, str):
        schedule = schedules.make(schedule, num_submeshes, loop.count)
    assert isinstance(schedule, schedules.Schedule)
    fits = schedule.placement == tuple(range(num_submeshes)) and schedule.num_microbatches == loop.count
    if not fits or not schedule.replicas:
        return None
    schedule.validate()
    return schedule


def _slice(task: Task, iteration: int, multimesh: MultiMesh) -> Slice:
    assert task.loop_dependent_mesh_slice is not None
    what = f"loop_dependent_mesh_slice({iteration})"
    chosen = _check.indices(f"Task {task.name!r}", what, task.loop_dependent_mesh_slice(iteration))
    try:
        size = multimesh.slice(**chosen).size
    except ValueError as error:
        raise ValueError(f"Task {task.name!r}: {what} gives {chosen}: {error}") from error
    default = _default(task)
    expected = multimesh.slice(**(default or _first(task))).size
    if size != expected:
        raise ValueError(
            f"Task {task.name!r}: {what} gives {chosen} with {size} devices, but {default or _first(task)} has "
            f"{expected}. All slices of a task must have as many devices."
        )
    return tuple(sorted(chosen.items()))


def _default(task: Task) -> dict[str, int] | None:
    if task.mesh_slice is None or isinstance(task.mesh_slice, StageSlice):
        return None
    return dict(task.mesh_slice)


def _first(task: Task) -> dict[str, int]:
    assert task.loop_dependent_mesh_slice is not None
    return dict(task.loop_dependent_mesh_slice(0))


def _outside(task: Task, multimesh: MultiMesh) -> Task:
    """The task outside of loops: on its own submesh, or on that of the first iteration."""
    if task.mesh is None and task.mesh_slice is None:
        return _fixed(task, _slice(task, 0, multimesh))
    return task.replace(loop_dependent_mesh_slice=None)


def _fixed(task: Task, piece: Slice) -> Task:
    place = "_".join(f"{axis}{index}" for axis, index in piece)
    return task.replace(name=f"{task.name}_{place}", mesh=None, mesh_slice=dict(piece), loop_dependent_mesh_slice=None)


def _moved(task: Task, mesh: Mesh, number: int) -> Task:
    return task.replace(name=f"{task.name}_on_{number}", mesh=mesh, mesh_slice=None)


def _copy_body(
    region: Region, variant_of: tuple[int, ...], bodies: Sequence[Mapping[Task, Task]], *, submesh_varies: bool
) -> Region:
    """A loop with several copies of its body, each with other tasks in the place of some.

    Args:
        region: The loop.
        variant_of: Which copy each microbatch runs.
        bodies: For each copy, its tasks in the place of the loop's.
        submesh_varies: Whether those tasks are no stages of a pipeline.
    """
    ops: list[Op] = []
    slices: dict[Var, Var] = {}
    sums: list[tuple[Var, Var]] = []
    for number, chosen in enumerate(bodies):
        env: dict[Var, Any] = {}
        for piece, stacked in region.slices.items():
            env[piece] = fresh = _compat.new_var(piece.aval)
            slices[fresh] = stacked
        for op in region.ops:
            for var in op.writes():
                env[var] = _compat.new_var(var.aval)
            eqn = renamed(op.eqn, env, env)
            other = None if op.task is None else chosen.get(op.task)
            ops.append(Op(eqn, other or op.task, op.backward, number, submesh_varies and other is not None))
        # Several results may be added up into one total: each microbatch has one of them.
        sums.extend((total, env[result]) for total, result in region.sums)
    return replace(region, ops=tuple(ops), slices=slices, sums=tuple(sums), variant_of=variant_of)
