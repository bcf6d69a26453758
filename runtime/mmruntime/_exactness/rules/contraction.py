"""Products of arrays: contractions, convolutions, linear algebra."""

from __future__ import annotations

from collections.abc import Sequence

from mmruntime._exactness.lattice import FREE, ZERO, AbstractValue, Kind, join_outer, rows
from mmruntime._exactness.rules.elementwise import multiplied, times_sum
from mmruntime._exactness.rules.equation import Equation, NotProved, reject_totals, rule
from mmruntime._jaxpr.primitives import factors

_PAIRS = (
    "compares or multiplies examples with each other",
    "Microbatches do not see each other's examples: compute such pairs outside of the microbatched function.",
)


@rule("dot_general")
def dot_general(eqn: Equation) -> AbstractValue:
    """Contractions: linear in each operand."""
    if any(value.kind is Kind.ZERO for value in eqn.ins):
        return ZERO
    left, right = multiplied(eqn)
    total = times_sum(eqn, left, right)
    if total is not None:
        return total
    power = left.power + right.power
    places = {side: value.dim for side, value in enumerate((left, right)) if value.kind is Kind.ROWS}
    if not places:
        return FREE.but(power=power)
    factor = next(each for each in factors(eqn.part) if places.items() & each.ins.items())
    if len(places) == 1:
        if len(factor.ins) > 1:
            raise NotProved("contracts examples with something that does not count them")
        return rows(factor.outs[0], (left.outer, right.outer)[min(places)], power)
    outer = join_outer(left.outer, right.outer)
    if outer is None or factor.ins != places:
        raise NotProved(*_PAIRS)
    return rows(factor.outs[0], outer, power) if factor.outs else AbstractValue(Kind.SUM, power=power)


@rule("ragged_dot_general")
def ragged_dot_general(eqn: Equation) -> AbstractValue:
    """Products by groups, whose sizes an operand says: linear in each of the others.

    Groups are rows that lie behind each other, so that examples may only be in batch dimensions, of all operands alike.
    """
    if any(value.kind is Kind.ZERO for value in eqn.ins[:2]):
        return ZERO
    left, right = multiplied(eqn)
    eqn.scale_to(2, 0)
    sizes = eqn.ins[2]
    reject_totals(eqn, [sizes])
    power = left.power + right.power
    if sizes.kind is Kind.FREE:
        total = times_sum(eqn, left, right)
        if total is not None:
            return total
    reject_totals(eqn, [left, right])
    place = _batch_rows(eqn, (left, right, sizes))
    return (FREE if place is None else place).but(power=power)


def _batch_rows(eqn: Equation, values: Sequence[AbstractValue]) -> AbstractValue | None:
    """The batch dimension of a ragged product that counts examples; None if none of its operands does."""
    if all(value.kind is Kind.FREE for value in values):
        return None
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (left_contract, _), (left_batch, right_batch) = numbers.dot_dimension_numbers
    ragged = [int(dim) for dim in numbers.lhs_ragged_dimensions]
    left, right, sizes = values
    pairs = [(int(one), int(other)) for one, other in zip(left_batch, right_batch, strict=True)]
    alike = left.kind is right.kind is Kind.ROWS and (left.dim, right.dim) in pairs and left.dim not in ragged
    outer = join_outer(left.outer, right.outer) if alike else None
    if outer is not None and sizes.kind is Kind.ROWS:
        outer = join_outer(outer, sizes.outer) if sizes.dim == pairs.index((left.dim, right.dim)) else None
    if outer is None:
        raise NotProved(
            "shares out examples to groups by their position in the batch",
            "Give each example groups of its own, by jax.vmap over all three operands of jax.lax.ragged_dot.",
        )
    # Where the groups are contracted, the result begins with a dimension of groups.
    before = any(dim in ragged for dim in left_contract)
    return left.but(dim=before + pairs.index((left.dim, right.dim)), outer=outer)


@rule("conv_general_dilated", loose=("feature_group_count", "batch_group_count"))
def conv_general_dilated(eqn: Equation) -> AbstractValue:
    """Convolutions: examples are independent, or contracted in the gradient of the kernel."""
    if any(value.kind is Kind.ZERO for value in eqn.ins):
        return ZERO
    left, right = multiplied(eqn)
    groups = [(p["feature_group_count"], p["batch_group_count"]) for p in (eqn.params, eqn.whole_params)]
    same_groups = groups[0] == groups[1]
    if same_groups:
        total = times_sum(eqn, left, right)
        if total is not None:
            return total
    reject_totals(eqn, [left, right])
    power = left.power + right.power
    numbers = eqn.params["dimension_numbers"]
    left_batch, left_features = numbers.lhs_spec[:2]
    right_out, right_in = numbers.rhs_spec[:2]
    out_batch, out_features = numbers.out_spec[:2]
    features, batches = groups[0]
    if left.kind is Kind.ROWS and right.kind is Kind.FREE and same_groups:
        if left.dim == left_batch and batches == 1:
            return left.but(dim=out_batch, power=power)
    elif left.kind is Kind.FREE and right.kind is Kind.ROWS and same_groups:
        if right.dim == right_out and features == batches == 1:
            return right.but(dim=out_features, power=power)
    elif left.kind is right.kind is Kind.ROWS:
        outer = join_outer(left.outer, right.outer)
        if same_groups and outer is not None and left.dim == left_features and right.dim == right_in and features == 1:
            return AbstractValue(Kind.SUM, power=power)
        # A group for each example: kernels of their own.
        own = groups[1] == (features * eqn.n, batches) and batches == 1 and left.outer == right.outer == 1
        if own and left.dim == left_features and right.dim == right_out:
            return left.but(dim=out_features, power=power)
    elif same_groups:
        return FREE.but(power=power)
    raise NotProved(*_PAIRS)


@rule("triangular_solve")
def triangular_solve(eqn: Equation) -> AbstractValue:
    """Solves for every right-hand side alone, linear in these."""
    matrix = eqn.unscaled((0,))[0]
    sides = eqn.ins[1] if eqn.ins[1].kind in (Kind.ZERO, Kind.SUM) else eqn.plain(1)
    if matrix.kind is not Kind.FREE:
        return _for_every_matrix(eqn)
    reject = sides.kind in (Kind.MAX, Kind.MIN)
    rank = len(eqn.shape(1))
    across = rank - 2 if eqn.params["left_side"] else rank - 1
    if reject or (sides.kind is Kind.ROWS and sides.dim == across):
        raise NotProved("solves a system of equations between examples")
    return sides


@rule("cholesky", "lu", "qr", "eigh", "svd", "eig", "householder_product", "tridiagonal_solve",
      "lu_pivots_to_permutation", "schur", "hessenberg", "tridiagonal", "cholesky_update", "geqrf", "geqp3", "ormqr",
      loose=("shape",))  # fmt: skip
def matrices(eqn: Equation) -> list[AbstractValue]:
    """Linear algebra on the last two dimensions of each operand, for every matrix alone."""
    return [_for_every_matrix(eqn)] * len(eqn.part.outvars)


def _for_every_matrix(eqn: Equation) -> AbstractValue:
    value = eqn.by_example()
    if value.kind is Kind.FREE:
        return value
    # Operands are matrices, or vectors of them, over the same leading dimensions.
    leads = min(len(eqn.shape(index)) for index in range(len(eqn.ins))) - (1 if eqn.name in _VECTORS else 2)
    if value.dim >= leads or any(each.kind is not Kind.ROWS for each in eqn.ins):
        raise NotProved(f"computes `{eqn.name}` over examples")
    return value


_VECTORS = ("lu_pivots_to_permutation", "householder_product", "tridiagonal_solve", "cholesky_update")
