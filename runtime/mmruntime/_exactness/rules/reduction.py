"""Operations over a dimension: reductions, cumulative ones, sorts, windows."""

from __future__ import annotations

from mmruntime._exactness.lattice import ZERO, AbstractValue, Kind
from mmruntime._exactness.rules.equation import Equation, NoRule, NotProved, common_rows, reject_totals, rule
from mmruntime._exactness.rules.shape import shifted
from mmruntime._jaxpr.primitives import along


@rule("reduce_sum")
def reduce_sum(eqn: Equation) -> AbstractValue:
    """A sum over dimensions."""
    value, axes = eqn.summable(), eqn.params["axes"]
    if value.kind is Kind.ROWS and value.dim in axes:
        return AbstractValue(Kind.SUM, power=value.power)
    return shifted(value, axes)


@rule("reduce_max", "reduce_min", "reduce_or", "reduce_and")
def reduce_extreme(eqn: Equation) -> AbstractValue:
    """The largest or smallest over dimensions; of booleans, whether any is true, or all are."""
    kind = Kind.MAX if eqn.name in ("reduce_max", "reduce_or") else Kind.MIN
    value, axes, is_bitwise = eqn.ins[0], eqn.params["axes"], eqn.name in ("reduce_or", "reduce_and")
    if value.kind is kind or (value.kind is Kind.ZERO and not is_bitwise):
        return value
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    if value.kind is Kind.ROWS and value.dim in axes:
        if is_bitwise and eqn.part.invars[0].aval.dtype != bool:
            raise NotProved(f"computes bitwise `{eqn.name}` over examples")
        return AbstractValue(kind, power=value.power)
    return shifted(value, axes)


@rule("reduce_prod", "reduce_xor", "argmax", "argmin", "reduce", loose=("computation",))
def reduce_other(eqn: Equation) -> list[AbstractValue]:
    """Reductions that microbatches' results cannot be put together of."""
    value, axes = eqn.by_example(), eqn.params["dimensions" if eqn.name == "reduce" else "axes"]
    if value.kind is Kind.ROWS and value.dim in axes:
        raise NotProved(f"reduces over examples by `{eqn.name}`")
    return [shifted(value, axes)] * len(eqn.part.outvars)


@rule("cumsum")
def cumsum(eqn: Equation) -> AbstractValue:
    """Sums so far, linear."""
    return _not_along(eqn, eqn.summable(), {eqn.params["axis"]})


@rule("cummax", "cummin", "cumprod", "cumlogsumexp", "sort", "top_k", "approx_top_k")
def along_dimension(eqn: Equation) -> list[AbstractValue]:
    """What orders, selects or compares along one dimension; operands have one shape."""
    rank, apart = len(eqn.shape(0)), "Order or select them outside of the microbatched function."
    axes = along(eqn.part)
    axes = {eqn.params["reduction_dimension"] % rank} if axes is None else axes
    return [_not_along(eqn, eqn.by_example(), axes, apart)] * len(eqn.part.outvars)


def _not_along(eqn: Equation, value: AbstractValue, axes: set[int], instead: str = "") -> AbstractValue:
    if value.kind is Kind.ROWS and value.dim in axes:
        advice = f"Microbatches do not see each other's examples. {instead}" if instead else ""
        raise NotProved(f"computes `{eqn.name}` along the examples", advice)
    return value


_WINDOWS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def _windows(eqn: Equation, value: AbstractValue) -> AbstractValue:
    """Rows through windows that hold one example each."""
    if value.kind is not Kind.ROWS:
        return value
    alone = dict.fromkeys(_WINDOWS, 1) | {"padding": (0, 0)}
    for name, expected in alone.items():
        given = eqn.params.get(name)
        if given is not None and (tuple(given[value.dim]) if name == "padding" else given[value.dim]) != expected:
            raise NotProved(f"computes `{eqn.name}` over windows of several examples")
    return value


@rule("reduce_window_sum")
def reduce_window_sum(eqn: Equation) -> AbstractValue:
    """Sums over windows, linear."""
    return _windows(eqn, eqn.summable())


@rule("reduce_window_max", "reduce_window_min", "select_and_gather_add", "reduce_window")
def reduce_window_other(eqn: Equation) -> list[AbstractValue]:
    """The largest in windows, or what a function that the program gives makes of them."""
    if eqn.params.get("consts"):
        raise NoRule
    return [_windows(eqn, eqn.by_example())] * len(eqn.part.outvars)


@rule("select_and_scatter_add")
def select_and_scatter_add(eqn: Equation) -> AbstractValue:
    """The transposed pooling: what arrives at each window goes to its largest entry."""
    if eqn.ins[0].kind is Kind.ZERO:
        return ZERO
    operand, source = eqn.by_example(1), eqn.summable()
    if source.kind is Kind.SUM and operand.kind is Kind.FREE:
        return source
    reject_totals(eqn, [source])
    if source.kind is not operand.kind:
        raise NotProved("pools examples with other values")
    return _windows(eqn, common_rows((source, operand)) or operand).but(power=source.power)


@rule("fft", loose=("fft_lengths",))
def fft(eqn: Equation) -> AbstractValue:
    """The discrete Fourier transform over the last dimensions, linear."""
    if eqn.params["fft_lengths"] != eqn.whole_params["fft_lengths"] and not eqn.ins[0].shape_grows:
        raise NoRule
    rank = len(eqn.shape(0))
    return _not_along(eqn, eqn.summable(), {*range(rank - len(eqn.params["fft_lengths"]), rank)})
