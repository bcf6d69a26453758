"""What columns behind a slice hold: the proof that a causal mask hides them.

A pair of dimensions is (row, column): a slice has its own rows and the columns up to its end. The columns behind that
may be left out of a sum if all of them are known to hold zero, and out of a maximum if all of them are hidden.

Which columns a mask hides follows from the program. That what it does not hide is above what it does follows from the
numbers that the program works on: it is a `Check`, which the step makes when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._jaxpr.primitives import is_constraint
from mmruntime._slices.constants import NUMPY, PartlyKnown, once_each
from mmruntime._slices.values import HIDDEN, Check, Fill, Low, SequenceAxis

_SAME = frozenset(("copy", "convert_element_type", "stop_gradient", "reduce_precision"))
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


def is_hidden(fill: Fill | None) -> bool:
    """Whether columns that hold this are hidden."""
    return isinstance(fill, Low) or (fill is not None and fill <= HIDDEN)


def is_same(name: str) -> bool:
    """Whether a result's entries are those of the operand."""
    return name in _SAME or is_constraint(name)


def combined_fill(eqn: Any, row: SequenceAxis, column: SequenceAxis) -> tuple[Fill | None, tuple[Check, ...]]:
    """What the columns behind a slice hold of an equation's result, entry by entry; None if that is not known.

    Args:
        eqn: The equation, with what is known of its operands.
        row: The axis of the slice's rows.
        column: That of the columns.

    Returns:
        What they hold, and what that takes for granted of the operands.
    """
    fills: list[Fill | None] = []
    for value, entries in zip(eqn.ins, eqn.known_entries, strict=True):
        fill = None if entries is None else _fill_of_known(entries.broadcast(eqn.out_shape), row, column)
        fills.append(value.fills.get((row.dim, column.dim)) if fill is None else fill)
    name, dtype = eqn.name, eqn.eqn.outvars[0].aval.dtype
    if name == "select_n":
        which, cases = fills[0], fills[1:]
        if isinstance(which, float) and which in range(len(cases)):
            return cases[int(which)], ()
        # It may be any of them.
        return (cases[0] if all(case == cases[0] for case in cases) else None), ()
    for k in _OF_HIDDEN[name][0] if name in _OF_HIDDEN else ():
        if not is_hidden(fills[k]) or is_hidden(other := fills[1 - k]):
            continue
        if other is not None or (checks := _bounded(eqn, 1 - k, "above", _tenth(fills[k]))) is not None:
            return _OF_HIDDEN[name][1], () if other is not None else checks or ()
    numbers = [fill for fill in fills if isinstance(fill, float)]
    if is_same(name):
        return _converted(eqn.eqn, fills[0]), ()
    is_bool = dtype == np.bool_
    if name in ("and", "mul") and any(fill == 0 for fill in fills):
        # Infinity times zero is no number.
        if {math.inf, -math.inf} & {*numbers} or any(isinstance(fill, Low) for fill in fills):
            return None, ()
        return 0.0, tuple(check for k, fill in enumerate(fills) if fill is None for check in finite(eqn, k))
    if name == "or" and any(fill == 1 for fill in fills) and is_bool:
        return 1.0, ()
    if name == "not" and isinstance(fills[0], float) and is_bool:
        return 1.0 - fills[0], ()
    if name == "div" and fills[0] == 0 and fills[1] != 0 and (numbers == fills or dtype.kind not in "iu"):
        return 0.0, ()
    if name == "integer_pow" and fills[0] == 0 and eqn.params["y"] > 0:
        return 0.0, ()
    if name in ("exp", "exp2", "logistic") and (is_hidden(fills[0]) or (numbers == fills and numbers[0] <= _VANISHES)):
        return 0.0, ()
    if name in ("add", "add_any", "sub") and (len(numbers) < len(fills) or not all(map(math.isfinite, numbers))):
        if name == "sub" and fills[1] is not None and not is_hidden(fills[0]):
            fills = [fills[0], None if isinstance(fills[1], Low) else -fills[1]]
            name = "add"
        return _of_hidden_and_less(eqn, fills, column) if name == "sub" else _of_hidden_and_more(eqn, fills)
    if name in ("mul", "div") and len(numbers) < len(fills):
        return _multiplied(eqn, fills)
    if len(numbers) < len(fills):
        return None, ()
    if name in _AT_ZERO and numbers == [0.0]:
        return _AT_ZERO[name], ()
    if name not in _FUNCTIONS:
        return None, ()
    with np.errstate(all="ignore"):
        exact = float(_FUNCTIONS[name](*numbers))
        typed = [
            np.asarray(number).astype(atom.aval.dtype) for number, atom in zip(numbers, eqn.eqn.invars, strict=True)
        ]
        if not is_bool and dtype.kind in "iu" and name == "div":
            return None, ()
        found = float(_FUNCTIONS[name](*typed))
    return _rounded(exact, found), ()


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


def _of_hidden_and_more(eqn: Any, fills: Sequence[Fill | None]) -> tuple[Fill | None, tuple[Check, ...]]:
    """What stays hidden in a sum of something that is not known."""
    if math.inf in fills:
        return None, ()
    for k in (0, 1):
        if not is_hidden(fills[k]):
            continue
        other = fills[1 - k]
        if fills[k] == -math.inf:
            return -math.inf, () if other is not None else finite(eqn, 1 - k)
        if other is not None:
            return _low(_most(fills[k]) + _most(other)), ()
        if (checks := _bounded(eqn, 1 - k, "below", -_tenth(fills[k]))) is not None:
            return _low(0.9 * _most(fills[k])), checks
    return None, ()


def _of_hidden_and_less(
    eqn: Any, fills: Sequence[Fill | None], column: SequenceAxis
) -> tuple[Fill | None, tuple[Check, ...]]:
    """What stays hidden where something that is not known is subtracted from it."""
    one, other = fills
    if not is_hidden(one) or is_hidden(other) or other == math.inf:
        return None, ()
    if isinstance(other, float):
        return (one if one == -math.inf else _low(_most(one) - other)), ()
    if one == -math.inf and eqn.ins[1].peak and eqn.ins[1].axis(column.dim) is None:
        # A row's maximum is minus infinity where all of the row is, and then all of the difference is NaN, here and
        # there.
        return one, ()
    checks = _bounded(eqn, 1, "above", _tenth(one))
    if checks is None:
        return None, ()
    return (one if one == -math.inf else _low(0.9 * _most(one))), checks


def _multiplied(eqn: Any, fills: Sequence[Fill | None]) -> tuple[Fill | None, tuple[Check, ...]]:
    """What stays hidden in a multiple."""
    is_product = eqn.name == "mul"
    k = 0 if is_hidden(fills[0]) or not is_product else 1
    if not is_hidden(fills[k]) or eqn.eqn.outvars[0].aval.dtype.kind in "iu":
        return None, ()
    # What is multiplied by the factor is still a number that hides.
    finfo: Any = jnp.finfo
    least = max(HIDDEN / _most(fills[k]), float(finfo(eqn.eqn.outvars[0].aval.dtype).tiny))
    result = -math.inf if fills[k] == -math.inf else Low(HIDDEN)
    found = _range(eqn, 1 - k)
    if found is not None:
        low, high = found
        hides = low >= least if is_product else low > 0 and high <= 1 / least
        return (result if hides else None), ()
    if len(eqn.ins[1 - k].axes) == 2:
        return None, ()
    verb = "multiplied" if is_product else "divided"
    what = f"what masked scores are {verb} by is not positive, or takes them too near to zero"
    return result, (Check(1 - k, "above" if is_product else "inverse", least, f"{what}. {_WRITE_INFINITY}"),)


def finite(eqn: Any, operand: int) -> tuple[Check, ...]:
    """The check that hidden positions hold numbers, where zeros of a mask are multiplied by them.

    Where a loop has a backward pass there is none: what is no number makes gradients no number.
    """
    is_float = jnp.issubdtype(eqn.eqn.invars[operand].aval.dtype, jnp.inexact)
    if eqn.late or eqn.has_backward or not is_float or eqn.constants[operand] is not None:
        return ()
    why = (
        "a hidden position holds what is infinite or no number, and zero times that is no number where the sequence is "
        "whole. Keep a divisor away from zero, by jnp.maximum or by adding a number to what is not negative"
    )
    return (Check(operand, "finite", 0.0, why),)


_WRITE_INFINITY = "Write -jnp.inf in place of scores of later positions: jnp.where(causal, scores, -jnp.inf)"


def _range(eqn: Any, operand: int) -> tuple[float, float] | None:
    """The least and the largest entry of an operand that is known."""
    array = eqn.constants[operand]
    if array is None or np.iscomplexobj(array) or not array.size:
        return None
    once = once_each(array, ())
    return float(once.min()), float(once.max())


def _bounded(eqn: Any, operand: int, form: str, limit: float) -> tuple[Check, ...] | None:
    """The check that all entries of an operand are "above" a limit, or "below"; None if one is known not to be.

    Of pairs of positions slices do not compute those that are hidden.
    """
    value, found, is_above = eqn.ins[operand], _range(eqn, operand), form == "above"
    if found is not None:
        return () if (found[0] >= limit if is_above else found[1] <= limit) else None
    if eqn.eqn.invars[operand].aval.dtype == np.bool_ or (is_above and value.least >= limit):
        return ()
    are_pairs = len(value.axes) == 2
    if are_pairs:
        what = f"a mask hides by a number that is added, and scores that it hides may be as large as {abs(limit):.0e}"
    elif is_above:
        what = (
            f"what is subtracted from masked scores, or compared with them, is below {limit:.0e}, as of a row that "
            "sees no position"
        )
    else:
        what = f"what is added to masked scores is above {limit:.0e}, and shows what the mask hides"
    advice = _ROW_SEES if is_above and not are_pairs else _WRITE_INFINITY
    return (Check(operand, form, limit, f"{what}. {advice}", pairs=are_pairs),)


_ROW_SEES = (
    "Have each position see itself (mask | jnp.eye(length, dtype=bool)), or put -jnp.inf in place of scores of later "
    "positions"
)


def row_sees(fill: Fill) -> Check:
    """The check that the largest entry of each row is one that the mask does not hide."""
    what = f"the largest score of a row is below {_tenth(fill):.0e}: it sees no position, and reads those behind it"
    return Check(None, "above", _tenth(fill), f"{what}. {_ROW_SEES}")


def _tenth(fill: Fill | None) -> float:
    """The bound that entries which are not hidden must exceed: far above the number that hides."""
    return max(_most(fill) / 10, float(np.finfo(np.float32).min))


def _most(fill: Fill | None) -> float:
    """The upper bound on values in the columns behind a slice, where one is known."""
    assert fill is not None
    return fill.most if isinstance(fill, Low) else fill


def _low(most: float) -> Low | None:
    """Numbers that hide, if they are still far below all that may be seen."""
    return Low(most) if most <= HIDDEN / 2 else None
