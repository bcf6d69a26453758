"""Operations that are done entry by entry."""

from __future__ import annotations

from mmruntime._exactness.lattice import FREE, ZERO, AbstractValue, Kind
from mmruntime._exactness.rules.equation import (
    RULES,
    Equation,
    NotProved,
    common_rows,
    is_inexact,
    is_integer,
    reject_totals,
    rule,
)
from mmruntime._jaxpr.primitives import ENTRY_BY_ENTRY

# For these, f(max(x, y)) = max(f(x), f(y)). Not for `log` and `sqrt`: where a microbatch's maximum is negative, they
# are not a number, and may be one for the whole batch.
_INCREASING = {
    "asinh", "atan", "cbrt", "ceil", "erf", "exp", "exp2", "expm1", "floor", "logistic", "round", "sign", "sinh",
    "tanh",
}  # fmt: skip


def entry_by_entry(eqn: Equation) -> AbstractValue:
    """Any function of the entries at one position."""
    if len(eqn.ins) == 1 and eqn.name in _INCREASING and eqn.ins[0].kind in (Kind.MAX, Kind.MIN):
        if eqn.ins[0].power == 0:
            return eqn.ins[0]
        raise NotProved("reads a maximum that is scaled by the size of the batch")
    return eqn.by_example()


@rule("square")
def square(eqn: Equation) -> AbstractValue:
    """Powers of a number that depends on the batch's size double."""
    return _to_the_power(eqn, 2)


@rule("integer_pow")
def integer_pow(eqn: Equation) -> AbstractValue:
    """As `square`."""
    return _to_the_power(eqn, eqn.params["y"])


def _to_the_power(eqn: Equation, exponent: int) -> AbstractValue:
    value = eqn.ins[0]
    if value.kind is Kind.ZERO and exponent > 0:
        return ZERO
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    if value.power and not eqn.is_inexact(0):
        return entry_by_entry(eqn)
    return value.but(power=value.power * exponent)


@rule("add", "sub", "add_any")
def add(eqn: Equation) -> AbstractValue:
    """Sums of sums; what does not depend on the batch is counted once."""
    left, right = eqn.ins
    kinds = {left.kind, right.kind}
    if left.kind in (Kind.INDEX, Kind.COLUMNS) and right.kind is Kind.ZERO:
        return left
    if eqn.name == "add" and right.kind in (Kind.INDEX, Kind.COLUMNS) and left.kind is Kind.ZERO:
        return right
    if kinds in ({Kind.MAX, Kind.FREE}, {Kind.MIN, Kind.FREE}):
        if left.power != right.power:
            raise NotProved("adds a number that depends on the size of the batch to a maximum over examples")
        reduced = left if left.kind is not Kind.FREE else right
        return flipped(reduced) if eqn.name == "sub" and reduced is right else reduced
    if eqn.name == "sub" and right.kind in (Kind.MAX, Kind.MIN) and left.kind is Kind.ZERO:
        return flipped(right)
    if eqn.name == "sub" and kinds & {Kind.MAX, Kind.MIN} and Kind.ZERO not in kinds:
        raise NotProved("subtracts maxima or minima over examples")
    if kinds in ({Kind.MAX}, {Kind.MIN}):
        raise NotProved("adds maxima or minima over examples")
    return eqn.aligned((0, 1))


def flipped(value: AbstractValue) -> AbstractValue:
    """The negative of a value that is reduced, a maximum becomes a minimum."""
    if value.kind is Kind.MAX:
        return value.but(kind=Kind.MIN)
    return value.but(kind=Kind.MAX) if value.kind is Kind.MIN else value


@rule("neg")
def neg(eqn: Equation) -> AbstractValue:
    """The negative."""
    if eqn.ins[0].kind in (Kind.INDEX, Kind.COLUMNS):
        return eqn.plain(0)
    if eqn.ins[0].kind in (Kind.MAX, Kind.MIN) and not eqn.is_inexact(0):
        # The least integer is its own negative, and unsigned ones wrap around.
        raise NotProved("negates a maximum or minimum over examples of integers")
    return flipped(eqn.ins[0])


@rule("mul")
def mul(eqn: Equation) -> AbstractValue:
    """Products: linear in one factor where the other is free."""
    left, right = eqn.ins
    if Kind.ZERO in (left.kind, right.kind):
        return ZERO
    left, right = multiplied(eqn)
    total = times_sum(eqn, left, right)
    return total or (common_rows((left, right)) or FREE).but(power=left.power + right.power)


def multiplied(eqn: Equation) -> tuple[AbstractValue, AbstractValue]:
    """The factors of a product: sums, or ordinary values."""
    left, right = (value if value.kind is Kind.SUM else eqn.plain(i) for i, value in enumerate(eqn.ins[:2]))
    return left, right


def times_sum(eqn: Equation, left: AbstractValue, right: AbstractValue) -> AbstractValue | None:
    """The product of a sum and something free; None if neither factor is reduced over examples."""
    kinds = {left.kind, right.kind}
    if Kind.SUM not in kinds:
        reject_totals(eqn, [left, right])
        return None
    if Kind.FREE not in kinds:
        raise NotProved("multiplies a sum or mean over examples by something that depends on the examples", _LINEAR)
    return (left if left.kind is Kind.SUM else right).but(power=left.power + right.power)


_LINEAR = "Multiply each example before the reduction, or outside of the microbatched function."


@rule("div")
def div(eqn: Equation) -> AbstractValue:
    """Quotients: linear in the numerator where the denominator is free."""
    over, under = eqn.ins
    if over.kind is Kind.ZERO and eqn.is_inexact(0):
        return ZERO
    if not eqn.is_inexact(0):
        return entry_by_entry(eqn)
    under = eqn.plain(1)
    if under.kind is Kind.SUM:
        raise NotProved(
            "divides by a sum or mean over examples that depends on parameters",
            "Divide by something that is computed from the batch alone, or outside of the microbatched function.",
        )
    if over.kind is Kind.SUM:
        if under.kind is not Kind.FREE:
            raise NotProved("divides a sum or mean over examples by something that depends on the examples", _LINEAR)
        return over.but(power=over.power - under.power)
    over = eqn.plain(0)
    reject_totals(eqn, [over, under])
    return (common_rows((over, under)) or FREE).but(power=over.power - under.power)


@rule("convert_element_type", "reduce_precision", "real", "imag", "conj", "copy", "stop_gradient")
def linear(eqn: Equation) -> AbstractValue:
    """Maps that keep sums and scaling, up to rounding."""
    value = eqn.ins[0]
    source, target = eqn.part.invars[0], eqn.part.outvars[0]
    if value.kind is Kind.ZERO:
        return value
    if value.kind in (Kind.INDEX, Kind.COLUMNS):
        is_wide = is_integer(target) and target.aval.dtype.itemsize >= 4
        return value if is_wide else eqn.plain(0)
    if value.kind in (Kind.MAX, Kind.MIN):
        keeps_order = is_inexact(target) or source.aval.dtype == target.aval.dtype
        if eqn.name in ("real", "imag", "conj") or not (keeps_order or source.aval.dtype == bool):
            raise NotProved(f"converts a maximum or minimum over examples to {target.aval.dtype}")
        return value
    if is_inexact(target) or (source.aval.dtype == target.aval.dtype and value.power == 0):
        return value
    # Integers wrap around, so that the sum of shorter ones is the shortened sum, but not the other way round.
    shortens = value.kind is not Kind.SUM or source.aval.dtype.itemsize >= target.aval.dtype.itemsize
    if is_integer(source) and is_integer(target) and value.power == 0 and shortens:
        return value
    return entry_by_entry(eqn)


@rule("max", "or", "min", "and")
def extreme(eqn: Equation) -> AbstractValue:
    """The larger or the smaller one; of booleans, `or` and `and`."""
    totals = {value.kind for value in eqn.ins} & {Kind.MAX, Kind.MIN}
    if len(totals) != 1 or (eqn.name in ("or", "and") and eqn.part.invars[0].aval.dtype != bool):
        return entry_by_entry(eqn)
    (kind,) = totals
    values = [value if value.kind is kind else eqn.plain(i) for i, value in enumerate(eqn.ins)]
    alike = all(value.kind is kind for value in values)
    # With something free, both grow with the one operand.
    own = Kind.MAX if eqn.name in ("max", "or") else Kind.MIN
    with_free = not alike and all(value.kind in (kind, Kind.FREE) for value in values)
    if any(value.power for value in values) or not (with_free or (alike and kind is own)):
        raise NotProved(f"computes `{eqn.name}` of maxima or minima over examples")
    return next(value for value in values if value.kind is kind)


@rule("not")
def negation(eqn: Equation) -> AbstractValue:
    """Of booleans: all are not, where not any is."""
    if eqn.ins[0].kind in (Kind.MAX, Kind.MIN) and eqn.part.invars[0].aval.dtype == bool:
        return flipped(eqn.ins[0])
    return entry_by_entry(eqn)


@rule("clamp")
def clamp(eqn: Equation) -> AbstractValue:
    """Between two bounds, which may be free where a maximum is clamped."""
    if eqn.ins[1].kind in (Kind.MAX, Kind.MIN) and eqn.ins[1].power == 0:
        bounds = eqn.unscaled((0, 2))
        if all(value.kind is Kind.FREE for value in bounds):
            return eqn.ins[1]
    return entry_by_entry(eqn)


@rule("lt", "ge")
def compare(eqn: Equation) -> AbstractValue:
    """Comparisons; positions are not negative, as indexing with `arange` asks."""
    if eqn.name == "lt" and eqn.ins[0].kind is Kind.INDEX and eqn.ins[1].kind is Kind.ZERO:
        return ZERO
    return entry_by_entry(eqn)


@rule("select_n")
def select(eqn: Equation) -> AbstractValue:
    """One of several cases: linear in all of them where the choice is free."""
    which, cases = eqn.ins[0], range(1, len(eqn.ins))
    if which.kind is Kind.ZERO:
        return eqn.ins[1]
    eqn.scale_to(0, 0)
    which = eqn.ins[0]
    if which.kind is Kind.FREE:
        return eqn.aligned(cases)
    reject_totals(eqn, [which])
    values = [eqn.ins[index] for index in cases]
    if all(value.kind is Kind.ZERO for value in values):
        return ZERO
    if any(value.kind is Kind.SUM for value in values):
        raise NotProved("chooses between sums over examples by what depends on single examples")
    value = eqn.aligned(cases)
    reject_totals(eqn, [value])
    return (common_rows((which, *(eqn.ins[i] for i in cases))) or FREE).but(power=value.power)


# Those of which no rule knows more; and some that JAX has for its own functions.
rule(*sorted(ENTRY_BY_ENTRY - RULES.keys()), "polynomial", "threefry2x32")(entry_by_entry)
