"""The intermediate representation: a step as flat equations, which the passes of the partitioner take and return.

Everything here is frozen. A pass that changes an equation returns a new step, which shares all that did not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import Sharding

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.marks import LoopSpec
from mmruntime._core.task import Task


@dataclass(eq=False, slots=True, frozen=True)
class Op:
    """One equation.

    Attributes:
        eqn: The equation; its variables are unique in the whole step.
        task: The task that it belongs to, if any.
        backward: Whether it is part of a transposed computation.
        variant: Which of its loop's bodies it is in; behind a loop, which of the programs of its submesh.
        submesh_varies: Whether its task's submesh depends on the microbatch.
        again: Whether it makes again, for the backward pass, what the forward pass has made.
        call: The call of a task that it was opened from, if it was, whose line is the task's.
        callers: The calls in whose bodies it was, the innermost first, for its line.
    """

    eqn: Any
    task: Task | None = None
    backward: bool = False
    variant: int = 0
    submesh_varies: bool = False
    again: bool = False
    call: Any = None
    callers: tuple[Any, ...] = ()
    # Passes ask a hundred thousand times for a step.
    _reads: tuple[Var, ...] | None = field(default=None, init=False, repr=False)
    _writes: tuple[Var, ...] | None = field(default=None, init=False, repr=False)

    def with_eqn(self, eqn: Any) -> Op:
        """Another equation with the same marks."""
        # `dataclasses.replace` takes three times as long, for each of some ten thousand equations.
        return Op(eqn, self.task, self.backward, self.variant, self.submesh_varies, self.again, self.call, self.callers)

    def reads(self) -> tuple[Var, ...]:
        """The variables that the equation reads."""
        known = self._reads
        if known is None:
            known = tuple([atom for atom in self.eqn.invars if is_var(atom)])
            object.__setattr__(self, "_reads", known)
        return known

    def writes(self) -> tuple[Var, ...]:
        """The variables that the equation gives."""
        known = self._writes
        if known is None:
            known = tuple([var for var in self.eqn.outvars if is_var(var)])
            object.__setattr__(self, "_writes", known)
        return known


@dataclass(eq=False, slots=True, frozen=True)
class Region:
    """Consecutive equations that run once per step or, in a microbatch loop, once per microbatch.

    Attributes:
        ops: The equations, in program order.
        loop: How the loop runs; None outside of loops.
        slices: In a loop, each microbatch's variable and the stacked outer variable that it is a slice of.
        sums: In a loop, each outer variable and the body variable that is summed up into it; an outer variable may
            occur once per variant of the body. The outer variable may be float32 where the other is shorter; the
            addition converts it.
        variant_of: In a loop, the variant of the body that each microbatch runs; empty if there is one.
        num_slices: Into how many slices of its sequence each microbatch is cut. A slice runs like a microbatch of its
            own, with a variant of the body for each, which may read what the others of its microbatch have made.
    """

    ops: tuple[Op, ...] = ()
    loop: LoopSpec | None = None
    slices: Mapping[Var, Var] = field(default_factory=dict)
    sums: tuple[tuple[Var, Var], ...] = ()
    variant_of: tuple[int, ...] = ()
    num_slices: int = 1

    def microbatches(self, variant: int) -> list[int]:
        """The microbatches that run a variant of the body."""
        if not self.variant_of:
            return list(range(self.index_count))
        return [k for k, each in enumerate(self.variant_of) if each == variant]

    @property
    def index_count(self) -> int:
        """How often the region runs in a step."""
        return 1 if self.loop is None else self.loop.count * self.num_slices


@dataclass(eq=False, slots=True, frozen=True)
class Step:
    """A traced step.

    Attributes:
        like: An open jaxpr; `_compat.close` makes others by replacing its fields.
        invars: The step's flat inputs.
        constants: Variables of captured arrays, and their values.
        regions: The equations; every variable is written once, before it is read.
        outvars: The step's flat outputs.
        carried: Positions of inputs that are state, and of the output that is their next value.
        premises: What is taken for granted of numbers. For each loop that does, the last outputs hold the number, from
            one, of what is not so, or zero; here is what is wrong then, in words.
    """

    like: Any
    invars: tuple[Var, ...]
    constants: Mapping[Var, Any]
    regions: tuple[Region, ...]
    outvars: tuple[Atom, ...]
    carried: Mapping[int, int] = field(default_factory=dict)
    premises: tuple[tuple[str, ...], ...] = ()

    def ops(self) -> Iterator[Op]:
        """All equations, in order."""
        for region in self.regions:
            yield from region.ops

    def border(self) -> set[Var]:
        """The variables that not only equations read: results, what loops take slices of, and what they add up."""
        found = {atom for atom in self.outvars if is_var(atom)}
        for region in self.regions:
            found |= {*region.slices.values(), *(result for _, result in region.sums)}
        return found

    def read_behind(self, index: int) -> set[Var]:
        """The variables that regions behind one read, or that the step returns."""
        later = self.regions[index + 1 :]
        found = {atom for atom in self.outvars if is_var(atom)}
        found.update(var for region in later for op in region.ops for var in op.reads())
        return found.union(*(region.slices.values() for region in later))

    def types(self) -> set[Any]:
        """The types of all arrays that it takes or computes, those of inner jaxprs included."""
        variables: list[Any] = [*self.invars, *self.constants]
        for eqn in _compat.every_equation(op.eqn for op in self.ops()):
            variables += eqn.outvars
        return {getattr(variable.aval, "dtype", None) for variable in variables} - {None}

    def with_regions(self, regions: Iterable[Region]) -> Step:
        """This step with other equations."""
        return replace(self, regions=tuple(regions))

    def with_region(self, index: int, region: Region) -> Step:
        """This step with another region in the place of one."""
        return self.with_regions((*self.regions[:index], region, *self.regions[index + 1 :]))


def tasks_of(ops: Iterable[Op]) -> list[Task]:
    """The tasks of equations, each once, in the order in which they come first."""
    return list(dict.fromkeys(op.task for op in ops if op.task is not None))


def at_line(eqn: Any) -> str:
    """Where the user wrote an equation, for messages: " at file:line (function)"; empty where JAX does not know it."""
    lines = "" if eqn is None else _compat.source_lines(eqn)
    return f" at {lines}" if lines else ""


def abstract(var: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of a variable, without a sharding."""
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=getattr(var.aval, "weak_type", False))


def num_elements(var: Atom) -> int:
    """How many elements a value has."""
    count = 1
    for size in var.aval.shape:
        count *= size
    return count


def num_bytes(var: Atom) -> int:
    """How many bytes a value has (a PRNG key counts as 8)."""
    dtype = var.aval.dtype
    itemsize: int = getattr(dtype, "itemsize", 8) or 8
    return num_elements(var) * itemsize


def shard_bytes(var: Atom, sharding: Sharding) -> int:
    """How many bytes a value has on each device of a layout."""
    share = math.prod(sharding.shard_shape(tuple(var.aval.shape)))
    return num_bytes(var) * share // max(num_elements(var), 1)


def is_scalar(var: Atom) -> bool:
    """Whether a value has no dimensions, as numbers and typed PRNG keys; at a step's border it is on all devices."""
    return not var.aval.shape


def is_tiny(var: Atom) -> bool:
    """Whether a value is a scalar or a PRNG key, which is cheap to send anywhere.

    A vector of one or two numbers is neither: it may be the bias of a head, which belongs where the head is.
    """
    if is_scalar(var):
        return True
    dtype = var.aval.dtype
    # A key of the old style is a vector of two words.
    return num_elements(var) <= 2 and (dtype == "uint32" or _compat.is_key(dtype))
