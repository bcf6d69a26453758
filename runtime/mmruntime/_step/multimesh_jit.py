"""`jax.jit` as it is under MultiMesh's plugin, where every compiled function may have tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax
from jax.sharding import Mesh, Sharding

from mmruntime._calling.layouts import mesh_of_layouts
from mmruntime._core.auto_layout import AUTO
from mmruntime._core.mesh import current_mesh
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.switches import transforms_ignored
from mmruntime._step.ahead_of_time import CompiledStep
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.mjit import mjit


class MultimeshJit:
    """A function that is compiled for the mesh in use when it is called or lowered."""

    def __init__(self, fun: Callable[..., Any], ins: Any, outs: Any, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._ins, self._outs, self._options = fun, ins, outs, options
        self._steps: dict[Mesh, MeshFunction[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, with each task on its submesh."""
        if transforms_ignored():
            return self._plain(*args, **kwargs)
        return _placed(self._step()(*args, **kwargs), self._outs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<multimesh_jit of {self._fun!r}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The function for these arguments, ahead of its calls: `.compile()` gives what to call."""
        if transforms_ignored():
            return self._plain.lower(*args, **kwargs)
        return LoweredJit(self._step().lower(*args, **kwargs).compile(), self._ins, self._outs)

    @functools.cached_property
    def _plain(self) -> Any:
        shardings = {"in_shardings": self._ins, "out_shardings": self._outs}
        given = {name: _given(value) for name, value in shardings.items() if value is not None}
        return jax.jit(self._fun, **given, **self._options)

    def _step(self) -> MeshFunction[..., Any]:
        mesh: Mesh | None = current_mesh() or mesh_of_layouts(*map(_auto, (self._outs, self._ins)))
        if mesh is None:
            # Layouts may be over submeshes, and tasks on others.
            mesh = MultiMesh(devices=jax.devices(), axis_names=("x",))
        if mesh not in self._steps:
            self._steps[mesh] = mjit(self._fun, mesh=mesh, **self._options)
        return self._steps[mesh]


class LoweredJit:
    """What `MultimeshJit.lower` returns, with `compile` alone."""

    def __init__(self, step: CompiledStep[Any], ins: Any, outs: Any) -> None:
        self._compiled = CompiledJit(step, ins, outs)

    def compile(self) -> CompiledJit:
        """The function for these arguments, to be called."""
        return self._compiled


class CompiledJit:
    """A function for one signature. The layouts that were given are its layouts; the others follow from its tasks."""

    def __init__(self, step: CompiledStep[Any], ins: Any, outs: Any) -> None:
        self._step, self._ins, self._outs = step, ins, outs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function. Arguments in other layouts are moved."""
        return _placed(self._step(*args, **kwargs), self._outs)

    @property
    def input_shardings(self) -> tuple[Any, dict[str, Any]]:
        """The layouts of arguments and of keyword arguments, in their trees."""
        args, kwargs = self._step.input_shardings
        return _merged(self._ins, args), kwargs

    @property
    def output_shardings(self) -> Any:
        """The layouts of the results, in their tree."""
        return _merged(self._outs, self._step.output_shardings)


def _is_layout(node: Any) -> bool:
    return node is None or isinstance(node, Sharding | AUTO)


def _auto(layouts: Any) -> Any:
    """Layouts with None in the place of given ones."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, AUTO) else None, layouts, is_leaf=_is_layout)


def _given(layouts: Any) -> Any:
    """Layouts with None, for unspecified, in the place of those that are left to the compiler."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, Sharding) else None, layouts, is_leaf=_is_layout)


def _merged(given: Any, found: Any) -> Any:
    """The given layouts, spread over the tree of the found ones, and the found ones where none are given."""
    over = functools.partial(jax.tree.map, is_leaf=_is_layout)
    ins = tuple(given) if isinstance(given, list) else given
    return over(lambda one, rest: over(lambda _: one, rest) if isinstance(one, Sharding) else rest, ins, found)


def _placed(results: Any, layouts: Any) -> Any:
    def place(layout: Any, values: Any) -> Any:
        return jax.device_put(values, layout) if isinstance(layout, Sharding) else values

    return jax.tree.map(place, layouts, results, is_leaf=_is_layout)


def multimesh_jit(
    fun: Callable[..., Any],
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    backend: str | None = None,
    **options: Any,
) -> MultimeshJit:
    """`jax.jit` as programs for MultiMesh use it: tasks run on their submeshes. New programs write `mm.mjit`.

    The mesh is the `MultiMesh` in use at the time of a call, else that of an `AUTO` layout, else all devices in a row.
    Under `ignore_transforms()` it is `jax.jit`.

    Args:
        fun: The function.
        in_shardings: Layouts that arguments come in, or `AUTO(mesh)` or None: a tree that is a prefix of theirs. From
            there they go to the submeshes that read them.
        out_shardings: Layouts of the results, likewise.
        backend: No effect: the name of MultiMesh's plugin.
        **options: Those of `mm.mjit`, such as `static_argnums` and `donate_argnums`.
    """
    del backend
    return MultimeshJit(fun, in_shardings, out_shardings, options)
