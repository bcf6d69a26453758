"""Dimension ties: which dimensions of an equation's operands and results run along together in all that it reads.

Where a dimension of one is cut into parts, so are those that it is tied to, and each part is computed by itself.
"""

from __future__ import annotations

from typing import Any

from mmruntime._compat import is_var
from mmruntime._jaxpr.primitives import Factor, factors

# Primitives whose parameters hold what is not known of a part.
_NOT_IN_PARTS = frozenset(
    ("conv_general_dilated", "gather", "random_bits", "rev", "scatter", "scatter-add", "split", "top_k")
)


def ties(eqn: Any) -> list[Factor]:
    """The factors of an equation that all its operands have; none for equations that are not known.

    Where another one is cut, some operand is needed whole in every part.
    """
    if eqn.primitive.name in _NOT_IN_PARTS:
        return []
    # A dimension that is repeated depends on nothing.
    operands = {k for k, atom in enumerate(eqn.invars) if atom.aval.shape}
    return [each for each in factors(eqn) if each.outs and (not each.ins or each.ins.keys() == operands)]


def local_params(eqn: Any, tie: Factor, count: int) -> dict[str, Any]:
    """The parameters of an equation on one of `count` equal parts of the tied dimensions."""
    params = dict(eqn.params)
    for key in ("shape", "new_sizes", "limit_indices"):
        if eqn.primitive.name in ("broadcast_in_dim", "reshape", "slice") and key in params:
            sizes = list(params[key])
            sizes[tie.outs[0]] //= count
            params[key] = tuple(sizes)
    return params


def tied(eqn: Any, tie: Factor) -> list[tuple[Any, int]]:
    """The variables of an equation that a tie holds together, each with its dimension."""
    pairs = [(eqn.invars[index], dim) for index, dim in tie.ins.items()]
    pairs += [(eqn.outvars[index], dim) for index, dim in tie.outs.items()]
    return [(atom, dim) for atom, dim in pairs if is_var(atom)]
