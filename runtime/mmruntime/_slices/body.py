"""The body of a microbatch loop, once for each slice of the sequence.

A pass over the traced equations, forward and backward, and not over the user's function before it is differentiated:
the trace has the tasks and the backward pass marked, any function may be differentiated, and each rule is an identity
of array operations, so that nothing is taken on trust of what the function means.

Every value gets a form. It is the same for all slices, as parameters are; or each slice has its part of it; or each has
an addend of it, as of losses and gradients. Attention pairs positions: a slice computes its own rows and the columns up
to its end, reading keys and values of the slices before it, and only where a causal mask is proved to hide the columns
behind. The forward passes of the slices go from the first to the last and the backward passes back, in which a
slice adds up what those behind it give to its keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Op, Region, Step, at_line
from mmruntime._jaxpr.primitives import is_constraint
from mmruntime._jaxpr.rewrite import CALLS, inlined, trace_equations
from mmruntime._slices.constants import Constants, once_each
from mmruntime._slices.ranges import RANGES, Range
from mmruntime._slices.rules import ADVICE, Application, SlicedEquation, adapted_params, apply_rule, suggested
from mmruntime._slices.values import Check, NotSliceableError, SequenceAxis, SlicedValue, even_axis

# Of the ranges of what slices compute, that of a value.
_RangeOf = Callable[[Sequence[Range]], Range]
# Axes of an operand, each with "own" or "upto".
Wants = tuple[tuple[SequenceAxis, str], ...]


def slice_loops(step: Step) -> Step:
    """Cut the microbatches of the loops that ask for it into slices of the sequence.

    Raises:
        ValueError: Where what a slice computes is not known to be the slice of what the microbatch computes.
    """
    for index, region in enumerate(step.regions):
        if region.loop is not None and region.loop.slices > 1:
            step = _Slicer(step, index).step()
    return step


@dataclass(frozen=True)
class _Known:
    """An opened equation, and how slices compute it."""

    op: Op
    rule: Application
    late: bool
    # The number of its first check.
    first_check: int


_NOT_BOUND = (
    "scores of hidden positions, which no slice computes, are made by functions that do not bound them. Put a number "
    "in place of those scores: jnp.where(causal, scores, -jnp.inf)"
)


def _with_premise(step: Step, index: int, total: Var, wrong: Sequence[str]) -> Step:
    """A step with one more result: the number of what is wrong first, from one; zero if nothing is."""
    first, eqns = trace_equations(
        lambda counts: jnp.where(jnp.any(counts > 0), jnp.argmax(counts > 0).astype(jnp.int32) + 1, 0), [total]
    )
    after = [Op(eqn) for eqn in eqns]
    regions = list(step.regions)
    if index + 1 < len(regions) and regions[index + 1].loop is None:
        regions[index + 1] = replace(regions[index + 1], ops=(*regions[index + 1].ops, *after))
    else:
        regions.insert(index + 1, Region(tuple(after)))
    return replace(
        step, regions=tuple(regions), outvars=(*step.outvars, first), premises=(*step.premises, tuple(wrong))
    )


class _Slicer:
    def __init__(self, step: Step, index: int) -> None:
        self.whole_step, self.index = step, index
        self.region = step.regions[index]
        assert self.region.loop is not None
        self.loop = self.region.loop
        self.count = self.loop.slices
        if self.region.variant_of:
            raise ValueError(
                f"microbatch: slices={self.count} does not go with tasks or schedules that choose a submesh for each "
                "microbatch. Leave slices= out, or give each task one submesh."
            )
        self.constants_of_step = dict(step.constants)
        self.values: dict[Var, SlicedValue] = {}
        self.maker: dict[Var, _Known] = {}
        self.opened: list[Op] = []
        # Of results of scans over layers: what each turn has made.
        self.stacked: dict[Var, tuple[Op, list[Any]]] = {}
        self.turns: dict[tuple[Var, int], Var] = {}
        self.constants = Constants(self.constants_of_step)
        self.has_backward = any(op.backward for op in self.region.ops)
        # What is wrong where a check finds that, by its number; and what they have found, until it is added up.
        self.wrong: list[str] = []
        self.found: list[tuple[int, Var, Op, int, bool]] = []
        self.counts: list[Var] = []
        self.has_row_checks = False
        # For each slice, what is wrong with pairs of positions, until results are made no numbers for it.
        self.doubtful: dict[int, list[Var]] = {}
        for before in step.regions[:index]:
            self.constants.add(op.eqn for op in before.ops)
        # The slice whose backward pass is written.
        self.running = 0
        self.ops: list[Op] = []
        self.pieces: dict[Var, Var] = {}
        self._done: dict[Any, Any] = {}
        self.axes_seen: list[SequenceAxis] = []

    # What is known.

    def _opened(self, op: Op) -> Iterator[Op]:
        """The equations of a call or of a scan over layers, with those inside; captured arrays become the step's.

        What comes before an equation is learned before it is asked for.
        """
        eqn = op.eqn
        name = eqn.primitive.name
        if name == "scan" and self._is_of_layers(eqn):
            yield from self._turns(op)
            return
        if name == "split" and (joined := self._value(eqn.invars[0]).axis(eqn.params["axis"])) and joined.is_joined:
            yield from self._parts(op)
            return
        if name not in CALLS:
            for atom in eqn.invars:
                yield from self._stack(atom)
            yield op
            return
        inner, captured = self._body(eqn.params[CALLS[name]])
        for new in inlined(inner, [*captured, *eqn.invars], eqn.outvars, eqn):
            yield from self._opened(replace(op, call=op.call or eqn, callers=(eqn, *op.callers), eqn=new))

    def _parts(self, op: Op) -> Iterator[Op]:
        """The parts of a split along positions, which are not alike, each as an equation."""
        (atom,), axis = op.eqn.invars, op.eqn.params["axis"]
        start = 0
        for var, size in zip(op.eqn.outvars, op.eqn.params["sizes"], strict=True):
            taken = functools.partial(jax.lax.slice_in_dim, start_index=start, limit_index=start + size, axis=axis)
            part, eqns = trace_equations(taken, [atom])
            start += size
            if is_var(var):
                for eqn in (*eqns, _compat.copy_eqn(part, var)):
                    yield replace(op, eqn=eqn.replace(source_info=op.eqn.source_info))

    def _body(self, body: Any) -> tuple[Any, list[Var]]:
        """A body whose captured arrays are its first arguments, and variables of the step for them."""
        inner, consts = _compat.split(body)
        captured = [_compat.new_var(var.aval) for var in inner.constvars] if consts else []
        self.constants_of_step.update(zip(captured, consts, strict=True))
        return inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars]), captured

    def _is_of_layers(self, eqn: Any) -> bool:
        """Whether the turns of a scan work on sequences, rather than on a position each."""
        first = sum(_compat.scan_counts(eqn))
        values = [None if is_var(atom) and atom in self.stacked else self._value(atom) for atom in eqn.invars]
        over_positions = any(value is not None and value.axis(0) is not None for value in values[first:])
        return not over_positions and any(value is None or value.hard_axes or value.partial for value in values)

    def _turns(self, op: Op) -> Iterator[Op]:
        """The equations of a scan, turn by turn."""
        eqn = op.eqn
        num_consts, num_carry = _compat.scan_counts(eqn)
        first = num_consts + num_carry
        consts, carried, stacks = eqn.invars[:num_consts], list(eqn.invars[num_consts:first]), eqn.invars[first:]
        inner, captured = self._body(eqn.params["jaxpr"])
        numbers = range(eqn.params["length"])
        made: list[list[Any]] = [[None] * len(numbers) for _ in eqn.outvars[num_carry:]]
        inside = replace(op, call=op.call or eqn, callers=(eqn, *op.callers))
        for number in reversed(numbers) if eqn.params["reverse"] else numbers:
            rows = []
            for atom in stacks:
                row, ops = self._row(atom, number, op)
                rows.append(row)
                yield from ops
            outs = [_compat.new_var(atom.aval) for atom in inner.outvars]
            for new in inlined(inner, [*captured, *consts, *carried, *rows], outs, eqn):
                yield from self._opened(replace(inside, eqn=new))
            carried = list(outs[:num_carry])
            for found, out in zip(made, outs[num_carry:], strict=True):
                found[number] = out
        for var, atom in zip(eqn.outvars, carried, strict=False):
            if is_var(var):
                yield replace(op, eqn=_compat.copy_eqn(atom, var))
        self.stacked.update((var, (op, pieces)) for var, pieces in zip(eqn.outvars[num_carry:], made, strict=True))

    def _row(self, atom: Any, number: int, like: Op) -> tuple[Any, list[Op]]:
        """What a scan reads of a stack in a turn, and the equations that take it."""
        if atom in self.stacked:
            return self.stacked[atom][1][number], []
        if (atom, number) in self.turns:
            return self.turns[atom, number], []
        var, eqns = trace_equations(lambda x: jax.lax.index_in_dim(x, number, keepdims=False), [atom])
        self.turns[atom, number] = var
        return var, [replace(like, eqn=eqn) for eqn in eqns]

    def _stack(self, atom: Any) -> Iterator[Op]:
        """The equations that join what the turns of a scan have made, where another equation reads it."""
        if not is_var(atom) or atom not in self.stacked or atom in self.maker:
            return
        like, pieces = self.stacked[atom]
        var, eqns = trace_equations(lambda *each: jnp.stack(each), pieces)
        for eqn in (*eqns, _compat.copy_eqn(var, atom)):
            yield replace(like, eqn=eqn)

    def step(self) -> Step:
        """The step with this loop in slices."""
        for piece in self.region.slices:
            self.values[piece] = self._piece(piece)
        for op in self.region.ops:
            for each in self._opened(op):
                self._learn(each)
        for _, result in self.region.sums:
            for each in self._stack(result):
                self._learn(each)
        if not self.axes_seen:
            raise ValueError(
                f"microbatch: slices={self.count} found no dimension to cut: the sequence is dimension "
                f"{self.loop.sequence_dim} of the arrays of a microbatch, behind the examples, and none has "
                f"{self.count} entries or more there. Leave slices= out, or give the batch as (examples, positions, "
                "...)."
            )
        return self._sliced()

    def _piece(self, piece: Var) -> SlicedValue:
        dim, shape = self.loop.sequence_dim, piece.aval.shape
        is_float = jnp.issubdtype(piece.aval.dtype, jnp.floating)
        # Where tokens are integers, their positions are the sequence: other arrays may have features there.
        tokens = [
            each.aval.shape[dim]
            for each in self.region.slices
            if len(each.aval.shape) > dim and jnp.issubdtype(each.aval.dtype, jnp.integer)
        ]
        fits = len(shape) > dim and shape[dim] >= self.count
        if fits and tokens and is_float:
            fits = any(abs(shape[dim] - length) <= 1 for length in tokens)
        axes = (even_axis(dim, shape[dim], self.count),) if fits else ()
        return SlicedValue(axes, free=True)

    def _value(self, atom: Any) -> SlicedValue:
        """What is known of an atom."""
        if not is_var(atom):
            return SlicedValue(free=True)
        found = self.values.get(atom)
        if found is None:
            # From outside of the loop: keys and numbers may be used by any slice, as the batch; parameters too, but
            # what is made of them is worth cutting.
            is_float = jnp.issubdtype(atom.aval.dtype, jnp.floating)
            found = SlicedValue(free=self.constants.find(atom) is not None or not is_float)
            self.values[atom] = found
        return found

    def _learn(self, op: Op) -> None:
        self.opened.append(op)
        ins = tuple(self._value(atom) for atom in op.eqn.invars)
        if all(value.free for value in ins):
            self.constants.add([op.eqn])
        late = op.backward or any(value.late for value in ins)
        constants = tuple(self.constants.find(atom) for atom in op.eqn.invars)
        known = tuple(self.constants.find_partly(atom) for atom in op.eqn.invars)
        eqn = SlicedEquation(op.eqn, ins, constants, known, late, self.count, self.has_backward)
        if op.eqn.effects:
            raise self._refused(op, NotSliceableError("has an effect, which would happen once for each slice"))
        is_known = all(self.constants.find(var) is not None for var in op.writes())
        rule = None
        if not is_known:
            try:
                rule = apply_rule(eqn)
            except NotSliceableError as error:
                if not all(value.free for value in ins):
                    raise self._refused(op, error) from None
        if rule is None:
            value = SlicedValue(suggested(eqn), whole=True, free=True, late=late)
            rule = Application(value, [[] for _ in ins])
        if is_known:
            rule = replace(rule, out=rule.out.but(axes=()), checks=())
        if late and not rule.suffix and all(value.again or not value.late for value in ins):
            rule = replace(rule, out=rule.out.but(again=True))
        self.axes_seen.extend(rule.out.hard_axes[:1])
        if rule.out.again:
            # The forward pass has looked at it, and where the backward pass did, it would be made too early.
            rule = replace(rule, checks=())
        made = _Known(op, rule, late, len(self.wrong))
        for check in rule.checks:
            self.has_row_checks |= check.operand is None
            if check.pairs and self._range(op.eqn.invars[check.operand or 0], {}) is None:
                raise self._refused(op, NotSliceableError(f"makes a mask of a number, and {_NOT_BOUND}"))
            self.wrong.append(
                f"microbatch: slices={self.count} differs from the whole sequence{self._line(op)}: {check.words}."
            )
        for var in op.writes():
            self.values[var] = rule.out
            self.maker[var] = made

    def _refused(self, op: Op, error: NotSliceableError) -> ValueError:
        origin = next(
            (value.origin for atom in op.eqn.invars if (value := self._value(atom)).partial and value.origin), None
        )
        where = self._line(op)
        reason = str(error)
        if origin is not None and at_line(origin) not in ("", where):
            reason += f", which is added up{at_line(origin)}"
        label = op.eqn.primitive.name
        return ValueError(f"microbatch: slices={self.count} cannot be kept{where}: `{label}` {reason}. {ADVICE}")

    def _line(self, op: Op) -> str:
        return next((line for eqn in (op.eqn, *op.callers) if (line := at_line(eqn))), "")

    # What is emitted.

    def _sliced(self) -> Step:
        numbers = range(self.count)
        for order, late in ((numbers, False), (reversed(numbers), True)):
            for number in order:
                self.running = number if late else 0
                for op in self.opened:
                    var = next(iter(op.writes()), None)
                    if var is None or self.maker[var].late is not late:
                        continue
                    value = self.values[var]
                    if len(value.axes) == 2 and not value.free:
                        # Its readers say which of its dimensions are rows.
                        continue
                    if value.is_whole:
                        self._whole(var, number)
                    else:
                        self._own(var, number)
                self._count_found()
        sums: list[tuple[Var, Var]] = []
        for total, result in self.region.sums:
            value = self._value(result)
            maker = self.maker.get(result)
            like = Op(None, None, value.late) if maker is None else maker.op
            for number in numbers:
                if value.is_whole:
                    if number == 0:
                        sums.append((total, self._as_var(self._whole(result, number), like, number)))
                    continue
                found = self._own(result, number) if value.partial else self._spread(result, number, like)
                sums.append((total, self._as_var(found, like, number)))
        loop = replace(self.loop, proof=(*self.loop.proof, self._said()))
        region = Region(
            tuple(self.ops),
            loop,
            dict(self.pieces),
            tuple(sums),
            tuple(range(self.count)) * self.loop.count,
            self.count,
        )
        whole = replace(self.whole_step, constants=self.constants_of_step)
        if not self.counts:
            return whole.with_region(self.index, region)
        total = _compat.new_var(self.counts[0].aval)
        region = replace(region, sums=(*region.sums, *((total, count) for count in self.counts)))
        return _with_premise(whole.with_region(self.index, region), self.index, total, self.wrong)

    def _said(self) -> str:
        length = self.axes_seen[0].length
        return (
            f"each microbatch in {self.count} slices of its {length} positions; what slices compute is proved to be "
            "what the microbatch computes"
        )

    def _as_var(self, atom: Any, like: Op, number: int) -> Var:
        """A variable that stands for one result only, as each is added up by itself."""
        var: Var
        if is_var(atom) and atom not in self.pieces and self._done.setdefault(("summed", atom), like) is like:
            var = atom
            return var
        var = _compat.new_var(atom.aval)
        self._emit(like, _compat.copy_eqn(atom, var), number, like.backward)
        return var

    def _emit(self, like: Op, eqn: Any, number: int, late: bool) -> None:
        if like.eqn is not None:
            eqn = eqn.replace(source_info=like.eqn.source_info)
        # What is made again of slices before this one, it makes for them.
        variant = max(number, self.running) if late else number
        self.ops.append(replace(like, eqn=eqn, backward=late, variant=variant))

    def _made(self, function: Callable[..., Any], operands: Sequence[Any], like: Op, number: int, late: bool) -> Var:
        """The result of a function, whose equations are emitted."""
        out, eqns = trace_equations(function, operands)
        for eqn in eqns:
            self._emit(like, eqn, number, late)
        return out

    def _whole(self, atom: Any, number: int) -> Any:
        """All of a value, computed by slice `number`."""
        if not is_var(atom):
            return atom
        key = ("whole", atom, number)
        if key in self._done:
            return self._done[key]
        if atom in self.region.slices:
            var = _compat.new_var(atom.aval)
            self.pieces[var] = self.region.slices[atom]
            self._done[key] = var
            return var
        known = self.maker.get(atom)
        if known is None:
            return atom
        ins = [self._whole(each, number) for each in known.op.eqn.invars]
        outs = []
        for var in known.op.eqn.outvars:
            if is_var(var):
                fresh = self._done["whole", var, number] = _compat.new_var(var.aval)
                outs.append(fresh)
            else:
                outs.append(var)
        self._emit(known.op, known.op.eqn.replace(invars=ins, outvars=outs), number, known.late)
        return self._done[key]

    def _own(self, atom: Any, number: int) -> Any:
        """A slice's part of a value, or its addend."""
        value = self._value(atom)
        if value.is_whole:
            return self._cut(self._whole(atom, number), tuple((axis, "own") for axis in value.axes), atom, number)
        if atom in self.region.slices:
            return self._read(atom, tuple((axis, "own") for axis in value.axes), number, None, False)
        key = ("own", atom, number)
        if key not in self._done:
            known = self.maker[atom]
            if known.rule.suffix:
                self._suffix(known, number)
            else:
                modes = dict.fromkeys(range(len(value.axes)), "own")
                self._apply(known, number, modes, "own")
        return self._done[key]

    def _pair(self, atom: Any, number: int, row: SequenceAxis, column: SequenceAxis) -> Any:
        """A slice's rows of a value, and the columns up to its end."""
        key = (("pair", row.dim, column.dim), atom, number)
        if key not in self._done:
            known = self.maker[atom]
            modes = {k: "own" if axis.dim == row.dim else "upto" for k, axis in enumerate(known.rule.out.axes)}
            self._apply(known, number, modes, key[0])
        return self._done[key]

    def _apply(self, known: _Known, number: int, modes: dict[int, str], form: Any) -> list[Any]:
        op, rule = known.op, known.rule
        atoms = []
        for k, atom in enumerate(op.eqn.invars):
            if self._value(atom).partial:
                atoms.append(self._own(atom, number))
            elif k in rule.once and number:
                atoms.append(self._zeros(atom, op, number, known.late))
            elif k in rule.spread:
                atoms.append(self._spread(atom, number, op))
            else:
                atoms.append(self._read(atom, rule.wants(k, modes), number, known, known.late))
        outs: list[Any] = []
        fresh_outs: list[Any] = []
        try:
            sizes = {axis.dim: axis.size(number, modes[k]) for k, axis in enumerate(rule.out.axes)}
        except NotSliceableError as error:
            raise self._refused(op, error) from None
        for var in op.eqn.outvars:
            shape = [sizes.get(dim, size) for dim, size in enumerate(var.aval.shape)]
            fresh = _compat.new_var(var.aval.update(shape=tuple(shape)))
            fresh_outs.append(fresh)
            if is_var(var):
                outs.append(fresh)
                self._done[form, var, number] = fresh
        try:
            params = adapted_params(op.eqn, atoms, [var.aval.shape for var in fresh_outs], rule, number, modes)
        except NotSliceableError as error:
            raise self._refused(op, error) from None
        outvars = [new if is_var(old) else old for old, new in zip(op.eqn.outvars, fresh_outs, strict=True)]
        checks = list(enumerate(rule.checks, known.first_check))
        for which, check in checks:
            if check.operand is not None and not check.pairs:
                # What is read up to a slice's end, the last slice reads to the last entry.
                upto = any(mode == "upto" for _, mode in rule.wants(check.operand, modes))
                if not upto or number + 1 == self.count:
                    atoms[check.operand] = self._checked(which, check, atoms[check.operand], op, number, known.late)
        self._emit(op, op.eqn.replace(invars=atoms, outvars=outvars, params=params), number, known.late)
        for which, check in checks:
            # The last slice reads whole rows.
            if check.operand is None and number + 1 < self.count:
                outs = [self._checked(which, check, var, op, number, known.late) for var in outs]
            elif check.pairs and not known.late:
                self._check_pairs(which, check, op, number)
            if (check.operand is None or not self.has_row_checks) and not known.late:
                for wrong in self.doubtful.pop(number, ()):
                    outs = [self._no_number_if(wrong, var, op, number) for var in outs]
        for var, new in zip(op.writes(), outs, strict=True):
            self._done[form, var, number] = new
        return outs

    # What is looked at when the step runs. Where it is not as it must be, results become no numbers.

    def _checked(self, which: int, check: Check, atom: Any, op: Op, number: int, late: bool) -> Any:
        def is_wrong(x: Any) -> Any:
            if check.form == "finite":
                return ~jnp.isfinite(x)
            wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
            if check.form == "below":
                return wide > check.limit
            return (1 / wide if check.form == "inverse" else wide) < check.limit

        # A sum over devices may wait for the end of the loop.
        wrong = self._made(lambda x: is_wrong(x).astype(jnp.float32).sum(), [atom], op, number, late)
        self.found.append((which, wrong, op, number, late))
        if check.form == "finite" or not jnp.issubdtype(atom.aval.dtype, jnp.floating):
            return atom
        return self._made(
            lambda x: jax.lax.select(is_wrong(x), jax.lax.full_like(x, np.nan), x), [atom], op, number, late
        )

    def _check_pairs(self, which: int, check: Check, op: Op, number: int) -> None:
        leaves: dict[tuple[Any, bool], int] = {}
        found = self._range(op.eqn.invars[check.operand or 0], leaves)
        assert found is not None
        wide = jnp.promote_types(op.eqn.outvars[0].aval.dtype, jnp.float32)

        def is_wrong(*each: Any) -> Any:
            low, high = found([(ends[0].astype(wide), ends[1].astype(wide)) for ends in each])
            is_right = jnp.asarray(high) <= check.limit if check.form == "below" else jnp.asarray(low) >= check.limit
            # What is infinite, or no number, is so without slices too.
            return functools.reduce(jnp.logical_and, [jnp.isfinite(ends[1]) for ends in each], ~is_right)

        ranges = [self._ends(leaf, number, op, inverse=inverse) for leaf, inverse in leaves]
        wrong = self._made(lambda *each: is_wrong(*each).astype(jnp.float32), ranges, op, number, False)
        self.found.append((which, wrong, op, number, False))
        # There are many pairs: it is the largest of a row that becomes no number.
        self.doubtful.setdefault(number, []).append(wrong)

    def _no_number_if(self, wrong: Var, result: Any, op: Op, number: int) -> Any:
        def chosen(bad: Any, x: Any) -> Any:
            return jax.lax.select(jax.lax.broadcast(bad > 0, x.shape), jax.lax.full_like(x, np.nan), x)

        return self._made(chosen, [wrong, result], op, number, False)

    def _range(self, atom: Any, leaves: dict[tuple[Any, bool], int], *, inverse: bool = False) -> _RangeOf | None:
        """The range of a value as a function of the ranges of `leaves`; None if that is not known.

        Pairs of positions that a mask hides are computed by no slice, but what they are made of is.
        """
        array = self.constants.find(atom)
        if array is not None:
            once = once_each(array, ())
            with np.errstate(divide="ignore"):
                ends = 1 / once if inverse else once
            least, most = float(ends.min()), float(ends.max())
            return lambda _: (least, most)
        if not is_var(atom) or len(self._value(atom).axes) < 2 or self._value(atom).free:
            index = leaves.setdefault((atom, inverse), len(leaves))
            return lambda ranges: ranges[index]
        eqn = self.maker[atom].op.eqn
        name = "copy" if is_constraint(eqn.primitive.name) else eqn.primitive.name
        if name not in RANGES or inverse:
            return None
        operands = [self._range(each, leaves, inverse=name == "div" and k == 1) for k, each in enumerate(eqn.invars)]
        if None in operands:
            return None
        return lambda ranges: RANGES[name](eqn, *[operand(ranges) for operand in operands if operand is not None])

    def _ends(self, atom: Any, number: int, like: Op, *, inverse: bool) -> Var:
        """The least and the largest entry of what slices up to this one have of a value, or of its inverse."""
        key = ("ends", atom, number, inverse)
        if key not in self._done:
            value = self._value(atom)
            is_whole = value.is_whole or value.free
            own = self._whole(atom, number) if is_whole else self._own(atom, number)
            before = [] if number == 0 or is_whole else [self._ends(atom, number - 1, like, inverse=inverse)]

            def ends(x: Any, *before: Any) -> Any:
                x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
                x = 1 / x if inverse else x
                low, high = x.min(), x.max()
                for each in before:
                    low, high = jnp.minimum(low, each[0]), jnp.maximum(high, each[1])
                return jnp.stack([low, high])

            self._done[key] = self._made(ends, [own, *before], like, number, False)
        found: Var = self._done[key]
        return found

    def _count_found(self) -> None:
        """Add up what checks of a slice have found: a number for each, in one array for each task."""
        groups: dict[Any, list[tuple[int, Var, Op, int, bool]]] = {}
        for each in self.found:
            _, _, op, number, late = each
            groups.setdefault((op.task, op.backward, number, late), []).append(each)
        self.found = []
        for group in groups.values():
            _, _, op, number, late = group[0]
            which = [each[0] for each in group]

            def counted(*found: Any, which: Sequence[int] = which) -> Any:
                last = len(self.wrong) - 1
                zero = np.float32(0)
                each = [jax.lax.pad(x[None], zero, [(k, last - k, 0)]) for k, x in zip(which, found, strict=True)]
                return functools.reduce(jnp.add, each)

            self.counts.append(self._made(counted, [each[1] for each in group], op, number, late))

    def _suffix(self, known: _Known, number: int) -> None:
        """What a slice and the slices behind it contribute to the slice's own positions."""
        (axis,) = known.rule.out.axes
        (var,) = known.op.writes()
        for each in range(self.count - 1, number - 1, -1):
            key = ("sum", var, each)
            if key in self._done:
                continue
            (given,) = self._apply(known, each, {0: "upto"}, "given")
            if each + 1 < self.count:
                behind = self._done["sum", var, each + 1]
                behind = self._slice_of(behind, axis.dim, 0, axis.bounds[each + 1], known.op, each, True)
                total = _compat.new_var(given.aval)
                self._emit(known.op, _compat.add_eqn(given, behind, total), each, True)
                given = total
            self._done[key] = given
        own = self._slice_of(
            self._done["sum", var, number],
            axis.dim,
            axis.bounds[number],
            axis.bounds[number + 1],
            known.op,
            number,
            True,
        )
        self._done["own", var, number] = own

    def _read(self, atom: Any, wants: Wants, number: int, reader: _Known | None, late: bool) -> Any:
        """Positions of an operand, for slice `number`."""
        if not is_var(atom) or (not wants and self._value(atom).is_whole):
            return self._whole(atom, number)
        value = self._value(atom)
        known = self.maker.get(atom)
        like = known.op if reader is None and known is not None else reader.op if reader is not None else None
        asked = {axis.dim: (axis, mode) for axis, mode in wants}
        axes = value.axes
        matches = all(axis.dim in asked and asked[axis.dim][0] == axis for axis in axes)
        is_own = matches and len(axes) == 1 and asked[axes[0].dim][1] == "own"
        if value.is_whole or atom in self.region.slices or (value.free and not is_own):
            return self._cut(self._whole(atom, number), wants, atom, number, like, late)
        if not matches:
            assert reader is not None
            raise self._refused(reader.op, NotSliceableError("reads positions of several slices at once"))
        if is_own:
            found = self._own(atom, number)
        elif len(axes) == 1:
            found = self._upto(atom, axes[0], number, reader, late)
        else:
            rows = [axis for axis in axes if asked[axis.dim][1] == "own"]
            columns = [axis for axis in axes if asked[axis.dim][1] == "upto"]
            if len(rows) != 1 or len(columns) != 1:
                assert reader is not None
                raise self._refused(reader.op, NotSliceableError("reads pairs of positions at one position"))
            found = self._pair(atom, number, rows[0], columns[0])
        rest = tuple((axis, mode) for axis, mode in wants if value.axis(axis.dim) is None)
        return self._cut(found, rest, atom, number, like, late)

    def _upto(self, atom: Any, axis: SequenceAxis, number: int, reader: _Known | None, late: bool) -> Any:
        """A value at all positions up to the end of a slice."""
        known = self.maker[atom]
        assert reader is not None
        if known.late and number and not self._value(atom).again:
            raise self._refused(
                reader.op,
                NotSliceableError(
                    "reads positions before it that the backward pass computes, whose slices run from the last to the "
                    "first"
                ),
            )
        if not axis.is_plain:
            raise self._refused(reader.op, NotSliceableError("reads positions that are not next to each other"))
        if number == 0:
            return self._own(atom, 0)
        key = ("upto", atom, number, late)
        if key not in self._done:
            parts = [self._own(atom, each) for each in range(number + 1)]
            self._done[key] = self._made(
                lambda *each: jax.lax.concatenate(each, axis.dim), parts, reader.op, number, late
            )
        return self._done[key]

    def _cut(
        self, found: Any, wants: Wants, atom: Any, number: int, like: Op | None = None, late: bool | None = None
    ) -> Any:
        """Positions of what is there whole along the wanted axes."""
        if not wants:
            return found
        known = self.maker.get(atom)
        if like is None:
            like = known.op if known is not None else Op(None)
        late = (known.late if known is not None else False) if late is None else late
        key = ("cut", found, number, wants, late)
        if key in self._done:
            return self._done[key]
        result = found
        for axis, mode in wants:
            if axis.is_joined:
                result = self._cut_joined(result, axis, mode, like, number, late)
                continue
            start = axis.bounds[number] if mode == "own" else 0
            end = axis.bounds[number + 1]
            if (start, end) == (0, axis.length):
                continue
            if axis.is_plain:
                result = self._slice_of(result, axis.dim, start, end, like, number, late)
                continue
            # As (runs, positions, entries).
            shape = list(result.aval.shape)
            opened = [*shape[: axis.dim], axis.outer, axis.length, axis.inner, *shape[axis.dim + 1 :]]
            result = self._reshaped(result, opened, like, number, late)
            result = self._slice_of(result, axis.dim + 1, start, end, like, number, late)
            shape[axis.dim] = axis.outer * (end - start) * axis.inner
            result = self._reshaped(result, shape, like, number, late)
        self._done[key] = result
        return result

    def _cut_joined(self, found: Any, axis: SequenceAxis, mode: str, like: Op, number: int, late: bool) -> Any:
        """Positions up to a slice's end, and what is joined to them."""
        size = found.aval.shape[axis.dim]
        try:
            end = axis.size(number, mode) - axis.tail
        except NotSliceableError as error:
            raise self._refused(like, error) from None
        before = self._slice_of(found, axis.dim, 0, end, like, number, late)
        if not axis.tail:
            return before
        behind = self._slice_of(found, axis.dim, size - axis.tail, size, like, number, late)
        return self._made(lambda *each: jax.lax.concatenate(each, axis.dim), [before, behind], like, number, late)

    def _slice_of(self, atom: Any, dim: int, start: int, end: int, like: Op, number: int, late: bool) -> Any:
        if (start, end) == (0, atom.aval.shape[dim]):
            return atom
        return self._made(lambda x: jax.lax.slice_in_dim(x, start, end, axis=dim), [atom], like, number, late)

    def _reshaped(self, atom: Any, shape: Sequence[int], like: Op, number: int, late: bool) -> Any:
        return self._made(lambda x: jax.lax.reshape(x, tuple(shape)), [atom], like, number, late)

    def _zeros(self, atom: Any, like: Op, number: int, late: bool) -> Any:
        aval = atom.aval
        key = ("zeros", aval.shape, aval.dtype, number, late, like.task)
        if key not in self._done:
            self._done[key] = self._made(lambda: jnp.zeros(aval.shape, aval.dtype), [], like, number, late)
        return self._done[key]

    def _spread(self, atom: Any, number: int, like: Op) -> Any:
        """A slice's part among zeros, as an addend of the whole value."""
        value = self._value(atom)
        known = self.maker.get(atom)
        if len(value.axes) != 1:
            assert known is not None
            raise self._refused(known.op, NotSliceableError("gives pairs of positions as a result"))
        key = ("spread", atom, number)
        if key not in self._done:
            (axis,) = value.axes
            own = self._own(atom, number)
            late = value.late
            shape = list(own.aval.shape)
            full = tuple(atom.aval.shape)
            if not axis.is_plain:
                shape = [*shape[: axis.dim], axis.outer, -1, axis.inner, *shape[axis.dim + 1 :]]
                shape[axis.dim + 1] = axis.bounds[number + 1] - axis.bounds[number]
                own = self._reshaped(own, shape, like, number, late)
            dim = axis.dim + (not axis.is_plain)
            config = [(0, 0, 0)] * len(shape)
            config[dim] = (axis.bounds[number], axis.length - axis.bounds[number + 1], 0)
            zero = np.zeros((), own.aval.dtype)
            found = self._made(lambda x: jax.lax.pad(x, zero, config), [own], like, number, late)
            if not axis.is_plain:
                found = self._reshaped(found, full, like, number, late)
            self._done[key] = found
        return self._done[key]
