"""Gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from mmruntime._exactness.lattice import ANY, ZERO, AbstractValue, Kind, join_outer, rows
from mmruntime._exactness.rules.equation import Equation, NotProved, is_inexact, reject_totals, rule

_BY_POSITION = (
    "reads or writes examples by their position in the batch",
    "Index the other dimensions only, as jnp.take_along_axis and jax.vmap do.",
)


def _may_fill(eqn: Equation) -> bool:
    """Whether indices that are out of bounds give something else than zeros or nan."""
    if "FILL" not in str(eqn.params["mode"]):
        return False
    value = eqn.params.get("fill_value")
    return not (is_inexact(eqn.part.outvars[0]) if value is None else value == 0 or value != value)


@rule("gather", loose=("slice_sizes",))
def gather(eqn: Equation) -> AbstractValue:
    """Slices of an array at positions that an array gives."""
    operand, indices = eqn.ins
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    whole_sizes = eqn.whole_params["slice_sizes"]
    if operand.kind is Kind.ZERO and not _may_fill(eqn):
        return ZERO
    if operand.kind is Kind.SUM:
        eqn.scale_to(1, 0)
        if eqn.ins[1].kind is Kind.FREE and not _may_fill(eqn):
            return operand
        raise NotProved("reads a sum over examples at positions that depend on the examples")
    operand = eqn.plain(0)
    reject_totals(eqn, [operand])
    if operand.power and _may_fill(eqn):
        eqn.scale_to(0, 0)
        operand = eqn.ins[0]
    grows = operand.dim if operand.kind is Kind.ROWS else -1
    for dim, (size, whole_size) in enumerate(zip(sizes, whole_sizes, strict=True)):
        if size != whole_size and dim != grows:
            raise NotProved("reads another part of an array for another batch size")
    batch_dims = [dim for dim in range(len(eqn.out_shape())) if dim not in numbers.offset_dims]
    if operand.kind is Kind.FREE:
        index = _index_rows(eqn)
        return operand if index is None else index.but(dim=batch_dims[index.dim], power=operand.power)
    if _is_own_position(eqn, operand, numbers.start_index_map) and sizes[grows] == whole_sizes[grows] == 1:
        return rows(batch_dims[indices.dim], 1, operand.power)
    index = _index_rows(eqn)
    if grows in numbers.operand_batching_dims:
        paired = numbers.start_indices_batching_dims[list(numbers.operand_batching_dims).index(grows)]
        outer = None if index is None else join_outer(operand.outer, index.outer)
        if index is None or index.dim != paired or outer is None:
            raise NotProved(*_BY_POSITION)
        return rows(batch_dims[index.dim], outer, operand.power)
    if index is not None:
        raise NotProved(*_BY_POSITION)
    full = sizes[grows] == eqn.shape(0)[grows] and whole_sizes[grows] == eqn.whole_shape(0)[grows]
    if not full or grows in numbers.collapsed_slice_dims:
        raise NotProved(*_BY_POSITION)
    kept = _kept(len(sizes), numbers.collapsed_slice_dims, numbers.operand_batching_dims)
    return operand.at(numbers.offset_dims[kept.index(grows)])


def _index_rows(eqn: Equation) -> AbstractValue | None:
    """The rows of the array of indices, whose last dimension is the index itself; None if it is free."""
    eqn.scale_to(1, 0)
    value = eqn.ins[1]
    reject_totals(eqn, [value])
    if value.kind is not Kind.ROWS:
        return None
    if value.dim == len(eqn.shape(1)) - 1:
        raise NotProved(*_BY_POSITION)
    return value


def _is_own_position(eqn: Equation, operand: AbstractValue, index_map: Sequence[int]) -> bool:
    """Whether indices say for each example its own position in an operand's examples."""
    indices = eqn.ins[1]
    if operand.dim not in index_map or operand.outer not in (1, ANY):
        return False
    if indices.kind is Kind.INDEX:
        return indices.dim < len(eqn.shape(1)) - 1 and len(index_map) == 1
    if indices.kind is not Kind.COLUMNS:
        return False
    # In another dimension a position in the batch is another one in a microbatch.
    positions = [dim for dim, column in zip(index_map, indices.columns, strict=True) if column.kind is Kind.INDEX]
    return positions == [operand.dim]


def _kept(rank: int, *dropped: Sequence[int]) -> list[int]:
    gone = {int(dim) for dims in dropped for dim in dims}
    return [dim for dim in range(rank) if dim not in gone]


_ANY_UPDATE = ("update_jaxpr", "update_consts")


@rule("scatter-add", "scatter-sub", loose=_ANY_UPDATE)
def scatter_add(eqn: Equation) -> AbstractValue:
    """Adds slices to an array: a sum over the examples where each of them says where."""
    operand, _, updates = eqn.ins
    if operand.kind is updates.kind is Kind.ZERO:
        return ZERO
    if Kind.SUM in (operand.kind, updates.kind):
        if updates.kind is Kind.ROWS or eqn.ins[1].shape_grows:
            return _accumulated(eqn)
        eqn.scale_to(1, 0)
        reject_totals(eqn, [eqn.ins[1]])
        return eqn.aligned((0, 2))
    place = _scatter_place(eqn)
    if place is None:
        return _accumulated(eqn)
    return place


def _accumulated(eqn: Equation) -> AbstractValue:
    """Every example adds somewhere in an array that does not count them."""
    operand, updates = eqn.ins[0], _with_own_place(eqn)
    if operand.kind not in (Kind.ZERO, Kind.FREE, Kind.SUM):
        raise NotProved(*_BY_POSITION)
    if operand.kind is Kind.FREE and operand.power != updates.power + 1:
        if not eqn.is_inexact(0):
            raise NotProved("adds examples to integers that do not depend on the batch")
        eqn._scale(0, operand.power - updates.power - 1)
    elif operand.kind is Kind.SUM and operand.power != updates.power:
        eqn._scale(0, operand.power - updates.power)
    return AbstractValue(Kind.SUM, power=updates.power)


def _with_own_place(eqn: Equation) -> AbstractValue:
    """The updates of a scatter into dimensions that count no examples, where each update has its own index.

    Raises:
        NotProved: If they do not.
    """
    index = _index_rows(eqn)
    updates = eqn.ins[2] = eqn.plain(2)
    reject_totals(eqn, [updates])
    places = _kept(len(eqn.shape(2)), eqn.params["dimension_numbers"].update_window_dims)
    is_own = index is not None and updates.kind is Kind.ROWS and updates.dim == places[index.dim]
    if index is None or not is_own or join_outer(index.outer, updates.outer) is None:
        raise NotProved(*_BY_POSITION)
    if eqn.shape(0) != eqn.whole_shape(0):
        raise NotProved(*_BY_POSITION)
    return updates


def _scatter_place(eqn: Equation) -> AbstractValue | None:
    """What a scatter gives where examples write to their own rows, or nothing depends on examples; None otherwise."""
    numbers = eqn.params["dimension_numbers"]
    indices = eqn.ins[1]
    operand_grows = eqn.shape(0) != eqn.whole_shape(0)
    if not operand_grows and eqn.shape(2) != eqn.whole_shape(2):
        return None
    if not operand_grows:
        eqn.scale_to(1, 0)
        if eqn.ins[1].kind is not Kind.FREE:
            return None
        return eqn.aligned((0, 2))
    operand, updates = eqn.plain(0), eqn.plain(2)
    eqn.ins[0], eqn.ins[2] = operand, updates
    reject_totals(eqn, [operand, updates])
    power = eqn.power_of((2, 0))
    eqn.scale_to(0, power)
    eqn.scale_to(2, power)
    operand, updates = eqn.ins[0], eqn.ins[2]
    if operand.kind is not Kind.ROWS or updates.kind is not Kind.ROWS:
        raise NotProved(*_BY_POSITION)
    dim = operand.dim
    scatter_dims = _kept(len(eqn.shape(2)), numbers.update_window_dims)
    own = _is_own_position(eqn, operand, numbers.scatter_dims_to_operand_dims)
    own = own and dim in numbers.inserted_window_dims and updates.outer in (1, ANY)
    if own and updates.dim == scatter_dims[indices.dim]:
        return rows(dim, 1, updates.power)
    index = _index_rows(eqn)
    if dim in numbers.operand_batching_dims:
        position = [int(d) for d in numbers.operand_batching_dims].index(dim)
        paired = int(numbers.scatter_indices_batching_dims[position])
        outer = join_outer(operand.outer, updates.outer)
        if index is not None and outer is not None:
            outer = join_outer(outer, index.outer)
        if index is None or outer is None or index.dim != paired or updates.dim != scatter_dims[paired]:
            raise NotProved(*_BY_POSITION)
        return rows(dim, outer, updates.power)
    kept = _kept(len(eqn.shape(0)), numbers.inserted_window_dims, numbers.operand_batching_dims)
    if index is not None or dim not in kept:
        raise NotProved(*_BY_POSITION)
    window = int(numbers.update_window_dims[kept.index(dim)])
    outer = join_outer(operand.outer, updates.outer)
    full = eqn.shape(2)[window] == eqn.shape(0)[dim] and eqn.whole_shape(2)[window] == eqn.whole_shape(0)[dim]
    if updates.dim != window or not full or outer is None:
        raise NotProved(*_BY_POSITION)
    return rows(dim, outer, updates.power)


@rule("scatter", loose=_ANY_UPDATE)
def scatter(eqn: Equation) -> AbstractValue:
    """Replaces slices of an array."""
    operand, _, updates = eqn.ins
    if operand.kind is updates.kind is Kind.ZERO:
        return ZERO
    if Kind.SUM in (operand.kind, updates.kind):
        eqn.scale_to(1, 0)
        if eqn.ins[1].kind is not Kind.FREE:
            raise NotProved("writes a sum over examples at positions that depend on the examples")
        return eqn.aligned((0, 2))
    place = _scatter_place(eqn)
    if place is None:
        raise NotProved("replaces entries that other examples may replace as well")
    return place


@rule("scatter-max", "scatter-min", "scatter-mul", loose=_ANY_UPDATE)
def scatter_other(eqn: Equation) -> AbstractValue:
    """Takes the larger, or the product, of entries and slices."""
    eqn.scale_to(0, 0)
    eqn.scale_to(2, 0)
    if eqn.shape(0) == eqn.whole_shape(0) and eqn.shape(2) != eqn.whole_shape(2):
        _with_own_place(eqn)
        if eqn.ins[0].kind is not Kind.FREE or "mul" in eqn.name:
            raise NotProved(*_BY_POSITION)
        return AbstractValue(Kind.MAX if "max" in eqn.name else Kind.MIN)
    reject_totals(eqn, [eqn.ins[0], eqn.ins[2]])
    place = _scatter_place(eqn)
    if place is None:
        raise NotProved(*_BY_POSITION)
    return place
