"""Packed types: refuse changes of layout that XLA is known to compile wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._jaxpr.ir import Step, abstract, at_line
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segments
from mmruntime._partition.programs.single_program import borders

# Types of which four values are in a byte. XLA's CPU compiler (0.10, 0.12) gathers them as if each had one, or crashes.
PACKED = frozenset({"int2", "uint2"})


def check_packed_types(step: Step, placement: Placement, segments: Segments, shardings: Shardings) -> None:
    """Check that no array of two-bit integers of a step that has any changes its layout on several devices of a CPU.

    Raises:
        NotImplementedError: If one does, or may.
    """
    meshes = placement.submeshes.meshes
    wide = [mesh.size > 1 and mesh.devices.flat[0].platform == "cpu" for mesh in meshes]
    if shardings.is_whole:
        reads, _ = borders(step)
        body, _ = _compat.split(jax.make_jaxpr(shardings.whole_function())(*map(abstract, reads)))
        if wide[0]:
            _check(body.eqns, {var: shardings[of, 0] for var, of in zip(body.invars, reads, strict=True)})
        return
    for segment in segments:
        if wide[segment.submesh]:
            body, _ = _compat.split(shardings.body(segment))
            _check(body.eqns, {var: shardings[var, segment.submesh] for var in segment.reads})


def _check(eqns: Iterable[Any], known: Mapping[Var, Any]) -> None:
    """Check equations, given the layouts of some variables."""
    known = dict(known)
    for eqn in eqns:
        if eqn.primitive.name == "sharding_constraint" and _is_packed(eqn.invars[0]):
            (operand,), (result,), new = eqn.invars, eqn.outvars, eqn.params["sharding"]
            old = known.get(operand) if _compat.is_var(operand) else None
            if old is None or not new.is_equivalent_to(old, len(operand.aval.shape)):
                raise NotImplementedError(
                    f"mjit: the layout of {operand.aval.str_short()}{at_line(eqn)} changes on several devices, which "
                    "XLA's CPU compiler gets wrong for two-bit integers, under plain jax.jit too. Hold such arrays as "
                    "int8 where their layout changes, or leave their layout as it is."
                )
            known[result] = new
        for inner in _compat.inner_jaxprs(eqn):
            # The body of a call has the layouts of its operands; of others nothing is known.
            pairs = zip(inner.invars, eqn.invars, strict=True) if len(inner.invars) == len(eqn.invars) else ()
            is_call = eqn.primitive is _compat.jit_p
            _check(
                inner.eqns,
                {var: known[atom] for var, atom in pairs if is_call and _compat.is_var(atom) and atom in known},
            )


def _is_packed(atom: Any) -> bool:
    return str(getattr(atom.aval, "dtype", None)) in PACKED
