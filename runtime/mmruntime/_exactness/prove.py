"""Prove, from two traces of a function, how its results for microbatches make up its result for the whole batch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.deferred_factor import put_off
from mmruntime._exactness.difference import differences
from mmruntime._exactness.epilogue import Afterwards, afterwards, may_run_afterwards
from mmruntime._exactness.lattice import FREE, ZERO, AbstractValue, Kind, Reason, Shards, every_reason, rows
from mmruntime._exactness.rules import (
    collectives,
    contraction,
    control,
    elementwise,
    indexing,
    random,
    reduction,
    shape,
    shards,
)
from mmruntime._exactness.rules.equation import (
    LOOSE,
    RULES,
    Edits,
    Equation,
    Hoisted,
    Interpreter,
    NoRule,
    NotProved,
    Place,
    Rule,
    line_of,
    shape_of,
)
from mmruntime._exactness.sizes import (
    power_between,
    same_literal,
    same_params,
    same_program,
    same_value,
)
from mmruntime._jaxpr.primitives import BILINEAR, MOVES, is_constraint
from mmruntime._jaxpr.rewrite import CALLS

# Importing them registers their rules.
_SUBJECTS = (collectives, contraction, control, elementwise, indexing, random, reduction, shape, shards)


@dataclass(frozen=True)
class Verdict:
    """How one result of the whole batch comes from the microbatches' results.

    Attributes:
        kind: "same", "sum", "concat", "max", "min", "after", "mixed" or "unknown".
        power: The combined result is `num_microbatches**power` times the sum, or what is joined; a mean has -1.
        dim: The dimension along which "concat" joins.
        outer: How many times the examples follow each other in that dimension.
        is_zero: Whether it is "same" because it is zeros for every batch, so that it is their sum as well.
        is_average: Whether it is a "sum" of values that each microbatch has divided by the size of the whole batch.
        rounded: Of a "sum", the type of less range that the whole batch's value has been rounded to.
        reason: Why it is "mixed" or "unknown", or "after" and nothing that microbatches give.
    """

    kind: str
    power: int = 0
    dim: int = -1
    outer: int = 1
    is_zero: bool = False
    is_average: bool = False
    rounded: Any = None
    reason: Reason | None = None

    @property
    def word(self) -> str:
        """One word for people: the kind, "mean" for a sum that is divided by the number of microbatches."""
        return "mean" if self.kind == "sum" and (self.power == -1 or self.is_average) else self.kind

    @property
    def is_proved(self) -> bool:
        """Whether the results can be put together exactly."""
        return self.kind not in ("mixed", "unknown")


@dataclass(frozen=True)
class Proof:
    """What is proved of a function.

    Attributes:
        part: The closed jaxpr of the function for one microbatch.
        whole: The closed jaxpr for the whole batch.
        num_microbatches: How many microbatches the batch has.
        verdicts: One for each result.
        edits: What has to change in `part` for the verdicts to hold.
        draws: Lines that draw random numbers for every example, from keys among the arguments.
        repeated_draws: Lines that draw them from keys that are no arguments, the same for every microbatch.
        own_statistics: Lines at which each microbatch uses its own sum over examples for that of the whole batch.
        afterwards: What gives the results that are "after"; None if none is.
        totals: A verdict for each value that this takes.
    """

    part: Any
    whole: Any
    num_microbatches: int
    verdicts: tuple[Verdict, ...]
    edits: Edits
    draws: tuple[str, ...]
    repeated_draws: tuple[str, ...]
    own_statistics: tuple[str, ...] = ()
    afterwards: Afterwards | None = None
    totals: tuple[Verdict, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every result is proved."""
        return all(verdict.is_proved for verdict in self.verdicts)


@dataclass(frozen=True)
class ArgumentSpec:
    """What a flat argument of the function is.

    Attributes:
        dim: The dimension that counts examples, None if the argument is the same for every microbatch.
        hoistable: Whether values that depend on it may be computed before the loop: it is not a parameter, nor a key.
    """

    dim: int | None = None
    hoistable: bool = False


def prove(
    part: Any,
    whole: Any,
    arguments: Sequence[ArgumentSpec],
    num_microbatches: int,
    *,
    as_written: bool = False,
    own_statistics: bool = False,
    own_sizes: bool = False,
    waits: bool = False,
    parameters: Collection[int] = (),
    late_factors: int = 0,
) -> Proof:
    """Prove how results for microbatches make up the results for the whole batch.

    Args:
        part: The closed jaxpr of the function for one microbatch.
        whole: The closed jaxpr of the same function for the whole batch.
        arguments: What each flat argument is.
        num_microbatches: How many microbatches there are.
        as_written: Whether the function's own results are put together, with nothing in it changed or hoisted.
        own_statistics: Whether microbatches use their own sums and means over examples, as of a batch normalisation,
            where those of the whole batch would be needed. A result that comes of them is the mean of microbatches'.
        own_sizes: Whether microbatches divide by their own size, and their results by their number, where they take a
            mean. Else they divide by the size of the whole batch, so that cotangents are those of the whole batch.
        waits: Whether what is computed of totals over the batch, and of a few numbers of each example, may wait until
            the loop has made them.
        parameters: The `id` of captured arrays that may be differentiated, and so are no reason to hoist anything.
            Captured floating-point values that are being traced count as such.
        late_factors: How many numbers that are known after the loop may be put off until then.

    Returns:
        The proof, which may say of a result that nothing is proved.
    """
    if num_microbatches == 1:
        # Whatever it computes, the one microbatch is the whole batch; booleans cannot be added up.
        atoms = _compat.split(part)[0].outvars
        alone = tuple(Verdict("max" if atom.aval.dtype == np.bool_ else "sum") for atom in atoms)
        return Proof(part, whole, 1, alone, Edits(), (), ())
    has_one_example = any(
        argument.dim is not None and shape_of(var)[argument.dim] == 1
        for argument, var in zip(arguments, _compat.split(part)[0].invars, strict=True)
    )
    pairs = zip(arguments, _compat.split(whole)[0].invars, strict=True)
    sizes = [shape_of(var)[argument.dim] for argument, var in pairs if argument.dim is not None]
    run = _Run(
        num_microbatches,
        can_edit=not as_written,
        has_own_statistics=own_statistics,
        has_own_sizes=own_sizes or as_written,
        has_one_example=has_one_example,
        waits=waits,
        num_examples=max(sizes, default=1),
        parameters=parameters,
    )
    ins = [
        FREE.but(hoistable=argument.hoistable)
        if argument.dim is None
        else rows(argument.dim % len(shape_of(var))).but(hoistable=argument.hoistable)
        for argument, var in zip(arguments, _compat.split(part)[0].invars, strict=True)
    ]
    for position, argument in enumerate(arguments):
        one, other = (_compat.split(jaxpr)[0].invars[position] for jaxpr in (part, whole))
        expected = list(shape_of(one))
        if argument.dim is not None:
            expected[argument.dim] *= num_microbatches
        if list(shape_of(other)) != expected:
            raise ValueError(f"Argument {position} has shape {shape_of(other)} in the whole batch, not {expected}.")
    outs, edits = run.run(part, whole, ins, hoists=not as_written)
    found = [_verdict(value, can_hoist=not as_written) for value in outs]
    if late_factors and run.outermost is not None and not all(verdict.is_proved for verdict in found):
        deferred = put_off(part, whole, run.outermost.env, run.outermost.after)
        if deferred is not None:
            proof = prove(
                *deferred,
                arguments,
                num_microbatches,
                own_statistics=own_statistics,
                own_sizes=own_sizes,
                waits=True,
                parameters=parameters,
                late_factors=late_factors - 1,
            )
            if proof.is_exact:
                return proof
    divided = _averages(part, edits)
    verdicts = tuple(
        replace(each, is_average=each.kind == "sum" and position in divided) for position, each in enumerate(found)
    )
    draws, repeated_draws, own = (
        tuple(dict.fromkeys(lines)) for lines in (run.draws, run.repeated_draws, run.own_statistics)
    )
    after: Afterwards | None = None
    totals: tuple[Verdict, ...] = ()
    if positions := [position for position, verdict in enumerate(verdicts) if verdict.kind == "after"]:
        frame = run.outermost
        assert frame is not None
        after = afterwards(_compat.split(part)[0], _compat.split(whole)[0], frame.after, positions)
        totals = tuple(_total(frame.env[var]) for var in after.totals)
    return Proof(part, whole, num_microbatches, verdicts, edits, draws, repeated_draws, own, after, totals)


_SAME = (Kind.ZERO, Kind.FREE)
_UNPROVED = (Kind.MIXED, Kind.UNKNOWN)


def _verdict(value: AbstractValue, *, can_hoist: bool) -> Verdict:
    if value.kind is Kind.FREE and value.own:
        return Verdict("sum", value.power - 1)
    if value.kind is Kind.FREE:
        return Verdict("same", value.power)
    if value.kind is Kind.ROWS:
        return Verdict("concat", value.power, value.dim, value.outer or 1)
    if value.kind in (Kind.SUM, Kind.MAX, Kind.MIN):
        return Verdict(value.kind.value, value.power, rounded=value.rounded)
    if value.kind is Kind.AFTER:
        return Verdict("after", reason=value.reason)
    # The whole batch's program computes it before the loop.
    if value.kind is Kind.ZERO or (value.hoistable and can_hoist):
        return Verdict("same", is_zero=value.kind is Kind.ZERO)
    if value.kind in _UNPROVED:
        return Verdict(value.kind.value, reason=value.reason)
    return Verdict("mixed", reason=Reason("iota", "", "returns the examples' positions in the batch"))


def _total(value: AbstractValue) -> Verdict:
    """How what is read after the loop comes from the microbatches; what the batch alone decides, not from these."""
    return Verdict("same") if value.hoistable and value.shape_grows else _verdict(value, can_hoist=True)


class _Run(Interpreter):
    def __init__(
        self,
        n: int,
        *,
        can_edit: bool,
        has_own_statistics: bool,
        has_own_sizes: bool,
        has_one_example: bool,
        waits: bool,
        num_examples: int,
        parameters: Collection[int],
    ) -> None:
        self.n = n
        self.num_examples = num_examples
        self.has_own_statistics = has_own_statistics
        self.has_own_sizes = has_own_sizes
        self.has_one_example = has_one_example
        self.waits = waits
        self.own_statistics: list[str] = []
        self.parameters = parameters
        self.can_edit = can_edit
        # Of the `shard_map`s that have been met: inside of them values may be different on each device.
        self.mesh_axes: frozenset[str] = frozenset()
        self.place = Place.CALL
        self.draws: list[str] = []
        self.repeated_draws: list[str] = []
        # By the two jaxprs of a call, what it is given and whether it hoists: layers that are alike share their jaxprs.
        self.known: dict[Hashable, tuple[tuple[Any, Any], list[AbstractValue], Edits]] = {}
        # The line of the innermost call that has one. JAX traces `bernoulli` and the like once, for whoever is first.
        self.call_line = ""
        self.outermost: _Frame | None = None

    def note_draw(self, eqn: Equation) -> None:
        # Keys among the arguments are the only ones that cannot be hoisted.
        lines = self.repeated_draws if eqn.ins[0].hoistable else self.draws
        lines.append(line_of(eqn.part) or self.call_line)

    def run(
        self, part: Any, whole: Any, ins: Sequence[AbstractValue], *, hoists: bool, place: Place = Place.CALL
    ) -> tuple[list[AbstractValue], Edits]:
        around = self.place
        # Nothing is taken out of a `shard_map` in another.
        hoists = hoists and not (place & around & Place.SHARDS)
        self.place = around | place
        try:
            return self._run(part, whole, ins, hoists=hoists)
        finally:
            self.place = around

    def _run(
        self, part: Any, whole: Any, ins: Sequence[AbstractValue], *, hoists: bool
    ) -> tuple[list[AbstractValue], Edits]:
        one, consts = _compat.split(part)
        other, whole_consts = _compat.split(whole)
        edits = Edits()
        key = (id(part), id(whole), tuple(ins), hoists, self.place)
        if key in self.known:
            _, outs, edits = self.known[key]
            return list(outs), edits.copy()
        noted = self._number_noted()
        if not same_program(one, other):
            captured = zip(one.constvars, consts, strict=True)
            hoistable = all(value.hoistable for value in ins)
            hoistable = hoistable and not any(self.is_parameter(var, const) for var, const in captured)
            return self._another_program(one, other, hoistable), edits
        frame = _Frame(self, edits, hoists, is_inside=self.can_edit and not hoists)
        self.outermost = self.outermost or frame
        for var, twin, value, whole_value in zip(one.constvars, other.constvars, consts, whole_consts, strict=True):
            frame.bind_constant(var, twin, value, whole_value)
        frame.env.update(zip(one.invars, ins, strict=True))
        for index, (eqn, twin) in enumerate(zip(one.eqns, other.eqns, strict=True)):
            frame.step(index, eqn, twin)
        outs = []
        for position, (atom, twin) in enumerate(zip(one.outvars, other.outvars, strict=True)):
            value, hoisted = frame.read(atom, twin)
            if hoisted is not None:
                edits.outs[position] = hoisted
            outs.append(value)
        # Each call has hoisted values of its own, and the line of its own that calls what draws.
        if not edits.hoists_any and self._number_noted() == noted:
            # With the jaxprs, so that no others get their ids.
            self.known[key] = (part, whole), list(outs), edits.copy()
        return outs, edits

    def _number_noted(self) -> int:
        return len(self.draws) + len(self.repeated_draws) + len(self.own_statistics)

    def is_parameter(self, var: Any, captured: Any) -> bool:
        """Whether a captured array may be differentiated, so that nothing may be hoisted on its account."""
        can_be = id(captured) in self.parameters or _compat.is_tracer(captured)
        return can_be and not _is_integral(var) and not _compat.is_key(var.aval.dtype)

    def _another_program(self, part: Any, whole: Any, hoistable: bool) -> list[AbstractValue]:
        reasons = differences(part, whole, has_one_example=self.has_one_example)
        return [AbstractValue(Kind.UNKNOWN, hoistable=hoistable, reason=reason) for reason in reasons]


@dataclass
class _Frame:
    """The interpretation of one jaxpr."""

    run: _Run
    edits: Edits
    hoists: bool
    is_inside: bool
    env: dict[Any, AbstractValue] = field(default_factory=dict)
    read_hoisted: dict[Any, Hoisted] = field(default_factory=dict)
    after: list[int] = field(default_factory=list)

    def bind_constant(self, var: Any, twin: Any, one: Any, other: Any) -> None:
        hoistable = not self.run.is_parameter(var, one)
        if shape_of(var) == shape_of(twin) and same_value(one, other):
            self.env[var] = FREE.but(hoistable=hoistable)
            return
        reason = Reason("", "", "captures an array that differs for another batch size")
        if _compat.is_tracer(one):
            made = _compat.made_at(one)
            reason = Reason(
                "",
                "",
                f"reads from an object of Python what a task{made and f' at {made}'} keeps in it",
                "Return it from the task, and pass it on as an argument.",
            )
        value = AbstractValue(Kind.MIXED, hoistable=hoistable, reason=reason)
        self.env[var] = self._hoisted(var, twin, value, "constant", "")

    def read(self, atom: Any, twin: Any) -> tuple[AbstractValue, Hoisted | None]:
        """The value of an operand; for a number of the whole batch's program, what is read in its place."""
        if not isinstance(atom, _compat.Literal):
            return self.env[atom], None
        if same_literal(atom, twin):
            is_zero = not np.shape(atom.val) and not np.any(np.asarray(atom.val))
            return (ZERO if is_zero else FREE).but(hoistable=True), None
        power = power_between(atom.val, twin.val, self.run.n)
        is_counted = np.asarray(atom.val).dtype.kind in "iu"
        if power is not None and (is_counted or self.run.has_own_sizes):
            return FREE.but(power=power, hoistable=True), None
        if self.run.can_edit and shape_of(atom) == shape_of(twin):
            # Any other number of the whole batch's is used as it is: a mean is divided by the number of all examples
            # at once, so that the backward pass has cotangents as large as those of the whole batch.
            value = FREE.but(hoistable=True)
            return value, Hoisted(atom, twin, value, "literal", "", is_size=power in (-1, 1))
        reason = Reason("", "", "computes with a number that depends on the size of the batch")
        return AbstractValue(Kind.MIXED, hoistable=True, reason=reason), None

    def step(self, index: int, part: Any, whole: Any) -> None:
        """Interpret one equation."""
        ins = []
        hoisted: dict[int, Hoisted] = {}
        for position, (atom, twin) in enumerate(zip(part.invars, whole.invars, strict=True)):
            value, instead = self.read(atom, twin)
            if instead is not None:
                hoisted[position] = instead
            ins.append(value)
        # In the loop there is nothing yet of what comes after it.
        now = [value.but(kind=Kind.MIXED) if value.kind is Kind.AFTER else value for value in ins]
        eqn = Equation(part, whole, now, self.run, may_hoist=self.hoists)
        eqn.edits.update(hoisted)
        outs = self._outs(eqn, now)
        may_wait = self.run.waits and self.run.outermost is self
        is_lacking = not all(value.is_proved or value.hoistable for value in outs)
        overflows = any(value.rounded is not None for value in ins) and not (
            _rearranges(eqn.name) or eqn.name in _WITH_JAXPRS
        )
        # What overflows in the whole batch does so before it is computed with: a dynamic loss scale looks for that.
        if (is_lacking or overflows) and may_wait and may_run_afterwards(part, whole, ins, self.run.num_examples):
            self.after.append(index)
            outs = [
                value.but(kind=Kind.AFTER, rounded=None) if overflows or not value.is_proved else value
                for value in outs
            ]
        elif overflows:
            outs = [value.but(rounded=None) for value in outs]
        if (dtype := shorter_range(part)) is not None:
            outs = [value.but(rounded=dtype) if value.kind is Kind.SUM else value for value in outs]
        proved = False
        for position, (var, twin, value) in enumerate(zip(part.outvars, whole.outvars, outs, strict=True)):
            value = self._checked(eqn, position, value)
            is_now = value.is_proved and value.kind is not Kind.AFTER
            proved = proved or is_now or value.shards is not None
            is_reduced = value.kind not in (Kind.ZERO, Kind.FREE, Kind.ROWS, Kind.INDEX, Kind.COLUMNS)
            # What devices have is of use to them only as it is; what is computed of the array can be hoisted.
            if is_reduced and value.shards is None and not _compat.acts(part):
                value = self._hoisted(var, twin, value, eqn.name, part)
            self.env[var] = value
        if proved:
            # What the batch alone decides, such as the mean of its targets, is no average of microbatches' values.
            divides = eqn.name in ("mul", "div") and not any(
                _compat.is_var(atom) and atom in self.edits.hoisted for atom in part.invars
            )
            for position, edit in eqn.edits.items():
                if isinstance(edit, Hoisted) and edit.is_size and not divides:
                    edit = replace(edit, is_size=False)
                if isinstance(edit, Hoisted) and _compat.is_var(part.invars[position]):
                    # What several equations read is computed once.
                    edit = self.read_hoisted.setdefault(part.invars[position], edit)
                self.edits.operands[index, position] = edit
            if eqn.inner:
                self.edits.inner[index] = eqn.inner

    def _outs(self, eqn: Equation, ins: Sequence[AbstractValue]) -> list[AbstractValue]:
        part, whole, count = eqn.part, eqn.whole, len(eqn.part.outvars)
        hoistable = all(value.hoistable for value in ins) and not _compat.acts(part) and not _is_draw(eqn.name, ins)
        # A loop in a branch that is not taken may have no end.
        is_endless = eqn.name == "while" and bool(self.run.place & Place.BRANCH)
        is_call = bool(eqn.name in _WITH_JAXPRS)
        if is_call:
            self.run.call_line = line_of(part) or self.run.call_line
            if eqn.name == "shard_map":
                self.run.mesh_axes |= set(part.params["mesh"].shape)
        elif self.run.mesh_axes and (known := self._known_on_devices(eqn)):
            return [value.but(hoistable=hoistable) for value in known]
        reason: Reason | None
        if not is_call:
            # A product with zeros is zeros, whatever the other operand is.
            if eqn.name in BILINEAR and any(value.kind is Kind.ZERO for value in ins):
                return [ZERO.but(hoistable=hoistable)] * count
            if eqn.name == "select_n" and ins[0].kind is Kind.ZERO:
                return [ins[1].but(hoistable=hoistable)]
            if unproved := [value for value in ins if not value.is_proved]:
                reason = every_reason(value.reason for value in unproved)
                return [AbstractValue(unproved[0].kind, hoistable=hoistable, reason=reason)] * count
        function = RULES.get(eqn.name)
        try:
            if function is None or (_compat.acts(part) and not is_call):
                raise NoRule
            if not same_params(part.params, whole.params, LOOSE[eqn.name]):
                why = _reason(part, "does something else for another batch size")
                return [AbstractValue(Kind.UNKNOWN, hoistable=hoistable, reason=why)] * count
            on_devices = self.run.mesh_axes and not is_call
            found = (self._found_on_devices if on_devices else self._found)(eqn, function)
        except NotProved as error:
            advice = error.advice
            if self.is_inside and any(value.kind is Kind.SUM and value.hoistable for value in ins):
                advice = (
                    "The batch alone decides that sum, but inside of a loop it is computed for each microbatch: "
                    "compute it before the loop."
                )
            reason = every_reason(value.reason for value in ins if not value.is_proved)
            reason = reason or _reason(part, error.problem, advice)
            return [AbstractValue(Kind.MIXED, hoistable=hoistable, reason=reason)] * count
        except NoRule:
            if not _compat.acts(part) and self._is_free(eqn, ins):
                # It may be different on each device, for all that is known.
                return [FREE.but(hoistable=hoistable, varies=self.run.mesh_axes)] * count
            reason = _reason(part, f"has no rule for `{eqn.name}`")
            return [AbstractValue(Kind.UNKNOWN, hoistable=hoistable, reason=reason)] * count
        if isinstance(found, AbstractValue):
            found = [found] * count
        if not is_call and any(value.own for value in eqn.ins):
            found = [value.but(own=value.kind is Kind.FREE) for value in found]
        if is_call:
            # Which result depends on what, the rule has found out.
            stays = is_endless or _compat.acts(part)
            return [value.but(hoistable=value.hoistable and not stays) for value in found]
        return [value.but(hoistable=hoistable) for value in found]

    def _found(self, eqn: Equation, function: Rule) -> AbstractValue | Sequence[AbstractValue]:
        """What a rule gives; with each microbatch's own sums over examples, if it has to be and may be."""
        given, hoisted = list(eqn.ins), dict(eqn.edits)
        try:
            return function(eqn)
        except NotProved:
            sums = [position for position, value in enumerate(given) if value.kind is Kind.SUM]
            if not (self.run.has_own_statistics and sums):
                raise
        eqn.edits, eqn.zeros = hoisted, set()
        eqn.ins = [
            FREE.but(own=True, power=value.power + 1) if position in sums else value
            for position, value in enumerate(given)
        ]
        found = function(eqn)
        self.run.own_statistics.append(line_of(eqn.part) or self.run.call_line)
        return found

    def _known_on_devices(self, eqn: Equation) -> list[AbstractValue] | None:
        """What operations give that work on an array in the form in which devices hold it; None for others."""
        if RULES.get(eqn.name) is shape.identity:
            return list(eqn.ins)
        found = shards.reduced_at_once(eqn)
        if found is not None:
            return [found]
        return None

    def _found_on_devices(self, eqn: Equation, function: Rule) -> list[AbstractValue]:
        """What a rule gives, with the mesh axes that examples are split over."""
        alike = shards.alike_dimensions(eqn)
        eqn.ins = [value.but(shards=None) if value.shards is not None else value for value in eqn.ins]
        if eqn.name in collectives.NAMES:
            found = self._found(eqn, function)
            return [found] if isinstance(found, AbstractValue) else list(found)
        shards.check_devices(eqn)
        given = list(eqn.ins)
        found = self._found(eqn, function)
        each = [found] * len(eqn.part.outvars) if isinstance(found, AbstractValue) else found
        if any(value.own for value in eqn.ins):
            given = eqn.ins
        each = [shards.on_devices(given, value, is_draw=_is_draw(eqn.name, given)) for value in each]
        return [value.but(shards=Shards(value, alike=alike)) for value in each] if alike else each

    def _is_free(self, eqn: Equation, ins: Sequence[AbstractValue]) -> bool:
        """Whether both programs do one and the same, unknown, operation."""
        if any(
            value.kind not in (Kind.FREE, Kind.ZERO)
            or value.own
            or value.axes
            or (value.power and value.kind is Kind.FREE)
            for value in ins
        ):
            return False
        eqn.edits = {position: edit for position, edit in eqn.edits.items() if isinstance(edit, Hoisted)}
        pairs = [*zip(eqn.part.invars, eqn.whole.invars, strict=True)]
        pairs += zip(eqn.part.outvars, eqn.whole.outvars, strict=True)
        same_shapes = all(shape_of(one) == shape_of(other) for one, other in pairs)
        return same_shapes and same_params(eqn.part.params, eqn.whole.params, ())

    def _checked(self, eqn: Equation, position: int, value: AbstractValue) -> AbstractValue:
        """A rule's value, held against the shapes: no rule may be right about examples and wrong about sizes."""
        if not value.is_proved or value.kind in (Kind.ZERO, Kind.AFTER):
            if value.reason is not None and any(not each.line for each in value.reason.every):
                own = _reason(eqn.part, "")
                found = [
                    each
                    if each.line
                    else replace(each, primitive=each.primitive or own.primitive, line=own.line, call=own.call)
                    for each in value.reason.every
                ]
                return value.but(reason=every_reason(found))
            return value
        one, other = shape_of(eqn.part.outvars[position]), shape_of(eqn.whole.outvars[position])
        if fits(value, one, other, self.run.n):
            return value
        shapes = _reason(eqn.part, "gives other shapes than its rule expects")
        return AbstractValue(Kind.UNKNOWN, hoistable=value.hoistable, reason=shapes)

    def _hoisted(self, var: Any, twin: Any, value: AbstractValue, name: str, eqn: Any) -> AbstractValue:
        """A variable that is computed on the whole batch before the loop, where that is possible."""
        if not (value.hoistable and self.hoists) or not _compat.is_var(var):
            return value
        one, other = shape_of(var), shape_of(twin)
        dims = [dim for dim, (small, large) in enumerate(zip(one, other, strict=True)) if small != large]
        if len(dims) > 1 or any(other[dim] != self.run.n * one[dim] for dim in dims):
            return value
        if self.run.place & Place.SHARDS:
            # On each device a number of its own; what the examples of a microbatch have lies elsewhere in the batch.
            if dims:
                return value
            varies = {*value.axes, *value.varies} if value.is_proved else self.run.mesh_axes
            hoisted = FREE.but(hoistable=True, varies=frozenset(varies))
        else:
            hoisted = (FREE if not dims else rows(dims[0])).but(hoistable=True)
        line = line_of(eqn) if eqn else ""
        self.edits.hoisted[var] = Hoisted(var, twin, hoisted, name, line)
        return hoisted


def _rearranges(name: str) -> bool:
    """Whether an operation only moves entries, converts them or turns their sign."""
    return name in MOVES or is_constraint(name) or name in ("convert_element_type", "name", "neg")


# Types of less range than float32 that have infinities. Of the others, such as float8_e4m3fn, `reduce_precision` would
# take the largest numbers for infinite.
_OVERFLOWING = frozenset(("float16", "float8_e5m2", "float8_e4m3", "float8_e3m4"))


def shorter_range(eqn: Any) -> Any:
    """The type that an equation converts to float32 or more, if it overflows before that; None if it does not."""
    if eqn.primitive.name != "convert_element_type":
        return None
    source, target = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    is_wide = target.name in ("bfloat16", "float32", "float64")
    return source if is_wide and getattr(source, "name", "") in _OVERFLOWING else None


def _reason(eqn: Any, problem: str, advice: str = "") -> Reason:
    return Reason(eqn.primitive.name, line_of(eqn), problem, advice, call=_compat.called_function(eqn))


_DRAWS = (*random.KEYED, "rng_bit_generator", "rng_uniform")
_WITH_JAXPRS = {
    *CALLS, "scan", "while", "cond", "shard_map", "composite", "custom_vmap_call", "xla_metadata_call",
    "custom_linear_solve",
}  # fmt: skip


def _is_draw(name: str, ins: Sequence[AbstractValue]) -> bool:
    """Whether what is drawn for the whole batch are other numbers than for its parts: unless each example has a key."""
    return name in _DRAWS and not (name in random.KEYED and ins[0].kind is Kind.ROWS)


def _is_integral(var: Any) -> bool:
    return bool(jnp.issubdtype(var.aval.dtype, np.integer) or var.aval.dtype == np.bool_)


def fits(value: AbstractValue, part: Sequence[int], whole: Sequence[int], n: int) -> bool:
    """Whether shapes are those of a value of this kind."""
    expected = list(part)
    if value.shape_grows:
        if not 0 <= value.dim < len(expected) or (value.outer and expected[value.dim] % value.outer):
            return False
        expected[value.dim] *= n
    return expected == list(whole)


def _averages(closed: Any, edits: Edits) -> set[int]:
    """The positions of results that are averages: they come of a number that the size of the whole batch decides.

    Args:
        closed: A microbatch's program, open or closed.
        edits: What the proof changes in it.
    """
    if edits.is_empty:
        return set()
    jaxpr, _ = _compat.split(closed)
    found: set[Any] = set()
    for index, eqn in enumerate(jaxpr.eqns):
        own = [edits.operands.get((index, position)) for position in range(len(eqn.invars))]
        is_size = any(isinstance(edit, Hoisted) and edit.is_size for edit in own)
        # What is computed before the loop is read from there.
        read = [atom for atom, edit in zip(eqn.invars, own, strict=True) if not isinstance(edit, Hoisted)]
        if is_size or any(_compat.is_var(atom) and atom in found for atom in read):
            found.update(eqn.outvars)
        else:
            found.update(eqn.outvars[position] for position in _inside(eqn, edits.inner.get(index, {})))
        found -= edits.hoisted.keys()
    return {position for position, atom in enumerate(jaxpr.outvars) if _compat.is_var(atom) and atom in found}


def _inside(eqn: Any, inner: Mapping[Any, Edits]) -> set[int]:
    """The results of an equation that are averages in one of its bodies; all, where the body has other results."""
    found: set[int] = set()
    for key, edits in inner.items():
        name, *which = key if isinstance(key, tuple) else (key,)
        body = eqn.params[name][which[0]] if which else eqn.params[name]
        positions = _averages(body, edits)
        is_same = len(_compat.split(body)[0].outvars) == len(eqn.outvars)
        found |= positions if is_same or not positions else set(range(len(eqn.outvars)))
    return found
