"""One equation as a rule sees it, and the table of rules."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.lattice import ANY, FREE, AbstractValue, Kind, join_outer, rows

Rule = Callable[["Equation"], "AbstractValue | Sequence[AbstractValue]"]


class NotProved(Exception):
    """Raised by a rule where examples meet each other, or may do so.

    Args:
        problem: What is wrong, a clause.
        advice: What to write instead, a sentence.
    """

    def __init__(self, problem: str = "mixes examples", advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


class NoRule(Exception):
    """Raised by a rule that does not cover a form of its operation."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A change of what an equation reads: the operand times `n**power`."""

    power: int


@dataclass(frozen=True, slots=True, eq=False)
class Hoisted:
    """A value of the whole program that is computed before the loop, in the place of a microbatch's own.

    Equal to itself only: JAX traces a compiled function once, so that two calls have the same variables.

    Attributes:
        part: The variable, or literal, of the microbatch's program.
        whole: The one of the whole batch's.
        value: What the microbatches read: `FREE`, or `ROWS` of it.
        primitive: The operation that makes it.
        line: Where the user's program calls it.
        on_device: Inside of `shard_map`, what each device has; then this is the array of all devices' values.
        is_size: Whether it is a number in proportion to the batch's size, or to its reciprocal.
    """

    part: Any
    whole: Any
    value: AbstractValue
    primitive: str = ""
    line: str = ""
    on_device: Hoisted | None = None
    is_size: bool = False


Edit = Scale | Hoisted


@dataclass
class Edits:
    """What is changed in one jaxpr of the microbatch's program.

    Attributes:
        operands: By equation and operand.
        outs: By position of the result.
        hoisted: Variables that are replaced wherever they are read.
        inner: By equation, the changes of the jaxprs in its parameters.
    """

    operands: dict[tuple[int, int], Edit] = field(default_factory=dict)
    outs: dict[int, Edit] = field(default_factory=dict)
    hoisted: dict[Any, Hoisted] = field(default_factory=dict)
    inner: dict[int, dict[Any, Edits]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        if self.operands or self.outs or self.hoisted:
            return False
        return all(edits.is_empty for each in self.inner.values() for edits in each.values())

    def copy(self) -> Edits:
        """A copy of these changes, to which changes of results may be added."""
        return replace(self, outs=dict(self.outs))

    @property
    def hoists_any(self) -> bool:
        """Whether any of them puts a value of the whole batch in the place of a microbatch's."""
        own = [*self.operands.values(), *self.outs.values(), *self.hoisted.values()]
        # A number is the same in each call.
        if any(isinstance(edit, Hoisted) and not isinstance(edit.whole, _compat.Literal) for edit in own):
            return True
        return any(edits.hoists_any for each in self.inner.values() for edits in each.values())


class Place(enum.Flag):
    """Where a jaxpr inside an equation stands, also further out."""

    CALL = 0
    BRANCH = enum.auto()
    SHARDS = enum.auto()


class Interpreter:
    """What rules for calls and loops need of the interpretation that runs them."""

    n: int
    can_edit: bool
    place: Place

    def run(
        self, part: Any, whole: Any, ins: Sequence[AbstractValue], *, hoists: bool, place: Place = Place.CALL
    ) -> tuple[list[AbstractValue], Edits]:
        """Interpret a jaxpr inside an equation.

        Args:
            part: The jaxpr in the microbatch's program, open or closed.
            whole: The jaxpr in the whole batch's program.
            ins: The values of its arguments.
            hoists: Whether values in it may be hoisted.
            place: Where it stands.
        """
        raise NotImplementedError

    def note_draw(self, eqn: Equation) -> None:
        """Remember an equation that draws random numbers for every example."""
        raise NotImplementedError


class Equation:
    """One equation of both programs.

    Attributes:
        part: The equation of the microbatch's program.
        whole: The one of the whole batch's program.
        ins: What is known of the operands.
        n: How many microbatches there are.
        interpreter: For the jaxprs inside of the equation.
        edits: What the rule asks to change, by operand.
        inner: What is changed in jaxprs inside of the equation.
        zeros: Operands that are zeros, whatever `ins` says of their rows: they are of any power.
        may_hoist: Whether values of this jaxpr can be hoisted.
    """

    __slots__ = ("edits", "inner", "ins", "interpreter", "may_hoist", "n", "part", "whole", "zeros")

    def __init__(
        self, part: Any, whole: Any, ins: Sequence[AbstractValue], interpreter: Interpreter, *, may_hoist: bool
    ) -> None:
        self.part = part
        self.whole = whole
        self.ins = list(ins)
        self.n = interpreter.n
        self.interpreter = interpreter
        self.may_hoist = may_hoist
        self.edits: dict[int, Edit] = {}
        self.inner: dict[Any, Edits] = {}
        self.zeros: set[int] = set()

    @property
    def name(self) -> str:
        """The primitive's name."""
        name: str = self.part.primitive.name
        return name

    @property
    def params(self) -> Any:
        """Parameters of the microbatch's equation."""
        return self.part.params

    @property
    def whole_params(self) -> Any:
        """Parameters of the whole batch's equation."""
        return self.whole.params

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an operand in a microbatch."""
        return shape_of(self.part.invars[index])

    def whole_shape(self, index: int) -> tuple[int, ...]:
        """The shape of an operand in the whole batch."""
        return shape_of(self.whole.invars[index])

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of a result in a microbatch."""
        return shape_of(self.part.outvars[index])

    def whole_out_shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of a result in the whole batch."""
        return shape_of(self.whole.outvars[index])

    def grown(self, index: int = 0) -> list[int]:
        """The dimensions of a result whose sizes differ."""
        pairs = zip(self.out_shape(index), self.whole_out_shape(index), strict=True)
        return [dim for dim, (one, other) in enumerate(pairs) if one != other]

    def is_inexact(self, index: int) -> bool:
        """Whether an operand is of floating-point or complex numbers."""
        return is_inexact(self.part.invars[index])

    def plain(self, index: int) -> AbstractValue:
        """An operand as an ordinary value: `FREE`, `ROWS` and what is reduced; positions and zeros are made so."""
        value = self.ins[index]
        if value.kind is Kind.ZERO:
            self.zeros.add(index)
            value = constant(self.part.invars[index], self.whole.invars[index]).but(hoistable=value.hoistable)
        elif value.kind in (Kind.INDEX, Kind.COLUMNS):
            if not (value.hoistable and self.may_hoist) or self.interpreter.place & Place.SHARDS:
                raise NotProved("computes with the examples' positions in the batch")
            whole = self.whole.invars[index]
            value = rows(value.dim).but(hoistable=True)
            self.edits[index] = Hoisted(self.part.invars[index], whole, value, self.name, "")
        return value

    def replace_positions(self) -> None:
        """Make ordinary values of operands that are positions in the batch."""
        for index, value in enumerate(self.ins):
            if value.kind in (Kind.INDEX, Kind.COLUMNS):
                self.ins[index] = self.plain(index)

    def scale_to(self, index: int, power: int) -> None:
        """Scale an operand so that its value has the given power.

        Raises:
            NotProved: If that cannot be done exactly.
        """
        value = self.ins[index] = self.plain(index)
        if value.power != power:
            if index not in self.zeros:
                self._scale(index, value.power - power)
            self.ins[index] = value.but(power=power)

    def power_of(self, indices: Iterable[int]) -> int:
        """The power of the first operand that is not zeros."""
        found = (self.plain(index).power for index in indices if index not in self.zeros)
        return next(found, 0)

    def _scale(self, index: int, power: int) -> None:
        # n**a * v = n**b * (n**(a - b) * v)
        if not self.interpreter.can_edit:
            raise NotProved("reads a number that depends on the size of the batch")
        atom, twin = self.part.invars[index], self.whole.invars[index]
        if isinstance(atom, _compat.Literal) and power == self.ins[index].power:
            self.edits[index] = Hoisted(atom, twin, self.ins[index].but(power=0), "literal", "")
            return
        if not (self.is_inexact(index) or (power > 0 and is_integer(self.part.invars[index]))):
            raise NotProved(
                "reads an integer that depends on the size of the batch", "Compute it in floating-point numbers."
            )
        if index in self.edits:
            # Scaling starts from what is read, which is hoisted already.
            raise NotProved("reads a hoisted value times a number that depends on the size of the batch")
        self.edits[index] = Scale(power)

    def unscaled(self, indices: Iterable[int] | None = None) -> list[AbstractValue]:
        """Operands as ordinary values of power 0."""
        every = range(len(self.ins)) if indices is None else indices
        for index in every:
            self.scale_to(index, 0)
        return [self.ins[index] for index in every]

    def by_example(self, *indices: int) -> AbstractValue:
        """The result of a function that looks at each example by itself: rows like its operands, or free.

        Args:
            indices: The operands; all if left out.

        Raises:
            NotProved: If one is reduced over examples, or they have rows that do not agree.
        """
        values = self.unscaled(indices or None)
        reject_totals(self, values)
        return common_rows(values) or FREE

    def summable(self) -> AbstractValue:
        """The first operand, in which the operation is linear: zeros, a sum, or what is not reduced over examples.

        Raises:
            NotProved: If it is reduced in another way.
        """
        if self.ins[0].kind in (Kind.ZERO, Kind.SUM):
            return self.ins[0]
        value = self.plain(0)
        reject_totals(self, [value])
        return value

    def aligned(self, indices: Sequence[int]) -> AbstractValue:
        """What operands have in common, in an operation that is linear in all of them together.

        Sums stay sums: what does not depend on the batch is added once, so it is scaled by `1 / n` in each microbatch.

        Returns:
            One value: its kind, place and power are those of every operand, once the changes asked for are made.

        Raises:
            NotProved: If there is none.
        """
        values = [self.ins[index] for index in indices]
        if all(value.kind is Kind.ZERO for value in values):
            return values[0]
        if any(value.kind in (Kind.SUM, Kind.MAX, Kind.MIN) for value in values):
            return self._aligned_totals(indices)
        for index in indices:
            # Zeros for each example make rows of what is broadcast to them.
            if self.ins[index].kind is not Kind.ZERO or self.shape(index) != self.whole_shape(index):
                self.ins[index] = self.plain(index)
        values = [self.ins[index] for index in indices]
        power = self.power_of(index for index in indices if self.ins[index].kind is not Kind.ZERO)
        for index in indices:
            if self.ins[index].kind is not Kind.ZERO:
                self.scale_to(index, power)
        place = common_rows(values)
        if place is not None:
            return place.but(power=power)
        return next(value for value in values if value.kind is not Kind.ZERO).but(power=power)

    def _aligned_totals(self, indices: Sequence[int]) -> AbstractValue:
        kinds = {self.ins[index].kind for index in indices} - {Kind.ZERO}
        total = next(self.ins[index] for index in indices if self.ins[index].kind in (Kind.SUM, Kind.MAX, Kind.MIN))
        if total.kind is not Kind.SUM:
            if kinds == {total.kind} and len({self.ins[index].power for index in indices}) == 1:
                return total
            raise NotProved(f"combines a {total.kind.value}imum over examples with other values")
        if not kinds <= {Kind.SUM, Kind.FREE}:
            raise NotProved("combines a sum over examples with single examples", _AFTER_A_SUM)
        for index in indices:
            value = self.ins[index]
            if value.kind is Kind.SUM and value.power != total.power:
                if not self.interpreter.can_edit:
                    raise NotProved(
                        "combines a sum over examples with a mean over them, which microbatches' results neither add "
                        "up to nor average to",
                        "Return both, or make both a sum or a mean.",
                    )
                self._scale(index, value.power - total.power)
            # n**r * f = n**p * sum of n * (n**(r - p - 1) * f)
            elif value.kind is Kind.FREE and value.power != total.power + 1:
                if not self.is_inexact(index):
                    raise NotProved(
                        "adds an integer that does not depend on the batch to a sum over examples",
                        "Add it outside of the microbatched function.",
                    )
                if not self.interpreter.can_edit:
                    raise NotProved(
                        "adds what does not depend on the batch, such as weight decay, to a sum over examples: with "
                        f"{self.n} microbatches it is added {self.n} times",
                        "Add it outside of the microbatched function.",
                    )
                self._scale(index, value.power - total.power - 1)
        return total

    def run(
        self,
        key: Any,
        part: Any,
        whole: Any,
        ins: Sequence[AbstractValue],
        *,
        hoists: bool = False,
        place: Place = Place.CALL,
    ) -> list[AbstractValue]:
        """Interpret a jaxpr among the parameters; `key` says where it is."""
        outs, self.inner[key] = self.interpreter.run(part, whole, ins, hoists=hoists, place=place)
        return outs


def reject_totals(eqn: Equation, values: Iterable[AbstractValue]) -> None:
    """Refuse operands that are reduced over examples."""
    for value in values:
        if value.kind is Kind.SUM:
            raise NotProved(
                f"computes `{eqn.name}` of a sum or mean over examples, which is not the sum of what microbatches give",
                "Apply it to each example before the reduction, or outside of the microbatched function.",
            )
        if value.kind in (Kind.MAX, Kind.MIN):
            raise NotProved(f"computes `{eqn.name}` of a maximum or minimum over examples")


_AFTER_A_SUM = "Reduce over the examples last, or compute the sum from the batch alone, so that it can be hoisted."


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of an atom; of tokens and the like `()`."""
    return getattr(atom.aval, "shape", ())


def is_inexact(atom: Any) -> bool:
    """Whether an atom is of floating-point or complex numbers."""
    return bool(jnp.issubdtype(getattr(atom.aval, "dtype", np.bool_), np.inexact))


def is_integer(atom: Any) -> bool:
    """Whether an atom is of integers, which `bool` is not."""
    return bool(jnp.issubdtype(getattr(atom.aval, "dtype", np.bool_), np.integer))


def constant(part: Any, whole: Any) -> AbstractValue:
    """A value that is one number everywhere: rows of it where its shape grows."""
    one, other = shape_of(part), shape_of(whole)
    dims = [dim for dim, (small, large) in enumerate(zip(one, other, strict=True)) if small != large]
    if not dims:
        return AbstractValue(Kind.FREE)
    if len(dims) > 1:
        raise NotProved("has several dimensions of examples")
    return rows(dims[0], ANY)


def common_rows(values: Iterable[AbstractValue]) -> AbstractValue | None:
    """The rows that all values with rows agree on, None if none has rows.

    Raises:
        NotProved: If they do not agree.
    """
    found: AbstractValue | None = None
    for value in values:
        if value.kind is not Kind.ROWS:
            continue
        if found is None:
            found = value
            continue
        outer = join_outer(found.outer, value.outer)
        if value.dim != found.dim or outer is None:
            raise NotProved("combines examples with each other: they lie along different dimensions of its operands")
        found = found.but(outer=outer)
    return found


def repeated(value: AbstractValue, count: int) -> AbstractValue:
    """Rows of several devices behind each other."""
    return value if count == 1 else value.but(outer=max(value.outer, 1) * count)


RULES: dict[str, Rule] = {}
# Parameters that a rule looks at itself, or that say nothing about the values.
LOOSE: dict[str, frozenset[str]] = {}


def rule(*names: str, loose: Iterable[str] = ()) -> Callable[[Rule], Rule]:
    """Register a rule for primitives of the given names.

    Args:
        names: Names of primitives.
        loose: Parameters that may differ between the two programs.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
            LOOSE[name] = frozenset(loose)
        return function

    return register


def line_of(eqn: Any) -> str:
    """Where the user's program calls an operation."""
    return _compat.user_line(eqn)
