"""Operations that move, cut and join entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmruntime._exactness.lattice import ANY, FREE, AbstractValue, Kind, rows
from mmruntime._exactness.rules.equation import Equation, NotProved, constant, reject_totals, rule
from mmruntime._jaxpr.primitives import factors

_SEVERAL = "makes several dimensions of examples, which meet each other there"


@rule("broadcast_in_dim", loose=("shape",))
def broadcast_in_dim(eqn: Equation) -> AbstractValue:
    """Copies along new dimensions."""
    value, grown = eqn.ins[0], eqn.grown()
    if value.kind is Kind.ZERO:
        return value
    dims = eqn.params["broadcast_dimensions"]
    if value.shape_grows:
        dim = int(dims[value.dim])
        if grown != [dim] or eqn.shape(0)[value.dim] != eqn.out_shape()[dim]:
            raise NotProved(_SEVERAL)
        if value.kind is Kind.COLUMNS and dims[-1] != len(eqn.out_shape()) - 1:
            return eqn.plain(0).at(dim)
        return value.at(dim)
    if not grown:
        return value
    if value.kind is not Kind.FREE:
        raise NotProved(
            f"gives each example a {_TOTALS[value.kind]} over all examples",
            "Microbatches do not see each other's examples. Compute it from the batch alone, or drop it.",
        )
    if len(grown) > 1:
        raise NotProved(_SEVERAL)
    return rows(grown[0], ANY, value.power)


_TOTALS = {Kind.SUM: "sum or mean", Kind.MAX: "maximum", Kind.MIN: "minimum"}


@rule("reshape", loose=("new_sizes",))
def reshape(eqn: Equation) -> AbstractValue:
    """Splits and merges dimensions; the entries of one microbatch have to stay together.

    Flattened, rows are (before, microbatches, after): the examples' new dimension begins at a divisor of `before`.
    """
    value, grown = eqn.ins[0], eqn.grown()
    if not value.shape_grows:
        return value
    old, new = eqn.shape(0), eqn.out_shape()
    order = eqn.params.get("dimensions")
    if order is not None:
        value = eqn.plain(0)
        old, value = tuple(old[dim] for dim in order), value.at(list(order).index(value.dim))
    if value.kind is not Kind.ROWS:
        same_size = len(grown) == 1 and new[grown[0]] == old[value.dim]
        if same_size and math.prod(old[: value.dim]) == math.prod(new[: grown[0]]) and value.kind is Kind.INDEX:
            return value.at(grown[0])
        value = eqn.plain(0).at(value.dim)
    place = reshaped(value, old, new, eqn.whole_out_shape())
    if place is None:
        raise NotProved("reshapes so that entries of different examples lie between each other")
    return place


def reshaped(
    value: AbstractValue, old: Sequence[int], new: Sequence[int], whole: Sequence[int]
) -> AbstractValue | None:
    """Where rows of shape `old` are after a reshape to `new`, which is `whole` for the whole batch."""
    grown = [dim for dim, (one, other) in enumerate(zip(new, whole, strict=True)) if one != other]
    if len(grown) != 1:
        return None
    (dim,) = grown
    size = old[value.dim]
    candidates = [value.outer] if value.outer != ANY else [k for k in range(1, size + 1) if size % k == 0]
    for outer in candidates:
        before, begins = math.prod(old[: value.dim]) * outer, math.prod(new[:dim])
        if before % begins == 0 and new[dim] % (before // begins) == 0:
            return value.but(dim=dim, outer=before // begins)
    return None


@rule("squeeze", "transpose")
def moved(eqn: Equation) -> AbstractValue:
    """Dimensions of one entry dropped, or dimensions in another order."""
    return placed(eqn, eqn.ins[0])


def placed(eqn: Equation, value: AbstractValue) -> AbstractValue:
    """What is known of a value whose dimensions an equation puts elsewhere."""
    if not value.shape_grows:
        return value
    there = {each.ins[0]: each.outs[0] for each in factors(eqn.part) if 0 in each.ins and each.outs}
    if value.dim not in there:
        raise NotProved("drops the dimension of the examples")
    last = there.get(len(eqn.shape(0)) - 1)
    if value.kind is Kind.COLUMNS and last != len(eqn.out_shape()) - 1:
        value = eqn.plain(0)
    return value.at(there[value.dim])


def shifted(value: AbstractValue, dropped: Sequence[int]) -> AbstractValue:
    """A value without some dimensions that count no examples."""
    if not value.shape_grows:
        return value
    if value.dim in dropped:
        raise NotProved("drops the dimension of the examples")
    return value.at(value.dim - sum(dim < value.dim for dim in dropped))


@rule("rev")
def rev(eqn: Equation) -> AbstractValue:
    """Dimensions the other way round."""
    value = eqn.ins[0] if eqn.ins[0].kind is not Kind.COLUMNS else eqn.plain(0)
    if value.shape_grows and value.dim in eqn.params["dimensions"]:
        if value.kind is Kind.ROWS and value.outer == ANY:
            return value
        raise NotProved("reverses the order of the examples")
    return value


@rule("concatenate")
def concatenate(eqn: Equation) -> AbstractValue:
    """Operands behind each other."""
    dim, every = eqn.params["dimension"], range(len(eqn.ins))
    if dim == len(eqn.out_shape()) - 1 and any(value.kind in (Kind.INDEX, Kind.COLUMNS) for value in eqn.ins):
        columns = _columns(eqn)
        if columns is not None:
            return columns
    if eqn.grown() == [dim]:
        return _stacked_examples(eqn, dim)
    return eqn.aligned(every)


def _columns(eqn: Equation) -> AbstractValue | None:
    columns: list[AbstractValue] = []
    for index, value in enumerate(eqn.ins):
        if value.kind is Kind.COLUMNS:
            columns.extend(value.columns)
            continue
        if value.kind not in (Kind.INDEX, Kind.ROWS, Kind.FREE) or eqn.shape(index)[-1] != 1 or value.power:
            return None
        columns.append(value)
    last = len(eqn.out_shape()) - 1
    places = {(value.dim, value.outer or 1) for value in columns if value.shape_grows}
    if len(places) != 1:
        return None
    ((dim, outer),) = places
    if dim == last or outer != 1:
        return None
    return AbstractValue(Kind.COLUMNS, dim, columns=tuple(columns))


def _stacked_examples(eqn: Equation, dim: int) -> AbstractValue:
    """Several arrays of examples behind each other, such as two views of the same."""
    every = range(len(eqn.ins))
    for index in every:
        eqn.ins[index] = eqn.plain(index)
    power = eqn.power_of(every)
    for index in every:
        eqn.scale_to(index, power)
    reject_totals(eqn, eqn.ins)
    sizes, outer = set(), 0
    for index, each in enumerate(eqn.ins):
        if each.kind is not Kind.ROWS or each.dim != dim:
            raise NotProved("joins examples and other values along one dimension")
        pieces = each.outer or 1
        sizes.add(eqn.shape(index)[dim] // pieces)
        outer += pieces
    if len(sizes) != 1:
        raise NotProved("joins arrays of different numbers of examples")
    return rows(dim, outer, power)


@rule("stack")
def stack(eqn: Equation) -> AbstractValue:
    """Operands along a new dimension."""
    return placed(eqn, eqn.aligned(range(len(eqn.ins))))


@rule("unstack")
def unstack(eqn: Equation) -> list[AbstractValue]:
    """The entries along a dimension."""
    value = eqn.ins[0] if not eqn.ins[0].shape_grows else eqn.plain(0)
    return [placed(eqn, value)] * len(eqn.part.outvars)


@rule("tile", loose=("reps",))
def tile(eqn: Equation) -> AbstractValue:
    """Copies behind each other."""
    reps, whole_reps = eqn.params["reps"], eqn.whole_params["reps"]
    differ = [dim for dim, (one, other) in enumerate(zip(reps, whole_reps, strict=True)) if one != other]
    value = eqn.ins[0]
    if value.kind is Kind.ZERO:
        return value
    if value.shape_grows:
        value = eqn.plain(0)
        if differ:
            raise NotProved(_SEVERAL)
        return value.but(outer=value.outer * reps[value.dim])
    if not differ:
        return value
    if value.kind is not Kind.FREE:
        raise NotProved(f"gives each example a {_TOTALS[value.kind]} over all examples")
    if len(differ) > 1 or whole_reps[differ[0]] != eqn.n * reps[differ[0]]:
        raise NotProved(_SEVERAL)
    return rows(differ[0], 1, value.power)


@rule("pad", loose=("padding_config",))
def pad(eqn: Equation) -> AbstractValue:
    """A border around an array; along the examples it may be of as many as there are, as a slice's gradient has it."""
    array, border = eqn.ins
    if array.kind is border.kind is Kind.ZERO:
        return array
    if array.shape_grows or (array.kind is Kind.ZERO and eqn.grown()):
        array = eqn.ins[0] = eqn.plain(0)
    config, whole_config = eqn.params["padding_config"], eqn.whole_params["padding_config"]
    outer = array.outer
    for dim, (own, whole) in enumerate(zip(config, whole_config, strict=True)):
        if array.kind is Kind.ROWS and dim == array.dim:
            size = eqn.shape(0)[dim] // max(outer, 1)
            low, high, inside = own
            wanted = (low * eqn.n, high * eqn.n, 0)
            if inside or tuple(whole) != wanted or low < 0 or high < 0 or low % size or high % size:
                raise NotProved("pads the dimension of the examples")
            if low or high:
                outer = max(outer, 1) + (low + high) // size
        elif tuple(own) != tuple(whole):
            raise NotProved("pads by another size for another batch size")
    if array.shape_grows:
        array = eqn.ins[0] = array.but(outer=outer)
    if border.kind is Kind.ZERO:
        return array
    value = eqn.aligned((0, 1))
    reject_shapes(eqn, value)
    return value


def reject_shapes(eqn: Equation, value: AbstractValue) -> None:
    """Refuse a value whose kind says otherwise than the shape of the result whether it counts examples."""
    if value.kind is not Kind.ZERO and bool(eqn.grown(0)) != value.shape_grows:
        raise NotProved("cuts or joins the dimension of the examples")


@rule("slice", loose=("start_indices", "limit_indices"))
def slice_(eqn: Equation) -> AbstractValue:
    """A part of each dimension, which has to be all of the examples."""
    value = eqn.ins[0]
    names = ("start_indices", "limit_indices")
    starts, limits = (eqn.params[name] for name in names)
    whole_starts, whole_limits = (eqn.whole_params[name] for name in names)
    strides = eqn.params["strides"] or (1,) * len(starts)
    if value.kind is Kind.COLUMNS:
        last = len(starts) - 1
        if strides[last] == 1 and _keeps_examples(eqn, value.dim, starts, limits, strides, whole_starts, whole_limits):
            columns = value.columns[starts[last] : limits[last]]
            if any(column.shape_grows for column in columns):
                return columns[0].at(value.dim) if len(columns) == 1 else value.but(columns=columns)
        value = eqn.plain(0)
    if value.kind is Kind.ZERO:
        return value
    if not value.shape_grows:
        if (starts, limits) != (whole_starts, whole_limits):
            raise NotProved("reads another part of an array for another batch size")
        return value
    dim = value.dim
    others = [k for k in range(len(starts)) if k != dim]
    if any(starts[k] != whole_starts[k] or limits[k] != whole_limits[k] for k in others):
        raise NotProved("reads another part of an array for another batch size")
    if _keeps_examples(eqn, dim, starts, limits, strides, whole_starts, whole_limits):
        return value
    value = eqn.plain(0)
    outer = value.outer
    if outer > 1 and strides[dim] == 1:
        size = eqn.shape(0)[dim] // outer
        from_piece, to_piece = starts[dim] // size, limits[dim] // size
        here = (from_piece * size, to_piece * size) == (starts[dim], limits[dim])
        there = (from_piece * size * eqn.n, to_piece * size * eqn.n) == (whole_starts[dim], whole_limits[dim])
        if here and there and to_piece > from_piece:
            return value.but(outer=to_piece - from_piece)
    raise NotProved(
        "takes some of the examples by their position in the batch", "Select them by data, such as a mask, instead."
    )


def _keeps_examples(
    eqn: Equation,
    dim: int,
    starts: Sequence[int],
    limits: Sequence[int],
    strides: Sequence[int],
    whole_starts: Sequence[int],
    whole_limits: Sequence[int],
) -> bool:
    return (
        starts[dim] == whole_starts[dim] == 0
        and strides[dim] == 1
        and limits[dim] == eqn.shape(0)[dim]
        and whole_limits[dim] == eqn.whole_shape(0)[dim]
    )


@rule("split", loose=("sizes",))
def split(eqn: Equation) -> list[AbstractValue]:
    """Parts of one dimension."""
    value, axis, count = eqn.ins[0], eqn.params["axis"], len(eqn.part.outvars)
    if value.kind is Kind.ZERO:
        return [value] * count
    value = value if not value.shape_grows else eqn.plain(0)
    sizes, whole_sizes = eqn.params["sizes"], eqn.whole_params["sizes"]
    if not value.shape_grows or value.dim != axis:
        if tuple(sizes) != tuple(whole_sizes):
            raise NotProved("reads another part of an array for another batch size")
        return [value] * count
    piece = eqn.shape(0)[axis] // (value.outer or 1)
    pieces = [size // piece for size in sizes]
    if any(size % piece or size == 0 or whole != eqn.n * size for size, whole in zip(sizes, whole_sizes, strict=True)):
        raise NotProved(
            "takes some of the examples by their position in the batch", "Select them by data, such as a mask, instead."
        )
    return [value.but(outer=each) for each in pieces]


@rule("dynamic_slice", loose=("slice_sizes",))
def dynamic_slice(eqn: Equation) -> AbstractValue:
    """A part of each dimension from positions on, which have to be free."""
    reject_positions(eqn, range(1, len(eqn.ins)))
    value = eqn.ins[0] = eqn.ins[0] if not eqn.ins[0].shape_grows else eqn.plain(0)
    sizes, whole_sizes = eqn.params["slice_sizes"], eqn.whole_params["slice_sizes"]
    if value.kind is Kind.ZERO:
        return value
    for dim, (size, whole_size) in enumerate(zip(sizes, whole_sizes, strict=True)):
        if value.shape_grows and dim == value.dim:
            # All of it, so that the position is clamped to zero.
            if size != eqn.shape(0)[dim] or whole_size != eqn.whole_shape(0)[dim]:
                raise NotProved("takes some of the examples by their position in the batch")
        elif size != whole_size:
            raise NotProved("reads another part of an array for another batch size")
    return value


@rule("dynamic_update_slice")
def dynamic_update_slice(eqn: Equation) -> AbstractValue:
    """An array with a part of it replaced, at positions that have to be free."""
    reject_positions(eqn, range(2, len(eqn.ins)))
    for index in (0, 1):
        # An array of zeros that grows has rows.
        if eqn.ins[index].kind is Kind.ZERO and eqn.shape(index) != eqn.whole_shape(index):
            eqn.ins[index] = eqn.plain(index)
    value = eqn.aligned((0, 1))
    if value.kind is Kind.ROWS and eqn.shape(0)[value.dim] != eqn.shape(1)[value.dim]:
        raise NotProved("replaces some of the examples by their position in the batch")
    if value.kind is Kind.ROWS and (eqn.shape(0) == eqn.whole_shape(0) or eqn.shape(1) == eqn.whole_shape(1)):
        raise NotProved("writes examples into an array that does not count them")
    return value


def reject_positions(eqn: Equation, indices: Sequence[int]) -> None:
    """Refuse positions that depend on the examples."""
    if any(value.kind is not Kind.FREE for value in eqn.unscaled(indices)):
        raise NotProved("reads or writes at a position that depends on the examples")


@rule("iota", loose=("shape",))
def iota(eqn: Equation) -> AbstractValue:
    """Positions along a dimension."""
    grown = eqn.grown()
    if not grown:
        return FREE
    if len(grown) > 1:
        raise NotProved(_SEVERAL)
    dim = grown[0]
    if dim != eqn.params["dimension"]:
        return rows(dim, ANY)
    return AbstractValue(Kind.INDEX, dim)


@rule("bitcast_convert_type")
def bitcast_convert_type(eqn: Equation) -> AbstractValue:
    """Other types of the same bits, with a last dimension more or less where they are of other sizes."""
    value = eqn.by_example()
    if value.kind is Kind.ROWS and value.dim >= len(eqn.out_shape()):
        raise NotProved("makes one number of the bits of several examples")
    return value


@rule("sharding_constraint", "mm_constraint", "name", "layout_constraint", "pvary", "reshard", "device_put",
      "with_memory_space_constraint", "shard_alike", "reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast",
      "vary_unreduced_cast_p", "relayout", "optimization_barrier")  # fmt: skip
def identity(eqn: Equation) -> list[AbstractValue]:
    """Every operand as it is."""
    return list(eqn.ins)


@rule("empty", "empty2", loose=("shape",))
def empty(eqn: Equation) -> AbstractValue:
    """An array whose entries nobody reads."""
    return constant(eqn.part.outvars[0], eqn.whole.outvars[0])
