"""`mjit`: compile a step for a mesh whose tasks run on submeshes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from jax.sharding import Mesh

from mmruntime import _check
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh, device_list
from mmruntime._step.initializer import Initializer, initializer
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.signature import (
    chosen_arguments,
    function_name,
)

P = ParamSpec("P")
R = TypeVar("R")


@overload
def mjit(
    fun: Callable[P, R],
    *,
    mesh: MultiMesh | Mesh | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Iterable[str] | None = (),
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
    out_like: None = None,
) -> MeshFunction[P, R]: ...


@overload
def mjit(fun: Callable[P, R], *, out_like: MeshFunction[..., Any]) -> Initializer[P, R]: ...


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
    **options: Any,
) -> MeshFunction[P, R] | Initializer[P, R]:
    """Compile a step for a mesh: each of its tasks becomes programs on the task's own submesh.

    Values, gradients and results are those of `jax.jit(fun)`, up to the rounding of reordered sums.

    Args:
        fun: The step.
        mesh: The mesh; the one in use (`with mesh:`) if left out.
        devices: Devices to use as a mesh of one axis, instead of `mesh`.
        donate_argnums: Positions of arguments whose memory may be reused, as in `jax.jit`; -1 is the last.
        donate_argnames: The same by name. A name and its position mean the same argument.
        static_argnums: Positions of hashable arguments that the trace may depend on; -1 is the last.
        static_argnames: The same by name.
        out_like: A step that was called or planned. `fun` is then an initialiser: what it returns is one of the
            step's arguments, or a tuple of them (found by tree, shapes and types), and comes out where the
            step wants it, bit-equal to `jax.jit(fun)`. Each submesh computes only its own part. Goes alone:
            the mesh is the step's, and other arguments are bound with `functools.partial`.
        **options: Refused, with advice for those of `jax.jit` such as `in_shardings`.

    Returns:
        The compiled step; `.explain()` reports what runs where.

    Raises:
        NotImplementedError: When called, if a step with tasks on several submeshes has devices of several processes.
        ValueError: If there is no mesh, or `fun` has no argument of such a position or name. When called: if the step
            of `out_like` has no argument like the result.
        TypeError: If `mesh` is neither a `MultiMesh` nor a `jax.sharding.Mesh`, `out_like` is no step, something else
            is of another type, or there are further options.
        RuntimeError: When called, if the step of `out_like` was neither called nor planned.
    """
    _check.function("mjit", "fun", fun)
    for name in options:
        raise _not_taken(name, function_name(fun))
    if out_like is not None:
        if not isinstance(out_like, MeshFunction):
            raise TypeError(
                f"mjit: out_like must be a step, the result of mm.mjit(...), got {type(out_like).__name__}. For "
                "layouts of your own use jax.jit(init, out_shardings=...)."
            )
        others = {
            "mesh": mesh,
            "devices": devices,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
        }
        also = [
            name for name, value in others.items() if value is not None and not (isinstance(value, tuple) and not value)
        ]
        if also:
            raise TypeError(
                f"mjit: out_like= allows no other options, got {', '.join(also)}. The mesh is the step's; bind static "
                "arguments with functools.partial."
            )
        return initializer(fun, out_like)
    if mesh is not None and devices is not None:
        raise ValueError("mjit: give mesh= or devices=, not both; a mesh has its devices.")
    if devices is not None:
        flat = device_list("mjit", devices)
        mesh = MultiMesh(axis_sizes=(len(flat),), axis_names=("x",), devices=flat)
    if mesh is None:
        mesh = _mesh.current_mesh()
    if mesh is None:
        label = function_name(fun)
        raise ValueError(
            f"mjit: no mesh for {label}. Write mm.mjit({label}, mesh=mesh), or call it inside `with mesh:`."
        )
    if isinstance(mesh, Mesh) and not isinstance(mesh, MultiMesh):
        mesh = MultiMesh(global_mesh=mesh)
    if not isinstance(mesh, MultiMesh):
        raise _check.wrong("mjit", "mesh", "a mm.MultiMesh or a jax.sharding.Mesh", mesh)
    donate, donate_names = chosen_arguments(fun, "donate", donate_argnums, donate_argnames)
    static, static_names = chosen_arguments(fun, "static", static_argnums, static_argnames)
    return MeshFunction(fun, mesh, donate, donate_names, static, static_names)


# Options of `jax.jit` that a step does not have, and the advice in the message.
_LAYOUTS = (
    "is not supported: a task lays out its own arguments and results. Name the axes of a value in {label}, "
    'mm.with_sharding_constraint(x, P("batch")), and map the names with logical_axes= of the mesh or the task'
)
_INSTEAD = {
    "in_shardings": _LAYOUTS
    + "; arguments may have any layout, and after {label}.plan(*args), abstract_args() gives the one that they keep.",
    "out_shardings": _LAYOUTS + "; jax.device_put(result, sharding) moves a result afterwards.",
    "keep_unused": "is not supported: every argument of a step is kept. Leave it out.",
    "inline": "is not supported: a step inside of another is always inlined. Leave it out.",
    "backend": "is not supported: the devices are those of the mesh. Give mesh=, or devices=.",
    "device": "is not supported: the devices are those of the mesh. Give mesh=, or devices=.",
    "compiler_options": "is not supported; set XLA_FLAGS in the environment.",
}


def _not_taken(name: str, label: str) -> TypeError:
    if name in _INSTEAD:
        return TypeError(f"mjit: {name}= {_INSTEAD[name].format(label=label)}")
    known = [each for each in inspect.signature(mjit).parameters if each not in ("fun", "options")]
    return _check.unknown("mjit", "option", name, known)
