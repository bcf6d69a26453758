"""What columns behind a slice hold: the proof that a causal mask hides them.

A pair of dimensions is (row, column): a slice has its own rows and the columns up to its end. The columns behind that
may be left out of a sum if all of them are known to hold zero, and out of a maximum if all of them are hidden.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmruntime._slices.constants import PartlyKnown, on_entries, once_each
from mmruntime._slices.values import HIDDEN, LOW, Fill, SequenceAxis, SlicedValue

_SAME = frozenset(("copy", "copy_p", "convert_element_type", "stop_gradient", "reduce_precision"))
_FUNCTIONS: dict[str, Any] = {
    "abs": abs,
    "ceil": math.ceil,
    "erf": math.erf,
    "exp": math.exp,
    "exp2": lambda x: math.pow(2.0, x),
    "expm1": math.expm1,
    "floor": math.floor,
    "log1p": math.log1p,
    "neg": lambda x: -x,
    "sign": lambda x: float(np.sign(x)),
    "sin": math.sin,
    "sqrt": math.sqrt,
    "square": lambda x: x * x,
    "tanh": math.tanh,
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": max,
    "min": min,
    "eq": lambda x, y: float(x == y),
    "ne": lambda x, y: float(x != y),
    "lt": lambda x, y: float(x < y),
    "le": lambda x, y: float(x <= y),
    "gt": lambda x, y: float(x > y),
    "ge": lambda x, y: float(x >= y),
}


def fill_of_constant(array: np.ndarray[Any, Any], row: SequenceAxis, column: SequenceAxis) -> float | None:
    """What all entries of an array hold in columns behind each row's slice; None if they are not the same."""
    if array.ndim == 0:
        return float(array)
    found: float | None = None
    for block in _behind(array, row, column):
        first = block.flat[0]
        if not (block == first).all() or (found is not None and found != float(first)):
            return None
        found = float(first)
    return found


def _behind(array: np.ndarray[Any, Any], row: SequenceAxis, column: SequenceAxis) -> Iterator[np.ndarray[Any, Any]]:
    """For each slice, its rows and the columns behind it, where there are such."""
    small = once_each(array, (row.dim, column.dim))
    for start, end, behind in zip(row.bounds[:-1], row.bounds[1:], column.bounds[1:], strict=True):
        index = [slice(None)] * array.ndim
        index[row.dim], index[column.dim] = slice(start, end), slice(behind, None)
        block = small[tuple(index)]
        if block.size:
            yield block


def _fill_of_known(partly: PartlyKnown, row: SequenceAxis, column: SequenceAxis) -> float | None:
    """What a value holds in columns behind each row's slice; None if it is not known of all of them."""
    if not all(block.all() for block in _behind(partly.known, row, column)):
        return None
    return fill_of_constant(partly.values, row, column)


def rows_see(shown: np.ndarray[Any, Any], row: SequenceAxis, column: SequenceAxis) -> bool:
    """Whether each row of a mask is known to be true in some column up to the end of the row's slice."""
    if shown.ndim == 0:
        return bool(shown)
    if not (row.is_plain and column.is_plain):
        return False
    small = once_each(shown, (row.dim, column.dim))
    for start, end, behind in zip(row.bounds[:-1], row.bounds[1:], column.bounds[1:], strict=True):
        index = [slice(None)] * shown.ndim
        index[row.dim], index[column.dim] = slice(start, end), slice(0, behind)
        if not small[tuple(index)].any(axis=column.dim).all():
            return False
    return True


def is_hidden(fill: Fill | None) -> bool:
    """Whether columns that hold this are hidden."""
    return fill is LOW or (fill is not None and fill <= HIDDEN)


def each_row_sees(value: SlicedValue, shape: tuple[int, ...], row: SequenceAxis, column: SequenceAxis) -> bool:
    """Whether each row of a value has an entry that is not hidden, in a column up to the end of the row's slice."""
    if value.plain:
        return True
    return value.shown is not None and rows_see(np.broadcast_to(value.shown, shape), row, column)


def shown_entries(eqn: Any, ins: Sequence[SlicedValue], known: Sequence[PartlyKnown | None]) -> Any:
    """A mask of entries of a result that are not hidden, entry by entry; None if none is known.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        known: Entries of them that no input decides.
    """
    name = eqn.primitive.name
    if name not in ("select_n", "add", "add_any", "sub") and not is_same(name):
        return None

    def shows(*arrays: Any) -> Any:
        shown, is_known, values = arrays[::3], arrays[1::3], arrays[2::3]
        here = [np.where(k, v > HIDDEN, s) for s, k, v in zip(shown, is_known, values, strict=True)]
        if name == "select_n":
            found = functools.reduce(np.logical_and, here[1:])
            for number, case in enumerate(here[1:]):
                found = found | (is_known[0] & (values[0].astype(np.int32) == number) & case)
            return found
        if name == "sub":
            return here[0] & np.where(is_known[1], values[1] < -HIDDEN, shown[1])
        return functools.reduce(np.logical_and, here)

    arrays = []
    for value, entries in zip(ins, known, strict=True):
        shown = value.plain if value.shown is None else value.shown
        arrays.append(np.asarray(shown))
        arrays += [np.asarray(False), np.asarray(0)] if entries is None else [entries.known, entries.values]
    return on_entries(shows, arrays, eqn.outvars[0].aval.shape)


def is_same(name: str) -> bool:
    """Whether a result's entries are those of the operand."""
    return name in _SAME or is_constraint(name)


def is_constraint(name: str) -> bool:
    """Whether a primitive only says how a value is laid out."""
    return name.startswith("mm_") or name == "sharding_constraint"


def combined_fill(
    eqn: Any,
    ins: Sequence[SlicedValue],
    known: Sequence[PartlyKnown | None],
    row: SequenceAxis,
    column: SequenceAxis,
) -> Fill | None:
    """What the columns behind a slice hold of an equation's result, entry by entry; None if that is not known.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        known: Entries of them that no input decides.
        row: The axis of the slice's rows.
        column: That of the columns.
    """
    shape = eqn.outvars[0].aval.shape
    fills: list[Fill | None] = []
    for value, entries in zip(ins, known, strict=True):
        fill = None if entries is None else _fill_of_known(entries.broadcast(shape), row, column)
        fills.append(value.fills.get((row.dim, column.dim)) if fill is None else fill)
    name = eqn.primitive.name
    if name == "select_n":
        which, cases = fills[0], fills[1:]
        if isinstance(which, float):
            return cases[int(which)]
        # It may be any of them.
        return cases[0] if all(case == cases[0] for case in cases) else None
    if is_same(name):
        return fills[0]
    is_bool = eqn.outvars[0].aval.dtype == np.bool_
    if name in ("and", "mul") and any(fill == 0 for fill in fills):
        return 0.0
    if name == "or" and any(fill == 1 for fill in fills) and is_bool:
        return 1.0
    if name == "not" and isinstance(fills[0], float) and is_bool:
        return 1.0 - fills[0]
    if name == "div" and fills[0] == 0 and fills[1] != 0:
        return 0.0
    if name == "integer_pow" and fills[0] == 0 and eqn.params["y"] > 0:
        return 0.0
    if name in ("exp", "exp2", "logistic") and is_hidden(fills[0]):
        return 0.0
    numbers = [fill for fill in fills if isinstance(fill, float)]
    if name in ("add", "add_any", "sub") and (len(numbers) < len(fills) or not all(map(math.isfinite, numbers))):
        return _of_hidden(name, ins, fills, shape, row, column)
    if len(numbers) < len(fills) or name not in _FUNCTIONS:
        return None
    try:
        found = float(_FUNCTIONS[name](*numbers))
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def _of_hidden(
    name: str,
    ins: Sequence[SlicedValue],
    fills: Sequence[Fill | None],
    shape: tuple[int, ...],
    row: SequenceAxis,
    column: SequenceAxis,
) -> Fill | None:
    """What stays hidden in a sum or difference of something that is not known; None if nothing does."""
    one, other = (is_hidden(fill) for fill in fills)
    if math.inf in fills:
        return None
    if name != "sub":
        if -math.inf in fills:
            return -math.inf
        stays = (one and (other or ins[1].plain)) or (other and ins[0].plain)
        return LOW if stays else None
    is_infinite = fills[0] == -math.inf
    if isinstance(fills[1], float) and fills[1] >= -HIDDEN:
        return -math.inf if is_infinite else LOW if one or ins[0].plain else None
    if other or not one:
        return None
    # A row's maximum is minus infinity where all of the row is, and then all of the difference is NaN, here and there.
    if is_infinite:
        return -math.inf if ins[1].plain or (ins[1].peak and ins[1].axis(column.dim) is None) else None
    # It is hidden itself where all of the row is.
    return LOW if ins[1].plain and each_row_sees(ins[0], shape, row, column) else None
