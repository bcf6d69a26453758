"""Find invalid values: where a nan or an infinity comes from, by computing equation by equation what a program did.

Values that hold one are followed from a result back to the first equation, or argument, that has it. What a program
masks out again, such as the logarithm of an unselected element, is thus not taken for the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._jaxpr.rewrite import CALLS
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import RunInstruction


@dataclass(eq=False, slots=True, frozen=True)
class Origin:
    """Where in a step something is computed.

    Attributes:
        what: In words: the name of a primitive, or what is not one.
        line: Where the user wrote it; empty if that is not known.
        op: The equation of the step that it is, or is in.
        microbatch: In words; empty outside of loops.
    """

    what: str
    line: str = ""
    op: Op | None = None
    microbatch: str = ""

    def __str__(self) -> str:
        parts = [self.what + (f" at {self.line}" if self.line else "")]
        if self.op is not None and self.op.backward:
            parts.append("of gradients")
        if self.op is not None and self.op.task is not None and self.op.task.name:
            parts.append(f"in task {self.op.task.name!r}")
        return ", ".join([*parts, self.microbatch] if self.microbatch else parts)


@dataclass(eq=False, slots=True, frozen=True)
class InvalidValue:
    """A value that holds an invalid number: one of the results of something that ran."""

    computed_by: Computation
    position: int


@dataclass(eq=False, slots=True, frozen=True)
class Computation:
    """Something that ran and gave an invalid value.

    Attributes:
        place: Where it is in the step.
        causes: Its operands that are invalid themselves, by their positions.
        look_inside: The causes of its results, as computing it part by part shows; None if it has no parts.
        repeat: What it gives if only one of its causes, of this position, is invalid; None if it cannot be repeated.
    """

    place: Origin
    causes: Mapping[int, InvalidValue]
    look_inside: Callable[[], Sequence[InvalidValue | None]] | None = None
    repeat: Callable[[int], Sequence[Any]] | None = None


def kind_of_invalid(value: Any, kinds: Collection[str]) -> str | None:
    """Which of the kinds "nan" and "inf" a value holds, as far as this process has it; None if none."""
    if value is None:
        return None
    shards = _compat.own_shards(value) if hasattr(value, "sharding") else [value]
    for shard in shards:
        # Keys of random numbers have no arrays of NumPy.
        if jnp.issubdtype(getattr(shard, "dtype", np.result_type(type(shard))), jnp.inexact):
            array = np.asarray(shard)
            if "nan" in kinds and np.any(np.isnan(array)):
                return "nan"
            if "inf" in kinds and np.any(np.isinf(array)):
                return "inf"
    return None


def origin_of(invalid: InvalidValue) -> Origin:
    """The first place that has what an invalid value holds."""
    while True:
        computation, position = invalid.computed_by, invalid.position
        parts = computation.look_inside() if computation.look_inside is not None else None
        found = parts[position] if parts is not None else None
        if found is None:
            found = _cause(computation, position)
        if found is None:
            return computation.place
        invalid = found


def _cause(computation: Computation, position: int) -> InvalidValue | None:
    """The invalid operand that makes a result invalid; None if it is so by itself."""
    if len(computation.causes) > 1 and computation.repeat is not None:
        for operand, cause in computation.causes.items():
            value = computation.repeat(operand)[position]
            if kind_of_invalid(value, ("nan", "inf")) is not None:
                return cause
    return next(iter(computation.causes.values()), None)


class Equations:
    """Computes equations one at a time, and finds out which of their results are invalid.

    Args:
        like: Any open jaxpr; see `_compat.close`.
        kinds: What counts as invalid: "nan", "inf" or both.
    """

    def __init__(self, like: Any, kinds: Collection[str]) -> None:
        self._like = like
        self.kinds = kinds

    def run(
        self, eqns: Iterable[tuple[Any, Op | None]], env: dict[Atom, Any], known: dict[Var, InvalidValue], place: Origin
    ) -> None:
        """Compute equations, and put what they give into `env`, and into `known` where it is invalid."""
        for eqn, op in eqns:
            # Those that only act, such as prints, have acted.
            if not (results := [var for var in eqn.outvars if is_var(var)]):
                continue
            operands = [env[atom] if is_var(atom) else atom.val for atom in eqn.invars]
            causes = {
                position: known[atom] for position, atom in enumerate(eqn.invars) if is_var(atom) and atom in known
            }
            values = self._compute(eqn, operands)
            computation = self._equation(eqn, operands, causes, replace(place, op=op))
            for position, (var, value) in enumerate(zip(results, values, strict=True)):
                env[var] = value
                if kind_of_invalid(value, self.kinds):
                    known[var] = InvalidValue(computation, position)

    def _compute(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        invars = [_compat.new_var(atom.aval) for atom in eqn.invars]
        results = [var for var in eqn.outvars if is_var(var)]
        closed = _compat.close(self._like, invars, results, [eqn.replace(invars=invars)])
        return _compat.as_fun(closed)(*operands)

    def _equation(
        self, eqn: Any, operands: Sequence[Any], causes: Mapping[int, InvalidValue], place: Origin
    ) -> Computation:
        place = replace(place, what=eqn.primitive.name, line=_line(eqn, place))
        inside = _opened(eqn, operands)

        def look_inside() -> list[InvalidValue | None]:
            assert inside is not None
            found = inside(self, causes, place)
            return [each for each, var in zip(found, eqn.outvars, strict=True) if is_var(var)]

        def repeat(kept: int) -> list[Any]:
            return self._compute(
                eqn,
                [
                    jnp.nan_to_num(value, nan=1.0, posinf=1.0, neginf=1.0) if k in causes and k != kept else value
                    for k, value in enumerate(operands)
                ],
            )

        return Computation(place, causes, None if inside is None else look_inside, repeat)

    def body(
        self, closed: Any, operands: Sequence[Any], causes: Mapping[int, InvalidValue], place: Origin
    ) -> tuple[list[Any], list[InvalidValue | None]]:
        """Compute a closed jaxpr inside of an equation: its results, and which of them are invalid."""
        jaxpr, consts = _compat.split(closed)
        env: dict[Atom, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))
        known = {jaxpr.invars[position]: cause for position, cause in causes.items()}
        self.run([(eqn, place.op) for eqn in jaxpr.eqns], env, known, place)
        values = [env[atom] if is_var(atom) else atom.val for atom in jaxpr.outvars]
        return values, [known.get(atom) if is_var(atom) else None for atom in jaxpr.outvars]


class ProgramsByEquation(Equations):
    """Computes programs of a step once more, one equation at a time.

    Args:
        step: The step.
        shardings: The layout of each value.
        kinds: What counts as invalid: "nan", "inf" or both.
    """

    def __init__(self, step: Step, shardings: Shardings, kinds: Collection[str]) -> None:
        super().__init__(step.like, kinds)
        self._step = step
        self._shardings = shardings

    def program(self, item: RunInstruction, operands: Sequence[Any], causes: Mapping[int, InvalidValue]) -> Computation:
        """A run of a program that gave an invalid value.

        Args:
            item: The run.
            operands: Its arguments.
            causes: Those that are invalid, by their positions.
        """
        segment, microbatch = item.spec.segment, ""
        tasks = " + ".join(map(repr, segment.tasks)) if segment is not None else ""
        if segment is not None and item.microbatch is not None:
            region = self._step.regions[segment.region]
            assert region.loop is not None
            microbatch = _of(item.microbatch // region.num_slices, region.loop.count)
        what = f"the compiled program of {tasks or 'the step'}, though not equation by equation"
        # Several processes would have to do the same at the same time.
        here = all(getattr(value, "is_fully_addressable", True) for value in operands)
        look_inside = (lambda: self._inside_program(item, operands, causes, microbatch)) if here else None
        if not here:
            what = f"a program of {tasks or 'the step'} that runs on devices of several processes"
        return Computation(Origin(what, microbatch=microbatch), causes, look_inside)

    def _inside_program(
        self, item: RunInstruction, operands: Sequence[Any], causes: Mapping[int, InvalidValue], microbatch: str
    ) -> list[InvalidValue | None]:
        spec = item.spec
        env: dict[Atom, Any] = dict(zip(spec.reads, operands, strict=True))
        known = {spec.reads[position]: cause for position, cause in causes.items()}
        if spec.kind == "whole":
            self._regions(env, known)
        elif spec.segment is not None:
            for piece, stacked in spec.slices:
                self._cut(piece, stacked, int(operands[-1]), env, known)
            place = Origin("", microbatch=microbatch)
            self.run(self._in_mesh_axes(spec.segment.ops, spec.submesh), env, known, place)
            for total, result in spec.sums:
                self._add(total, result, env, known, place)
        return [known.get(var) for var in spec.writes]

    def _regions(self, env: dict[Atom, Any], known: dict[Var, InvalidValue]) -> None:
        """The whole step, its microbatches one after the other."""
        for region in self._step.regions:
            ops = self._in_mesh_axes(region.ops, 0)
            if region.loop is None:
                self.run(ops, env, known, Origin(""))
                continue
            for total, _ in region.sums:
                env[total] = jnp.zeros(total.aval.shape, total.aval.dtype)
            for number in range(region.loop.count):
                place = Origin("", microbatch=_of(number, region.loop.count))
                inside, known_inside = dict(env), dict(known)
                for piece, stacked in region.slices.items():
                    self._cut(piece, stacked, number, inside, known_inside)
                self.run(ops, inside, known_inside, place)
                for total, result in region.sums:
                    self._add(total, result, inside, known_inside, place)
                    env[total] = inside[total]
                    if total in known_inside:
                        known[total] = known_inside[total]

    def _in_mesh_axes(self, ops: Iterable[Op], where: int) -> list[tuple[Any, Op | None]]:
        return [(self._shardings.in_mesh_axes(op, where), op) for op in ops]

    def _cut(self, piece: Var, stacked: Var, number: int, env: dict[Atom, Any], known: dict[Var, InvalidValue]) -> None:
        """Take the part of a microbatch out of a stack."""
        env[piece] = jnp.asarray(env[stacked])[number]
        if stacked in known and kind_of_invalid(env[piece], self.kinds):
            known[piece] = known[stacked]

    def _add(
        self, total: Var, result: Var, env: dict[Atom, Any], known: dict[Var, InvalidValue], place: Origin
    ) -> None:
        """Add what a microbatch has made to the sum of those before."""
        value = env[result]
        env[total] = jnp.add(env[total], jnp.asarray(value, total.aval.dtype))
        if total in known or not kind_of_invalid(env[total], self.kinds):
            return
        known[total] = known.get(result) or InvalidValue(
            Computation(replace(place, what="the sum over microbatches"), {}), 0
        )


def _line(eqn: Any, around: Origin) -> str:
    """Where the user wrote an equation; where that is not known, or in a library, the call that it is in."""
    op = around.op
    outer = (op.eqn, op.call, *op.callers) if op is not None else ()
    lines = [_compat.user_line(eqn), around.line, *(_compat.user_line(each) for each in outer if each is not None)]
    known = [line for line in lines if line]
    return next((line for line in known if not _compat.is_of_a_library(line)), known[0] if known else "")


def origin_in(closed: Any, operands: Sequence[Any], position: int, kinds: Collection[str]) -> Origin:
    """Where a result of a closed jaxpr becomes invalid, given its operands."""
    jaxpr, _ = _compat.split(closed)
    _, found = Equations(jaxpr, kinds).body(closed, operands, {}, Origin(""))
    invalid = found[position]
    return Origin("a compiled program, though not equation by equation") if invalid is None else origin_of(invalid)


Inside = Callable[[Equations, Mapping[int, InvalidValue], Origin], Sequence[InvalidValue | None]]


def _opened(eqn: Any, operands: Sequence[Any]) -> Inside | None:
    """What computes the parts of an equation, None if it has none that could be computed alone."""
    name, params = eqn.primitive.name, eqn.params
    if eqn.primitive is _compat.scan_p:
        return lambda by, causes, place: _scan(by, eqn, operands, causes, place)
    if name == "while":
        return lambda by, causes, place: _while(by, eqn, operands, causes, place)
    if name == "cond":
        branch = params["branches"][int(np.clip(operands[0], 0, len(params["branches"]) - 1))]
        return lambda by, causes, place: by.body(branch, operands[1:], _moved(causes, 1), place)[1]
    body = params.get(CALLS.get(name))
    if body is None:
        return None
    return lambda by, causes, place: by.body(body, operands, causes, place)[1]


def _moved(causes: Mapping[int, InvalidValue], by: int) -> dict[int, InvalidValue]:
    return {position - by: cause for position, cause in causes.items() if position >= by}


def _scan(
    by: Equations, eqn: Any, operands: Sequence[Any], causes: Mapping[int, InvalidValue], place: Origin
) -> list[InvalidValue | None]:
    """The turns of a scan, one after the other; what it stacks up has the cause of the first turn that has one."""
    num_consts, num_carry = _compat.scan_counts(eqn)
    first_slice = num_consts + num_carry
    carry = list(operands[num_consts:first_slice])
    known = {position: cause for position, cause in causes.items() if position < first_slice}
    stacked: dict[int, InvalidValue] = {}
    turns = range(eqn.params["length"])
    for turn in reversed(turns) if eqn.params["reverse"] else turns:
        slices = [jnp.asarray(value)[turn] for value in operands[first_slice:]]
        inside = {
            position: cause
            for position, cause in causes.items()
            if position >= first_slice and kind_of_invalid(slices[position - first_slice], by.kinds)
        }
        values, found = by.body(
            eqn.params["jaxpr"], [*operands[:num_consts], *carry, *slices], {**known, **inside}, place
        )
        carry = values[:num_carry]
        known = {position: cause for position, cause in known.items() if position < num_consts}
        known |= {num_consts + k: cause for k, cause in enumerate(found[:num_carry]) if cause is not None}
        for k, cause in enumerate(found):
            if k >= num_carry and cause is not None:
                stacked.setdefault(k, cause)
    return [known.get(num_consts + k) if k < num_carry else stacked.get(k) for k in range(len(eqn.outvars))]


def _while(
    by: Equations, eqn: Any, operands: Sequence[Any], causes: Mapping[int, InvalidValue], place: Origin
) -> list[InvalidValue | None]:
    """The turns of a while loop, one after the other."""
    of_test, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    first = of_test + of_body
    test = _compat.as_fun(eqn.params["cond_jaxpr"])
    constants = _moved({k: cause for k, cause in causes.items() if k < first}, of_test)
    carry = list(operands[first:])
    known: dict[int, InvalidValue] = _moved(causes, first)
    while bool(test(*operands[:of_test], *carry)[0]):
        inside = {**constants, **{of_body + k: cause for k, cause in known.items()}}
        carry, found = by.body(eqn.params["body_jaxpr"], [*operands[of_test:first], *carry], inside, place)
        known = {k: cause for k, cause in enumerate(found) if cause is not None}
    return [known.get(k) for k in range(len(carry))]


def _of(number: int, count: int) -> str:
    return f"in microbatch {number} of {count}, counted from 0"
