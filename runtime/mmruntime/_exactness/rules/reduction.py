"""Operations over a dimension: reductions, cumulative ones, sorts, windows."""

from __future__ import annotations

from mmruntime._exactness.lattice import FREE, ZERO, AbstractValue, Kind
from mmruntime._exactness.rules.elementwise import reject_totals
from mmruntime._exactness.rules.equation import Equation, NoRule, NotProved, common_rows, rule
from mmruntime._exactness.rules.shape import shifted


@rule("reduce_sum")
def reduce_sum(eqn: Equation) -> AbstractValue:
    """A sum over dimensions."""
    value, axes = eqn.ins[0], eqn.params["axes"]
    if value.kind in (Kind.ZERO, Kind.SUM):
        return value
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    if value.kind is Kind.ROWS and value.dim in axes:
        return AbstractValue(Kind.SUM, power=value.power)
    return shifted(value, axes)


@rule("reduce_max", "reduce_or")
def reduce_max(eqn: Equation) -> AbstractValue:
    """The largest over dimensions; of booleans, whether any is true."""
    return _extreme(eqn, Kind.MAX)


@rule("reduce_min", "reduce_and")
def reduce_min(eqn: Equation) -> AbstractValue:
    """The smallest over dimensions; of booleans, whether all are true."""
    return _extreme(eqn, Kind.MIN)


def _extreme(eqn: Equation, kind: Kind) -> AbstractValue:
    value, axes = eqn.ins[0], eqn.params["axes"]
    if value.kind is Kind.ZERO and eqn.name in ("reduce_max", "reduce_min"):
        return value
    if value.kind is kind:
        return value
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    if value.kind is Kind.ROWS and value.dim in axes:
        if eqn.name in ("reduce_or", "reduce_and") and eqn.part.invars[0].aval.dtype != bool:
            raise NotProved(f"computes bitwise `{eqn.name}` over examples")
        return AbstractValue(kind, power=value.power)
    return shifted(value, axes)


@rule("reduce_prod", "reduce_xor", "argmax", "argmin")
def reduce_other(eqn: Equation) -> AbstractValue:
    """Reductions that microbatches' results cannot be put together of."""
    return _within_examples(eqn, eqn.params["axes"], "reduces over examples")


@rule("reduce", loose=("computation",))
def reduce_by_function(eqn: Equation) -> list[AbstractValue]:
    """A reduction by a function that the program gives."""
    return [_within_examples(eqn, eqn.params["dimensions"], "reduces over examples")] * len(eqn.part.outvars)


def _within_examples(eqn: Equation, axes: tuple[int, ...], problem: str) -> AbstractValue:
    values = eqn.unscaled()
    reject_totals(eqn, values)
    value = common_rows(values)
    if value is None:
        return FREE
    if value.dim in axes:
        raise NotProved(f"{problem} by `{eqn.name}`")
    return shifted(value, axes)


@rule("cumsum")
def cumsum(eqn: Equation) -> AbstractValue:
    """Sums so far, linear."""
    return _along_linear(eqn, eqn.params["axis"])


def _along_linear(eqn: Equation, *axes: int) -> AbstractValue:
    value = eqn.ins[0]
    if value.kind in (Kind.ZERO, Kind.SUM):
        return value
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    if value.kind is Kind.ROWS and value.dim in axes:
        raise NotProved(f"computes `{eqn.name}` along the examples")
    return value


@rule("cummax", "cummin", "cumprod", "cumlogsumexp")
def cumulative(eqn: Equation) -> AbstractValue:
    """Other values so far."""
    return _along(eqn, eqn.params["axis"])


def _along(eqn: Equation, *axes: int) -> AbstractValue:
    values = eqn.unscaled()
    reject_totals(eqn, values)
    value = common_rows(values)
    if value is not None and value.dim in axes:
        raise NotProved(
            f"computes `{eqn.name}` along the examples",
            "Microbatches do not see each other's examples. Order or select them outside of the microbatched function.",
        )
    return value or FREE


@rule("sort")
def sort(eqn: Equation) -> list[AbstractValue]:
    """Arrays sorted together; all have one shape, so that all count examples or none does."""
    return [_along(eqn, eqn.params["dimension"])] * len(eqn.part.outvars)


@rule("top_k")
def top_k(eqn: Equation) -> list[AbstractValue]:
    """The largest along one dimension."""
    axis = eqn.params.get("axis", eqn.params.get("dimension", -1))
    return [_along(eqn, axis % len(eqn.shape(0)))] * len(eqn.part.outvars)


@rule("approx_top_k")
def approx_top_k(eqn: Equation) -> list[AbstractValue]:
    """The largest along one dimension, approximately."""
    return [_along(eqn, eqn.params["reduction_dimension"] % len(eqn.shape(0)))] * len(eqn.part.outvars)


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
    value = eqn.ins[0]
    if value.kind in (Kind.ZERO, Kind.SUM):
        return value
    value = eqn.plain(0)
    reject_totals(eqn, [value])
    return _windows(eqn, value)


@rule("reduce_window_max", "reduce_window_min", "select_and_gather_add")
def reduce_window_extreme(eqn: Equation) -> AbstractValue:
    """The largest in windows."""
    values = eqn.unscaled()
    reject_totals(eqn, values)
    return _windows(eqn, common_rows(values) or FREE)


@rule("reduce_window")
def reduce_window(eqn: Equation) -> list[AbstractValue]:
    """Windows reduced by a function that the program gives."""
    if eqn.params.get("consts"):
        raise NoRule
    values = eqn.unscaled()
    reject_totals(eqn, values)
    return [_windows(eqn, common_rows(values) or FREE)] * len(eqn.part.outvars)


@rule("select_and_scatter_add")
def select_and_scatter_add(eqn: Equation) -> AbstractValue:
    """The transposed pooling: what arrives at each window goes to its largest entry."""
    if eqn.ins[0].kind is Kind.ZERO:
        return ZERO
    eqn.scale_to(1, 0)
    source, operand = eqn.plain(0), eqn.ins[1]
    reject_totals(eqn, [operand])
    if source.kind is Kind.SUM and operand.kind is Kind.FREE:
        return source
    reject_totals(eqn, [source])
    value = common_rows((source, operand))
    if value is not None and (Kind.FREE in (source.kind, operand.kind)):
        raise NotProved("pools examples with other values")
    return _windows(eqn, value or FREE).but(power=source.power)


@rule("fft", loose=("fft_lengths",))
def fft(eqn: Equation) -> AbstractValue:
    """The discrete Fourier transform over the last dimensions, linear."""
    if eqn.params["fft_lengths"] != eqn.whole_params["fft_lengths"] and not eqn.ins[0].shape_grows:
        raise NoRule
    rank = len(eqn.shape(0))
    return _along_linear(eqn, *range(rank - len(eqn.params["fft_lengths"]), rank))
