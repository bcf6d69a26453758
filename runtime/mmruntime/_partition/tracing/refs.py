"""Refs: mutable arrays become values, which the equations that read and write them hand on to each other.

A program cannot return a mutable array, so one that several submeshes use could not be sent. Its values can, as any
activation, in the order of the reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._compat import is_var, split
from mmruntime._core.marks import LOOPS
from mmruntime._jaxpr.ir import at_line


def without_refs(closed: Any) -> Any:
    """A closed jaxpr that computes the same as one with mutable arrays, without them.

    Raises:
        ValueError: If a mutable array was made outside of the step, or outside of a microbatch loop that uses it.
    """
    jaxpr, consts = split(closed)
    outside = next((var for var in (*jaxpr.constvars, *jaxpr.invars) if _compat.is_ref(var)), None)
    if outside is not None and (checks := _compat.error_checks()):
        raise ValueError(
            f"mjit: under {' and '.join(checks)} JAX keeps errors in a jax.Ref outside of the step, which lives on the "
            "devices of one program, and a step is several. Set it to 'ignore' where the step is called; "
            "jax.debug_nans(True) names the line of a nan in a step."
        )
    if outside is not None:
        raise ValueError(
            f"mjit: the step uses a jax.Ref{at_line(_first_use(jaxpr, outside))} that was made outside of it. A ref "
            "lives on the devices of one program, and a step is several. Pass the ref's value as an argument, make the "
            "ref in the step with jax.new_ref, and return its last value."
        )
    return _compat.discharge_refs(_compat.with_consts(_loops_discharged(jaxpr), consts))


def _loops_discharged(jaxpr: Any) -> Any:
    """An open jaxpr whose microbatch loops, at any depth, have bodies without mutable arrays.

    JAX would add the counter of the iterations to their scans, which must stay as `microbatch` wrote them.
    """
    eqns = []
    for eqn in jaxpr.eqns:
        found = eqn
        if eqn.primitive is _compat.jit_p and LOOPS.find(eqn.params["name"]) is not None:
            found = _loop_discharged(eqn)
        elif any(map(_compat.has_refs, _compat.inner_jaxprs(eqn))):
            params = {name: _compat.map_jaxprs(value, _loops_discharged) for name, value in eqn.params.items()}
            found = eqn.replace(params=params)
        eqns.append(found)
    return _compat.with_eqns(jaxpr, eqns)


def _loop_discharged(loop: Any) -> Any:
    inner, consts = split(loop.params["jaxpr"])
    if not _compat.has_refs(inner) and not any(map(_compat.is_ref, loop.invars)):
        return loop
    outside = next((var for var in (*inner.constvars, *inner.invars) if _compat.is_ref(var)), None)
    if outside is not None:
        raise ValueError(
            f"microbatch: the body of the loop uses a jax.Ref{at_line(_first_use(inner, outside))} that was made "
            "outside of the loop, where microbatches run on several submeshes at a time. Read the ref before the loop "
            "and pass the value; return what each microbatch adds to it, and add the sum after the loop."
        )
    eqns = [_scan_discharged(eqn) if eqn.primitive is _compat.scan_p else eqn for eqn in inner.eqns]
    inner = inner.replace(eqns=eqns, effects=_compat.without_ref_effects(inner.effects))
    params = {**loop.params, "jaxpr": _compat.with_consts(inner, consts)}
    return loop.replace(params=params, effects=_compat.without_ref_effects(loop.effects))


def _scan_discharged(scan: Any) -> Any:
    body, consts = split(scan.params["jaxpr"])
    closed = _compat.discharge_refs(_compat.with_consts(body, consts))
    return scan.replace(params={**scan.params, "jaxpr": closed}, effects=_compat.without_ref_effects(scan.effects))


def _first_use(jaxpr: Any, ref: Any) -> Any:
    """The first equation, at any depth, that reads or writes a mutable array; None if there is none."""
    for eqn in jaxpr.eqns:
        positions = [position for position, atom in enumerate(eqn.invars) if is_var(atom) and atom is ref]
        if not positions:
            continue
        for inner in _compat.inner_jaxprs(eqn):
            found = _use_inside(inner, eqn.invars, positions)
            if found is not None:
                return found
        return eqn
    return None


def _use_inside(inner: Any, operands: Sequence[Any], positions: Sequence[int]) -> Any:
    # Conditionals give their bodies all operands but the first one.
    shift = len(operands) - len(inner.invars)
    for position in positions:
        if 0 <= position - shift < len(inner.invars) and _compat.is_ref(inner.invars[position - shift]):
            found = _first_use(inner, inner.invars[position - shift])
            if found is not None:
                return found
    return None
