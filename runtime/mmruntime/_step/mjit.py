"""`mjit`: compile a step for a mesh whose tasks run on submeshes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast

from jax.sharding import Mesh

from mmruntime import _check, _compat
from mmruntime._calling.choose import convention_for, donated_positions, is_option, kind_of, merged
from mmruntime._calling.convention import Convention
from mmruntime._calling.layouts import mesh_of_layouts
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh, device_list
from mmruntime._frontend.labels import parameters_of, positional_names
from mmruntime._step.initializer import initializer
from mmruntime._step.lifted_function import LiftedFunction
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.signature import chosen_arguments, function_name

P = ParamSpec("P")
R = TypeVar("R")


class _OptionsOfLike(TypedDict, total=False):
    """Options of the functions that `like=` takes, beside those of `jax.jit`."""

    donate: str
    axis_name: Hashable | None
    in_axes: Any
    out_axes: Any
    axis_size: int | None
    static_broadcasted_argnums: int | Sequence[int] | None


# With `out_like` the result is an `Initializer` that callers only call. An overload that said so would cost all others
# their types: mypy drops those of an overloaded function in `functools.partial`, and that is how steps are decorated.
@_compat.api_boundary
def mjit(
    fun: Callable[P, R],
    *,
    mesh: MultiMesh | Mesh | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Iterable[str] | None = (),
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
    out_like: MeshFunction[..., Any] | None = None,
    like: Callable[..., Any] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    **of_like: Unpack[_OptionsOfLike],
) -> MeshFunction[P, R]:
    """Compile a step for a mesh: each of its tasks becomes programs on the task's own submesh.

    Values, gradients and results are those of `jax.jit(fun)`, up to the rounding of reordered sums.

    Args:
        fun: The step.
        mesh: The mesh. If left out, the one in use (`with mesh:`), else that of `out_shardings` or `in_shardings`.
        devices: Devices to use as a mesh of one axis, instead of `mesh`.
        donate_argnums: Positions of arguments whose memory may be reused, as in `jax.jit`; -1 is the last.
        donate_argnames: The same by name. A name and its position mean the same argument.
        static_argnums: Positions of hashable arguments that the trace may depend on; -1 is the last.
        static_argnames: The same by name.
        out_like: A step that was called or planned. `fun` is then an initialiser: what it returns is one of the
            step's arguments, or a tuple of them (found by tree, shapes and types), and comes out where the
            step wants it, bit-equal to `jax.jit(fun)`. Each submesh computes only its own part. Goes alone:
            the mesh is the step's, and other arguments are bound with `functools.partial`.
        like: The function that compiled the step before, whose calling convention it keeps; `jax.jit` if left out.
            `nnx.jit`: modules, optimizers, metrics and `nnx.Rngs` among the arguments change in place.
            `eqx.filter_jit`: what is no array is static. `jax.pmap`: arguments and results have a leading dimension of
            devices, over which collectives go; its rows lie along the axis of the mesh that is called or mapped from
            `axis_name`, else "data" or "batch". `eqx.filter_pmap`: arrays have rows, and what is no array is static.
            May be a `functools.partial` of one, with options.
        in_shardings: As of `jax.jit`, as constraints on the arguments: None, a `PartitionSpec` or a `NamedSharding` of
            axes that the mesh has, or that its `logical_axes` maps, in a tree that is a prefix of theirs.
        out_shardings: The same for the results.
        **of_like: Options of the function in `like=`: `donate` of Equinox's; `axis_name`, `in_axes`, `out_axes` and
            `axis_size` of `jax.pmap` and `eqx.filter_pmap`; `static_broadcasted_argnums` of `jax.pmap`. Others are
            refused with advice.

    Returns:
        The compiled step; `.explain()` reports what runs where, `.lower(*args).compile()` is it for these arguments.

    Raises:
        ValueError: If there is no mesh, or `fun` has no argument of such a position or name. When called: if the step
            of `out_like` has no argument like the result.
        TypeError: If `mesh` is neither a `MultiMesh` nor a `jax.sharding.Mesh`, `out_like` is no step, something else
            is of another type, or there are further options. When called with `out_like`: if `fun` returns None, or
            something in its result is neither array nor number.
        RuntimeError: When called, if the step of `out_like` was neither called nor planned; or if the mesh has devices
            of several processes, and those differ in the step or in how they call it.
    """
    _check.function("mjit", "fun", fun)
    layouts = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    options: dict[str, Any] = {
        **of_like,
        **{name: value for name, value in layouts.items() if value is not None},
    }
    common = {
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    kind, inside = kind_of(like)
    for name in (*options, *inside):
        if not is_option(name) and name in _INSTEAD:
            raise _not_taken(name, function_name(fun))
    for name in options:
        if not is_option(name):
            raise _not_taken(name, function_name(fun))
    if out_like is not None:
        if not isinstance(out_like, MeshFunction):
            raise TypeError(
                f"mjit: out_like must be a step, the result of mm.mjit(...), got {type(out_like).__name__}. For "
                "layouts of your own use jax.jit(init, out_shardings=...)."
            )
        also = list(_given({"mesh": mesh, "devices": devices, **common, "like": like, **options}))
        if also:
            raise TypeError(
                f"mjit: out_like= allows no other options, got {', '.join(also)}. The mesh is the step's; bind static "
                "arguments with functools.partial."
            )
        return cast("MeshFunction[P, R]", initializer(fun, out_like))
    if mesh is not None and devices is not None:
        raise ValueError("mjit: give mesh= or devices=, not both; a mesh has its devices.")
    if devices is not None:
        flat = device_list("mjit", devices)
        mesh = MultiMesh(axis_sizes=(len(flat),), axis_names=("x",), devices=flat)
    if mesh is None:
        mesh = _mesh.current_mesh()
    if mesh is None:
        mesh = mesh_of_layouts(out_shardings, in_shardings)
    if mesh is None:
        label = function_name(fun)
        raise ValueError(
            f"mjit: no mesh for {label}. Write mm.mjit({label}, mesh=mesh), or call it inside `with mesh:`."
        )
    if isinstance(mesh, Mesh) and not isinstance(mesh, MultiMesh):
        mesh = MultiMesh(global_mesh=mesh)
    if not isinstance(mesh, MultiMesh):
        raise _check.wrong("mjit", "mesh", "a mm.MultiMesh or a jax.sharding.Mesh", mesh)
    options = merged(kind, {**_given(common), **options}, inside)
    if "static_broadcasted_argnums" in options:
        options["static_argnums"] = options["static_broadcasted_argnums"]
    if "donate" in options:
        options["donate_argnums"] = donated_positions(options["donate"], _count(fun), function_name(fun))
    donated = options.get("donate_argnums")
    donated = (donated,) if isinstance(donated, int) else donated
    if kind[1] == "pmap" and isinstance(donated, list | tuple) and (count := _count(fun)) is not None:
        # `jax.pmap` overlooks positions that a function has not: all, where `partial` gives its first argument by name.
        options["donate_argnums"] = [each for each in donated if not isinstance(each, int) or each < count]
    donate, donate_names = chosen_arguments(
        fun, "donate", options.get("donate_argnums"), options.get("donate_argnames")
    )
    static, static_names = chosen_arguments(
        fun, "static", options.get("static_argnums"), options.get("static_argnames")
    )
    convention = convention_for(kind, fun, mesh, options, static)
    if type(convention) is Convention:
        return MeshFunction(convention.arrays, mesh, donate, donate_names, static, static_names)
    return LiftedFunction(convention, mesh, donate, donate_names, static, static_names)


def _count(fun: Callable[..., Any]) -> int | None:
    """How many arguments a function takes by position, None if that varies."""
    varies = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters_of(fun).values())
    return None if varies else len(positional_names(fun))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are neither None nor an empty tuple."""
    is_empty = {name: isinstance(value, tuple) and not value for name, value in options.items()}
    return {name: value for name, value in options.items() if value is not None and not is_empty[name]}


# Options of `jax.jit` that a step does not have, and the advice in the message.
_INSTEAD = {
    "keep_unused": "is not supported: every argument of a step is kept. Leave it out.",
    "inline": "is not supported: a step inside of another is always inlined. Leave it out.",
    "backend": "is not supported: the devices are those of the mesh. Give mesh=, or devices=.",
    "device": "is not supported: the devices are those of the mesh. Give mesh=, or devices=.",
    "compiler_options": "is not supported; set XLA_FLAGS in the environment.",
}


def _not_taken(name: str, label: str) -> TypeError:
    if name in _INSTEAD:
        return TypeError(f"mjit: {name}= {_INSTEAD[name].format(label=label)}")
    known = [each for each in inspect.signature(mjit).parameters if each not in ("fun", "of_like")]
    return _check.unknown("mjit", "option", name, known)
