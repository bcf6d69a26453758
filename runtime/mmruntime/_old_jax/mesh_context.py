"""The mesh in context as before `jax.set_mesh`: functions may look it up, and it changes nothing by itself.

The sharding hints of Flax's linen find it too, by `tell_linen`. Up to Flax 0.10, `nn.with_logical_constraint`, boxes of
parameters and `flax.linen.partitioning` looked for a mesh in `thread_resources`. Since then
`flax.core.meta.global_mesh_defined` looks for the mesh of `jax.set_mesh` alone, and without one the hints silently do
nothing. With a mesh they still call `jax.lax.with_sharding_constraint` with a spec, which finds either mesh. So only
that one function is wrapped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from mmruntime import _compat


@dataclasses.dataclass(frozen=True)
class _MeshInContext:
    """A mesh in context, and JAX's own meshes at the time that it was entered.

    Comparing those with JAX's meshes of now tells whether `jax.set_mesh` or `with mesh:` was entered since.
    """

    mesh: Mesh
    ambient: Mesh
    resource: Mesh


# The meshes of this thread, innermost last. A user context is part of every `jax.jit` cache key, so that a function
# traced under one mesh is traced again under another.
_ENTRIES = _compat.user_context((), of_steps=False)


class _Entered(threading.local):
    """The contexts that this thread has entered: how to leave each, and whether it is from `assign_mesh`.

    Attributes:
        stack: The contexts, innermost last.
        functions: For each function of `compat.pjit` that is being traced, what is left when that is over.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[contextlib.ExitStack, bool]] = []
        self.functions: list[contextlib.ExitStack] = []

    def push(self, mesh: Mesh, *, is_assigned: bool) -> None:
        tell_linen(_is_in_context)
        with contextlib.ExitStack() as stack:
            surrounding = _compat.ambient_mesh()
            if not _compat.at_top_level() and not surrounding.empty and surrounding != mesh:
                # In a function that `compat.pjit` compiles, JAX would take the mesh of the function for a spec. An
                # assigned mesh stays when the function has ended, and must not bring that mesh back when it goes.
                hiding = self.functions[-1:] if is_assigned else [stack]
                for until in hiding:
                    until.enter_context(_compat.no_mesh_while_tracing())
            ambient = _compat.ambient_mesh()
            stack.enter_context(_compat.as_resource(mesh))
            stack.enter_context(_ENTRIES((*_ENTRIES.value, _MeshInContext(mesh, ambient, _compat.resource_mesh()))))
            self.stack.append((stack.pop_all(), is_assigned))

    def pop_assigned(self) -> None:
        while self.stack and self.stack[-1][1]:
            self.stack.pop()[0].close()

    @contextlib.contextmanager
    def compiled_for(self, mesh: Mesh) -> Iterator[None]:
        """As that of `_compat`, for a function of `compat.pjit`."""
        try:
            with _compat.compiled_for(mesh), contextlib.ExitStack() as function:
                self.functions.append(function)
                try:
                    yield
                finally:
                    self.functions.pop()
        finally:
            self._hide_mesh_of_function()

    def _hide_mesh_of_function(self) -> None:
        """Hide the mesh of the function that goes on, where one that it has called has assigned another."""
        if self.functions and self.stack and self.stack[-1][1]:
            surrounding = _compat.ambient_mesh()
            if not surrounding.empty and surrounding != _ENTRIES.value[-1].mesh:
                self.functions[-1].enter_context(_compat.no_mesh_while_tracing())


_entered = _Entered()
compiled_for = _entered.compiled_for


def _is_in_context() -> bool:
    """Whether this thread is in a `mesh_context` whose mesh JAX finds for a spec."""
    return bool(_ENTRIES.value) and not _compat.resource_mesh().empty


class mesh_context(contextlib.ContextDecorator):
    """Put a mesh in context as `with mesh:` did before `jax.set_mesh`, also for libraries that look it up in JAX.

    Inside, `pjit`, `with_sharding_constraint` and `current_mesh` of `mmruntime.compat` use this mesh, and so do the
    sharding hints of Flax's linen, compiled or not. Unlike `jax.set_mesh(mesh)` it does not change where arrays are
    created or where plain `jax.jit` runs. The context belongs to one thread. It can be entered inside compiled
    functions, more than once, and as a decorator.

    Args:
        mesh: The mesh. Any other context manager is entered in its place.
    """

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __enter__(self) -> Any:
        """Enter the context; returns the mesh."""
        if not isinstance(self._mesh, Mesh):
            return self._mesh.__enter__()
        _entered.push(self._mesh, is_assigned=False)
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Leave the innermost context of this thread.

        Raises:
            RuntimeError: If this thread is in none.
        """
        if not isinstance(self._mesh, Mesh):
            left: bool | None = self._mesh.__exit__(kind, error, trace)
            return left
        _entered.pop_assigned()
        if not _entered.stack:
            raise RuntimeError("mesh_context: left without being entered in this thread.")
        _entered.stack.pop()[0].close()
        _entered.pop_assigned()
        return None


@_compat.api_boundary
def assign_mesh(mesh: Mesh) -> None:
    """Put a mesh in context until a surrounding or a later `mesh_context` is left.

    This is what `thread_resources.env = ResourceEnv(mesh, ())` did, in this thread.

    Args:
        mesh: The mesh. With an empty one there is none in context, not even that of a surrounding `mesh_context`.
    """
    _entered.pop_assigned()
    _entered.push(mesh, is_assigned=True)


def current_mesh() -> Mesh | AbstractMesh:
    """The mesh in context, or an empty one (`.empty` is true): what `thread_resources.env.physical_mesh` was.

    Inside and outside of `jax.jit` it is the mesh of the innermost `mesh_context(mesh)`, `jax.set_mesh(mesh)` or old
    `with mesh:` block, with its devices; the abstract mesh where there is only `jax.sharding.use_abstract_mesh`.
    """
    ambient, resource = _compat.ambient_mesh(), _compat.resource_mesh()
    entry: _MeshInContext | None = _ENTRIES.value[-1] if _ENTRIES.value else None
    if entry is not None and entry.ambient == ambient and entry.resource == resource:
        return entry.mesh
    if not ambient.empty and (entry is None or entry.ambient != ambient):
        return ambient
    if not resource.empty:
        return resource
    abstract = jax.sharding.get_abstract_mesh()
    return resource if abstract.empty else abstract


_MODULE = "flax.core.meta"
_QUERY = "global_mesh_defined"


def tell_linen(is_in_context: Callable[[], bool]) -> None:
    """Wrap Flax's function so that it also returns True while `is_in_context()` does, now or once Flax is imported.

    Only the first call has an effect.
    """
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE], is_in_context)
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport(is_in_context))


def _wrap(module: ModuleType, is_in_context: Callable[[], bool]) -> None:
    defined = getattr(module, _QUERY, None)
    # Flax up to 0.10 has no such function and needs no wrapper.
    if defined is None or hasattr(defined, "__wrapped__"):
        return

    @functools.wraps(defined)
    def global_mesh_defined() -> bool:
        return bool(defined()) or is_in_context()

    setattr(module, _QUERY, global_mesh_defined)


class _AtImport(MetaPathFinder):
    """Finds Flax's module as Python does, and wraps its function once the module has run."""

    def __init__(self, is_in_context: Callable[[], bool]) -> None:
        self._is_in_context = is_in_context

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of Flax's module; None for all others, which leaves them to the next finder."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        run: Callable[[ModuleType], Any] = spec.loader.exec_module

        def run_and_wrap(module: ModuleType) -> None:
            run(module)
            _wrap(module, self._is_in_context)

        spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec
