"""The convention of `jax.pmap`: arguments and results have a leading dimension of devices, and collectives a name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime._calling.convention import Convention
from mmruntime._calling.layouts import axes_of, lay_out
from mmruntime._core.multimesh import MultiMesh

# The axis of a mesh that rows are spread over if none has the name that `pmap` gives them.
_ROWS = ("data", "batch")


class MappedRows(Convention):
    """A step that `jax.pmap` ran once on each device: here on each row of its arguments, in one program.

    Collectives over `axis_name` are over the rows. The rows lie along the axis of the mesh that has that name, that
    `logical_axes` maps the name to, or that is called "data" or "batch"; without one, every device has all of them.
    Scalars of a row that are no state, such as metrics, come back as `pmap` gave them, each on a device of its own.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: MultiMesh,
        axis_name: Any = None,
        in_axes: Any = 0,
        out_axes: Any = 0,
        axis_size: int | None = None,
        static: tuple[int, ...] = (),
    ) -> None:
        super().__init__(fun)
        rows = axis_of_rows(mesh, axis_name)

        @functools.wraps(fun)
        def arrays(*args: Any, **kwargs: Any) -> Any:
            fixed = {position: args[position] for position in static if position < len(args)}
            mapped = tuple(arg for position, arg in enumerate(args) if position not in fixed)

            def of_one_row(mapped: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                rest = iter(mapped)
                return fun(*(fixed.get(i) if i in fixed else next(rest) for i in range(len(args))), **kwargs)

            axes = in_axes
            if type(axes) in (tuple, list):
                axes = tuple(axis for position, axis in enumerate(axes) if position not in fixed)
            over_rows = jax.vmap(
                of_one_row,
                in_axes=(axes, 0),
                out_axes=out_axes,
                axis_name=axis_name,
                axis_size=axis_size,
            )
            if rows is not None:
                mapped, kwargs = _spread((mapped, kwargs), (axes, 0), mesh, rows)
            return over_rows(mapped, kwargs)

        self.arrays = self.user = arrays

    def call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call, with one scalar to a device."""
        # State has the structure of an argument, and stays where the next step reads it.
        given = {jax.tree.structure(each) for each in (*args, *kwargs.values())} - {jax.tree.structure(0)}
        result = run(*args, **kwargs)
        leaves, structure = jax.tree.flatten(result, is_leaf=lambda node: jax.tree.structure(node) in given)
        for rows in {leaf.shape for leaf in leaves if isinstance(leaf, jax.Array) and leaf.ndim == 1}:
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and leaf.shape == rows]
            moved = _one_to_a_device([leaves[place] for place in places], *rows)
            for place, leaf in zip(places, moved, strict=True):
                leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)


def _one_to_a_device(leaves: Sequence[jax.Array], rows: int) -> Sequence[jax.Array]:
    """Rows of scalars with one on each device, as readers of `addressable_shards` expect, if there are as many."""
    devices = jax.local_devices()[:rows]
    if len(devices) < rows or jax.process_count() > 1:
        return leaves
    moved: list[jax.Array] = jax.device_put([*leaves], NamedSharding(Mesh(devices, "rows"), PartitionSpec("rows")))
    return moved


def axis_of_rows(mesh: MultiMesh, axis_name: Any) -> str | None:
    """The axis of the mesh that rows lie along; None if they lie along none."""
    if isinstance(axis_name, str):
        found = axes_of(mesh, axis_name)
        if found:
            return found[0]
    return next((name for name in _ROWS if name in mesh.shape), None)


def _spread(tree: Any, axes: Any, mesh: MultiMesh, rows: str) -> Any:
    """The tree with its mapped leaves laid out along the axis `rows` of the mesh, as far as it cuts them evenly."""

    def spread(axis: int | None, subtree: Any) -> Any:
        return jax.tree.map(lambda leaf: with_rows_along(leaf, axis, mesh, rows), subtree)

    return jax.tree.map(spread, axes, tree, is_leaf=lambda axis: axis is None)


def with_rows_along(leaf: Any, axis: int | None, mesh: MultiMesh, rows: str) -> Any:
    """A leaf with the rows in its dimension `axis` laid out along an axis of the mesh, if that cuts them evenly."""
    if axis is None or not isinstance(leaf, jax.Array) or leaf.shape[axis] % mesh.shape[rows]:
        return leaf
    return lay_out(leaf, PartitionSpec(*[None] * (axis % leaf.ndim), rows))
