"""What columns behind a slice hold: the proof that a causal mask hides them.

A pair of dimensions is (row, column): a slice has its own rows and the columns up to its end. The columns behind that
may be left out of a sum if all of them are known to hold zero, and out of a maximum if all of them are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmruntime._slices.constants import once_each
from mmruntime._slices.values import HIDDEN, SequenceAxis, SlicedValue

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
    small = once_each(array, (row.dim, column.dim))
    found: float | None = None
    for start, end, behind in zip(row.bounds[:-1], row.bounds[1:], column.bounds[1:], strict=True):
        index = [slice(None)] * array.ndim
        index[row.dim], index[column.dim] = slice(start, end), slice(behind, None)
        block = small[tuple(index)]
        if not block.size:
            continue
        first = block.flat[0]
        if not (block == first).all() or (found is not None and found != float(first)):
            return None
        found = float(first)
    return found


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


def is_hidden(fill: float | None) -> bool:
    """Whether columns that hold this are hidden."""
    return fill is not None and fill <= HIDDEN


def each_row_sees(value: SlicedValue, shape: tuple[int, ...], row: SequenceAxis, column: SequenceAxis) -> bool:
    """Whether each row of a value has an entry that is not hidden, in a column up to the end of the row's slice."""
    if value.plain:
        return True
    return value.shown is not None and rows_see(np.broadcast_to(value.shown, shape), row, column)


def shown_entries(
    eqn: Any, ins: Sequence[SlicedValue], constants: Sequence[np.ndarray[Any, Any] | None]
) -> np.ndarray[Any, Any] | None:
    """A mask of entries of a result that are not hidden, entry by entry; None if none is known."""
    name = eqn.primitive.name
    if name == "select_n":
        which = constants[0]
        if which is None:
            return None
        found: Any = False
        for number, (case, constant) in enumerate(zip(ins[1:], constants[1:], strict=True)):
            found = found | ((which.astype(np.int32) == number) & _shown(case, constant))
        return np.asarray(found)
    if name in _SAME or is_constraint(name):
        return np.asarray(_shown(ins[0], constants[0]))
    if name in ("add", "add_any", "sub"):
        second = constants[1]
        later = _shown(ins[1], second)
        if name == "sub" and second is not None:
            later = second < -HIDDEN
        return np.asarray(_shown(ins[0], constants[0]) & later)
    return None


def _shown(value: SlicedValue, constant: np.ndarray[Any, Any] | None) -> Any:
    if constant is not None:
        return constant > HIDDEN
    return np.True_ if value.plain else np.False_ if value.shown is None else value.shown


def is_constraint(name: str) -> bool:
    """Whether a primitive only says how a value is laid out."""
    return name.startswith("mm_") or name == "sharding_constraint"


def combined_fill(
    eqn: Any,
    ins: Sequence[SlicedValue],
    constants: Sequence[np.ndarray[Any, Any] | None],
    row: SequenceAxis,
    column: SequenceAxis,
) -> float | None:
    """What the columns behind a slice hold of an equation's result, entry by entry; None if that is not known.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        constants: Their values, where they are known.
        row: The axis of the slice's rows.
        column: That of the columns.
    """
    shape = eqn.outvars[0].aval.shape
    fills: list[float | None] = []
    for value, constant in zip(ins, constants, strict=True):
        if constant is not None:
            full = constant if constant.ndim == 0 else np.broadcast_to(constant, shape)
            fills.append(fill_of_constant(full, row, column))
        else:
            fills.append(value.fills.get((row.dim, column.dim)))
    name = eqn.primitive.name
    if name == "select_n":
        which, cases = fills[0], fills[1:]
        if which is not None:
            return cases[int(which)]
        # It may be any of them.
        return cases[0] if all(case == cases[0] for case in cases) else None
    if name in _SAME or is_constraint(name):
        return fills[0]
    is_bool = eqn.outvars[0].aval.dtype == np.bool_
    if name in ("and", "mul") and any(fill == 0 for fill in fills):
        return 0.0
    if name == "or" and any(fill == 1 for fill in fills) and is_bool:
        return 1.0
    if name == "not" and fills[0] is not None and is_bool:
        return 1.0 - fills[0]
    if name == "div" and fills[0] == 0 and fills[1] != 0:
        return 0.0
    if name == "integer_pow" and fills[0] == 0 and eqn.params["y"] > 0:
        return 0.0
    if name in ("exp", "exp2", "logistic") and is_hidden(fills[0]):
        return 0.0
    known = [fill for fill in fills if fill is not None and math.isfinite(fill)]
    if name in ("add", "add_any", "sub") and len(known) < len(fills):
        return _of_hidden(name, ins, fills, shape, row, column)
    # Minus infinity may stand for something else that is hidden, so nothing is computed of it.
    if len(known) < len(fills) or name not in _FUNCTIONS:
        return None
    try:
        found = float(_FUNCTIONS[name](*known))
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def _of_hidden(
    name: str,
    ins: Sequence[SlicedValue],
    fills: Sequence[float | None],
    shape: tuple[int, ...],
    row: SequenceAxis,
    column: SequenceAxis,
) -> float | None:
    """Minus infinity for what stays hidden in a sum or difference of something that is not known, else None."""
    one, other = (is_hidden(fill) for fill in fills)
    if name != "sub":
        stays = (one and (other or ins[1].plain)) or (other and ins[0].plain)
        return -math.inf if stays else None
    if fills[1] is not None and fills[1] >= -HIDDEN:
        return -math.inf if one or ins[0].plain else None
    # A row's maximum is hidden itself where all of the row is.
    keeps = one and not other and ins[1].plain and each_row_sees(ins[0], shape, row, column)
    return -math.inf if keeps else None
