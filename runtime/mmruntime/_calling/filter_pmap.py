"""The convention of `equinox.filter_pmap`: arrays have a row for each device, and everything else is static."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax

from mmruntime._calling.filter_jit import FilterJit
from mmruntime._calling.pmap import axis_of_rows, with_rows_along
from mmruntime._core.multimesh import MultiMesh


class FilterPmap(FilterJit):
    """A step that `eqx.filter_pmap` ran once on each device: here on each row of its arrays, in one program.

    Equinox says by `in_axes` and `out_axes`, for each leaf, which dimension has the rows. They lie along the same axis
    of the mesh as those of `jax.pmap`.
    """

    def __init__(
        self, fun: Callable[..., Any], mesh: MultiMesh, axis_name: Any = None, axis_size: int | None = None, **axes: Any
    ) -> None:
        rows = axis_of_rows(mesh, axis_name)
        # A program that names the function has imported it.
        equinox: Any = sys.modules["equinox"]
        mapped = equinox.filter_vmap(fun, axis_name=axis_name, axis_size=axis_size, **axes)
        names = tuple(inspect.signature(fun).parameters)

        def laid_out(args: tuple[Any, ...], along: str) -> tuple[Any, ...]:
            default = equinox.if_array(0)
            chosen = axes.get("in_axes", default)
            if isinstance(chosen, dict):
                chosen = tuple(chosen.get(name, default) for name in names[: len(args)])

            def lay_out(axis: Any, subtree: Any) -> Any:
                def one(leaf: Any) -> Any:
                    of_leaf: Any = axis(leaf) if callable(axis) else axis
                    return with_rows_along(leaf, of_leaf, mesh, along)

                return jax.tree.map(one, subtree)

            of_rows: tuple[Any, ...] = jax.tree.map(lay_out, chosen, args, is_leaf=lambda axis: axis is None)
            return of_rows

        @functools.wraps(fun)
        def over_rows(*args: Any) -> Any:
            return mapped(*(args if rows is None else laid_out(args, rows)))

        super().__init__(over_rows)
