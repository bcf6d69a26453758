"""What a row's largest entry tells of what is made of the row: that a sum of exponentials is neither zero nor large.

`s - s.max()` is zero at the largest entry of each row and nowhere above, so that its exponentials add up to one at
least, and their logarithm, as `log_softmax` and `logsumexp` take it, hides nothing. Of another row's maximum that is
not known, nor of that along another axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from mmruntime._compat import is_var
from mmruntime._slices.constants import Constants, dims_after
from mmruntime._slices.hidden import is_constraint, is_same, positive_factor
from mmruntime._slices.values import SlicedValue

# What rounding may take of a bound.
_ROUNDED = 0.98
_MOVES = frozenset(("broadcast_in_dim", "transpose", "squeeze", "expand_dims", "reshape"))
# Which case is chosen where a number that is compared with an infinite one is finite.
_WHERE_FINITE = {"eq": 0, "ne": 1}
_INFINITE, _LOWEST = (math.inf, math.inf), (-math.inf, -math.inf)


@dataclass(frozen=True)
class _Largest:
    """A value whose entries are the largest of another one's along some of its dimensions, or above them.

    Attributes:
        of: The other value.
        axes: Those dimensions.
        dims: For each dimension of the value that of the other one, None if it is repeated.
        more: How much at least the value is larger, unless the largest entries are infinite.
        is_exact: Whether it is the largest entries, unless they are infinite.
    """

    of: Any
    axes: frozenset[int]
    dims: tuple[int | None, ...]
    more: float = 0.0
    is_exact: bool = True


@dataclass(frozen=True)
class _Attained:
    """A value of which each row along some dimensions has an entry that is not below a number."""

    axes: frozenset[int]
    least: float


class Peaks:
    """Which values are the largest entries of rows, and what rows then attain.

    Args:
        constants: The constants of the step, and the names of its values.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._largest: dict[Any, _Largest] = {}
        self._attained: dict[Any, _Attained] = {}
        # Differences: the largest entries that are subtracted.
        self._subtracted: dict[Any, _Largest] = {}
        # Conditions: the value, and the case that is chosen where it is finite.
        self._finite: dict[Any, tuple[Any, int]] = {}
        # What values without a sign are made of.
        self._signed: dict[Any, Any] = {}

    def most(self, eqn: Any) -> float:
        """What a difference is at most, but for rounding; infinity if that is not known.

        Remembers the largest entries that are subtracted, for what is learned of it.
        """
        largest = self._largest_for(eqn) if eqn.primitive.name == "sub" else None
        if largest is None:
            return math.inf
        self._subtracted[eqn.outvars[0]] = largest
        return -largest.more

    def least(self, eqn: Any, ins: Sequence[SlicedValue]) -> float:
        """What a sum or maximum of rows is at least; minus infinity if that is not known."""
        if eqn.primitive.name not in ("reduce_sum", "reduce_max"):
            return -math.inf
        attained, is_sum = self._attained_by(eqn.invars[0]), eqn.primitive.name == "reduce_sum"
        if attained is None:
            return -math.inf
        if not attained.axes <= {*eqn.params["axes"]} or (is_sum and ins[0].span[0] < 0):
            return -math.inf
        return attained.least * _ROUNDED

    def learn(self, eqn: Any, ins: Sequence[SlicedValue], out: SlicedValue) -> None:
        """Compare an equation's result with the rows that it is made of."""
        if len(eqn.outvars) != 1 or not is_var(eqn.outvars[0]) or not eqn.invars:
            return
        (var,) = eqn.outvars
        if eqn.primitive.name == "abs":
            self._signed[var] = eqn.invars[0]
        condition = self._condition(eqn, ins)
        if condition is not None:
            self._finite[var] = condition
        largest = self._learned_largest(eqn, ins, out)
        if largest is not None:
            self._largest[var] = largest
        attained = self._learned_attained(eqn, ins)
        if attained is not None:
            self._attained[var] = attained

    def _condition(self, eqn: Any, ins: Sequence[SlicedValue]) -> tuple[Any, int] | None:
        name = eqn.primitive.name
        if not is_var(eqn.invars[0]):
            return None
        if name == "is_finite":
            return eqn.invars[0], 1
        if name in _WHERE_FINITE and ins[1].reach in (_INFINITE, _LOWEST):
            return self._signed.get(eqn.invars[0], eqn.invars[0]), _WHERE_FINITE[name]
        if name == "gt" and ins[1].reach == _LOWEST:
            return eqn.invars[0], 1
        if name == "not" and eqn.invars[0] in self._finite:
            value, case = self._finite[eqn.invars[0]]
            return value, 1 - case
        return None

    def _learned_largest(self, eqn: Any, ins: Sequence[SlicedValue], out: SlicedValue) -> _Largest | None:
        name = eqn.primitive.name
        # Where a row sees nothing, its largest entry is none that a sum has.
        if not out.plain:
            return None
        if name == "reduce_max":
            copy = self._constants.copy_of(eqn.invars[0])
            if sorted(dim for dim in copy.dims if dim is not None) != list(range(len(copy.source.aval.shape))):
                return None
            gone = {*eqn.params["axes"]}
            axes = frozenset(dim for k, dim in enumerate(copy.dims) if k in gone and dim is not None)
            return _Largest(copy.source, axes, tuple(dim for k, dim in enumerate(copy.dims) if k not in gone))
        if name in ("max", "add"):
            return self._larger(eqn, ins)
        if name == "select_n" and len(eqn.invars) == 3:
            value, case = self._finite.get(eqn.invars[0], (None, 0)) if is_var(eqn.invars[0]) else (None, 0)
            is_number = value is not None and all(map(math.isfinite, ins[2 - case].reach))
            return self._largest_of(value) if value is eqn.invars[1 + case] and is_number else None
        found = self._largest_of(eqn.invars[0])
        if found is None or is_constraint(name):
            return found
        if name in _MOVES:
            dims = dims_after(eqn, found.dims)
            return None if dims is None else replace(found, dims=dims)
        is_as_it_was = is_same(name) and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
        return found if is_as_it_was and name != "reduce_precision" else None

    def _larger(self, eqn: Any, ins: Sequence[SlicedValue]) -> _Largest | None:
        """What a maximum or sum is, one operand of which is the largest of rows."""
        for k in (0, 1):
            found, (low, high) = self._largest_of(eqn.invars[k]), ins[1 - k].span
            if found is None:
                continue
            if eqn.primitive.name == "max":
                return replace(found, is_exact=found.is_exact and high == -math.inf)
            if low > -math.inf:
                return replace(found, more=found.more + low, is_exact=False)
        return None

    def _largest_of(self, atom: Any) -> _Largest | None:
        return self._largest.get(atom) if is_var(atom) else None

    def _attained_by(self, atom: Any) -> _Attained | None:
        return self._attained.get(atom) if is_var(atom) else None

    def _learned_attained(self, eqn: Any, ins: Sequence[SlicedValue]) -> _Attained | None:
        name = eqn.primitive.name
        if name == "sub":
            return self._difference(eqn)
        factor = positive_factor(name, ins)
        found = self._attained_by(eqn.invars[0 if factor is None else 1 - factor[0]])
        if found is None or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
            return None
        if name in ("exp", "exp2"):
            base = math.e if name == "exp" else 2.0
            return _Attained(found.axes, base ** min(found.least, 0.0) * _ROUNDED)
        if factor is not None or is_same(name):
            by = 1.0 if factor is None else min(factor[1])
            return _Attained(found.axes, found.least * by * _ROUNDED) if found.least >= 0 else None
        if name in _MOVES:
            places = dims_after(eqn, tuple(range(len(eqn.invars[0].aval.shape))))
            kept = [k for k, dim in enumerate(places or ()) if dim in found.axes]
            sizes = [eqn.invars[0].aval.shape[dim] for dim in found.axes]
            is_whole = math.prod(eqn.outvars[0].aval.shape[k] for k in kept) == math.prod(sizes)
            return _Attained(frozenset(kept), found.least) if is_whole else None
        return None

    def _difference(self, eqn: Any) -> _Attained | None:
        """What the rows of something less their largest entries attain: zero."""
        largest = self._subtracted.get(eqn.outvars[0])
        if largest is None or not largest.is_exact:
            return None
        dims = self._constants.copy_of(eqn.invars[0]).dims
        return _Attained(frozenset(k for k, dim in enumerate(dims) if dim in largest.axes), 0.0)

    def _largest_for(self, eqn: Any) -> _Largest | None:
        """The largest entries that are subtracted from what they are those of, each from its row."""
        one, largest = self._constants.copy_of(eqn.invars[0]), self._largest_of(eqn.invars[1])
        if largest is None or one.source is not largest.of:
            return None
        sizes = one.source.aval.shape
        if sorted(dim for dim in one.dims if dim is not None) != list(range(len(sizes))):
            return None
        for mine, other in zip(one.dims, largest.dims, strict=True):
            is_single = mine is not None and sizes[mine] == 1
            if not is_single and other != (None if mine in largest.axes else mine):
                return None
        return largest
