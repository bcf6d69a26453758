"""`AUTO`: the layout that leaves a value to the compiler, which JAX had in `jax.experimental.pjit` until 0.10.0."""

from __future__ import annotations

from jax.sharding import Mesh

from mmruntime import _check, _compat


class AUTO:
    """A layout that is not given, over the devices of a mesh, among `in_shardings` and `out_shardings`.

    Args:
        mesh: The mesh.

    Raises:
        TypeError: If `mesh` is none.
    """

    @_compat.api_boundary
    def __init__(self, mesh: Mesh) -> None:
        if not isinstance(mesh, Mesh):
            raise _check.wrong("AUTO", "mesh", "a mm.MultiMesh or a jax.sharding.Mesh", mesh)
        self.mesh = mesh

    def __repr__(self) -> str:
        return f"AUTO(mesh={self.mesh!r})"
