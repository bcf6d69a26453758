"""`make_mesh` with the axis types of older JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from mmruntime import _compat
from mmruntime._old_jax.renamed_arguments import OMITTED, choose


@_compat.api_boundary
def make_mesh(
    axis_shapes: Any = OMITTED,
    axis_names: Any = OMITTED,
    axis_types: Any = None,
    *,
    axis_sizes: Any = OMITTED,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """`jax.make_mesh` whose axes are of type Auto by default, as they were before JAX 0.9.

    Args:
        axis_shapes: The sizes of the axes. `axis_sizes` is its newer name.
        axis_names: As many names; a string is one.
        axis_types: The types of the axes; all Auto if left out.
        axis_sizes: The name of `axis_shapes` since JAX 0.12.
        devices: At least as many devices as the axes need; all devices if left out.

    Raises:
        TypeError: If sizes or names are missing.
        ValueError: If the sizes are passed under both of their names, or do not fit the names or the devices.
    """
    chosen = choose(axis_shapes, axis_sizes, ("axis_shapes", "axis_sizes"))
    if chosen is OMITTED or axis_names is OMITTED:
        missing = "sizes of the axes" if chosen is OMITTED else "names of the axes"
        raise TypeError(f"make_mesh: no {missing} given; write `make_mesh((4, 2), ('data', 'model'))`.")
    sizes = tuple(chosen)
    types = (AxisType.Auto,) * len(sizes) if axis_types is None else axis_types
    return jax.make_mesh(sizes, axis_names, axis_types=types, devices=devices)
