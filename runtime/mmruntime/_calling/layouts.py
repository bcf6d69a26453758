"""`in_shardings` and `out_shardings` of `jax.jit`, as constraints in a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _check
from mmruntime._core.auto_layout import AUTO
from mmruntime._core.logical_axes import entry_names, spec_axes, spec_names
from mmruntime._core.multimesh import MultiMesh
from mmruntime._frontend.constraint import constrain, constraint_p

_EXPECTED = "None, a PartitionSpec or a NamedSharding, or a tree of these with the structure of the arguments"


def with_layouts(
    fun: Callable[..., Any], mesh: MultiMesh, ins: Any, outs: Any, static: Container[int]
) -> Callable[..., Any]:
    """A function with its arguments and results laid out.

    Args:
        fun: The function of a step.
        mesh: The mesh of the step.
        ins: As `in_shardings` of `jax.jit`: a prefix of the arguments that are not static.
        outs: As `out_shardings`: a prefix of the result. `AUTO(mesh)` is as None here and there.
        static: Positions of static arguments.

    Raises:
        TypeError: If an entry is no layout.
        ValueError: If the mesh has no axis of a name. When called: if a tree does not fit.
    """
    ins, outs = _without_auto(ins), _without_auto(outs)
    _check_layouts("in_shardings", ins, mesh)
    _check_layouts("out_shardings", outs, mesh)
    # JAX takes lists here, although arguments are a tuple.
    ins = tuple(ins) if isinstance(ins, list) else ins

    @functools.wraps(fun)
    def laid_out(*args: Any, **kwargs: Any) -> Any:
        dynamic = iter(_over("in_shardings", ins, tuple(arg for i, arg in enumerate(args) if i not in static), mesh))
        args = tuple(arg if i in static else next(dynamic) for i, arg in enumerate(args))
        return _over("out_shardings", outs, fun(*args, **kwargs), mesh)

    return laid_out


def axes_of(mesh: MultiMesh, name: str) -> tuple[str, ...]:
    """The axes of the mesh that a name stands for: the axis of that name, else those of `logical_axes`."""
    if name in mesh.shape:
        return (name,)
    return tuple(device for logical, device in mesh.logical_axes or () if logical == name and device is not None)


def lay_out(leaf: Any, spec: PartitionSpec) -> Any:
    """An array constrained by axes of the mesh, which are logical names for tasks whose own mesh has others."""
    array = jnp.asarray(leaf)
    return constraint_p.bind(array, names=spec_names(spec, array.ndim, "mjit"), logical=None)


def mesh_of_layouts(*layouts: Any) -> Mesh | None:
    """The mesh that layouts are over: that of the first `AUTO` or `NamedSharding` in these trees."""
    leaves = jax.tree.leaves(layouts, is_leaf=_is_layout)
    meshes = (leaf.mesh for leaf in leaves if isinstance(leaf, AUTO | NamedSharding))
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)


def _without_auto(layouts: Any) -> Any:
    return jax.tree.map(lambda leaf: None if isinstance(leaf, AUTO) else leaf, layouts, is_leaf=_is_layout)


def _is_layout(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec | jax.sharding.Sharding | AUTO)


def _check_layouts(option: str, layouts: Any, mesh: MultiMesh) -> None:
    for path, layout in jax.tree_util.tree_leaves_with_path(layouts, is_leaf=_is_layout):
        if layout is None:
            continue
        spec = layout.spec if isinstance(layout, NamedSharding) else layout
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"mjit: {option}{jax.tree_util.keystr(path)} is {_check.shown(layout)}; expected {_EXPECTED}. In a "
                "step the tasks say on which devices a value is."
            )
        sizes = layout.mesh.shape if isinstance(layout, NamedSharding) else {}
        for entry in spec:
            for name in entry_names(entry):
                known = {logical for logical, _ in mesh.logical_axes or ()}
                if name not in mesh.shape and name not in known and sizes.get(name) != 1:
                    raise ValueError(
                        f"mjit: {option}{jax.tree_util.keystr(path)} is {spec}, and the mesh of the step has no axis "
                        f"{name!r}; it has {', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}. Say in "
                        f"logical_axes= which of these {name!r} is, as in ({name!r}, {mesh.axis_names[-1]!r}), or "
                        f"({name!r}, None) for replicated; as a hint: axes({name}=...)."
                    )


def _over(option: str, layouts: Any, values: Any, mesh: MultiMesh) -> Any:
    def over(layout: Any, subtree: Any) -> Any:
        if layout is None:
            return subtree
        spec = layout.spec if isinstance(layout, NamedSharding) else layout
        if any(name not in mesh.shape for name in spec_axes(spec)):
            own = layout.mesh.shape if isinstance(layout, NamedSharding) else {}
            logical = PartitionSpec(
                *(tuple(name for name in entry_names(entry) if own.get(name) != 1) or None for entry in spec)
            )
            return constrain(subtree, logical, f"mjit: {option}")
        return jax.tree.map(lambda leaf: lay_out(leaf, spec), subtree)

    if layouts is None:
        return values
    try:
        return jax.tree.map(over, layouts, values, is_leaf=_is_layout)
    except ValueError as error:
        if str(error).startswith("mjit"):
            raise
        raise ValueError(
            f"mjit: {option} does not fit {'the arguments' if option == 'in_shardings' else 'the result'}: {error}"
        ) from error
