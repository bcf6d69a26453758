"""`task`: mark a function's call as one placed piece of the program."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _check, _compat
from mmruntime._core.logical_axes import Names, mesh_axes, translate
from mmruntime._core.marks import TASKS
from mmruntime._core.mesh import TaskMesh, auto_mesh, current_mesh
from mmruntime._core.submesh import axis_pairs, task_mesh
from mmruntime._core.switches import TASK_IN_USE, transforms_ignored
from mmruntime._core.task import Task
from mmruntime._frontend.constraint import eager_layout, placed_later
from mmruntime._frontend.operands import by_operands, by_results
from mmruntime._frontend.stateful_calls import reaches_state, writes_state
from mmruntime._jaxpr.canonical_forms import one_of_equal, shares_equal_traces

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

# The fields of a task as keywords, and those of MultiMesh's earlier form.
TASK_KEYWORDS = (
    *inspect.signature(Task).parameters.values(),
    *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ("devices", "device_axes")),
)


class _AnyTask(tuple[str, int]):
    """A task in the keys of jit caches, while no trace depends on which it is: all of one thread are equal.

    Otherwise JAX would trace, differentiate and compile anew for each layer what the layers of a model have in common.
    JAX compares keys at every call of what it has compiled, so that this is a tuple, which Python needs no code of ours
    to compare.
    """

    task: Task

    def __new__(cls, task: Task) -> _AnyTask:
        """The key of this thread: another one may be the first to ask for its task, in the midst of a trace."""
        made = super().__new__(cls, ("any task", threading.get_ident()))
        made.task = task
        return made


# Whether `task_in_use` was ever called. From then on a trace may depend on the task, so that each has a key of its own.
_task_was_read = False


def task_in_use() -> Task | None:
    """The task whose call is being traced or run; of nested ones the outermost, as for placement."""
    global _task_was_read
    _task_was_read = True
    return _outermost()


def _outermost() -> Task | None:
    value: Task | _AnyTask | None = TASK_IN_USE.value
    return value.task if isinstance(value, _AnyTask) else value


def names_keywords(parameters: Iterable[inspect.Parameter]) -> Callable[[F], F]:
    """Have `inspect.signature`, `help` and editors at run time show what a function takes in the place of its `**`."""
    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]

    def decorate(function: F) -> F:
        found = inspect.signature(function)
        kept = [each for each in found.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        own = {each.name for each in kept}
        function.__signature__ = found.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *(each for each in shown if each.name not in own)]
        )
        return function

    return decorate


@_compat.api_boundary
@names_keywords(TASK_KEYWORDS)
def task(fun: Callable[P, R], name: str | None = None, *, task: Task | None = None, **fields: Any) -> Callable[P, R]:
    """Make each call of `fun` a task: it runs on the task's submesh, as one compiled program.

    The values, gradients and shapes are those of `fun`, for any arguments, closures and transformations; Python numbers
    and strings in its result stay Python objects. Where the call runs depends on where it is made:

    - in a step that `mjit` or `parallelize` compiles: on the task's submesh;
    - under plain `jax.jit`: inlined;
    - outside of any trace: at once on its submesh, operation by operation, and the results stay there. It is an
      ordinary call if the submesh is not known (a `mesh_slice` without a mesh in use) or the call writes to its own
      module (a Flax module that is being initialised).

    Args:
        fun: Any callable, also a bound Flax module, whose parameter paths and RNG streams do not change.
        name: Name of the task in reports. If left out: the task's own name, else the function's.
        task: The task. Or give its fields as keywords: `mesh=`, `mesh_slice=`, `logical_axes=`, ...; or MultiMesh's
            earlier `devices=`, a list or an array of devices or of their positions in the mesh in use, with names for
            its dimensions in `device_axes=`. Without these names, constraints in the task mean "replicated".

    Returns:
        The function, with the same signature.

    Raises:
        TypeError: If both `task=` and fields are given, `fun` is not callable or is a class, or a field is unknown.
        ValueError: If `devices=` is given beside `mesh=` or does not fit `device_axes=`; when called, if `fun` changes
            a list or dictionary argument in place.
        NotImplementedError: When called outside of any trace, if the submesh has devices of other processes.
    """
    if not callable(fun):
        raise TypeError(f"task: expected a function to place, got {_check.shown(fun)}. Write mm.task(f, task=...)(x).")
    if isinstance(fun, type):
        raise TypeError(
            f"task: {fun.__name__} is a class, whose call makes an object; the object's call is the task. Write "
            f"mm.task({fun.__name__}(...), task=...)(x); for a class of Flax modules there is mm.flax.task."
        )
    placed = as_task(task, fields, "task")
    if name is not None:
        placed = placed.replace(name=_check.text("task", "name", name))
    elif placed.name is None:
        placed = placed.replace(name=_name_of(fun))

    return _placed(fun, placed, pure=False)


def pure_task(fun: Callable[P, R], task: Task) -> Callable[P, R]:
    """Like `task`, for a function of the runtime's own, which is known not to store tracers, and a task with a name."""
    return _placed(fun, task, pure=True)


def _placed(fun: Callable[P, R], placed: Task, *, pure: bool) -> Callable[P, R]:
    @_compat.api_boundary
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if transforms_ignored():
            return fun(*args, **kwargs)
        used, eager = _outermost() or placed, _compat.at_top_level()
        keeps_state = writes_state(fun, args, kwargs) or (not pure and reaches_state(fun, eager=eager))
        with TASK_IN_USE(used if _task_was_read else _AnyTask(used)):
            if eager:
                mesh = None if keeps_state else _submesh_now(placed)
                return fun(*args, **kwargs) if mesh is None else _call_on(fun, placed, mesh, args, kwargs)
            if keeps_state:
                with jax.named_scope(_mark(placed)):
                    return fun(*args, **kwargs)
            return _call_marked(fun, placed, args, kwargs)

    return functools.update_wrapper(call, fun, updated=())


def _mark(placed: Task) -> str:
    assert placed.name is not None
    return TASKS.name(placed, placed.name)


def _call_marked(fun: Callable[..., R], placed: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    mark = _mark(placed)
    inner, operands = by_operands(_checked(fun, placed), args, kwargs, Tracer, "task")
    traced, whole = by_results(inner)
    traced.__name__ = traced.__qualname__ = mark
    if shares_equal_traces() and not _compat.jit_disabled.value:
        return whole(_compat.call_of_trace(traced, operands, one_of_equal))
    return whole(jax.jit(traced)(*operands))


def _checked(fun: Callable[..., R], task: Task) -> Callable[..., R]:
    """`fun` with a check that it leaves its lists and dictionaries alone: they are copies, so changes would be lost."""

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> R:
        arguments = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        before: dict[str, tuple[list[Any], Any]] = {name: jax.tree.flatten(value) for name, value in arguments.items()}
        # A user's pytree class may make new leaves each time that it is flattened; those cannot be compared.
        steady = [name for name, flat in before.items() if _is_same(flat, jax.tree.flatten(arguments[name]))]
        result = fun(*args, **kwargs)
        for name in steady:
            try:
                after = jax.tree.flatten(arguments[name])
            except ValueError:
                # An `eqx.nn.State` is used up by the layer that returns the next one.
                continue
            if not _is_same(before[name], after):
                raise ValueError(
                    f"Task {task.name!r} changes {name} in place ({type(arguments[name]).__name__}, "
                    f"{len(before[name][0])} leaves before, {len(after[0])} after). Nobody outside of a task sees "
                    "that; return the new value instead."
                )
        return result

    return call


def _is_same(one: tuple[list[Any], Any], other: tuple[list[Any], Any]) -> bool:
    """Whether two flattened trees are of one structure, with the same objects as leaves."""
    try:
        return bool(one[1] == other[1]) and all(leaf is same for leaf, same in zip(one[0], other[0], strict=True))
    except ValueError:
        # The static data of a user's pytree class may be an array, whose `==` is no bool.
        return False


def _submesh_now(task: Task) -> Mesh | None:
    """The submesh of an eager call; None if it is not known, or has devices that this process lacks."""
    mesh = current_mesh()
    if mesh is not None:
        return task_mesh(task, mesh)
    if isinstance(task.mesh, TaskMesh):
        devices = jax.devices()
        return task.mesh.on(devices) if int(task.mesh.devices.max()) < len(devices) else None
    return task.mesh


def _call_on(fun: Callable[..., R], task: Task, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    """Call `fun` at once on a submesh: arguments and captured arrays are moved there, results stay there.

    It is traced first, because only a trace shows the arrays that it captures.
    """
    devices: Any = mesh.devices
    owners = sorted({device.process_index for device in devices.flat})
    if owners != [jax.process_index()]:
        raise NotImplementedError(
            f"Task {task.name!r} runs on devices of process {', '.join(map(str, owners))}, and this is process "
            f"{jax.process_index()}. Outside of a step a task runs on devices of the process that calls it; call it in "
            "a step that mm.mjit compiles."
        )
    inner, operands = by_operands(_checked(fun, task), args, kwargs, jax.Array, "task")
    traced, whole = by_results(inner)
    outside = NamedSharding(mesh, PartitionSpec())

    def move(value: Any) -> Any:
        here = isinstance(value, jax.Array) and value.sharding.device_set == outside.device_set
        return value if here else jax.device_put(value, outside)

    with placed_later():
        closed = jax.make_jaxpr(traced)(*[_abstract(value) for value in operands])
    jaxpr, captured = _compat.split(closed)
    pairs, label = axis_pairs(task, mesh, current_mesh()), str(task.name)

    def lay_out(value: Any, names: tuple[Names, ...], *, logical: bool | None) -> Any:
        spec = translate(names, value.shape, pairs, mesh.shape, label) if logical else mesh_axes(names, mesh.shape)
        return jax.device_put(value, NamedSharding(mesh, spec))

    function = _compat.as_fun(_compat.close(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns))
    with _compat.no_mesh(), eager_layout(lay_out):
        results = function(*[move(value) for value in (*captured, *operands)])
    return whole([move(value) for value in results])


def _abstract(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=jax.typeof(value).weak_type)


def _name_of(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    owner = getattr(fun, "__self__", fun)
    # The `name` of a Flax module is its key among its parent's parameters.
    for candidate in (getattr(owner, "name", None), getattr(fun, "__name__", None), type(fun).__name__):
        if isinstance(candidate, str) and candidate:
            return candidate
    return "task"


def as_task(task: Task | None, fields: dict[str, Any], what: str) -> Task:
    """The task that `task=` or its fields stand for.

    Args:
        task: The task, or None.
        fields: Fields of a task, MultiMesh's earlier `devices=` and `device_axes=` among them.
        what: The caller's name, for messages.

    Raises:
        TypeError: If both are given, `task` is no `Task`, or a field is unknown.
        ValueError: If `devices=` is given beside `mesh=` or `mesh_slice=`, does not fit `device_axes=`, or has no
            `device_axes=` beside `logical_axes=`; or if `device_axes=` is given without it.
    """
    if task is not None and fields:
        raise TypeError(f"{what}: give task= or its fields, not both (got task={task!r} and {', '.join(fields)}).")
    if task is not None:
        if not isinstance(task, Task):
            raise TypeError(
                f"{what}: task must be a mm.Task, got {_check.shown(task)}. Write task=mm.Task(mesh_slice={{...}})."
            )
        return task
    fields = dict(fields)
    known = [field.name for field in dataclasses.fields(Task)]
    if "configure" in fields or "configure_args" in fields:
        raise TypeError(
            f"{what}: configure= and configure_args= chose a task from a call's arguments and are no longer there. "
            "Choose it where you call: mm.task(f, task=choose(iter))(x, iter=iter)."
        )
    for name in fields:
        if name not in (*known, "devices", "device_axes"):
            raise _check.unknown(what, "field", name, known)
    devices = fields.pop("devices", None)
    device_axes = fields.pop("device_axes", None)
    place = next((name for name in ("mesh", "mesh_slice") if fields.get(name) is not None), None)
    if devices is not None:
        if place is not None:
            raise ValueError(
                f"{what}: cannot give both {place}= and devices=; {place}= alone says both axes and devices."
            )
        if device_axes is None and fields.get("logical_axes") is not None:
            raise ValueError(
                f"{what}: logical_axes= needs names for the axes of devices=. Add device_axes=, one name per dimension."
            )
        fields["mesh"] = _mesh_of(devices, device_axes, what)
        if device_axes is None:
            fields["logical_axes"] = ()
    elif device_axes is not None:
        advice = "Give devices= too" if place is None else f"Remove it: the axes of {place}= have names"
        raise ValueError(f"{what}: device_axes= names the axes of devices=, which is missing. {advice}.")
    return Task(**fields)


def _mesh_of(devices: Any, device_axes: Any, what: str) -> TaskMesh | Mesh:
    expected = "devices, or their positions in the mesh in use, in a list or an array"
    if not isinstance(devices, np.ndarray):
        devices = np.asarray(_check.items(what, "devices", devices, expected), dtype=object)
    grid = devices.astype(object)
    if device_axes is None:
        names = tuple(f"axis_{index}" for index in range(grid.ndim))
    else:
        names = _check.axis_names(what, "device_axes", device_axes)
    if len(names) != grid.ndim:
        raise ValueError(
            f"{what}: device_axes {names} has {len(names)} names, but devices= has {grid.ndim} dimensions "
            f"{grid.shape}. Give one name per dimension."
        )
    if grid.size and all(isinstance(device, jax.Device) for device in grid.flat):
        return auto_mesh(grid, names)
    try:
        ids = [_check.integer(what, "devices", device, 0) for device in grid.flat]
    except TypeError:
        raise _check.wrong(what, "devices", expected, devices) from None
    if not ids:
        raise ValueError(f"{what}: devices= is empty; a task runs on one device or more.")
    return TaskMesh(devices=np.reshape(ids, grid.shape), axis_sizes=grid.shape, axis_names=names)
