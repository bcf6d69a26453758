"""Rules: for each primitive, how a slice of its results is computed from slices of its operands.

A rule says which dimensions of the operands and of the results count the same positions, so that what is emitted is the
same primitive on smaller arrays. Each rule is an identity; where there is none, it raises `NotSliceableError`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._jaxpr.primitives import ENTRY_BY_ENTRY, MOVES, REDUCTIONS, along, factors, is_constraint, linear_in
from mmruntime._slices.constants import PartlyKnown
from mmruntime._slices.mask_proof import combined_fill, finite, is_hidden, is_same, row_sees
from mmruntime._slices.values import Check, NotSliceableError, SequenceAxis, SlicedValue, even_axis

# How an operand is read: axes of its own, each with the number of the result's axis that says which positions, or with
# "own" or "upto" for positions that are summed over.
Reads = list[tuple[SequenceAxis, int | str]]


@dataclass(frozen=True)
class Application:
    """What a rule says of an equation.

    Attributes:
        out: What is known of its results, which are alike.
        reads: How each operand is read.
        once: Operands that are the same for all slices, and count once in a sum of addends.
        spread: Operands with a part for each slice, which becomes an addend with zeros elsewhere.
        suffix: Whether slices have addends of all positions up to their end, so that a slice adds up those of the
            slices behind it.
        checks: What it takes for granted of numbers.
    """

    out: SlicedValue
    reads: list[Reads]
    once: frozenset[int] = frozenset()
    spread: dict[int, SequenceAxis] = field(default_factory=dict)
    suffix: bool = False
    checks: tuple[Check, ...] = ()

    def wants(self, operand: int, modes: Mapping[int, str]) -> tuple[tuple[SequenceAxis, str], ...]:
        """The axes of an operand, each with the positions that are read: a slice's "own", or those "upto" its end.

        Args:
            operand: Its number.
            modes: Which positions of each axis of the result are computed.
        """
        return tuple((axis, modes[mode] if isinstance(mode, int) else mode) for axis, mode in self.reads[operand])


@dataclass(frozen=True)
class SlicedEquation:
    """An equation with what is known of its operands.

    Attributes:
        eqn: The equation.
        ins: What is known of the operands.
        constants: Their values, where they are known.
        known_entries: Those of their entries that are known.
        late: Whether it is part of the backward pass.
        count: How many slices there are.
        has_backward: Whether the loop has a backward pass.
    """

    eqn: Any
    ins: tuple[SlicedValue, ...]
    constants: tuple[np.ndarray[Any, Any] | None, ...]
    known_entries: tuple[PartlyKnown | None, ...]
    late: bool
    count: int
    has_backward: bool

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.eqn.primitive.name)

    @property
    def params(self) -> Any:
        """The primitive's parameters."""
        return self.eqn.params

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of an operand."""
        shape: tuple[int, ...] = self.eqn.invars[number].aval.shape
        return shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        shape: tuple[int, ...] = self.eqn.outvars[0].aval.shape
        return shape

    def known(self, axes: Sequence[SequenceAxis] = (), **changes: Any) -> SlicedValue:
        """A result with these axes."""
        free = all(value.free for value in self.ins)
        return SlicedValue(tuple(axes), free=free, late=self.late, **changes)


ADVICE = "Leave slices= out, or compute it of each position alone, or of those before it behind a causal mask."


def apply_rule(eqn: SlicedEquation) -> Application:
    """How slices of an equation's results are computed.

    Raises:
        NotSliceableError: If it is not known.
    """
    if any(value.partial for value in eqn.ins):
        return _linear(eqn)
    if not any(value.axes for value in eqn.ins):
        return Application(eqn.known(), [[] for _ in eqn.ins])
    if (
        eqn.name in ENTRY_BY_ENTRY
        or is_constraint(eqn.name)
        or eqn.name in ("bitcast_convert_type", "optimization_barrier")
    ):
        if len(eqn.eqn.outvars) != 1:
            raise NotSliceableError("is not known for slices of a sequence")
        return _entry_by_entry(eqn)
    if eqn.name in REDUCTIONS:
        return _reduction(eqn)
    rule = _RULES.get(eqn.name)
    if rule is not None:
        return rule(eqn)
    if along(eqn.eqn) is not None:
        return _along(eqn)
    if eqn.name in MOVES and len(eqn.ins) == 1:
        return _placed(eqn)
    raise NotSliceableError("is not known for slices of a sequence")


def _stays_peak(eqn: SlicedEquation) -> bool:
    """Whether a result is a row's largest entry, or another number in its place."""
    if eqn.name == "select_n":
        cases = [
            value.peak or (array is not None and bool((array > -np.inf).all()))
            for value, array in zip(eqn.ins[1:], eqn.constants[1:], strict=True)
        ]
        return any(case.peak for case in eqn.ins[1:]) and all(cases)
    return (is_same(eqn.name) or eqn.name == "max") and any(value.peak for value in eqn.ins)


def _least(eqn: SlicedEquation) -> float:
    """What is known that no entry of a result is below."""
    if eqn.name == "max":
        return max(value.least for value in eqn.ins)
    if eqn.name == "select_n":
        return min(value.least for value in eqn.ins[1:])
    return eqn.ins[0].least if is_same(eqn.name) else -math.inf


# Axes.


def _united(found: Sequence[tuple[SequenceAxis, bool]]) -> list[SequenceAxis]:
    """The axes of a result, from the axes of its operands and whether these are more than a suggestion."""
    axes: dict[int, SequenceAxis] = {}
    firm: dict[int, bool] = {}
    for axis, is_firm in sorted(found, key=lambda each: not each[1]):
        known = axes.setdefault(axis.dim, axis)
        firm.setdefault(axis.dim, is_firm)
        if known != axis and is_firm:
            raise NotSliceableError("reads positions of several slices at once")
    if len(axes) > 2:
        raise NotSliceableError("has positions in three dimensions")
    firm_axes = [axis for dim, axis in axes.items() if firm[dim]]
    chosen = list(axes.values())
    if len(chosen) == 2 and len(firm_axes) == 1 and not all(axis.is_plain for axis in chosen):
        return firm_axes
    return chosen


def _of(value: SlicedValue) -> list[tuple[SequenceAxis, bool]]:
    return [(axis, bool(value.hard_axes)) for axis in value.axes]


def _entry_by_entry(eqn: SlicedEquation) -> Application:
    rank = len(eqn.out_shape)
    axes = _united([each for value in eqn.ins for each in _of(value)])
    # Operands may have one entry where the result has several.
    reads: list[Reads] = [
        [
            (axis, number)
            for number, axis in enumerate(axes)
            if len(eqn.shape(k)) == rank and eqn.shape(k)[axis.dim] == eqn.out_shape[axis.dim]
        ]
        for k in range(len(eqn.ins))
    ]
    out = eqn.known(axes).but(peak=_stays_peak(eqn), least=_least(eqn))
    checks: list[Check] = []
    if len(axes) == 2:
        fills = {}
        for row, column in (axes, axes[::-1]):
            if row.is_plain and column.is_single:
                fill, taken = combined_fill(eqn, row, column)
                checks += taken
                if fill is not None:
                    fills[row.dim, column.dim] = fill
        out = out.but(fills=fills)
    return Application(out, reads, checks=tuple(checks))


def _moved(eqn: SlicedEquation, where: Callable[[SequenceAxis], SequenceAxis | None], **changes: Any) -> Application:
    """An equation of one operand whose axes lie elsewhere in the result."""
    (value, *rest) = eqn.ins
    pairs = [(axis, where(axis)) for axis in value.axes]
    if any(value.hard_axes and there is None for _, there in pairs):
        raise NotSliceableError("has positions of several slices come together")
    kept = [(axis, there) for axis, there in pairs if there is not None]
    dims = {axis.dim: there.dim for axis, there in kept}
    fills = {(dims[r], dims[c]): fill for (r, c), fill in value.fills.items() if r in dims and c in dims}
    out = eqn.known([there for _, there in kept]).but(fills=fills, least=value.least, peak=value.peak, **changes)
    return Application(out, [[(axis, number) for number, (axis, _) in enumerate(kept)], *([] for _ in rest)])


# Reductions.


def _reduction(eqn: SlicedEquation) -> Application:
    reduced = set(eqn.params["axes"])
    (value,) = eqn.ins
    meeting = [axis for axis in value.axes if axis.dim in reduced]

    def after(axis: SequenceAxis) -> SequenceAxis:
        return axis.at(axis.dim - sum(dim < axis.dim for dim in reduced))

    if not meeting:
        moved = _moved(eqn, after)
        changes: dict[str, Any] = {"least": -math.inf}
        if eqn.name not in ("reduce_sum", "reduce_max", "reduce_min"):
            changes["fills"] = {}
        elif eqn.name == "reduce_sum":
            changes["fills"] = {pair: fill for pair, fill in moved.out.fills.items() if fill == 0}
        return replace(moved, out=moved.out.but(**changes))
    if eqn.name not in ("reduce_sum", "reduce_max"):
        raise NotSliceableError("compares all positions")
    kept = [axis for axis in value.axes if axis.dim not in reduced]
    if eqn.name == "reduce_sum":
        return _summed(eqn, [(axis.dim, [(0, axis)]) for axis in meeting], [(0, axis, after(axis)) for axis in kept])
    if len(meeting) == 2 or not kept:
        raise NotSliceableError("takes the maximum over all positions")
    (column,), (row,) = meeting, kept
    fill = value.fills.get((row.dim, column.dim))
    if not is_hidden(fill) or fill is None:
        raise NotSliceableError("takes the maximum over positions behind it, which no causal mask is known to hide")
    reads: list[Reads] = [[(row, 0), (column, "upto")]]
    if fill == -math.inf:
        # Nothing is below that.
        return Application(eqn.known([after(row)]).but(peak=True), reads)
    check = row_sees(fill)
    return Application(eqn.known([after(row)]).but(least=check.limit), reads, checks=(check,))


def _summed(
    eqn: SlicedEquation,
    sums: Sequence[tuple[int, Sequence[tuple[int, SequenceAxis]]]],
    kept: Sequence[tuple[int, SequenceAxis, SequenceAxis]],
) -> Application:
    """A sum over positions.

    Args:
        eqn: The equation.
        sums: For each dimension that is summed over, the operands and their axes there.
        kept: Axes that stay: the operand, its axis, and the axis of the result.
    """
    reads: list[Reads] = [[] for _ in eqn.ins]
    outs: list[SequenceAxis] = []
    for operand, axis, there in kept:
        if there not in outs:
            outs.append(there)
        reads[operand].append((axis, outs.index(there)))
    if len({there.dim for there in outs}) != len(outs) or len(outs) > 1:
        raise NotSliceableError("adds up positions of several slices")
    for _, members in sums:
        if len({axis.at(0) for _, axis in members}) != 1:
            raise NotSliceableError("reads positions of several slices at once")
    if all(value.free for value in eqn.ins):
        # What the batch alone decides, such as the number of tokens, is computed whole.
        raise NotSliceableError("adds up all positions")
    if len(sums) == 1 and not outs:
        if any(axis.is_joined for _, axis in sums[0][1]):
            raise NotSliceableError("adds up positions of several slices")
        for operand, axis in sums[0][1]:
            reads[operand].append((axis, "own"))
        return Application(eqn.known(partial=True, origin=eqn.eqn), reads)
    pairs = {k: value for k, value in enumerate(eqn.ins) if len(value.axes) == 2}
    if len(sums) == 2 and not outs:
        for value in pairs.values():
            for row, column in (value.axes, value.axes[::-1]):
                if value.fills.get((row.dim, column.dim)) == 0:
                    of_row = next(s for s in sums if any(axis == row and eqn.ins[k] is value for k, axis in s[1]))
                    for number, (_, members) in enumerate(sums):
                        mode = "own" if sums[number] is of_row else "upto"
                        for operand, axis in members:
                            reads[operand].append((axis, mode))
                    return Application(eqn.known(partial=True, origin=eqn.eqn), reads)
        raise NotSliceableError("adds up positions behind it, which no causal mask is known to hide")
    if len(sums) != 1 or len(outs) != 1:
        raise NotSliceableError("adds up positions of several slices")
    (_, members), out = sums[0], outs[0]
    hiding = {k for k, value in pairs.items() if 0.0 in value.fills.values()}
    # A product of hidden positions' zeros with what is infinite is no number.
    checks = tuple(check for k in range(len(eqn.ins)) if hiding and k not in hiding for check in finite(eqn, k))
    message = "adds up positions behind it, which no causal mask is known to hide"
    for k, value in pairs.items():
        inner = next((axis for operand, axis in members if operand == k), None)
        stays = next((axis for operand, axis, _ in kept if operand == k), None)
        if inner is None or stays is None:
            continue
        if value.fills.get((stays.dim, inner.dim)) == 0:
            for operand, axis in members:
                reads[operand].append((axis, "upto"))
            return Application(eqn.known([out]), reads, checks=checks)
        if value.fills.get((inner.dim, stays.dim)) == 0:
            if not eqn.late or not out.is_plain:
                message = "adds up what positions behind it give, as no causal model does"
                continue
            for operand, axis in members:
                reads[operand].append((axis, "own"))
            return Application(eqn.known([out]), reads, suffix=True, checks=checks)
    raise NotSliceableError(message)


# Operands, each with an axis of its own.
Members = list[tuple[int, SequenceAxis]]


def _by_factors(
    eqn: SlicedEquation, why_not: Callable[[int, int], str]
) -> tuple[list[SequenceAxis], list[tuple[int, SequenceAxis, SequenceAxis]], list[tuple[int, Members]]]:
    """The axes of a result whose factors have positions.

    Args:
        eqn: The equation.
        why_not: What is wrong where positions in a dimension of an operand, given by its number, have no factor.

    Returns:
        The axes; the operands that have one, each with its own axis and the result's; and of each factor that results
        do not have, the number and its operands.
    """
    known = factors(eqn.eqn)
    found: list[tuple[SequenceAxis, bool]] = []
    summed: dict[int, Members] = {}
    for k, value in enumerate(eqn.ins):
        for axis in value.axes:
            number = next((number for number, each in enumerate(known) if each.ins.get(k) == axis.dim), None)
            if number is None:
                if value.hard_axes:
                    raise NotSliceableError(why_not(k, axis.dim))
            elif known[number].outs:
                found.append((axis.at(known[number].outs[0]), bool(value.hard_axes)))
            else:
                summed.setdefault(number, []).append((k, axis))
    axes = _united(found)
    there = {each.outs[0]: each for each in known if each.outs}
    kept = [(k, axis.at(dim), axis) for axis in axes for k, dim in there[axis.dim].ins.items()]
    sums = []
    for number, members in summed.items():
        # What is the same for all slices, or may be computed whole, follows the other operand.
        firm = [axis for k, axis in members if eqn.ins[k].hard_axes] or [members[0][1]]
        if any(axis.at(0) != firm[0].at(0) for axis in firm):
            raise NotSliceableError("reads positions of several slices at once")
        sums.append((number, [(k, firm[0].at(dim)) for k, dim in known[number].ins.items()]))
    return axes, kept, sums


def _read_for(
    eqn: SlicedEquation, axes: Sequence[SequenceAxis], kept: Sequence[tuple[int, SequenceAxis, SequenceAxis]]
) -> list[Reads]:
    """How each operand is read for the axes of a result."""
    return [[(own, axes.index(axis)) for k, own, axis in kept if k == operand] for operand in range(len(eqn.ins))]


def _dot_general(eqn: SlicedEquation) -> Application:
    axes, kept, sums = _by_factors(eqn, lambda k, dim: "is not known for slices of a sequence")
    if sums:
        return _summed(eqn, sums, kept)
    zero: dict[tuple[int, int], float] = {}
    for k, value in enumerate(eqn.ins if len(axes) == 2 else ()):
        dims = {axis.dim: there.dim for each, axis, there in kept if each == k}
        pairs = [pair for pair, fill in value.fills.items() if fill == 0 and {*pair} <= {*dims}]
        zero.update({(dims[r], dims[c]): 0.0 for r, c in pairs})
    return Application(eqn.known(axes).but(fills=zero), _read_for(eqn, axes, kept))


# Shapes.


def _placed(eqn: SlicedEquation) -> Application:
    """What puts dimensions in other places."""
    places = {each.ins[0]: each.outs[0] for each in factors(eqn.eqn) if each.ins and each.outs}
    return _moved(eqn, lambda axis: axis.at(places[axis.dim]) if axis.dim in places else None)


def _reshape(eqn: SlicedEquation) -> Application:
    if eqn.params.get("dimensions") is not None:
        raise NotSliceableError("is not known for slices of a sequence")
    before, after = eqn.shape(0), eqn.out_shape

    def where(axis: SequenceAxis) -> SequenceAxis | None:
        if axis.is_joined:
            lead, size = math.prod(before[: axis.dim]), before[axis.dim]
            there = [d for d, other in enumerate(after) if other == size and math.prod(after[:d]) == lead]
            return axis.at(there[0]) if there else None
        runs = math.prod(before[: axis.dim]) * axis.outer
        for dim, size in enumerate(after):
            lead = math.prod(after[:dim])
            if lead and runs % lead == 0 and size and size % (runs // lead) == 0:
                outer = runs // lead
                if (size // outer) % axis.length == 0:
                    return SequenceAxis(dim, axis.bounds, outer, size // outer // axis.length)
        return None

    return _moved(eqn, where)


def _along(eqn: SlicedEquation) -> Application:
    """What goes along a dimension, and treats the others alike."""
    dims = along(eqn.eqn) or set()
    axes = _united([each for value in eqn.ins for each in _of(value)])
    if any(axis.dim in dims for axis in axes):
        raise NotSliceableError("goes along the sequence")
    reads: list[Reads] = [[(axis, number) for number, axis in enumerate(axes)] for _ in eqn.ins]
    out = eqn.known(axes)
    if len(axes) == 2 and eqn.name in ("cumsum", "rev", "split"):
        out = out.but(fills={pair: fill for pair, fill in eqn.ins[0].fills.items() if fill == 0})
    return Application(out, reads)


def _concatenate(eqn: SlicedEquation) -> Application:
    dim = eqn.params["dimension"]
    beside = [k for k, value in enumerate(eqn.ins) if value.axis(dim) is not None]
    if len(beside) == 1:
        return _joined(eqn, beside[0])
    axes = _united([each for value in eqn.ins for each in _of(value)])
    if any(axis.dim == dim for axis in axes):
        raise NotSliceableError("joins sequences")
    reads: list[Reads] = [[(axis, number) for number, axis in enumerate(axes)] for _ in eqn.ins]
    out = eqn.known(axes)
    if len(axes) == 2:
        shared = set.intersection(*[{p for p, fill in value.fills.items() if fill == 0} for value in eqn.ins])
        out = out.but(fills=dict.fromkeys(shared, 0.0))
    return Application(out, reads)


def _joined(eqn: SlicedEquation, at: int) -> Application:
    """Entries joined to the columns of pairs that are no positions, as attention sinks, so that each slice reads them.

    Args:
        eqn: The equation.
        at: The operand that has the columns.
    """
    dim, pairs = eqn.params["dimension"], eqn.ins[at]
    column = pairs.axis(dim)
    row = next((axis for axis in pairs.axes if axis.dim != dim), None)
    if column is None or row is None or not column.is_single or row.is_joined or not pairs.hard_axes:
        raise NotSliceableError("joins sequences")
    lead, tail = (sum(eqn.shape(k)[dim] for k in each) for each in (range(at), range(at + 1, len(eqn.ins))))
    joined = replace(column, lead=column.lead + lead, tail=column.tail + tail)
    beside = [each for k, value in enumerate(eqn.ins) if k != at for each in _of(value)]
    axes = _united([(row, True), (joined, True), *beside])
    reads: list[Reads] = [[(axis, number) for number, axis in enumerate(axes) if axis.dim != dim] for _ in eqn.ins]
    reads[at].append((column, axes.index(joined)))
    fill = pairs.fills.get((row.dim, dim))
    out = eqn.known(axes).but(fills={} if fill is None else {(row.dim, dim): fill})
    return Application(out, reads)


def _unjoined(eqn: SlicedEquation, column: SequenceAxis, start: int, limit: int) -> Application:
    """Entries in the columns of pairs: all that are positions, or some of those that are not."""
    end = column.lead + column.length
    if limit <= column.lead or start >= end:
        # No position is among them.
        rows = tuple(axis for axis in eqn.ins[0].axes if axis != column)
        if len(rows) != 1 or not eqn.ins[0].hard_axes:
            raise NotSliceableError("has positions of several slices come together")
        return Application(eqn.known(rows), [[(rows[0], 0), (column, "upto")], *([] for _ in eqn.ins[1:])])
    if start > column.lead or limit < end:
        raise NotSliceableError("has positions of several slices come together")
    rest = replace(column, lead=column.lead - start, tail=limit - end)
    return _moved(eqn, lambda axis: rest if axis == column else axis)


def _stack(eqn: SlicedEquation) -> Application:
    axes, kept, _ = _by_factors(eqn, lambda k, dim: "is not known for slices of a sequence")
    return Application(eqn.known(axes), _read_for(eqn, axes, kept))


def _slice(eqn: SlicedEquation) -> Application:
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or (1,) * len(start)
    shape = eqn.shape(0)
    cut = [dim for dim, size in enumerate(shape) if (start[dim], limit[dim], steps[dim]) != (0, size, 1)]
    joined = next((axis for axis in eqn.ins[0].axes if axis.is_joined and [axis.dim] == cut), None)
    if joined is not None and steps[joined.dim] == 1:
        return _unjoined(eqn, joined, start[joined.dim], limit[joined.dim])

    def where(axis: SequenceAxis) -> SequenceAxis | None:
        dim = axis.dim
        if (start[dim], limit[dim], steps[dim]) == (0, shape[dim], 1):
            return axis
        if not axis.is_plain or steps[dim] != 1 or len(eqn.ins[0].axes) > 1:
            return None
        bounds = tuple(min(max(bound - start[dim], 0), limit[dim] - start[dim]) for bound in axis.bounds)
        return replace(axis, bounds=bounds) if _increases(bounds) else None

    return _moved(eqn, where)


def _pad(eqn: SlicedEquation) -> Application:
    config = eqn.params["padding_config"]
    padded_dims = [dim for dim, each in enumerate(config) if each != (0, 0, 0)]
    column = next((axis for axis in eqn.ins[0].axes if axis.is_single and [axis.dim] == padded_dims), None)
    if column is not None and len(eqn.ins[0].axes) == 2 and eqn.ins[0].hard_axes and not eqn.ins[1].axes:
        return _padded_columns(eqn, column)

    def where(axis: SequenceAxis) -> SequenceAxis | None:
        low, high, interior = config[axis.dim]
        if (low, high, interior) == (0, 0, 0):
            return axis
        if not axis.is_plain or interior or low < 0 or high < 0 or len(eqn.ins[0].axes) > 1:
            return None
        bounds = [bound + low for bound in axis.bounds]
        bounds[0], bounds[-1] = 0, bounds[-1] + high
        return replace(axis, bounds=tuple(bounds))

    if eqn.ins[1].axes:
        raise NotSliceableError("is not known for slices of a sequence")
    padded = _moved(eqn, where)
    zero = eqn.constants[1] is not None and not eqn.constants[1].any()
    fills = {pair: fill for pair, fill in padded.out.fills.items() if fill == 0 and zero}
    return replace(padded, out=padded.out.but(fills=fills))


def _padded_columns(eqn: SlicedEquation, column: SequenceAxis) -> Application:
    """Columns of pairs with others beside them that are no positions, or without such."""
    low, high, interior = eqn.params["padding_config"][column.dim]
    (row,) = (axis for axis in eqn.ins[0].axes if axis != column)
    if interior or -low > column.lead or -high > column.tail or row.is_joined or low * high < 0:
        raise NotSliceableError("has positions of several slices come together")
    if low < 0 or high < 0:
        return _unjoined(eqn, column, -low, eqn.shape(0)[column.dim] + high)
    joined = replace(column, lead=column.lead + low, tail=column.tail + high)
    axes = [row, joined]
    fill = eqn.ins[0].fills.get((row.dim, column.dim))
    out = eqn.known(axes).but(fills={} if fill is None else {(row.dim, column.dim): fill})
    return Application(out, [[(row, 0), (column, 1)], []])


def _increases(bounds: Sequence[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(bounds))


def _dynamic_slice(eqn: SlicedEquation) -> Application:
    if any(value.axes for value in eqn.ins[1:]):
        raise NotSliceableError("reads at an index that depends on the sequence")
    shape, sizes = eqn.shape(0), eqn.params["slice_sizes"]
    # The start of a dimension that is taken whole is clamped to zero.
    moved = _moved(eqn, lambda axis: axis if sizes[axis.dim] == shape[axis.dim] else None)
    return replace(moved, out=moved.out.but(fills={}))


def _dynamic_update_slice(eqn: SlicedEquation) -> Application:
    if any(value.axes for value in eqn.ins[2:]):
        raise NotSliceableError("writes at an index that depends on the sequence")
    axes = _united([each for value in eqn.ins[:2] for each in _of(value)])
    if len(axes) > 1 or any(eqn.shape(0)[axis.dim] != eqn.shape(1)[axis.dim] for axis in axes):
        raise NotSliceableError("writes some positions of a sequence")
    both: Reads = [(axis, number) for number, axis in enumerate(axes)]
    return Application(eqn.known(axes), [both, list(both), *([] for _ in eqn.ins[2:])])


# Indices.


def _gather(eqn: SlicedEquation) -> Application:
    why_not = "reads positions by their number", "reads at an index that depends on the sequence"
    axes, kept, _ = _by_factors(eqn, lambda k, dim: why_not[k])
    if len(axes) > 1:
        raise NotSliceableError("reads positions for positions")
    return Application(eqn.known(axes), _read_for(eqn, axes, kept))


def _scatter(eqn: SlicedEquation) -> Application:
    def why_not(operand: int, dim: int) -> str:
        if operand == 1:
            return "writes at an index that depends on the sequence"
        is_window = operand == 0 or dim in eqn.params["dimension_numbers"].update_window_dims
        return "writes positions by their number" if is_window else "writes what several positions give to one place"

    axes, kept, sums = _by_factors(eqn, why_not)
    if len(axes) + len(sums) != 1:
        raise NotSliceableError("writes positions for positions")
    if axes:
        return Application(eqn.known(axes), _read_for(eqn, axes, kept))
    if eqn.ins[0].axes:
        raise NotSliceableError("writes what several positions give to one place")
    own = dict(sums[0][1])
    reads: list[Reads] = [[(own[k], "own")] if k in own else [] for k in range(len(eqn.ins))]
    return Application(eqn.known(partial=True, origin=eqn.eqn), reads, once=frozenset({0}))


_RULES: dict[str, Callable[[SlicedEquation], Application]] = {
    "concatenate": _concatenate,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "slice": _slice,
    "stack": _stack,
}


# Sums over positions, of which slices have addends.


def _linear(eqn: SlicedEquation) -> Application:
    partial = [k for k, value in enumerate(eqn.ins) if value.partial]
    others = [k for k in range(len(eqn.ins)) if k not in partial]
    origin = eqn.ins[partial[0]].origin
    none: list[Reads] = [[] for _ in eqn.ins]
    out = eqn.known(partial=True, origin=origin).but(free=False)

    def whole(numbers: Sequence[int]) -> bool:
        return all(eqn.ins[k].is_whole or eqn.ins[k].free for k in numbers)

    is_inexact = all(
        jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in (eqn.eqn.invars[partial[0]], eqn.eqn.outvars[0])
    )
    group = next((each for each in linear_in(eqn.eqn) if {*partial} <= {*each}), None)
    if group is None:
        raise NotSliceableError("reads a sum over all positions")
    beside = [k for k in others if k in group]
    if eqn.name in ("add", "sub", "add_any"):
        spread, once = {}, set()
        for k in beside:
            if len(eqn.ins[k].hard_axes) == 1:
                spread[k] = eqn.ins[k].hard_axes[0]
            elif eqn.ins[k].is_whole or eqn.ins[k].free:
                once.add(k)
            else:
                raise NotSliceableError("adds sums over positions to pairs of positions")
        return Application(out, none, frozenset(once), spread)
    if whole(others) and _is_exact(eqn, is_inexact=is_inexact):
        return Application(out, none, frozenset(beside))
    raise NotSliceableError("reads a sum over all positions")


def _is_exact(eqn: SlicedEquation, *, is_inexact: bool) -> bool:
    """Whether what is linear but for rounding is so of a sum's type."""
    if eqn.name == "convert_element_type" and not is_inexact:
        return eqn.eqn.outvars[0].aval.dtype.kind in "iuf" and eqn.eqn.invars[0].aval.dtype.kind in "iu"
    if eqn.name == "gather":
        # What it gives outside of its operand is NaN of floats unless told otherwise, which adds up to itself.
        fill = eqn.params["fill_value"]
        return bool(fill == 0 or (is_inexact and (fill is None or fill != fill)))
    return eqn.name != "div" or is_inexact


def suggested(eqn: SlicedEquation) -> tuple[SequenceAxis, ...]:
    """Axes for a result that slices compute whole: the axes of its operands, where dimensions stay."""
    rank = len(eqn.out_shape)
    for k, value in enumerate(eqn.ins):
        if len(value.axes) == 1 and len(eqn.shape(k)) == rank and value.axes[0].is_plain:
            dim = value.axes[0].dim
            if eqn.out_shape[dim] >= eqn.count and eqn.name in (
                "slice",
                "pad",
                "concatenate",
                "rev",
                "dynamic_slice",
                "cumsum",
                "cummax",
                "gather",
                "sort",
            ):
                return (even_axis(dim, eqn.out_shape[dim], eqn.count),)
    return ()


def adapted_params(
    eqn: Any,
    atoms: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    rule: Application,
    number: int,
    modes: Mapping[int, str],
) -> Any:
    """The parameters of an equation for a slice's operands and results."""
    name, params = eqn.primitive.name, dict(eqn.params)
    (shape, *_) = shapes
    if rule.out.partial and not rule.once and name not in ("dot_general", "reduce_sum"):
        return params
    if name == "broadcast_in_dim":
        params["shape"] = tuple(shape)
    elif name == "reshape":
        params["new_sizes"] = tuple(shape)
    elif name == "slice":
        before, new = eqn.invars[0].aval.shape, atoms[0].aval.shape
        starts, limits = list(params["start_indices"]), list(params["limit_indices"])
        for axis, mode in rule.wants(0, modes):
            dim = axis.dim
            if (starts[dim], limits[dim]) == (0, before[dim]):
                limits[dim] = new[dim]
                continue
            if axis.is_joined:
                # What lies behind the positions lies behind those up to the slice's end.
                gone, end = before[dim] - new[dim], axis.lead + axis.length
                starts[dim] -= gone if starts[dim] >= end else 0
                limits[dim] -= gone if limits[dim] >= end else 0
                continue
            if mode != "own":
                raise NotSliceableError("reads part of the positions before it")
            start, end = axis.bounds[number], axis.bounds[number + 1]
            low, high = max(start, starts[dim]), min(end, limits[dim])
            starts[dim], limits[dim] = low - start, high - start
        params |= {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
    elif name == "pad":
        config = list(params["padding_config"])
        for axis, mode in rule.wants(0, modes):
            low, high, _ = config[axis.dim]
            is_of_pairs = mode == "upto" and len(rule.reads[0]) == 2
            if (low, high) == (0, 0) or is_of_pairs:
                continue
            if mode != "own":
                raise NotSliceableError("reads part of the positions before it")
            last = len(axis.bounds) - 2
            config[axis.dim] = (low if number == 0 else 0, high if number == last else 0, 0)
        params["padding_config"] = tuple(config)
    elif name in ("dynamic_slice", "gather"):
        sizes = list(params["slice_sizes"])
        new = atoms[0].aval.shape
        for axis, _ in rule.reads[0]:
            if sizes[axis.dim] != 1 or eqn.invars[0].aval.shape[axis.dim] == 1:
                sizes[axis.dim] = new[axis.dim]
        params["slice_sizes"] = tuple(sizes)
    return params
