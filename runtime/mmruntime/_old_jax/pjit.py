"""`pjit` as it was: it compiles once for each mesh in context at the time of a call."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from mmruntime import _compat
from mmruntime._old_jax.mesh_context import compiled_for, current_mesh
from mmruntime._old_jax.renamed_arguments import OMITTED, choose
from mmruntime._old_jax.specs_in_context import resolve

_jit_is_disabled = operator.attrgetter("jax_disable_jit")


class Pjit:
    """A function that `pjit` compiles for the mesh in context when it is called or lowered."""

    def __init__(self, function: Callable[..., Any], specs: dict[str, Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._specs, self._options = function, specs, options
        self._compiled: dict[Mesh | AbstractMesh, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        if _jit_is_disabled(jax.config):
            return self._function(*args, **kwargs)
        mesh = current_mesh()
        with _on(mesh):
            return self._jit(mesh)(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<pjit of {self._function!r}>"

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The function lowered for arguments, as `jax.jit` has it."""
        mesh = current_mesh()
        with _on(mesh):
            lowered: jax.stages.Lowered = self._jit(mesh).lower(*args, **kwargs)
        return lowered

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The function traced for arguments, as `jax.jit` has it."""
        mesh = current_mesh()
        with _on(mesh):
            traced: jax.stages.Traced = self._jit(mesh).trace(*args, **kwargs)
        return traced

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and types of the results, as `jax.jit` has it."""
        mesh = current_mesh()
        with _on(mesh):
            return self._jit(mesh).eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all compiled functions."""
        self._compiled.clear()

    def _jit(self, mesh: Mesh | AbstractMesh) -> Any:
        if mesh not in self._compiled:
            shardings = {name: resolve(specs, mesh, f"pjit: `{name}`") for name, specs in self._specs.items()}
            self._compiled[mesh] = jax.jit(self._function, **shardings, **self._options)
        return self._compiled[mesh]


def _on(mesh: Mesh | AbstractMesh) -> AbstractContextManager[None]:
    """A context in which a function without specs runs on the mesh, and finds it in context, as under `pjit`."""
    return compiled_for(mesh) if isinstance(mesh, Mesh) and not mesh.empty else nullcontext()


@_compat.api_boundary
def pjit(
    fun: Callable[..., Any],
    in_shardings: Any = OMITTED,
    out_shardings: Any = OMITTED,
    *,
    in_axis_resources: Any = OMITTED,
    out_axis_resources: Any = OMITTED,
    **options: Any,
) -> Any:
    """`jax.jit` with specs for the mesh in context at the time of a call: what `pjit` was.

    Args:
        fun: The function.
        in_shardings: Specs or shardings of the arguments that are not static: a tree that is a prefix of theirs. `None`
            is replicated on the mesh. If left out, arguments stay where they are.
        out_shardings: The same for the results. If left out, the compiler chooses.
        in_axis_resources: The older name of `in_shardings`.
        out_axis_resources: The older name of `out_shardings`.
        **options: Other arguments of `jax.jit`, such as `static_argnums` and `donate_argnums`.

    Returns:
        A function that compiles `fun` for each mesh, with `lower`, `trace`, `eval_shape` and `clear_cache`. Called
        without a mesh in context it is `jax.jit`: `None` is unspecified there, and a spec raises an error that is both
        a `RuntimeError` and a `ValueError`.

    Raises:
        ValueError: If an argument is passed under both of its names.
    """
    specs_of = {
        "in_shardings": choose(in_shardings, in_axis_resources, ("in_shardings", "in_axis_resources")),
        "out_shardings": choose(out_shardings, out_axis_resources, ("out_shardings", "out_axis_resources")),
    }
    return Pjit(fun, {name: specs for name, specs in specs_of.items() if specs is not OMITTED}, options)
