"""Equations of slices: those that cut, join and pad, and the parameters that others have for a slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mmruntime import _compat
from mmruntime._compat import Atom, Var
from mmruntime._jaxpr.inline import inlined
from mmruntime._jaxpr.ir import abstract
from mmruntime._slices.rules import Application
from mmruntime._slices.values import NotSliceableError


def concatenate(parts: Sequence[Any], out: Var, dim: int) -> Any:
    """An equation that joins atoms along a dimension."""
    like = [jax.ShapeDtypeStruct((1,), np.float32)] * 2
    eqn = _template(lambda *each: jax.lax.concatenate(each, 0), *like)
    return eqn.replace(invars=list(parts), outvars=[out], params={**eqn.params, "dimension": dim})


def section(atom: Any, out: Var, start: Sequence[int], limit: Sequence[int]) -> Any:
    """An equation that takes the part of an atom between two corners."""
    eqn = _template(lambda x: jax.lax.slice(x, (0,), (1,)), jax.ShapeDtypeStruct((2,), np.float32))
    params = {**eqn.params, "start_indices": tuple(start), "limit_indices": tuple(limit)}
    return eqn.replace(invars=[atom], outvars=[out], params=params)


def zeros(out: Var) -> Any:
    """An equation that makes zeros."""
    aval = out.aval
    eqn = _template(lambda: jax.lax.broadcast(np.zeros((), aval.dtype), (2,)))
    params = {**eqn.params, "shape": tuple(aval.shape), "broadcast_dimensions": ()}
    return eqn.replace(outvars=[out], params=params)


def pad(atom: Any, out: Var, config: Sequence[tuple[int, int, int]]) -> Any:
    """An equation that puts zeros around an atom, as `jax.lax.pad` does."""
    dtype = atom.aval.dtype
    like = jax.ShapeDtypeStruct((2,), dtype)
    eqn = _template(lambda x: jax.lax.pad(x, np.zeros((), dtype), [(0, 1, 0)]), like)
    return eqn.replace(
        invars=[atom, eqn.invars[1]], outvars=[out], params={**eqn.params, "padding_config": tuple(config)}
    )


def of(function: Callable[..., Any], operands: Sequence[Atom]) -> tuple[Var, list[Any]]:
    """The variable of a function's result, and its equations on these operands.

    Args:
        function: What to trace; it captures no arrays.
        operands: Its arguments.
    """
    traced, captured = _compat.split(jax.make_jaxpr(function)(*map(abstract, operands)))
    assert not captured, "what is traced reads its operands only"
    out = _compat.new_var(traced.outvars[0].aval)
    return out, inlined(traced, operands, [out], traced.eqns[0])


def _template(function: Any, *shapes: Any) -> Any:
    """An equation to copy: parameters of primitives differ between versions of JAX."""
    return _compat.split(jax.make_jaxpr(function)(*shapes))[0].eqns[-1]


def adapted_params(
    eqn: Any, atoms: Sequence[Any], shapes: Sequence[tuple[int, ...]], rule: Application, number: int, modes: Any
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
        for axis, mode in rule.reads[0]:
            dim = axis.dim
            if (starts[dim], limits[dim]) == (0, before[dim]):
                limits[dim] = new[dim]
                continue
            if (modes[mode] if isinstance(mode, int) else mode) != "own":
                raise NotSliceableError("reads part of the positions before it")
            start, end = axis.bounds[number], axis.bounds[number + 1]
            low, high = max(start, starts[dim]), min(end, limits[dim])
            starts[dim], limits[dim] = low - start, high - start
        params |= {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
    elif name == "pad":
        config = list(params["padding_config"])
        for axis, mode in rule.reads[0]:
            low, high, _ = config[axis.dim]
            if (low, high) == (0, 0):
                continue
            if (modes[mode] if isinstance(mode, int) else mode) != "own":
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
