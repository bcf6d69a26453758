"""What each primitive does to dimensions and to sums: the one page that passes read.

A pass asks what it needs and keeps what is its own: slices of a sequence and parts of a stack ask which dimensions run
along together, sums over devices which are added up, sums of microbatches in which operands an equation is linear. A
primitive that is not on the page is not known, and the pass that asks does without. Two things are rules of their own:
how results for microbatches make up that for the batch (`_exactness/rules`), and how a slice is computed of slices
(`_slices/rules`).

A factor is one index of the loops that compute a primitive, as a letter of an einsum, in the terms of Shardy's
`OpShardingRule` and of JAX's `custom_partitioning_sharding_rule`: `dot_general` of matrices is `i k, k j -> i j`. Where
a factor is cut into parts, each part of the results is the same primitive on parts of the operands that have the
factor, and on all of the others; the parts of a factor that results do not have are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# A function of the entries at one position, of operands of one shape or scalars.
_ENTRY_BY_ENTRY_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type copy cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi
    ne neg nextafter not one_minus_square or polygamma population_count pow real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sinh sqrt square stop_gradient sub tan tanh xor zeta
"""
ENTRY_BY_ENTRY = frozenset(_ENTRY_BY_ENTRY_NAMES.split())

# They combine the entries along `axes`, which results do not have.
_REDUCTIONS_NAMES = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""
REDUCTIONS = frozenset(_REDUCTIONS_NAMES.split())

# They go along some dimensions, each entry of which may depend on all others, and along the others they are the same.
_ALONG: dict[str, Callable[[Any], set[int]]] = {
    **dict.fromkeys(
        ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "split"), lambda eqn: {eqn.params["axis"]}
    ),
    "concatenate": lambda eqn: {eqn.params["dimension"]},
    "pad": lambda eqn: {dim for dim, each in enumerate(eqn.params["padding_config"]) if any(map(int, each))},
    "rev": lambda eqn: set(eqn.params["dimensions"]),
    "slice": lambda eqn: {
        dim
        for dim, (before, after) in enumerate(zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, strict=True))
        if before != after
    },
    "sort": lambda eqn: {eqn.params["dimension"]},
    "top_k": lambda eqn: {eqn.params.get("axis", -1) % len(eqn.invars[0].aval.shape)},
}

# Entries of operands go to other places, or to several, and nothing is computed.
_MOVES_NAMES = """
    broadcast_in_dim concatenate copy pad reshape rev slice split squeeze stack stop_gradient transpose unstack
"""
MOVES = frozenset(_MOVES_NAMES.split())

# Linear in their first operand, whatever the others are.
_LINEAR_IN_FIRST_NAMES = """
    broadcast_in_dim conj convert_element_type copy cumsum div dynamic_slice gather imag name neg
    real reduce_precision reduce_sum reshape rev slice split squeeze transpose unstack
"""
_LINEAR_IN_FIRST = frozenset(_LINEAR_IN_FIRST_NAMES.split())
# Linear in each of two operands, where the other stays as it is.
BILINEAR = frozenset(("conv_general_dilated", "dot_general", "mul"))
# Linear in several operands together.
_LINEAR_TOGETHER: dict[str, Callable[[int], tuple[int, ...]]] = {
    **dict.fromkeys(("add", "add_any", "concatenate", "pad", "stack", "sub"), lambda count: tuple(range(count))),
    "dynamic_update_slice": lambda _: (0, 1),
    "scatter-add": lambda _: (0, 2),
    "select_n": lambda count: tuple(range(1, count)),
}


@dataclass(frozen=True)
class Factor:
    """Dimensions that run along together.

    Attributes:
        ins: The dimension of each operand that has one, by the operand's index.
        outs: The same of the results; none where its entries are combined.
    """

    ins: dict[int, int]
    outs: dict[int, int]


def is_constraint(name: str) -> bool:
    """Whether a primitive only says how a value is laid out."""
    return name.startswith("mm_") or name == "sharding_constraint"


def linear_in(eqn: Any) -> list[tuple[int, ...]]:
    """Groups of operands. An equation is linear in the operands of a group together, with the others fixed.

    Up to rounding, of floats and complex numbers; integers divide and convert in another way.
    """
    name = eqn.primitive.name
    if name in _LINEAR_IN_FIRST or is_constraint(name):
        return [(0,)]
    if name in BILINEAR:
        return [(0,), (1,)]
    return [_LINEAR_TOGETHER[name](len(eqn.invars))] if name in _LINEAR_TOGETHER else []


def along(eqn: Any) -> set[int] | None:
    """The dimensions along which an equation computes, entry by entry in all others; None if it does not."""
    found = _ALONG.get(eqn.primitive.name)
    return None if found is None else found(eqn)


def factors(eqn: Any) -> list[Factor]:
    """The factors of an equation, those of its results in order, first; none for equations that are not known."""
    name = eqn.primitive.name
    if name in ENTRY_BY_ENTRY or is_constraint(name):
        return _same_shape(eqn)
    rule = _RULES.get(name)
    if rule is not None:
        return list(rule(eqn))
    if name in REDUCTIONS:
        axes = set(eqn.params["axes"])
        kept = [dim for dim in range(_rank(eqn.invars[0])) if dim not in axes]
        found = [Factor({0: dim}, dict.fromkeys(range(len(eqn.outvars)), k)) for k, dim in enumerate(kept)]
        return found + [Factor({0: dim}, {}) for dim in sorted(axes)]
    dims = along(eqn)
    if dims is None:
        return []
    operands = [k for k, atom in enumerate(eqn.invars) if _rank(atom)]
    return [
        Factor(dict.fromkeys(operands, dim), dict.fromkeys(range(len(eqn.outvars)), dim))
        for dim in range(_rank(eqn.outvars[0]))
        if dim not in dims
    ]


def _rank(atom: Any) -> int:
    return len(atom.aval.shape)


def _same_shape(eqn: Any) -> list[Factor]:
    shape = eqn.outvars[0].aval.shape
    if any(var.aval.shape != shape for var in eqn.outvars):
        return []
    operands = {index: atom.aval.shape for index, atom in enumerate(eqn.invars) if atom.aval.shape}
    # A dimension of size one stands for all entries of the others'.
    for own in operands.values():
        if len(own) != len(shape) or any(part not in (1, size) for part, size in zip(own, shape, strict=True)):
            return []
    return [
        Factor(
            {index: dim for index, own in operands.items() if own[dim] == size},
            dict.fromkeys(range(len(eqn.outvars)), dim),
        )
        for dim, size in enumerate(shape)
    ]


def _transpose(eqn: Any) -> Iterator[Factor]:
    for target, source in enumerate(eqn.params["permutation"]):
        yield Factor({0: source}, {0: target})


def _broadcast(eqn: Any) -> Iterator[Factor]:
    if len(eqn.invars) > 1:
        return
    sources = {target: source for source, target in enumerate(eqn.params["broadcast_dimensions"])}
    shape, operand = eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape
    for dim, size in enumerate(shape):
        # A dimension that is repeated depends on nothing.
        yield Factor({0: sources[dim]} if dim in sources and operand[sources[dim]] == size else {}, {0: dim})


def _reshape(eqn: Any) -> Iterator[Factor]:
    if eqn.params.get("dimensions") is not None or len(eqn.invars) > 1:
        return
    before = {}
    size = 1
    for dim, extent in enumerate(eqn.invars[0].aval.shape):
        before[size, extent] = dim
        size *= extent
    size = 1
    for dim, extent in enumerate(eqn.outvars[0].aval.shape):
        if (size, extent) in before and extent > 1:
            yield Factor({0: before[size, extent]}, {0: dim})
        size *= extent


def leading(eqn: Any) -> list[Factor]:
    """Dimensions of a reshape that begin at one place: in equal parts of both, each part is a reshape of one.

    They differ in size where one holds some of what lies behind the other, so the number of parts divides both.
    """
    if eqn.primitive.name != "reshape" or eqn.params.get("dimensions") is not None or len(eqn.invars) > 1:
        return []
    before, after = _beginnings(eqn.invars[0].aval.shape), _beginnings(eqn.outvars[0].aval.shape)
    return [Factor({0: dim}, {0: after[place]}) for place, dim in before.items() if place in after]


def _beginnings(shape: Sequence[int]) -> dict[int, int]:
    """The dimensions that are longer than one, by how many entries of those before them there are."""
    size, found = 1, {}
    for dim, extent in enumerate(shape):
        if extent > 1:
            found[size] = dim
            size *= extent
    return found


def _squeeze(eqn: Any) -> Iterator[Factor]:
    rank = _rank(eqn.invars[0])
    gone = {dim % rank for dim in eqn.params["dimensions"]}
    for position, dim in enumerate(dim for dim in range(rank) if dim not in gone):
        yield Factor({0: dim}, {0: position})


def _stack(eqn: Any) -> Iterator[Factor]:
    new = eqn.params["axis"] % _rank(eqn.outvars[0])
    for dim in range(_rank(eqn.invars[0])):
        yield Factor(dict.fromkeys(range(len(eqn.invars)), dim), {0: dim + (dim >= new)})


def _unstack(eqn: Any) -> Iterator[Factor]:
    gone = eqn.params["axis"] % _rank(eqn.invars[0])
    for dim in range(_rank(eqn.outvars[0])):
        yield Factor({0: dim + (dim >= gone)}, dict.fromkeys(range(len(eqn.outvars)), dim))


def _dot_general(eqn: Any) -> Iterator[Factor]:
    contracted, batch = eqn.params["dimension_numbers"]
    for position, (left, right) in enumerate(zip(*batch, strict=True)):
        yield Factor({0: left, 1: right}, {0: position})
    position = len(batch[0])
    for k in (0, 1):
        for dim in range(_rank(eqn.invars[k])):
            if dim not in contracted[k] and dim not in batch[k]:
                yield Factor({k: dim}, {0: position})
                position += 1
    for left, right in zip(*contracted, strict=True):
        yield Factor({0: left, 1: right}, {})


def _convolution(eqn: Any) -> Iterator[Factor]:
    if eqn.params["feature_group_count"] != 1 or eqn.params["batch_group_count"] != 1:
        return
    numbers = eqn.params["dimension_numbers"]
    (batch, features), (made, read) = numbers.lhs_spec[:2], numbers.rhs_spec[:2]
    yield from (Factor({0: batch}, {0: numbers.out_spec[0]}), Factor({1: made}, {0: numbers.out_spec[1]}))
    yield Factor({0: features, 1: read}, {})


def _gather(eqn: Any) -> Iterator[Factor]:
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    batching = numbers.operand_batching_dims
    outer = [dim for dim in range(_rank(eqn.outvars[0])) if dim not in numbers.offset_dims]
    for dim, there in enumerate(outer):
        paired = list(numbers.start_indices_batching_dims)
        yield Factor({1: dim} | ({0: batching[paired.index(dim)]} if dim in paired else {}), {0: there})
    windows = [dim for dim in range(len(shape)) if dim not in numbers.collapsed_slice_dims and dim not in batching]
    for dim, there in zip(windows, numbers.offset_dims, strict=True):
        if eqn.params["slice_sizes"][dim] == shape[dim] and dim not in numbers.start_index_map:
            yield Factor({0: dim}, {0: there})


def _scatter(eqn: Any) -> Iterator[Factor]:
    numbers, shape, updates = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    batching, paired = numbers.operand_batching_dims, list(numbers.scatter_indices_batching_dims)
    outer = [dim for dim in range(len(updates)) if dim not in numbers.update_window_dims]
    for dim, there in enumerate(outer):
        if dim in paired:
            own = batching[paired.index(dim)]
            yield Factor({0: own, 1: dim, 2: there}, {0: own})
    windows = [dim for dim in range(len(shape)) if dim not in numbers.inserted_window_dims and dim not in batching]
    for dim, there in zip(windows, numbers.update_window_dims, strict=True):
        if updates[there] == shape[dim] and dim not in numbers.scatter_dims_to_operand_dims:
            yield Factor({0: dim, 2: there}, {0: dim})
    if eqn.primitive.name == "scatter-add":
        # What several positions give to one place is added up; the operand counts once.
        for dim, there in enumerate(outer):
            if dim not in paired:
                yield Factor({1: dim, 2: there}, {})


def _random_bits(eqn: Any) -> Iterator[Factor]:
    # What a key makes depends on the size of all of it.
    yield from (Factor({0: dim}, {0: dim}) for dim in range(_rank(eqn.invars[0])))


_RULES: dict[str, Callable[[Any], Iterable[Factor]]] = {
    # To types of another size it has a dimension more or less.
    "bitcast_convert_type": _same_shape,
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "gather": _gather,
    "random_bits": _random_bits,
    "reshape": _reshape,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "squeeze": _squeeze,
    "stack": _stack,
    "transpose": _transpose,
    "unstack": _unstack,
}
