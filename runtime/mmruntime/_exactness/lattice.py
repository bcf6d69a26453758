"""Abstract values: how a value of the whole batch's program comes from the microbatches' values of the same variable.

Two traces of one function are compared: of the whole batch (`whole`), and of one microbatch (`part`), which is run `n`
times. Let `V` be what a variable is in the whole program and `v[0], ..., v[n - 1]` what it is in the runs.

    ZERO     V and every v[i] are zeros
    FREE     V = n**power * v[i] for every i
    ROWS     V = n**power * the v[i] joined along dimension `dim`, where that is (outer, examples)
    INDEX    V is arange(B) along dimension `dim`, and every v[i] is arange(B / n)
    COLUMNS  V and v[i] are joined from `columns` along the last dimension, each of one entry
    SUM      V = n**power * sum of the v[i]
    MAX      V = n**power * maximum of the v[i]
    MIN      V = n**power * minimum of the v[i]
    AFTER    V is a function of totals like these and of short rows alone, and computed of them once, after the loop
    MIXED    the examples meet in another way
    UNKNOWN  comes from a primitive without a rule

All equations are of exact arithmetic: they hold up to the rounding that another order of additions has.

Where microbatches are to use their own statistics, `FREE` values may be `own`: each `v[i]` is the microbatch's own, and
`V` stands for the average of all `n**power * v[i]`.

Inside of `shard_map` a variable has a value on every device, and the equations hold on each by itself, but for values
with `axes`, mesh axes that the examples are split over:

    ROWS     holds for what the devices along `axes` have, joined along `dim`
    SUM      holds for the sum over the devices along `axes`, and so over more of them
    MAX, MIN in the same way
    FREE     holds where the devices along `axes` look at the same example, as in a loop over examples
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# The `outer` of rows whose entries are all alike along their dimension: the equation holds for every `outer`.
ANY = 0


class Kind(enum.Enum):
    """How a value of the whole batch comes from those of its microbatches."""

    ZERO = "zero"
    FREE = "free"
    ROWS = "rows"
    INDEX = "index"
    COLUMNS = "columns"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    AFTER = "after"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing is proved about a value.

    Attributes:
        primitive: The operation that has no proof.
        line: Where the user's program calls it, as `file:line (function)`; empty if that is not known.
        problem: What is wrong with it, a clause.
        advice: What to write instead, a sentence; may be empty.
        is_of_other: Whether it is about another value, without which this one would be looked at.
        call: The function of JAX that is called in that line, such as `jnp.std`; empty if that is not known.
        also: What is wrong with the value besides.
    """

    primitive: str
    line: str
    problem: str
    advice: str = ""
    is_of_other: bool = False
    call: str = ""
    also: tuple[Reason, ...] = dataclasses.field(default=(), compare=False)

    @property
    def every(self) -> tuple[Reason, ...]:
        """It, and what is wrong besides."""
        return (dataclasses.replace(self, also=()), *self.also)


def every_reason(reasons: Iterable[Reason | None]) -> Reason | None:
    """Several reasons as one: the first, with a few of the others."""
    found = list(dict.fromkeys(each for reason in reasons if reason is not None for each in reason.every))
    return dataclasses.replace(found[0], also=tuple(found[1:_MOST_REASONS])) if found else None


# Of one value; beyond these, messages do not become clearer.
_MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Shards:
    """What an array is on each device, for a `shard_map` that takes it apart as another has put it together.

    Attributes:
        value: The value on a device.
        layout: The mesh axes, with their sizes, that each dimension is split over.
        alike: If there is no layout, dimensions with one entry repeated, whichever axes may split them.
    """

    value: AbstractValue
    layout: tuple[tuple[tuple[str, int], ...], ...] = ()
    alike: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """What is known of one variable.

    Attributes:
        kind: How the whole batch's value comes from the microbatches'.
        dim: The dimension of `ROWS`, `INDEX` and `COLUMNS` that the examples are in.
        outer: How many times the examples follow each other in it, or `ANY`.
        power: The whole batch's value is `n**power` times what the microbatches' values make together.
        hoistable: Whether it can be computed once, before the loop: it depends on no parameter.
        columns: The entries of `COLUMNS`, each `FREE`, `ROWS` or `INDEX`.
        reason: Of `MIXED` and `UNKNOWN`; of `AFTER`, why microbatches do not give it.
        own: Of `FREE`: whether each microbatch has a value of its own.
        axes: Inside of `shard_map`, the mesh axes that the examples are split over, the outermost first.
        varies: Inside of `shard_map`, the mesh axes along which devices may have other values for another reason.
        shards: What it is on each device, if it is the result of a `shard_map`.
        rounded: Of `SUM`: the type of less range from which the whole batch's value is converted, and which it may
            overflow where microbatches' values do not.
    """

    kind: Kind
    dim: int = -1
    outer: int = 1
    power: int = 0
    hoistable: bool = False
    columns: tuple[AbstractValue, ...] = ()
    reason: Reason | None = None
    own: bool = False
    axes: tuple[str, ...] = ()
    varies: frozenset[str] = frozenset()
    shards: Shards | None = None
    rounded: Any = None

    @property
    def is_proved(self) -> bool:
        """Whether the whole batch's value can be had from the microbatches' values."""
        return self.kind not in (Kind.MIXED, Kind.UNKNOWN)

    @property
    def shape_grows(self) -> bool:
        """Whether its shape counts examples."""
        return self.kind in (Kind.ROWS, Kind.INDEX, Kind.COLUMNS)

    @property
    def is_on_devices(self) -> bool:
        """Whether anything about devices is known of it."""
        return bool(self.axes or self.varies or self.shards is not None)

    def but(self, **changes: Any) -> AbstractValue:
        """The value with other fields."""
        return dataclasses.replace(self, **changes)

    def at(self, dim: int) -> AbstractValue:
        """These rows along another dimension."""
        return dataclasses.replace(self, dim=dim)


ZERO = AbstractValue(Kind.ZERO)
FREE = AbstractValue(Kind.FREE)
SUM = AbstractValue(Kind.SUM)
MAX = AbstractValue(Kind.MAX)
MIN = AbstractValue(Kind.MIN)


def rows(dim: int, outer: int = 1, power: int = 0) -> AbstractValue:
    """A value with one entry, or several, for each example along `dim`."""
    return AbstractValue(Kind.ROWS, dim, outer, power)


def join_outer(one: int, other: int) -> int | None:
    """The `outer` that two values along one dimension agree on, None if they do not."""
    if one in (ANY, other):
        return other
    return one if other == ANY else None
