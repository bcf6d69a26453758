"""`task`: mark a function's call as one placed piece of the program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from mmruntime import _compat
from mmruntime._contexts import transforms_ignored
from mmruntime._marks import TASKS
from mmruntime._mesh import TaskMesh, auto_mesh
from mmruntime._task import Task

P = ParamSpec("P")
R = TypeVar("R")


def task(fun: Callable[P, R], name: str | None = None, *, task: Task | None = None, **fields: Any) -> Callable[P, R]:
    """Make each call of `fun` a task: it runs on the task's submesh, as one compiled program.

    The call computes what `fun` computes, for any arguments, closures and transformations. Inside a step
    that `mjit` or `parallelize` compiles it is placed; under plain `jax.jit` it is inlined; outside of any
    trace it is called as it is.

    Args:
        fun: Any callable, a bound Flax module included. Its parameter paths and RNG streams do not change.
        name: Name of the task in reports; the task's own name, else the function's, if left out.
        task: The task. Or give its fields as keywords: `mesh=`, `mesh_slice=`, `logical_axes=`, ...; MultiMesh's
            earlier `devices=` and `device_axes=` are accepted as well.

    Returns:
        The function, with the same signature.

    Raises:
        TypeError: If both `task=` and fields are given, `fun` is not callable, or a field is unknown.
    """
    if not callable(fun):
        raise TypeError(f"task: expected a function to place, got {fun!r}. Write mm.task(f, task=...)(x).")
    if task is not None and fields:
        raise TypeError(f"task: give task= or its fields, not both (got task={task!r} and {', '.join(fields)}).")
    if task is not None and not isinstance(task, Task):
        raise TypeError(f"task: task must be a mm.Task, got {task!r}.")
    if task is None:
        task = _from_fields(fields)
    if name is not None or task.name is None:
        task = task.replace(name=name or _name_of(fun))
    placed = task

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if transforms_ignored() or _compat.at_top_level():
            return fun(*args, **kwargs)
        assert placed.name is not None
        mark = TASKS.name(placed, placed.name)
        if _writes_state(fun):
            with jax.named_scope(mark):
                return fun(*args, **kwargs)
        return _call_marked(fun, mark, args, kwargs)

    return functools.update_wrapper(call, fun, updated=())


def _call_marked(fun: Callable[..., R], mark: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    # Only tracers become operands of the inner jit: all else (flags, strings, numpy arrays) reaches `fun` as it
    # was given, so `fun` may still branch on it.
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = [isinstance(leaf, Tracer) for leaf in leaves]

    def inner(*operands: Any) -> R:
        rest = iter(operands)
        call_args, call_kwargs = jax.tree.unflatten(
            tree, [next(rest) if is_traced else leaf for leaf, is_traced in zip(leaves, traced, strict=True)]
        )
        return fun(*call_args, **call_kwargs)

    inner.__name__ = inner.__qualname__ = mark
    result: R = jax.jit(inner)(*[leaf for leaf, is_traced in zip(leaves, traced, strict=True) if is_traced])
    return result


def _writes_state(fun: Any) -> bool:
    """Whether a call stores tracers in `fun` itself, which an inner jit would leak.

    A Flax linen module that is being initialised, or applied with mutable collections, and every nnx
    module do so; they are marked by a name scope instead.
    """
    owner = getattr(fun, "__self__", fun)
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(owner, linen.Module):
        scope = owner.scope
        return scope is not None and bool(scope.root.mutable)
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(owner, nnx.Module)


def _name_of(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    owner = getattr(fun, "__self__", fun)
    # A Flax module knows the name that it has among its parent's parameters.
    for candidate in (getattr(owner, "name", None), getattr(fun, "__name__", None), type(fun).__name__):
        if isinstance(candidate, str) and candidate:
            return candidate
    return "task"


def _from_fields(fields: dict[str, Any]) -> Task:
    fields = dict(fields)
    devices = fields.pop("devices", None)
    device_axes = fields.pop("device_axes", None)
    if devices is not None:
        if fields.get("mesh") is not None:
            raise TypeError("task: cannot give both mesh= and devices=.")
        fields["mesh"] = _mesh_of(devices, device_axes)
    elif device_axes is not None:
        raise TypeError("task: device_axes= needs devices=.")
    return Task(**fields)


def _mesh_of(devices: Any, device_axes: Any) -> TaskMesh | Mesh:
    grid = np.asarray(devices, dtype=object)
    names = ("x",) if device_axes is None else tuple(device_axes)
    if len(names) != grid.ndim:
        raise ValueError(f"task: device_axes {names} has {len(names)} names for devices of {grid.ndim} dimensions.")
    if all(isinstance(device, int | np.integer) for device in grid.flat):
        return TaskMesh(devices=grid.astype(np.int64), axis_sizes=grid.shape, axis_names=names)
    return auto_mesh(grid, names)
