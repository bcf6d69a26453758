"""Floating-point operations of equations, counted from their shapes.

The counts steer placement and fill reports; no result depends on them. A primitive that is not known here counts as one
operation per element of its results.
"""

from __future__ import annotations

import weakref
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.ir import num_elements

# A layer is one equation until it is opened, of which several passes ask.
_counted: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def flops(eqn: Any) -> float:
    """Floating-point operations of an equation, those of inner jaxprs included."""
    inner = [jaxpr_flops(jaxpr) for jaxpr in _compat.inner_jaxprs(eqn)]
    if inner:
        times = eqn.params.get("length", 1) if eqn.primitive is _compat.scan_p else 1
        # A conditional runs one of its branches.
        return float(times) * (max(inner) if eqn.primitive.name == "cond" else sum(inner))
    results = float(sum(num_elements(var) for var in eqn.outvars))
    if eqn.primitive.name == "dot_general":
        (lhs_contracting, _), _ = eqn.params["dimension_numbers"]
        depth = 1.0
        for dim in lhs_contracting:
            depth *= float(eqn.invars[0].aval.shape[dim])
        return 2.0 * depth * results
    if eqn.primitive.name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * results * num_elements(eqn.invars[1]) / float(max(out_features, 1))
    return results


def jaxpr_flops(jaxpr: Any) -> float:
    """Floating-point operations of a jaxpr."""
    known = _counted.get(jaxpr)
    if known is None:
        known = _counted[jaxpr] = sum(flops(eqn) for eqn in jaxpr.eqns)
    return known
