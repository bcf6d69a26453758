"""Tasks in the body of a loop or the branches of a conditional that is one program: what is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.registry import Registration
from mmruntime._core.submesh import task_mesh
from mmruntime._core.task import Task
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Op, at_line
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.tracing.assign_tasks import TaskFinder
from mmruntime._partition.tracing.trace import holds_loop


def warn_of_tasks_inside(
    ops: Iterable[Op], placement: Placement, multimesh: MultiMesh, registrations: Sequence[Registration]
) -> None:
    """Warn of equations with bodies, outside of tasks, that run in one place although tasks in them belong elsewhere.

    Of a scan without microbatches in it that is said where it is cut into those of its tasks.
    """
    finder = TaskFinder(registrations)
    said: set[tuple[str, str]] = set()
    for op in ops:
        key = op.eqn.primitive.name, at_line(op.eqn)
        is_cut = op.eqn.primitive is _compat.scan_p and not any(map(holds_loop, _compat.inner_jaxprs(op.eqn)))
        if is_cut or key in said:
            continue
        tasks = {task for inner in _compat.inner_jaxprs(op.eqn) for task in _inside(inner, finder)}
        if not tasks or not _is_elsewhere(tasks, op, placement, multimesh):
            continue
        # Once for it and that of its backward pass.
        said.add(key)
        names = ", ".join(sorted(repr(task.name) for task in tasks))
        if op.eqn.primitive is _compat.cond_p:
            advice = "Compute in front of it and have it only choose between values, or put all of it into one task."
        else:
            advice = (
                "If a turn is a step of training, compile that by mm.mjit, and write the loop in Python; in a model, "
                "put all of it into one task."
            )
        warn(
            f"mjit: the {key[0]}{key[1]} runs as one program in one place, with all parameters that it reads, though "
            f"the tasks {names} are in it. {advice}"
        )


def _inside(jaxpr: Any, finder: TaskFinder) -> Iterator[Task]:
    for eqn in jaxpr.eqns:
        task = finder.find(eqn)[0]
        if task is not None:
            yield task
            continue
        for inner in _compat.inner_jaxprs(eqn):
            yield from _inside(inner, finder)


def _is_elsewhere(tasks: set[Task], op: Op, placement: Placement, multimesh: MultiMesh) -> bool:
    """Whether one of the tasks has another submesh than the equation runs on."""
    if len({task.replace(name=None) for task in tasks}) > 1:
        return True
    task = next(iter(tasks))
    mesh = placement.task_meshes.get(task) or task_mesh(task, multimesh)
    here = {device for where in placement.of[op] for device in placement.submeshes.meshes[where].devices.flat}
    return mesh is not None and set(mesh.devices.flat) != here
