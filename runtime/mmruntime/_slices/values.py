"""What is known of a value of a loop's body: where its positions are, and what each slice has of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# A number at or below this, added to a score or in its place, hides the position: its `exp` is zero beside that of any
# score that lies far above.
HIDDEN = -1e6


@dataclass(frozen=True)
class Low:
    """What is known of numbers that hide their positions, if it is not which they are.

    Attributes:
        most: None is above this.
    """

    most: float


Fill = float | Low
# For a pair of dimensions, the slice's own rows and the columns up to its end: what all later columns hold.
Fills = Mapping[tuple[int, int], Fill]


@dataclass(frozen=True)
class Check:
    """What a rule takes for granted of the numbers that an equation works on: the step looks at them as it runs.

    Attributes:
        operand: Of which operand; None of the result.
        form: Its entries are not "below" the limit: it says "above"; nor above it: "below"; or their "inverse" is not
            below it; or they are "finite".
        limit: A number.
        words: What is wrong where it is not so, and what to write.
        pairs: Whether it is about pairs of positions, those that no slice computes too.
    """

    operand: int | None
    form: str
    limit: float
    words: str
    pairs: bool = False


class NotSliceableError(Exception):
    """An equation on a slice is not known to give the slice of its result."""


@dataclass(frozen=True)
class SequenceAxis:
    """A dimension that counts positions.

    Attributes:
        dim: The dimension. Its entries are `outer` runs of positions, each position `inner` entries.
        bounds: Where slices begin, and where the last one ends.
        outer: How many runs.
        inner: How many entries.
        lead: How many entries lie before the positions that are none, as attention sinks: each slice reads them.
        tail: How many lie behind the positions.
    """

    dim: int
    bounds: tuple[int, ...]
    outer: int = 1
    inner: int = 1
    lead: int = 0
    tail: int = 0

    @property
    def length(self) -> int:
        """How many positions."""
        return self.bounds[-1]

    @property
    def is_plain(self) -> bool:
        """Whether each entry of the dimension is a position."""
        return self.is_single and not self.is_joined

    @property
    def is_single(self) -> bool:
        """Whether each position is one entry, and all are next to each other."""
        return self.outer == self.inner == 1

    @property
    def is_joined(self) -> bool:
        """Whether there are entries that are no positions."""
        return self.lead > 0 or self.tail > 0

    def at(self, dim: int) -> SequenceAxis:
        """These positions in another dimension."""
        return replace(self, dim=dim)

    def size(self, number: int, mode: str) -> int:
        """How many entries slice `number` has: its "own", or "upto" its end.

        Raises:
            NotSliceableError: Where entries that are no positions would be a slice's own.
        """
        if mode == "own" and self.is_joined:
            raise NotSliceableError("reads what is joined to positions as if it were one of them")
        start = self.bounds[number] if mode == "own" else 0
        return self.lead + self.outer * (self.bounds[number + 1] - start) * self.inner + self.tail


def even_axis(dim: int, length: int, count: int) -> SequenceAxis:
    """An axis of `length` positions in `count` slices as equal as can be, the longer ones first."""
    short, longer = divmod(length, count)
    return SequenceAxis(dim, tuple(number * short + min(number, longer) for number in range(count + 1)))


@dataclass(frozen=True)
class SlicedValue:
    """A value of the body.

    Attributes:
        axes: Its dimensions that count positions, at most two. With two, a slice has its own rows of one, and the
            columns of the other up to its end.
        partial: Whether slices have addends of it, rather than parts.
        whole: Whether slices compute all of it, and take what they need.
        free: Whether it comes of the batch, keys and numbers alone, so that any slice may compute all of it.
        late: Whether it comes of the backward pass, whose last slice runs first.
        again: Whether it is late, but made of what the forward pass has left alone, as under `jax.checkpoint`. The
            backward pass of the last slice then makes the parts of all slices that it reads, and leaves them to those
            before it.
        peak: Whether it is the largest of each row of something whose columns behind the slice are minus infinity. It
            may be that itself, where a row has nothing else.
        fills: As `Fills`; pairs that are missing hold anything.
        least: None of its entries is below this, which has been checked.
        origin: The equation that made it partial.
    """

    axes: tuple[SequenceAxis, ...] = ()
    partial: bool = False
    whole: bool = False
    free: bool = False
    late: bool = False
    again: bool = False
    peak: bool = False
    fills: Fills = field(default_factory=dict)
    least: float = -math.inf
    origin: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the same for all slices."""
        return not self.partial and (self.whole or not self.axes)

    @property
    def hard_axes(self) -> tuple[SequenceAxis, ...]:
        """Its axes, unless they are only a suggestion."""
        return () if self.free or self.whole else self.axes

    def axis(self, dim: int) -> SequenceAxis | None:
        """The axis in a dimension."""
        return next((axis for axis in self.axes if axis.dim == dim), None)

    def but(self, **changes: Any) -> SlicedValue:
        """The value with some attributes changed."""
        return replace(self, **changes)
