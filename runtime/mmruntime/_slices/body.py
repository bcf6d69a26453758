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
from mmruntime._jaxpr.inline import inlined
from mmruntime._jaxpr.ir import Op, Region, Step, at_line
from mmruntime._jaxpr.trace_equations import trace_equations
from mmruntime._slices.constants import Constants
from mmruntime._slices.parameters import adapted_params
from mmruntime._slices.peaks import Peaks
from mmruntime._slices.ratios import Ratios
from mmruntime._slices.reach import reach_of_constant, shows, span_of_input
from mmruntime._slices.rules import ADVICE, Application, SlicedEquation, apply_rule, suggested
from mmruntime._slices.turns import turn_of_constant
from mmruntime._slices.values import ANYTHING, NotSliceableError, SequenceAxis, SlicedValue, even_axis

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


def _with_reach(eqn: SlicedEquation, out: SlicedValue) -> SlicedValue:
    """A result with its reach, which is plain if nothing in it hides an entry."""
    reach = eqn.reach
    if eqn.name == "reduce_max" and out.plain and not eqn.ins[0].plain:
        # Of a row that sees something, the largest entry is one that is not hidden.
        least = eqn.ins[0].least
        reach = max(reach[0], least), max(reach[1], least)
    plain = out.plain and shows(reach)
    return out.but(
        reach=reach,
        plain=plain,
        span=eqn.span,
        learned=eqn.learned,
        weights=eqn.weights,
        turn=eqn.turn,
        pole=None if plain else eqn.pole,
        low=None if plain else eqn.low,
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
        self.ratios = Ratios(self.constants)
        self.peaks = Peaks(self.constants)
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
        body = None
        if eqn.primitive is _compat.jit_p or eqn.primitive is _compat.remat_p:
            body = eqn.params["jaxpr"]
        elif name in (
            "closed_call",
            "core_call",
            "eval_jaxpr",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vjp_call_jaxpr",
        ):
            body = next((eqn.params[key] for key in ("call_jaxpr", "fun_jaxpr", "jaxpr") if key in eqn.params), None)
        elif name == "scan" and self._is_of_layers(eqn):
            yield from self._turns(op)
            return
        elif name == "split" and (joined := self._value(eqn.invars[0]).axis(eqn.params["axis"])) and joined.is_joined:
            yield from self._parts(op)
            return
        if body is None:
            for atom in eqn.invars:
                yield from self._stack(atom)
            yield op
            return
        inner, captured = self._body(body)
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
        span = span_of_input(piece.aval.dtype)
        return SlicedValue(axes, free=True, plain=not is_float, whole=False, span=span)

    def _value(self, atom: Any) -> SlicedValue:
        """What is known of an atom."""
        if not is_var(atom):
            return self._of_constant(atom)
        found = self.values.get(atom)
        if found is None:
            # From outside of the loop: keys and numbers may be used by any slice, as the batch; parameters too, but
            # what is made of them is worth cutting.
            is_float = jnp.issubdtype(atom.aval.dtype, jnp.floating)
            known = self.constants.find(atom) is not None
            span = span_of_input(atom.aval.dtype)
            found = (
                self._of_constant(atom)
                if known
                else SlicedValue(free=not is_float, learned=is_float, weights=is_float, span=span)
            )
            self.values[atom] = found
        return found

    def _of_constant(self, atom: Any) -> SlicedValue:
        """What is known of an atom that is a number, or known to the last entry."""
        array = self.constants.find(atom)
        reach = ANYTHING if array is None else reach_of_constant(array)
        turn = None if array is None else turn_of_constant(array)
        return SlicedValue(free=True, plain=shows(reach), reach=reach, span=reach, turn=turn)

    def _learn(self, op: Op) -> None:
        self.opened.append(op)
        ins = tuple(self._value(atom) for atom in op.eqn.invars)
        if all(value.free for value in ins):
            self.constants.add([op.eqn])
        self.constants.follow(op.eqn)
        late = op.backward or any(value.late for value in ins)
        constants = tuple(self.constants.find(atom) for atom in op.eqn.invars)
        known = tuple(self.constants.find_partly(atom) for atom in op.eqn.invars)
        ratio = self.ratios.reach(op.eqn, ins)
        least = 0.0 if self.ratios.is_variance(op.eqn) else self.peaks.least(op.eqn, ins)
        most = self.peaks.most(op.eqn)
        eqn = SlicedEquation(op.eqn, ins, constants, known, late, self.count, ratio, least, most)
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
            value = SlicedValue(suggested(eqn), whole=True, free=True, late=late, plain=all(v.plain for v in ins))
            rule = Application(value, [[] for _ in ins])
        if is_known:
            found = self._of_constant(op.eqn.outvars[0])
            out = rule.out.but(axes=(), plain=found.plain, reach=found.reach, span=found.span, turn=found.turn)
            rule = replace(rule, out=out)
        else:
            rule = replace(rule, out=_with_reach(eqn, rule.out))
        if late and not rule.suffix and all(value.again or not value.late for value in ins):
            rule = replace(rule, out=rule.out.but(again=True))
        self.ratios.learn(op.eqn, ins, rule.out)
        self.peaks.learn(op.eqn, ins, rule.out)
        self.axes_seen.extend(rule.out.hard_axes[:1])
        made = _Known(op, rule, late)
        for var in op.writes():
            self.values[var] = rule.out
            self.maker[var] = made

    def _refused(self, op: Op, error: NotSliceableError) -> ValueError:
        origin = next(
            (value.origin for atom in op.eqn.invars if (value := self._value(atom)).partial and value.origin), None
        )
        where = next((line for eqn in (op.eqn, *op.callers) if (line := at_line(eqn))), "")
        reason = str(error)
        if origin is not None and at_line(origin) not in ("", where):
            reason += f", which is added up{at_line(origin)}"
        label = op.eqn.primitive.name
        return ValueError(f"microbatch: slices={self.count} cannot be kept{where}: `{label}` {reason}. {ADVICE}")

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
        return whole.with_region(self.index, region)

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
        self._emit(op, op.eqn.replace(invars=atoms, outvars=outvars, params=params), number, known.late)
        return outs

    def _suffix(self, known: _Known, number: int) -> None:
        """What a slice and those behind it give to the slice's own positions."""
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
