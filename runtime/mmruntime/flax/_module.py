"""`task` for Flax module classes, and names for the axes of their parameters."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

from flax import linen as nn
from flax import nnx
from flax.core.scope import subtract_filters

from mmruntime import _check, _compat
from mmruntime._core.task import Task
from mmruntime._frontend import task_call as _call

M = TypeVar("M")

# Fields of a linen module that its parent sets, not the user.
_BY_PARENT = ("parent", "name")
# Fields that say where a task runs.
_PLACES = ("mesh", "devices", "mesh_slice", "loop_dependent_mesh_slice")


@_compat.api_boundary
@_call.names_keywords(_call.TASK_KEYWORDS)
def task(
    model: type[M], name: str | None = None, *, task: Task | None = None, keep_paths: bool = False, **fields: Any
) -> type[M]:
    """Make the calls of a Flax module class tasks: each runs on the task's submesh, as one compiled program.

    Write it as a call, `mm.flax.task(Block, task=mm.Task(...))(features=8)(x)`, or as a decorator of the class,
    `@functools.partial(mm.flax.task, task=mm.Task(...), keep_paths=True)`. Arguments, RNG streams and mutable
    collections reach the module unchanged. For one module object instead of all objects of a class, write
    `mm.task(block, task=...)(x)`.

    Args:
        model: The class: a `flax.linen.Module` or a `flax.nnx.Module`.
        name: Name of the task in reports. If left out: the task's own name, else the module's.
        task: The task. Or give its fields as keywords, with `mesh=`, `mesh_slice=` or `devices=` among them.
        keep_paths: False is MultiMesh's form: the class is called `Task[Block]`, all variables of the module are under
            one parameter `mod` (`params/layer_0/mod/params/Dense_0/kernel`), its other collections under `mod` as well,
            and only `__call__` is available. True keeps the class name, all methods, and the parameter paths and random
            numbers of plain Flax, so that checkpoints and optimizer masks stay valid. No effect on nnx modules, whose
            paths are those of their attributes.

    Returns:
        A subclass of `model`.

    Raises:
        TypeError: If `model` is not a Flax module class, both `task=` and fields are given, or a field is unknown.
        ValueError: If neither `task=` nor one of these fields is given.
    """
    if not isinstance(model, type) or not issubclass(model, nn.Module | nnx.Module):
        received = _check.shown(model) if isinstance(model, type) else f"a {type(model).__name__} object"
        raise TypeError(
            f"flax.task: expected a Flax module class, got {received}. For a module object or a function, write "
            "mm.task(module, task=...)(x)."
        )
    if name is not None:
        _check.text("flax.task", "name", name)
    _check.flag("flax.task", "keep_paths", keep_paths)
    chosen = _call.as_task(task, fields, "flax.task")
    if task is None and not any(fields.get(field) is not None for field in _PLACES):
        places = ", ".join(f"{place}=" for place in _PLACES)
        besides = f", and {', '.join(f'{field}=' for field in fields)} without any" if fields else ""
        raise ValueError(
            f"flax.task: give the submesh of {model.__name__} as one of {places}, or in task=; got none{besides}. For "
            "one that register_task sets, use the class as it is."
        )
    if issubclass(model, nn.Module) and not keep_paths:
        return _under_mod(model, name, chosen)
    return _in_place(model, name, chosen)


def _in_place(model: type[Any], name: str | None, chosen: Task) -> type[Any]:
    """A subclass that looks like `model`, with a `__call__` that is a task."""
    plain = model.__call__

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _call.task(types.MethodType(plain, self), name, task=chosen)(*args, **kwargs)

    # Linen derives automatic names, and so parameter paths, from the name of the class.
    placed = types.new_class(model.__name__, (model,), {}, lambda body: body.update(_identity(model)))
    # Set after the class is made: linen wraps the methods in a class body, and would open a second scope around the
    # first.
    placed.__call__ = call  # type: ignore[method-assign]
    return placed


def _identity(model: type[Any]) -> dict[str, Any]:
    return {"__module__": model.__module__, "__qualname__": model.__qualname__, "__doc__": model.__doc__}


def _under_mod(model: type[nn.Module], name: str | None, chosen: Task) -> type[Any]:
    """MultiMesh's form: a module whose one parameter `mod` holds the variables of a `model`."""

    def inner(self: Any) -> nn.Module:
        fields = [field.name for field in dataclasses.fields(self) if field.init and field.name not in _BY_PARENT]
        return model(**{key: getattr(self, key) for key in fields}, parent=None)

    @nn.compact
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = inner(self)
        keys = {stream: self.make_rng(stream) for stream in self.scope.rngs if stream != "params"}
        first: dict[str, Any] = {}

        def init(key: Any) -> dict[str, Any]:
            made = dict(module.init({"params": key, **keys}, *args, **kwargs))
            params = made.pop("params", {})
            if self.is_initializing():
                first.update(made)
            return {"params": params}

        variables = dict(self.param("mod", init))
        # Other collections, such as batch statistics, keep their names and are under `mod` as well.
        for collection, value in first.items():
            self.put_variable(collection, "mod", value)
        held = {key: value["mod"] for key, value in self.variables.items() if key != "params" and "mod" in value}
        # As in plain Flax, initialising does not update the statistics.
        changes = not self.is_initializing() and subtract_filters(self.scope.mutable, "params")

        def apply(values: Any, stream_keys: Any, /, *args: Any, **kwargs: Any) -> Any:
            return module.apply(values, *args, rngs=stream_keys, mutable=changes or [], **kwargs)

        title = name or chosen.name or self.name or model.__name__
        placed = _call.pure_task(apply, chosen.replace(name=title))
        result, changed = placed({**variables, **held}, keys, *args, **kwargs)
        for collection, value in changed.items():
            self.put_variable(collection, "mod", value)
        return result

    call.__name__ = "__call__"
    title = f"Task[{model.__name__}]"
    members: dict[str, Any] = {**_identity(model), "__qualname__": title, "__call__": call, "setup": _no_setup}
    for attribute in dir(model):
        # Linen allows one compact method in a class; the module's own belong to the inner module.
        if attribute != "__call__" and hasattr(getattr(model, attribute, None), "compact"):
            members[attribute] = _unavailable(title, attribute)
    return types.new_class(title, (model,), {}, lambda body: body.update(members))


def _no_setup(self: Any) -> None:
    """The inner module sets itself up."""


def _unavailable(title: str, attribute: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{title}.{attribute}: in this form only __call__ is a task. Pass keep_paths=True to mm.flax.task to keep "
            "the other methods."
        )

    method.__name__ = attribute
    return method


@_compat.api_boundary
def shard_axes(*axis_names: str | None, init: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """An initializer whose parameter carries logical axis names.

    Args:
        *axis_names: For each dimension of the parameter one name, a tuple of names, or None.
        init: The initializer; `nn.initializers.xavier_normal()` if left out, as in MultiMesh.

    Returns:
        An initializer for `kernel_init=` and the like. The parameter is boxed with its names, as by
        `nn.with_partitioning`.

    Raises:
        TypeError: If a name is no string, tuple of strings or None, or `init` is no function.
    """
    for axis in axis_names:
        if axis is not None and not isinstance(axis, str) and not _is_names(axis):
            raise _check.wrong("shard_axes", "an axis name", "a string, several strings or None", axis)
    if init is not None:
        _check.function("shard_axes", "init", init, "an initializer, such as nn.initializers.zeros")
    return nn.with_partitioning(init if init is not None else nn.initializers.xavier_normal(), axis_names)


def _is_names(axis: Any) -> bool:
    return isinstance(axis, tuple | list) and all(isinstance(name, str) for name in axis)
