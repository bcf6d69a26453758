"""The parameters that an equation has for a slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmruntime._slices.rules import Application
from mmruntime._slices.values import NotSliceableError


def adapted_params(
    eqn: Any,
    atoms: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    rule: Application,
    number: int,
    modes: Mapping[int, str],
) -> Any:
    """The parameters of an equation for a slice's operands and results."""
    name, params = eqn.primitive.name, dict(eqn.params)
    (shape, *_) = shapes
    if rule.out.partial and not rule.once and name not in ("dot_general", "reduce_sum"):
        return params
    if name == "broadcast_in_dim":
        params["shape"] = tuple(shape)
    elif name == "reshape":
        params["new_sizes"] = tuple(shape)
    elif name == "slice":
        before, new = eqn.invars[0].aval.shape, atoms[0].aval.shape
        starts, limits = list(params["start_indices"]), list(params["limit_indices"])
        for axis, mode in rule.wants(0, modes):
            dim = axis.dim
            if (starts[dim], limits[dim]) == (0, before[dim]):
                limits[dim] = new[dim]
                continue
            if axis.is_joined:
                # What lies behind the positions lies behind those up to the slice's end.
                gone, end = before[dim] - new[dim], axis.lead + axis.length
                starts[dim] -= gone if starts[dim] >= end else 0
                limits[dim] -= gone if limits[dim] >= end else 0
                continue
            if mode != "own":
                raise NotSliceableError("reads part of the positions before it")
            start, end = axis.bounds[number], axis.bounds[number + 1]
            low, high = max(start, starts[dim]), min(end, limits[dim])
            starts[dim], limits[dim] = low - start, high - start
        params |= {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
    elif name == "pad":
        config = list(params["padding_config"])
        for axis, mode in rule.wants(0, modes):
            low, high, _ = config[axis.dim]
            is_of_pairs = mode == "upto" and len(rule.reads[0]) == 2
            if (low, high) == (0, 0) or is_of_pairs:
                continue
            if mode != "own":
                raise NotSliceableError("reads part of the positions before it")
            last = len(axis.bounds) - 2
            config[axis.dim] = (low if number == 0 else 0, high if number == last else 0, 0)
        params["padding_config"] = tuple(config)
    elif name in ("dynamic_slice", "gather"):
        sizes = list(params["slice_sizes"])
        new = atoms[0].aval.shape
        for axis, _ in rule.reads[0]:
            if sizes[axis.dim] != 1 or eqn.invars[0].aval.shape[axis.dim] == 1:
                sizes[axis.dim] = new[axis.dim]
        params["slice_sizes"] = tuple(sizes)
    return params
