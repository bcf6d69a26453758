"""What columns behind a slice hold: the proof that a causal mask hides them.

A pair of dimensions is (row, column): a slice has its own rows and the columns up to its end. The columns behind that
may be left out of a sum if all of them are known to hold zero, and out of a maximum if all of them are hidden.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._slices.constants import NUMPY, PartlyKnown, on_entries, once_each
from mmruntime._slices.values import HIDDEN, SHOWN, Fill, Low, SequenceAxis, SlicedValue

_SAME = frozenset(("copy", "copy_p", "convert_element_type", "stop_gradient", "reduce_precision"))
# Functions that are exact wherever their result is a number of the type: XLA gives what NumPy does.
_FUNCTIONS: dict[str, Any] = {**NUMPY, "ceil": np.ceil, "floor": np.floor, "div": np.divide}
# Those of which it is known at zero only.
_AT_ZERO = {
    "cos": 1.0,
    "erf": 0.0,
    "exp": 1.0,
    "exp2": 1.0,
    "expm1": 0.0,
    "log1p": 0.0,
    "logistic": 0.5,
    "sin": 0.0,
    "sqrt": 0.0,
    "tanh": 0.0,
}
# Comparisons of what is hidden with what is not: which operand is hidden, and the truth, that of no number too. The
# gradient of a row's maximum is shared by the entries that equal it, which no hidden one does.
_OF_HIDDEN = {
    "eq": ((0, 1), 0.0),
    "ne": ((0, 1), 1.0),
    "ge": ((0,), 0.0),
    "gt": ((0,), 0.0),
    "le": ((1,), 0.0),
    "lt": ((1,), 0.0),
}
# Below this, `exp` and `exp2` are zero in double precision too.
_VANISHES = -1e4


def fill_of_constant(array: np.ndarray[Any, Any], row: SequenceAxis, column: SequenceAxis) -> float | None:
    """What all entries of an array hold in columns behind each row's slice; None if they are not the same."""
    if np.iscomplexobj(array):
        return None
    if array.ndim == 0:
        return float(array)
    found: float | None = None
    for block in _behind(array, row, column):
        first = block.flat[0]
        number = float(first)
        # Large integers are no floats.
        if not (block == first).all() or (found is not None and found != number) or number != first:
            return None
        found = number
    return found


def _behind(array: np.ndarray[Any, Any], row: SequenceAxis, column: SequenceAxis) -> Iterator[np.ndarray[Any, Any]]:
    """For each slice, its rows and the columns behind it, where there are such."""
    small = once_each(array, (row.dim, column.dim))
    for start, end, behind in zip(row.bounds[:-1], row.bounds[1:], column.bounds[1:], strict=True):
        index = [slice(None)] * array.ndim
        index[row.dim] = slice(start, end)
        index[column.dim] = slice(column.lead + behind, column.lead + column.length)
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
    if not (row.is_plain and column.is_single):
        return False
    small = once_each(shown, (row.dim, column.dim))
    for start, end, behind in zip(row.bounds[:-1], row.bounds[1:], column.bounds[1:], strict=True):
        index = [slice(None)] * shown.ndim
        index[row.dim], index[column.dim] = slice(start, end), slice(0, column.lead + behind)
        sees = small[tuple(index)].any(axis=column.dim)
        index[column.dim] = slice(column.lead + column.length, None)
        if not (sees | small[tuple(index)].any(axis=column.dim)).all():
            return False
    return True


def is_hidden(fill: Fill | None) -> bool:
    """Whether columns that hold this are hidden."""
    return isinstance(fill, Low) or (fill is not None and fill <= HIDDEN)


def each_row_sees(value: SlicedValue, shape: tuple[int, ...], row: SequenceAxis, column: SequenceAxis) -> bool:
    """Whether each row of a value has an entry that is not hidden, in a column up to the end of the row's slice."""
    if value.plain:
        return True
    return value.shown is not None and rows_see(np.broadcast_to(value.shown, shape), row, column)


def shown_entries(
    eqn: Any, ins: Sequence[SlicedValue], known: Sequence[PartlyKnown | None]
) -> tuple[Any, float] | None:
    """A mask of entries of a result that are not hidden, entry by entry, and what they are at least; None if none is.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        known: Entries of them that no input decides.
    """
    name = eqn.primitive.name
    factor = positive_factor(name, ins)
    if name not in ("select_n", "add", "add_any", "sub") and not is_same(name) and factor is None:
        return None

    def shows(*arrays: Any) -> Any:
        shown, is_known, values = arrays[::3], arrays[1::3], arrays[2::3]
        here = [np.where(k, v > SHOWN, s) for s, k, v in zip(shown, is_known, values, strict=True)]
        if name == "select_n":
            found = functools.reduce(np.logical_and, here[1:])
            for number, case in enumerate(here[1:]):
                found = found | (is_known[0] & (values[0].astype(np.int32) == number) & case)
            return found
        if name == "sub":
            return here[0] & np.where(is_known[1], values[1] < -SHOWN, shown[1])
        return functools.reduce(np.logical_and, here)

    arrays, least = [], []
    for number, (value, entries) in enumerate(zip(ins, known, strict=True)):
        if name == "sub" and number == 1:
            # What is subtracted hides where it is very large.
            is_small = value.reach[1] < -SHOWN
            shown = value.plain and is_small
            least.append(-value.reach[1] if is_small else _least_known(entries, negated=True))
        else:
            shown = value.plain if value.shown is None else value.shown
            least.append(_least_shown(value, entries))
        arrays.append(np.asarray(shown))
        arrays += [np.asarray(False), np.asarray(0)] if entries is None else [entries.known, entries.values]
    if name == "select_n":
        low = min(least[1:])
    elif factor is not None:
        (index, ends) = factor
        low = min(least[1 - index] * end for end in ends)
    else:
        low = sum(least)
    # A type of few bits has no such number: float16 ends at 65504, and integers wrap round.
    dtype = eqn.outvars[0].aval.dtype
    with np.errstate(over="ignore"):
        low = float(np.asarray(low).astype(dtype)) if jnp.issubdtype(dtype, jnp.floating) else -math.inf
    if not low > SHOWN:
        return None
    return on_entries(shows, arrays, eqn.outvars[0].aval.shape), low


def _least_shown(value: SlicedValue, entries: PartlyKnown | None) -> float:
    """What the entries that are shown are at least; infinity if there are none."""
    if value.plain:
        return value.reach[0]
    return min(math.inf if value.shown is None else value.least, _least_known(entries))


def _least_known(entries: PartlyKnown | None, *, negated: bool = False) -> float:
    """The least of the known entries that are shown, or of their negatives."""
    if entries is None:
        return math.inf

    def shown(known: Any, values: Any) -> Any:
        values = -np.asarray(values, float) if negated else values
        return np.where(known & (values > SHOWN), values, np.inf)

    shape = np.broadcast_shapes(entries.known.shape, entries.values.shape)
    once = on_entries(shown, [entries.known, entries.values], shape)
    return -math.inf if once is None else float(once_each(once, ()).min(initial=math.inf))


def positive_factor(name: str, ins: Sequence[SlicedValue]) -> tuple[int, tuple[float, float]] | None:
    """Which operand of a product or quotient is a positive number, and between what it multiplies the other."""
    for number in {"mul": (0, 1), "div": (1,)}.get(name, ()):
        low, high = ins[number].span
        if ins[number].free and low > 0 and high < math.inf:
            return number, (low, high) if name == "mul" else (1 / high, 1 / low)
    return None


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
    *,
    is_finite: bool,
) -> Fill | None:
    """What the columns behind a slice hold of an equation's result, entry by entry; None if that is not known.

    Args:
        eqn: The equation.
        ins: What is known of its operands.
        known: Entries of them that no input decides.
        row: The axis of the slice's rows.
        column: That of the columns.
        is_finite: Whether what it makes is known to be finite, as of the backward pass where the forward pass is.
    """
    shape = eqn.outvars[0].aval.shape
    fills: list[Fill | None] = []
    for value, entries in zip(ins, known, strict=True):
        fill = None if entries is None else _fill_of_known(entries.broadcast(shape), row, column)
        fills.append(value.fills.get((row.dim, column.dim)) if fill is None else fill)
    name = eqn.primitive.name
    if name == "select_n":
        which, cases = fills[0], fills[1:]
        if isinstance(which, float) and which in range(len(cases)):
            return cases[int(which)]
        # It may be any of them.
        return cases[0] if all(case == cases[0] for case in cases) else None
    if name in _OF_HIDDEN and any(is_hidden(fills[k]) and ins[1 - k].plain for k in _OF_HIDDEN[name][0]):
        return _OF_HIDDEN[name][1]
    numbers = [fill for fill in fills if isinstance(fill, float)]
    if is_same(name):
        return _converted(eqn, fills[0])
    dtype = eqn.outvars[0].aval.dtype
    is_bool = dtype == np.bool_
    if name in ("and", "mul") and any(fill == 0 for fill in fills):
        # Infinity times zero is no number.
        is_number = all(fill == 0 or is_finite or is_finite_value(v) for fill, v in zip(fills, ins, strict=True))
        return 0.0 if is_number and not {math.inf, -math.inf} & {*numbers} else None
    if name == "or" and any(fill == 1 for fill in fills) and is_bool:
        return 1.0
    if name == "not" and isinstance(fills[0], float) and is_bool:
        return 1.0 - fills[0]
    if name == "div" and fills[0] == 0 and fills[1] != 0 and (numbers == fills or dtype.kind not in "iu"):
        return 0.0
    if name == "integer_pow" and fills[0] == 0 and eqn.params["y"] > 0:
        return 0.0
    if name in ("exp", "exp2", "logistic") and (is_hidden(fills[0]) or (numbers == fills and numbers[0] <= _VANISHES)):
        return 0.0
    if name in ("add", "add_any", "sub") and (len(numbers) < len(fills) or not all(map(math.isfinite, numbers))):
        return _of_hidden(name, ins, fills, shape, row, column, is_finite=is_finite)
    if name in ("mul", "div") and len(numbers) < len(fills):
        return _multiplied(name, ins, fills)
    if len(numbers) < len(fills):
        return None
    if name in _AT_ZERO and numbers == [0.0]:
        return _AT_ZERO[name]
    if name not in _FUNCTIONS:
        return None
    with np.errstate(all="ignore"):
        exact = float(_FUNCTIONS[name](*numbers))
        typed = [np.asarray(number).astype(atom.aval.dtype) for number, atom in zip(numbers, eqn.invars, strict=True)]
        if not is_bool and dtype.kind in "iu" and name == "div":
            return None
        found = float(_FUNCTIONS[name](*typed))
    return _rounded(exact, found)


def _rounded(exact: float, found: float) -> Fill | None:
    """A number that the type holds; of one that is rounded, which XLA may do or not, only that it hides."""
    if exact == found:
        return exact
    most = max(exact, found)
    return Low(most) if most <= HIDDEN else None


def _converted(eqn: Any, fill: Fill | None) -> Fill | None:
    """What a conversion makes of a number."""
    dtype, name = eqn.outvars[0].aval.dtype, eqn.primitive.name
    if fill is None or name not in ("convert_element_type", "reduce_precision"):
        return fill
    if dtype == np.bool_:
        return 1.0 if isinstance(fill, Low) else float(fill != 0)
    if dtype.kind in "iu" and eqn.invars[0].aval.dtype.kind not in "iub":
        # Beyond the ends of a type XLA and NumPy differ.
        return fill if isinstance(fill, float) and abs(fill) < 2**7 and fill.is_integer() and fill >= 0 else None
    if isinstance(fill, Low):
        return None if dtype.kind in "iu" else Low(fill.most * (1 - 2**-7))
    if name == "reduce_precision":
        return _rounded(fill, fill if fill in (0.0, -math.inf) else fill * (1 - 2**-7))
    with np.errstate(all="ignore"):
        return _rounded(fill, float(np.asarray(fill).astype(dtype)))


def _of_hidden(
    name: str,
    ins: Sequence[SlicedValue],
    fills: Sequence[Fill | None],
    shape: tuple[int, ...],
    row: SequenceAxis,
    column: SequenceAxis,
    *,
    is_finite: bool,
) -> Fill | None:
    """What stays hidden in a sum or difference of something that is not known; None if nothing does."""
    one, other = (is_hidden(fill) for fill in fills)
    if math.inf in fills:
        return None
    if name != "sub":
        if -math.inf in fills:
            other_value = ins[0] if fills[1] == -math.inf else ins[1]
            return -math.inf if is_finite or other_value.reach[1] < math.inf else None
        stays = (one and (other or ins[1].plain)) or (other and ins[0].plain)
        return _low(_most(fills[0], ins[0]) + _most(fills[1], ins[1])) if stays else None
    is_infinite = fills[0] == -math.inf
    if isinstance(fills[1], float) and fills[1] >= -HIDDEN:
        hides = one or ins[0].plain
        return -math.inf if is_infinite else _low(_most(fills[0], ins[0]) - fills[1]) if hides else None
    if other or not one:
        return None
    # A row's maximum is minus infinity where all of the row is, and then all of the difference is NaN, here and there.
    if is_infinite:
        return -math.inf if ins[1].plain or (ins[1].peak and ins[1].axis(column.dim) is None) else None
    # It is hidden itself where all of the row is.
    sees = ins[1].plain and each_row_sees(ins[0], shape, row, column)
    return _low(_most(fills[0], ins[0]) - ins[1].reach[0]) if sees else None


def is_finite_value(value: SlicedValue) -> bool:
    """Whether none of the program's functions may make an entry infinite."""
    return all(map(math.isfinite, value.reach))


def _multiplied(name: str, ins: Sequence[SlicedValue], fills: Sequence[Fill | None]) -> Fill | None:
    """What stays hidden in a multiple."""
    factor = positive_factor(name, ins)
    if factor is None:
        return None
    (number, (low, _)) = factor
    hidden = fills[1 - number]
    if hidden == -math.inf:
        return -math.inf
    return _low(_most(hidden, ins[1 - number]) * low) if is_hidden(hidden) else None


def _most(fill: Fill | None, value: SlicedValue) -> float:
    """What none of the columns behind a slice is above."""
    if isinstance(fill, Low):
        return fill.most
    return value.reach[1] if fill is None else fill


def _low(most: float) -> Low | None:
    """Numbers that hide, if they are still far below all that may be seen."""
    return Low(most) if most <= HIDDEN / 2 else None
