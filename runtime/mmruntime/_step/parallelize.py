"""`parallelize`: a function of parameters and a batch, with initialisers that put both where it wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import jax
import numpy as np

from mmruntime import _check, _compat
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh, device_list
from mmruntime._frontend.labels import parameters_of
from mmruntime._step.initializer import Initializer, initializer
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.mjit import mjit
from mmruntime._step.signature import function_name

R = TypeVar("R")
Params = TypeVar("Params")
Batch = TypeVar("Batch")


@overload
def parallelize(
    fun: Callable[[Params, Batch], R],
    init_params: Callable[[], Params],
    get_input_batch: Callable[[], Batch],
    *,
    initial_batch: Batch | None = None,
    devices: Sequence[Any] | np.ndarray | None = None,
    mesh: MultiMesh | None = None,
) -> tuple[MeshFunction[..., R], Initializer[[], Params], Initializer[[], Batch]]: ...


@overload
def parallelize(
    fun: Callable[[Params, Batch], R] | Callable[[Params], R],
    init_params: Callable[[], Params],
    get_input_batch: None = None,
    *,
    initial_batch: Batch | None = None,
    devices: Sequence[Any] | np.ndarray | None = None,
    mesh: MultiMesh | None = None,
) -> tuple[MeshFunction[..., R], Initializer[[], Params]]: ...


@overload
def parallelize(
    fun: Callable[[Batch], R],
    init_params: None = None,
    *,
    get_input_batch: Callable[[], Batch],
    initial_batch: Batch | None = None,
    devices: Sequence[Any] | np.ndarray | None = None,
    mesh: MultiMesh | None = None,
) -> tuple[MeshFunction[..., R], None, Initializer[[], Batch]]: ...


@overload
def parallelize(
    fun: Callable[[Batch], R],
    init_params: None = None,
    get_input_batch: None = None,
    *,
    initial_batch: Batch,
    devices: Sequence[Any] | np.ndarray | None = None,
    mesh: MultiMesh | None = None,
) -> tuple[MeshFunction[..., R], None]: ...


@_compat.api_boundary
def parallelize(
    fun: Callable[..., R],
    init_params: Callable[[], Any] | None = None,
    get_input_batch: Callable[[], Any] | None = None,
    *,
    initial_batch: Any = None,
    devices: Sequence[Any] | np.ndarray | None = None,
    mesh: MultiMesh | None = None,
) -> tuple[Any, ...]:
    """Compile `fun(params, batch)` for its tasks' submeshes, and place its parameters by where they are used.

        step, init, get_batch = mm.parallelize(fun, init_params=init_params, get_input_batch=get_input_batch)
        out = step(init(), get_batch())

    Args:
        fun: A function of two positional arguments, both pytrees of arrays. Or of one: of the parameters, without a
            batch; or of the batch, without `init_params`.
        init_params: Makes the parameters; takes no arguments. It is not run here: the returned initialiser
            runs each submesh's part of it there.
        get_input_batch: Makes a batch, likewise. Give this or `initial_batch`.
        initial_batch: An example batch of arrays, of which shapes and types count. It may be laid out in
            any way; the first task that reads it reshards it on entry. With both, it decides the shapes.
        devices: The devices, as a mesh of one axis "x". If left out, `mesh`.
        mesh: The mesh. If left out, the one in use (`with mesh:`), else all of `jax.devices()` on one axis "x".

    Returns:
        `(step, init, get_batch)`, or `(step, init)` without `get_input_batch`; `init` is None without `init_params`.
        `step` is as from `mm.mjit`: its `explain()` reports what runs where, and it compiles again for batches of other
        shapes.

    Raises:
        TypeError: If `fun`, `init_params` or `get_input_batch` is not callable, or `mesh` is no `MultiMesh`.
        ValueError: If `fun` needs parameters or a batch that nothing makes, or both `devices` and `mesh` are given.
    """
    if not callable(fun):
        raise TypeError(f"parallelize: expected a function of (params, batch), got {_check.shown(fun)}.")
    for name, value in (("init_params", init_params), ("get_input_batch", get_input_batch)):
        if value is not None and not callable(value):
            raise TypeError(
                f"parallelize: {name} must be a function without arguments, got {type(value).__name__}. Write "
                f"{name}=lambda: ..."
            )
    has_batch = get_input_batch is not None or initial_batch is not None
    _check_arguments(fun, init_params is not None, has_batch)
    if mesh is not None and devices is not None:
        raise ValueError("parallelize: give mesh= or devices=, not both; a mesh has its devices.")
    if mesh is not None and not isinstance(mesh, MultiMesh):
        raise _check.wrong("parallelize", "mesh", "a mm.MultiMesh", mesh)
    if mesh is None and devices is None:
        mesh = _mesh.current_mesh()
    if mesh is None:
        flat = device_list("parallelize", jax.devices() if devices is None else devices)
        mesh = MultiMesh(axis_sizes=(len(flat),), axis_names=("x",), devices=flat)
    step = mjit(fun, mesh=mesh)
    shapes = [] if init_params is None else [_shapes(init_params, "init_params")]
    if initial_batch is not None:
        shapes.append(abstract_batch("parallelize", "initial_batch", initial_batch))
    elif get_input_batch is not None:
        shapes.append(_shapes(get_input_batch, "get_input_batch"))
    step.plan(*shapes)
    init = None if init_params is None else initializer(init_params, step, argument=0)
    if get_input_batch is None:
        return step, init
    return step, init, initializer(get_input_batch, step, argument=len(shapes) - 1)


def _check_arguments(fun: Callable[..., Any], has_params: bool, has_batch: bool) -> None:
    """Check that what is missing is no argument of the function.

    Raises:
        ValueError: If it may be one.
    """
    if has_params and has_batch:
        return
    needed = [
        name
        for name, parameter in parameters_of(fun).items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    count = has_params + has_batch
    if count and len(needed) <= count:
        return
    takes = f"{function_name(fun)} takes {', '.join(needed) or 'any arguments'}"
    if not has_params:
        raise ValueError(
            f"parallelize: init_params is missing, and {takes}. Give a function without arguments that makes the "
            "parameters, such as init_params=lambda: model.init(key, batch)."
        )
    raise ValueError(
        "parallelize: requires either get_input_batch (a function that makes a batch) or initial_batch (an example "
        f"batch), got neither, and {takes}."
    )


def _shapes(make: Any, name: str) -> Any:
    try:
        return jax.eval_shape(make)
    except TypeError as error:
        raise TypeError(
            f"parallelize: {name} must be callable without arguments and return arrays; calling it failed with: {error}"
        ) from error


def abstract_batch(what: str, name: str, batch: Any) -> Any:
    """Shapes and types of an example batch.

    Args:
        what: The calling function, for messages.
        name: Its parameter.
        batch: A pytree of arrays and numbers.

    Raises:
        TypeError: If a leaf is neither an array nor a number.
    """

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | int | float | complex):
            raise _check.wrong(what, name, "an array, or a pytree of arrays", leaf)
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(jax.dtypes.result_type(leaf)))

    return jax.tree.map(shape, batch)
