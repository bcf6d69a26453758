"""Dimension ties: which dimensions of an equation's operands and results run along together, entry by entry.

Where a dimension of one is cut into parts, so are those that it is tied to, and each part is computed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmruntime._compat import is_var
from mmruntime._frontend.constraint import constraint_p

# Entry by entry, in operands of one shape or scalars.
_ENTRY_BY_ENTRY_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp complex conj convert_element_type copy
    copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log
    log1p logistic lt max min mul ne neg nextafter not or population_count pow real reduce_precision rem round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    xor
"""
ENTRY_BY_ENTRY = frozenset(_ENTRY_BY_ENTRY_NAMES.split())
_REDUCTIONS = (
    "argmax",
    "argmin",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
)
# Along one dimension, named `axis` or `dimension`; the others run along.
_ALONG_ONE = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "sort")


@dataclass(frozen=True)
class Tie:
    """Dimensions that run along together.

    Attributes:
        ins: The dimension of each operand that has one, by the operand's index.
        outs: The same of the results.
    """

    ins: dict[int, int]
    outs: dict[int, int]


def ties(eqn: Any) -> list[Tie]:
    """The ties of an equation; none for equations that are not known."""
    name = eqn.primitive.name
    if name in ENTRY_BY_ENTRY or eqn.primitive is constraint_p:
        return _same_shape(eqn)
    rule = _RULES.get(name)
    if rule is not None:
        return list(rule(eqn))
    if name in _REDUCTIONS:
        axes = set(eqn.params["axes"])
        kept = [dim for dim in range(_rank(eqn.invars[0])) if dim not in axes]
        return [Tie({0: dim}, {0: position}) for position, dim in enumerate(kept)]
    if name in _ALONG_ONE:
        along = eqn.params["axis"] if "axis" in eqn.params else eqn.params["dimension"]
        return [tie for tie in _same_shape(eqn) if tie.outs[0] != along]
    return []


def local_params(eqn: Any, tie: Tie, count: int) -> dict[str, Any]:
    """The parameters of an equation on one of `count` equal parts of the tied dimensions."""
    params = dict(eqn.params)
    for key in ("shape", "new_sizes", "limit_indices"):
        if eqn.primitive.name in ("broadcast_in_dim", "reshape", "slice") and key in params:
            sizes = list(params[key])
            sizes[tie.outs[0]] //= count
            params[key] = tuple(sizes)
    return params


def _rank(atom: Any) -> int:
    return len(atom.aval.shape)


def _same_shape(eqn: Any) -> list[Tie]:
    shape = eqn.outvars[0].aval.shape
    if any(var.aval.shape != shape for var in eqn.outvars):
        return []
    whole = [index for index, atom in enumerate(eqn.invars) if atom.aval.shape == shape]
    if any(atom.aval.shape not in ((), shape) for atom in eqn.invars):
        return []
    return [Tie(dict.fromkeys(whole, dim), dict.fromkeys(range(len(eqn.outvars)), dim)) for dim in range(len(shape))]


def _transpose(eqn: Any) -> list[Tie]:
    return [Tie({0: source}, {0: target}) for target, source in enumerate(eqn.params["permutation"])]


def _broadcast(eqn: Any) -> list[Tie]:
    if len(eqn.invars) > 1:
        return []
    sources = {target: source for source, target in enumerate(eqn.params["broadcast_dimensions"])}
    shape, operand = eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape
    return [
        # A dimension that is repeated depends on nothing.
        Tie({0: sources[dim]} if dim in sources and operand[sources[dim]] == size else {}, {0: dim})
        for dim, size in enumerate(shape)
    ]


def _reshape(eqn: Any) -> list[Tie]:
    if eqn.params.get("dimensions") is not None or len(eqn.invars) > 1:
        return []
    found, before = [], {}
    size = 1
    for dim, extent in enumerate(eqn.invars[0].aval.shape):
        before[size, extent] = dim
        size *= extent
    size = 1
    for dim, extent in enumerate(eqn.outvars[0].aval.shape):
        if (size, extent) in before and extent > 1:
            found.append(Tie({0: before[size, extent]}, {0: dim}))
        size *= extent
    return found


def _squeeze(eqn: Any) -> list[Tie]:
    gone = set(eqn.params["dimensions"])
    kept = [dim for dim in range(_rank(eqn.invars[0])) if dim not in gone]
    return [Tie({0: dim}, {0: position}) for position, dim in enumerate(kept)]


def _slice(eqn: Any) -> list[Tie]:
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return [Tie({0: dim}, {0: dim}) for dim, size in enumerate(before) if size == after[dim]]


def _pad(eqn: Any) -> list[Tie]:
    return [
        Tie({0: dim}, {0: dim}) for dim, config in enumerate(eqn.params["padding_config"]) if not any(map(int, config))
    ]


def _concatenate(eqn: Any) -> list[Tie]:
    return [
        Tie(dict.fromkeys(range(len(eqn.invars)), dim), {0: dim})
        for dim in range(_rank(eqn.outvars[0]))
        if dim != eqn.params["dimension"]
    ]


def _dot_general(eqn: Any) -> list[Tie]:
    # Batch dimensions only: where another dimension is cut, one operand is needed whole in every part.
    _, (left_batch, right_batch) = eqn.params["dimension_numbers"]
    return [
        Tie({0: left, 1: right}, {0: position})
        for position, (left, right) in enumerate(zip(left_batch, right_batch, strict=True))
    ]


_RULES = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "dot_general": _dot_general,
}


def tied(eqn: Any, tie: Tie) -> list[tuple[Any, int]]:
    """The variables of an equation that a tie holds together, each with its dimension."""
    pairs = [(eqn.invars[index], dim) for index, dim in tie.ins.items()]
    pairs += [(eqn.outvars[index], dim) for index, dim in tie.outs.items()]
    return [(atom, dim) for atom, dim in pairs if is_var(atom)]
