"""Propagate: the shardings that Shardy gives to a function's arguments and results, without compiling it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._core.logical_axes import spec_axes
from mmruntime._jaxpr.ir import abstract

# Shardings of arguments and of results; None where Shardy leaves them open.
Found = tuple[list[PartitionSpec | None], list[PartitionSpec | None]]


def propagate(
    function: Callable[..., Any],
    reads: Sequence[Any],
    writes: Sequence[Any],
    known: Sequence[NamedSharding | None],
    mesh: Mesh,
) -> Found:
    """Shardings that Shardy gives to a function's arguments and results; None where it leaves them open.

    Only its propagation pass is run (https://github.com/openxla/shardy), no compilation.

    Args:
        function: The function, of flat arguments.
        reads: Its arguments' variables.
        writes: Its results' variables.
        known: Shardings of arguments that are decided.
        mesh: The mesh; all of its axes are Auto.
    """
    # The extra argument ties the program to the mesh even when no other sharding is known.
    anchor = NamedSharding(mesh, PartitionSpec())
    # Without `keep_unused`, JAX drops unread arguments, and the attributes below would not be those of `reads`.
    with _compat.no_mesh():
        lowered = jax.jit(lambda _, *args: function(*args), in_shardings=(anchor, *known), keep_unused=True).lower(
            jax.ShapeDtypeStruct((), np.float32), *[abstract(var) for var in reads]
        )
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context as context:
        _compat.leave_threads(context)
        passmanager.PassManager.parse("builtin.module(inline,sdy-propagation-pipeline)").run(module.operation)
        main = next(
            op
            for op in module.body.operations
            if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main"
        )
        attributes = main.attributes
        ins = _specs(attributes["arg_attrs"]) if "arg_attrs" in attributes else [None] * (len(reads) + 1)
        outs = _specs(attributes["res_attrs"]) if "res_attrs" in attributes else [None] * len(writes)
    return (
        [_trim(_over(mesh, spec), var) for spec, var in zip(ins[1:], reads, strict=True)],
        [_trim(_over(mesh, spec), var) for spec, var in zip(outs, writes, strict=True)],
    )


def _specs(attributes: Any) -> list[PartitionSpec | None]:
    """The spec of each argument or result; the tokens of ordered effects are none of the function's."""
    entries = [ir.DictAttr(attribute) for attribute in attributes]
    return [_spec(each) for each in entries if "jax.token" not in each]


def _spec(entries: Any) -> PartitionSpec | None:
    if "sdy.sharding" not in entries:
        return None
    dims = sdy.TensorShardingAttr(entries["sdy.sharding"]).dimension_shardings
    axes = [tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(dim).axes) for dim in dims]
    return PartitionSpec(*[None if not names else names[0] if len(names) == 1 else names for names in axes])


def _over(mesh: Mesh, spec: PartitionSpec | None) -> PartitionSpec | None:
    """The spec; None if its axes are those of another mesh of the same devices, which the program made itself."""
    return spec if spec_axes(spec or ()) <= set(mesh.axis_names) else None


def _trim(spec: PartitionSpec | None, var: Any) -> PartitionSpec | None:
    """Drop the dimensions that only the lowered value has (PRNG keys) and trailing Nones."""
    if spec is None:
        return None
    entries = list(spec)[: len(var.aval.shape)]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
