"""The mesh in context as it was before `jax.set_mesh`: functions ask for it, and nothing else notices."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from types import TracebackType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from mmruntime import _compat
from mmruntime._old_jax.linen_mesh import tell_linen


@dataclasses.dataclass(frozen=True)
class _MeshInContext:
    """A mesh that was put in context, and those of `jax.set_mesh` and of `with mesh:` that were there then."""

    mesh: Mesh
    ambient: Mesh
    resource: Mesh


# The entries of this thread, innermost last. As a context of JAX's they are part of every `jax.jit` cache key.
_ENTRIES = _compat.user_context(())


class _Entered(threading.local):
    """What this thread has put in context: how to take each out again, and whether `assign_mesh` put it there."""

    def __init__(self) -> None:
        self.stack: list[tuple[contextlib.ExitStack, bool]] = []

    def push(self, mesh: Mesh, *, is_assigned: bool) -> None:
        tell_linen(_is_in_context)
        with contextlib.ExitStack() as stack:
            ambient = _compat.ambient_mesh()
            stack.enter_context(_compat.as_resource(mesh))
            stack.enter_context(_ENTRIES((*_ENTRIES.value, _MeshInContext(mesh, ambient, _compat.resource_mesh()))))
            self.stack.append((stack.pop_all(), is_assigned))

    def pop_assigned(self) -> None:
        while self.stack and self.stack[-1][1]:
            self.stack.pop()[0].close()


_entered = _Entered()


def _is_in_context() -> bool:
    """Whether this thread has put a mesh in context, which is the one that JAX finds for a spec."""
    return bool(_ENTRIES.value) and not _compat.resource_mesh().empty


class mesh_context(contextlib.ContextDecorator):
    """Puts a mesh in context as `with mesh:` did: also for libraries that ask JAX for it, and it moves nothing.

    Inside, `pjit`, `with_sharding_constraint` and `current_mesh` of `mmruntime.compat` mean this mesh, and so do the
    sharding hints of Flax's linen, compiled or not. Arrays that are created, and what plain `jax.jit` computes, stay
    where they were without it; under `jax.set_mesh(mesh)` they would not. The context is that of one thread. It can be
    entered inside compiled functions, more than once, and as a decorator.

    Args:
        mesh: The mesh. Another context manager in its place is entered as it is.
    """

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __enter__(self) -> Any:
        """The mesh."""
        if not isinstance(self._mesh, Mesh):
            return self._mesh.__enter__()
        _entered.push(self._mesh, is_assigned=False)
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Back to the mesh before the last one that this thread put in context.

        Raises:
            RuntimeError: If this thread has put none in context.
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


def assign_mesh(mesh: Mesh) -> None:
    """Puts a mesh in context until a surrounding or a later `mesh_context` is left.

    This is what `thread_resources.env = ResourceEnv(mesh, ())` did, in this thread. An empty mesh takes back the one
    before.
    """
    _entered.pop_assigned()
    _entered.push(mesh, is_assigned=True)


def current_mesh() -> Mesh | AbstractMesh:
    """The mesh in context, or an empty one (`.empty` is true): what `thread_resources.env.physical_mesh` was.

    Inside `jax.jit` as well as outside it is the mesh of the innermost `mesh_context(mesh)`, `jax.set_mesh(mesh)` or
    old `with mesh:` block, with its devices, or the abstract mesh where only `jax.sharding.use_abstract_mesh` says
    which.
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
