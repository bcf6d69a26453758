"""Quotients that are not large because what divides is at least as large: of a softmax, or of what is normalised.

That what divides may be zero tells nothing of them: `x / jnp.sqrt(jnp.sum(x**2))` is not above one, and where all of
`x` is zero it is no number. A norm is followed from the entries that it is at least as large as, through sums, roots,
broadcasts and what is added, to the quotient or product in which they meet again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from mmruntime._compat import Var, is_var
from mmruntime._slices.constants import Constants, Copy, dims_after
from mmruntime._slices.hidden import is_same
from mmruntime._slices.reach import chosen_case, raised_to
from mmruntime._slices.values import ANYTHING, Reach, SlicedValue

# What rounding may take of a bound.
_ROUNDED = 0.98
# They move entries, or repeat them.
_MOVES = frozenset(("broadcast_in_dim", "transpose", "squeeze", "expand_dims", "reshape"))


@dataclass(frozen=True)
class _Deviation:
    """What a value is but for its mean, by the dimensions of that value.

    Attributes:
        of: The value.
        axes: What the mean is taken along.
    """

    of: Copy
    axes: tuple[int, ...]


@dataclass(frozen=True)
class _Bound:
    """A comparison of each entry of a value with those of another that lie where it does.

    An entry lies there if it is at the same place along each dimension of the value that is one of the other's.

    Attributes:
        of: The other value, or a deviation.
        dims: For each dimension of the value that of the other; None if it is none of them.
        power: The exponent of the other's entries, which are taken without their sign.
        factor: What they are multiplied by.
        where: A mask, as a copy with the dimensions of the other value, and its truth, where alone it holds.
        summed: Dimensions of the other value along which it holds of the sum of the entries too.
    """

    of: Any
    dims: tuple[int | None, ...]
    power: float = 1.0
    factor: float = 1.0
    where: tuple[Copy, int] | None = None
    summed: frozenset[int] = frozenset()

    def scaled(self, by: float) -> _Bound:
        """The bound of a multiple."""
        return replace(self, factor=self.factor * by)

    def covers(self, other: _Bound) -> bool:
        """Whether the entries that another bound compares with are among those of this one."""
        is_same_value = self.of == other.of if isinstance(self.of, _Deviation) else self.of is other.of
        return is_same_value and all(
            dim is None or (k < len(other.dims) and other.dims[k] == dim) for k, dim in enumerate(self.dims)
        )


@dataclass(frozen=True)
class _Shares:
    """A value whose entries, without their sign, add up to no more than a number along some dimensions."""

    axes: frozenset[int]
    most: float


@dataclass(frozen=True)
class _Moment:
    """A multiple of a sum along axes of a value or its squares, or the square of such a sum.

    Attributes:
        of: The value.
        dims: For each dimension of the sum that of the value; None if it is none of them.
        axes: What it is summed along, None if it is not.
        count: How many entries are summed.
        share: What it is multiplied by, times that count: one of a mean.
        squares: Whether squares come in.
        squared_last: Whether the sum is squared, rather than what is summed.
    """

    of: Copy
    dims: tuple[int | None, ...]
    axes: tuple[int, ...] | None = None
    count: int = 1
    share: float = 1.0
    squares: bool = False
    squared_last: bool = False


def _root(bound: _Bound) -> _Bound:
    """The bound of a root, and of what is divided by one."""
    factor = math.sqrt(bound.factor) * _ROUNDED
    return replace(bound, power=bound.power / 2, factor=factor, summed=frozenset())


class Ratios:
    """Which values are at least, or at most, as large as others.

    Args:
        constants: The constants of the step, and the names of its values.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        # Of what is not negative: it is at least each of these.
        self._least: dict[Var, tuple[_Bound, ...]] = {}
        # Of one divided by that: it is at most one divided by each of these.
        self._inverse: dict[Var, tuple[_Bound, ...]] = {}
        # It is at most the largest of these, without its sign.
        self._most: dict[Var, _Bound] = {}
        # Quotients that are bounded only where a mask is true: the mask, and where they then lie.
        self._guarded: dict[Var, tuple[tuple[Copy, int], Reach]] = {}
        # The largest entries, without their sign.
        self._sizes: dict[Any, float] = {}
        # Sums and squares that a variance is made of.
        self._moments: dict[Var, _Moment] = {}
        # Quotients by a sum.
        self._shares: dict[Var, _Shares] = {}
        # Values less their means.
        self._deviations: dict[Any, _Deviation] = {}

    def reach(self, eqn: Any, ins: Sequence[SlicedValue]) -> Reach | None:
        """Where a quotient or product lies as one operand is a norm of the other; None if that is not known.

        Remembers those for which it holds under a mask, for the `select_n` that applies it.
        """
        name = eqn.primitive.name
        if name == "select_n" and len(eqn.invars) == 3:
            return self._selected(eqn, ins)
        if name == "dot_general":
            return self._mean(eqn, ins)
        if name not in ("div", "mul"):
            return None
        pairs = [(0, 1)] if name == "div" else [(0, 1), (1, 0)]
        for over, under in pairs:
            bounds = self._of(eqn.invars[under], ins[under]) if name == "div" else self._inverse_of(eqn.invars[under])
            top = self._most_of(eqn.invars[over])
            for bound in bounds:
                if not bound.covers(top) or bound.power > 1:
                    continue
                rest = max(1.0, abs(ins[over].reach[0]), abs(ins[over].reach[1])) ** (1 - bound.power)
                most = top.factor * rest / bound.factor / _ROUNDED
                # What an inverse is multiplied by may have turned its sign.
                low, high = ins[over].span if name == "div" or ins[under].span[0] >= 0 else ANYTHING
                reach = (0.0 if low >= 0 else -most), (0.0 if high <= 0 else most)
                if bound.where is None:
                    self._learn_shares(eqn, bound, *self._copy_of(eqn.invars[over]))
                    return reach
                if top.dims == tuple(range(len(top.dims))):
                    self._guarded[eqn.outvars[0]] = bound.where, reach
        return None

    def _learn_shares(self, eqn: Any, bound: _Bound, of: Any, dims: tuple[int | None, ...]) -> None:
        """Know what a quotient adds up to, of a value and of what is at least its sum."""
        axes = frozenset(dim for dim, there in enumerate(dims) if there in bound.summed)
        if axes and len(axes) == len(bound.summed) and of is bound.of and bound.power == 1:
            self._shares[eqn.outvars[0]] = _Shares(axes, 1 / bound.factor / _ROUNDED)

    def _mean(self, eqn: Any, ins: Sequence[SlicedValue]) -> Reach | None:
        """Where a product with shares lies, as of attention: among what they are shares of."""
        (contracted, _) = eqn.params["dimension_numbers"]
        for k in (0, 1):
            shares = self._shares.get(eqn.invars[k]) if is_var(eqn.invars[k]) else None
            low, high = ins[1 - k].reach
            if shares is None or not shares.axes & {*contracted[k]} or not (math.isfinite(low) and math.isfinite(high)):
                continue
            sizes = eqn.invars[k].aval.shape
            count = math.prod(sizes[dim] for dim in contracted[k] if dim not in shares.axes)
            most = shares.most * count * max(abs(low), abs(high))
            return (0.0 if low >= 0 and ins[k].span[0] >= 0 else -most), most
        return None

    def _kept_shares(self, eqn: Any, ins: Sequence[SlicedValue]) -> _Shares | None:
        """What a result adds up to that is made of shares: dropped, scaled or moved ones."""
        name = eqn.primitive.name
        for k, atom in enumerate(eqn.invars):
            found = self._shares.get(atom) if is_var(atom) else None
            if found is None:
                continue
            if is_same(name) or name == "slice":
                return found
            if name in _MOVES:
                places = dims_after(eqn, tuple(range(len(atom.aval.shape))))
                axes = frozenset(dim for dim, there in enumerate(places or ()) if there in found.axes)
                gone = found.axes - {there for there in places or () if there is not None}
                return replace(found, axes=axes) if all(atom.aval.shape[dim] == 1 for dim in gone) and axes else None
            if atom.aval.shape != eqn.outvars[0].aval.shape:
                return None
            if name == "select_n" and all(ins[case].reach == (0.0, 0.0) for case in range(1, len(ins)) if case != k):
                return found
            if name == "mul" or (name == "div" and k == 0 and ins[1].free):
                low, high = ins[1 - k].reach
                by = max(abs(low), abs(high)) if name == "mul" else 1 / min(low, high) if low > 0 else math.inf
                return replace(found, most=found.most * by) if math.isfinite(by) else None
        return None

    def is_variance(self, eqn: Any) -> bool:
        """Whether it is the mean of squares less the square of the mean, which is not negative but for rounding."""
        return self._variance(eqn) is not None

    def _variance(self, eqn: Any) -> _Bound | None:
        """What a variance is at least but for rounding: a share of the square of each deviation."""
        if eqn.primitive.name != "sub" or not all(map(is_var, eqn.invars)):
            return None
        one, other = (self._moments.get(atom) for atom in eqn.invars)
        if one is None or other is None or one.squared_last or not other.squared_last or one.axes is None:
            return None
        if one != replace(other, squared_last=False) or one.share > 1:
            return None
        return _Bound(_Deviation(one.of, one.axes), one.dims, 2.0, one.share / one.count * _ROUNDED)

    def _deviation(self, eqn: Any) -> _Deviation | None:
        """What a difference is, if it is that of a value and its mean."""
        if eqn.primitive.name != "sub" or not all(map(is_var, eqn.invars)):
            return None
        mean, of = self._moments.get(eqn.invars[1]), self._constants.copy_of(eqn.invars[0])
        if mean is None or mean.squares or mean.axes is None or mean.share != 1.0 or mean.of != of:
            return None
        kept = [dim for dim, at in enumerate(mean.dims) if at is not None]
        is_at_its_place = all(mean.dims[dim] == dim for dim in kept) and not {*kept} & {*mean.axes}
        sizes = eqn.invars[0].aval.shape
        is_of_all = all(size == 1 or dim in kept or dim in mean.axes for dim, size in enumerate(sizes))
        return _Deviation(of, mean.axes) if is_at_its_place and is_of_all else None

    def _copy_of(self, atom: Any) -> tuple[Any, tuple[int | None, ...]]:
        """What a value is a copy of, which may be a deviation, and its dimensions."""
        copy = self._constants.copy_of(atom)
        found = self._deviations.get(copy.source) if is_var(copy.source) else None
        return copy.source if found is None else found, copy.dims

    def _moment(self, eqn: Any, ins: Sequence[SlicedValue]) -> _Moment | None:
        """What a result is as the mean of a value, of its squares, or as a mean's square."""
        name, params, first = eqn.primitive.name, eqn.params, eqn.invars[0]
        if not is_var(first):
            return None
        found = self._moments.get(first)
        alone = _Moment(self._constants.copy_of(first), tuple(range(len(first.aval.shape))))
        is_square = name == "square" or (name == "integer_pow" and params["y"] == 2)
        if is_square or (name == "mul" and first is eqn.invars[1]):
            if found is None or found.axes is None:
                return replace(alone, squares=True)
            return None if found.squares else replace(found, squares=True, squared_last=True)
        if name == "reduce_sum":
            base = alone if found is None else found
            axes = tuple(params["axes"])
            count = math.prod(first.aval.shape[dim] for dim in axes)
            dims = tuple(dim for dim in base.dims if dim not in axes)
            is_first = base.axes is None and base.dims == alone.dims
            return replace(base, dims=dims, axes=axes, count=count, share=base.share * count) if is_first else None
        if found is None:
            return None
        if name in ("mul", "div") and not found.squared_last:
            low, high = ins[1].span
            by = low if name == "mul" or low <= 0 else 1 / low
            return replace(found, share=float(f"{found.share * by:.9g}")) if low == high and low > 0 else None
        if is_same(name):
            return found
        places = dims_after(eqn, found.dims) if name in _MOVES else None
        return None if places is None else replace(found, dims=places)

    def _selected(self, eqn: Any, ins: Sequence[SlicedValue]) -> Reach | None:
        which = self._constants.copy_of(eqn.invars[0])
        found = []
        for case, (atom, value) in enumerate(zip(eqn.invars[1:], ins[1:], strict=True)):
            guarded = self._guarded.get(atom) if is_var(atom) else None
            found.append(guarded[1] if guarded is not None and guarded[0] == (which, case) else value.reach)
        if all(reach is value.reach for reach, value in zip(found, ins[1:], strict=True)):
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def learn(self, eqn: Any, ins: Sequence[SlicedValue], out: SlicedValue) -> None:
        """Compare an equation's result with what it is made of."""
        is_one = len(eqn.outvars) == 1 and is_var(eqn.outvars[0])
        if not is_one or not eqn.invars or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
            return
        (var,) = eqn.outvars
        name = eqn.primitive.name
        moment = self._moment(eqn, ins)
        if moment is not None:
            self._moments[var] = moment
        shares = self._kept_shares(eqn, ins)
        if shares is not None:
            self._shares[var] = shares
        deviation = self._deviation(eqn)
        if deviation is not None:
            self._deviations[self._constants.copy_of(var).source] = deviation
        self._sizes[var] = max(abs(out.reach[0]), abs(out.reach[1]))
        if out.span[0] >= 0:
            # What is broadcast to it is of no use.
            rank = len(var.aval.shape)
            least = tuple(bound for bound in self._learned_least(eqn, ins) if len(bound.dims) == rank)
            if least:
                self._least[var] = least
        inverse = self._learned_inverse(eqn, ins)
        if inverse:
            self._inverse[var] = inverse
        if name in ("mul", "dot_general"):
            most = self._product(eqn, ins)
            if most is not None:
                self._most[var] = most

    # What a value is at least.

    def _of(self, atom: Any, value: SlicedValue) -> tuple[_Bound, ...]:
        """What a value is at least, which is itself where it is not negative."""
        if not is_var(atom):
            return ()
        found = self._least.get(atom, ())
        if value.span[0] < 0:
            return found
        return (*found, _Bound(*self._copy_of(atom)))

    def _learned_least(self, eqn: Any, ins: Sequence[SlicedValue]) -> Iterable[_Bound]:
        name, params = eqn.primitive.name, eqn.params
        first = eqn.invars[0]
        if not is_var(first) and name not in ("add", "max", "mul", "select_n"):
            return ()
        own = _Bound(*self._copy_of(first))
        if name == "abs":
            return (own,)
        if name == "square" or (name == "integer_pow" and params["y"] > 0 and params["y"] % 2 == 0):
            return (replace(own, power=2.0 if name == "square" else params["y"]),)
        if name == "mul" and first is eqn.invars[1]:
            return (replace(own, power=2.0),)
        variance = self._variance(eqn)
        if variance is not None:
            return (variance,)
        of_first = self._of(first, ins[0])
        if is_same(name) or self._constants.adds_nothing(eqn):
            return [bound.scaled(_ROUNDED) for bound in of_first]
        if name in ("reduce_sum", "reduce_max"):
            return [self._reduced(bound, set(params["axes"]), is_sum=name == "reduce_sum") for bound in of_first]
        if name == "sqrt":
            return map(_root, of_first)
        if name in ("add", "add_any") and ins[0].span[0] >= 0 and ins[1].span[0] >= 0:
            return [b.scaled(_ROUNDED) for k in (0, 1) for b in self._of(eqn.invars[k], ins[k])]
        if name == "max":
            return [b for k in (0, 1) for b in self._of(eqn.invars[k], ins[k])]
        if name in ("mul", "div"):
            return self._multiple(eqn, ins)
        if name == "select_n":
            chosen = chosen_case(ins)
            if chosen is not None:
                return self._of(eqn.invars[chosen], ins[chosen])
            return self._chosen(eqn, ins) if len(eqn.invars) == 3 else ()
        return self._moved(eqn, of_first)

    def _reduced(self, bound: _Bound, gone: set[int], *, is_sum: bool) -> _Bound:
        """The bound of a sum or maximum of what is not negative."""
        summed = (
            frozenset(d for k, d in enumerate(bound.dims) if k in gone and d is not None) if is_sum else frozenset()
        )
        dims = tuple(d for k, d in enumerate(bound.dims) if k not in gone)
        return replace(bound.scaled(_ROUNDED), dims=dims, summed=bound.summed | summed)

    def _moved(self, eqn: Any, bounds: Iterable[_Bound]) -> Iterable[_Bound]:
        if eqn.primitive.name not in _MOVES:
            return
        places = dims_after(eqn, tuple(range(len(eqn.invars[0].aval.shape))))
        for bound in bounds if places is not None else ():
            yield replace(bound, dims=tuple(None if at is None else bound.dims[at] for at in places or ()))

    def _multiple(self, eqn: Any, ins: Sequence[SlicedValue]) -> Iterable[_Bound]:
        """What a multiple by a positive constant is at least."""
        for k in (0, 1) if eqn.primitive.name == "mul" else (1,):
            if self._constants.find(eqn.invars[k]) is not None and 0 < ins[k].reach[0] <= ins[k].reach[1] < math.inf:
                by = 1 / ins[k].reach[1] if eqn.primitive.name == "div" else ins[k].reach[0]
                return [bound.scaled(by * _ROUNDED) for bound in self._of(eqn.invars[1 - k], ins[1 - k])]
        return ()

    def _chosen(self, eqn: Any, ins: Sequence[SlicedValue]) -> Iterable[_Bound]:
        """What a value is at least where a constant stands in its place."""
        which = self._constants.copy_of(eqn.invars[0])
        for case in (0, 1):
            other = ins[2 - case]
            if self._constants.find(eqn.invars[2 - case]) is None or other.reach[0] < 0:
                continue
            for bound in self._of(eqn.invars[1 + case], ins[1 + case]):
                if other.reach[0] > 0 and math.isfinite(
                    most := raised_to(self._sizes.get(bound.of, math.inf), bound.power)
                ):
                    least = min(bound.factor, other.reach[0] / max(most, 1e-30))
                    yield replace(bound, factor=least, summed=frozenset())
                elif bound.where is None and bound.dims == tuple(range(len(bound.dims))):
                    yield replace(bound, where=(which, case))

    # What a value is at most.

    def _most_of(self, atom: Any) -> _Bound:
        found = self._most.get(atom) if is_var(atom) else None
        if found is not None:
            return found
        return _Bound(*self._copy_of(atom))

    def _inverse_of(self, atom: Any) -> tuple[_Bound, ...]:
        return self._inverse.get(atom, ()) if is_var(atom) else ()

    def _learned_inverse(self, eqn: Any, ins: Sequence[SlicedValue]) -> tuple[_Bound, ...]:
        name, first = eqn.primitive.name, eqn.invars[0]
        if name == "rsqrt":
            return tuple(map(_root, self._of(first, ins[0])))
        if name == "integer_pow" and eqn.params["y"] == -1:
            return self._of(first, ins[0])
        if name == "div" and self._constants.find(first) is not None:
            most = max(abs(ins[0].reach[0]), abs(ins[0].reach[1]), 1e-30)
            return tuple(b.scaled(1 / most) for b in self._of(eqn.invars[1], ins[1])) if math.isfinite(most) else ()
        if name == "mul":
            return tuple(self._scaled_inverse(eqn, ins))
        bounds = self._inverse_of(first)
        if is_same(name):
            return tuple(bound.scaled(_ROUNDED) for bound in bounds)
        return tuple(self._moved(eqn, bounds)) if bounds else ()

    def _scaled_inverse(self, eqn: Any, ins: Sequence[SlicedValue]) -> Iterable[_Bound]:
        """What a multiple of an inverse is at most one divided by, as where layer norm scales before it multiplies."""
        shape = eqn.outvars[0].aval.shape
        for k in (0, 1):
            by = max(1e-30, abs(ins[1 - k].reach[0]), abs(ins[1 - k].reach[1]))
            for bound in self._inverse_of(eqn.invars[k]) if math.isfinite(by) else ():
                own: tuple[int, ...] = eqn.invars[k].aval.shape
                # A number lies wherever it multiplies.
                there = bound.dims if own else (None,) * len(shape)
                dims = tuple(
                    dim if own and own[at] == size else None
                    for at, (dim, size) in enumerate(zip(there, shape, strict=True))
                )
                yield replace(bound, dims=dims).scaled(_ROUNDED / by)

    def _product(self, eqn: Any, ins: Sequence[SlicedValue]) -> _Bound | None:
        """What a product is at most, of an operand that is not negative."""
        for k in (0, 1):
            other = max(abs(ins[1 - k].reach[0]), abs(ins[1 - k].reach[1]))
            if ins[k].span[0] < 0 or not is_var(eqn.invars[k]) or not math.isfinite(other):
                continue
            top = self._most_of(eqn.invars[k])
            if eqn.primitive.name == "mul":
                if eqn.invars[k].aval.shape == eqn.outvars[0].aval.shape:
                    return top.scaled(max(other, 1.0))
                continue
            (contracted, batch) = eqn.params["dimension_numbers"]
            shape = eqn.invars[k].aval.shape
            free = [d for d in range(len(shape)) if d not in contracted[k] and d not in batch[k]]
            dims: list[int | None] = [None] * len(eqn.outvars[0].aval.shape)
            before = len(batch[0])
            if k:
                before += len(eqn.invars[0].aval.shape) - len(batch[0]) - len(contracted[0])
            for there, d in [*enumerate(batch[k]), *((before + n, d) for n, d in enumerate(free))]:
                dims[there] = top.dims[d]
            count = math.prod(shape[d] for d in contracted[k])
            return replace(top, dims=tuple(dims), factor=top.factor * count * max(other, 1.0))
        return None
