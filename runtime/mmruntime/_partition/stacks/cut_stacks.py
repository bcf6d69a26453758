"""Cut stacks: a step on arrays of all layers becomes one on each stage's part of them.

    w = w - lr * g            ->  w0 = w0 - lr * g0;  w1 = w1 - lr * g1
    n = sum(g * g)            ->  n = sum(g0 * g0) + sum(g1 * g1)
    g = pad(a) + pad(b)       ->  g0 = a;  g1 = b

Parts are inputs and results of the step of their own, so that every later pass sees nothing but ordinary arrays: the
parameters and the optimizer state of a stage live there, and its update runs there. What no rule covers works on the
whole stack, put together from its parts, as it would without stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.task import Task
from mmruntime._jaxpr.ir import Op, Region, Step
from mmruntime._jaxpr.primitives import Factor
from mmruntime._jaxpr.rewrite import fresh, opened, trace_equations
from mmruntime._partition.stacks.find_stacks import (
    READS_LAYERS,
    StackCut,
    StackCuts,
    WholeStack,
    find_stacks,
    local_params,
    ties,
)
from mmruntime._partition.tracing.trace import remove_dead_code

T = TypeVar("T")

# Reductions whose results on parts are put together by another operation.
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": jax.lax.add,
    "reduce_prod": jax.lax.mul,
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
    "reduce_xor": jax.lax.bitwise_xor,
}


@dataclass(frozen=True)
class BorderValue:
    """An argument or a result of a step, as its caller sees it.

    Attributes:
        position: Its position among those of the step; that of its first part if it is cut.
        cut: How it is cut; None for a value that is passed as it is.
        shape: The shape of the whole.
    """

    position: int
    cut: StackCut | None
    shape: tuple[int, ...]

    @property
    def positions(self) -> range:
        """The positions of its parts, or its own."""
        return range(self.position, self.position + (1 if self.cut is None else self.cut.count))


@dataclass(frozen=True)
class Stacks:
    """How arguments and results of the original step are made up of those of the step with cut stacks.

    Attributes:
        inputs: The arguments.
        outputs: The results.
        whole: Stacks that could not be cut.
    """

    inputs: tuple[BorderValue, ...]
    outputs: tuple[BorderValue, ...]
    whole: tuple[WholeStack, ...] = ()

    @property
    def any(self) -> bool:
        """Whether an argument or a result is cut."""
        return any(value.cut is not None for value in (*self.inputs, *self.outputs))

    def of_inputs(self, values: Sequence[T]) -> list[T]:
        """What holds for each argument, once for each part of it."""
        return [value for each, value in zip(self.inputs, values, strict=True) for _ in each.positions]

    def of_parts(self, values: Mapping[int, T]) -> dict[int, T]:
        """What holds for some arguments by their position, by the positions of their parts."""
        return {part: value for position, value in values.items() for part in self.inputs[position].positions}

    def left_whole(self, positions: Collection[int]) -> Stacks:
        """These stacks, with the given arguments marked as not cut."""
        more = (WholeStack(tuple(sorted(positions)), (), "", ""),) if positions else ()
        return replace(self, whole=(*self.whole, *more))

    def part_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The user's names for the inputs; of a part, as Python would select it."""
        found = []
        for each, name in zip(self.inputs, names, strict=True):
            if each.cut is None:
                found.append(name)
                continue
            size, before = each.cut.size(each.shape), ":, " * each.cut.dim
            found += [f"{name}[{before}{k * size}:{(k + 1) * size}]" for k in range(each.cut.count)]
        return tuple(found)


def uncut(step: Step) -> Stacks:
    """The border of a step without stacks."""
    return Stacks(_border(step.invars, {}), _border(step.outvars, {}))


def cut_stacks(
    step: Step, multimesh: MultiMesh, leave: Collection[int] = (), names: Sequence[str] = ()
) -> tuple[Step, Stacks]:
    """Cut the stacks of a step.

    Args:
        step: The step.
        multimesh: The mesh that it is compiled for.
        leave: Positions of inputs that stay whole.
        names: The user's names for the inputs; see `find_stacks`.
    """
    if not any(op.task is None and op.eqn.primitive.name == READS_LAYERS for op in step.ops()):
        return step, uncut(step)
    found = find_stacks(step, multimesh, names)
    if not found.of:
        return step, replace(uncut(step), whole=found.whole)
    step = _with_open_conditionals(step)
    # The cuts of what is inside conditionals are known for their new variables only.
    found = find_stacks(step, multimesh, names)
    return _StackCutter(step, found, leave).run()


@dataclass(frozen=True)
class _Parts:
    """A value in parts. A part that is None is zero."""

    cut: StackCut
    atoms: tuple[Atom | None, ...]


class _Cutter:
    """Writes equations on parts in the place of those on stacks."""

    def __init__(self, cuts: StackCuts) -> None:
        self.cuts = cuts
        self.parts: dict[Var, _Parts] = {}
        # Variables that are another one, such as a layer's slice that is a whole part.
        self.names: dict[Var, Atom] = {}
        self.ops: list[Op] = []
        # Stacks put together and values cut, where they are read so; for the current region.
        self._joined: dict[Var, Atom] = {}
        self._sliced: dict[tuple[Atom, StackCut], _Parts] = {}

    def begin(self) -> None:
        """Begin a region, where values of other regions' own are not to be read."""
        self.ops = []
        self._joined = {}
        self._sliced = {}

    def write(self, op: Op) -> None:
        """Append an equation, or those on parts that it becomes."""
        eqn = op.eqn.replace(invars=[self._named(atom) for atom in op.eqn.invars])
        op = op.with_eqn(eqn)
        cut = any(is_var(atom) and atom in self.parts for atom in eqn.invars) or any(
            is_var(var) and var in self.cuts.of for var in eqn.outvars
        )
        if op.task is None and cut:
            rules = (self._conditional, self._slice, self._pad, self._concatenate, self._reduce, self._tied)
            if any(rule(op) for rule in rules):
                return
        self.ops.append(op.with_eqn(eqn.replace(invars=[self.whole(atom, op) for atom in eqn.invars])))

    def whole(self, atom: Atom, like: Op | None) -> Atom:
        """A value in one piece."""
        atom = self._named(atom)
        if not is_var(atom) or atom not in self.parts:
            return atom
        if atom not in self._joined:
            parts = self.parts[atom]
            dim = parts.cut.dim
            self._joined[atom] = self._emit(
                lambda *pieces: jax.lax.concatenate(pieces, dim), self._dense(parts, atom.aval, like), like
            )
        return self._joined[atom]

    def cut(self, atom: Atom, cut: StackCut, like: Op | None) -> tuple[Atom | None, ...]:
        """The parts of a value."""
        atom = self._named(atom)
        if is_var(atom) and atom in self.parts and self.parts[atom].cut == cut:
            return self.parts[atom].atoms
        if (atom, cut) not in self._sliced:
            whole, size = self.whole(atom, like), cut.size(atom.aval.shape)
            self._sliced[atom, cut] = _Parts(
                cut, tuple(self._section(whole, cut.dim, k * size, (k + 1) * size, like) for k in range(cut.count))
            )
        return self._sliced[atom, cut].atoms

    def dense(self, atom: Atom, cut: StackCut, like: Op | None) -> list[Atom]:
        """The parts of a value, with arrays in the place of symbolic zeros."""
        return self._dense(_Parts(cut, self.cut(atom, cut, like)), atom.aval, like)

    def _dense(self, parts: _Parts, aval: Any, like: Op | None) -> list[Atom]:
        shape = parts.cut.part_shape(aval.shape)
        return [
            self._emit(lambda: jnp.zeros(shape, aval.dtype), [], like) if atom is None else atom for atom in parts.atoms
        ]

    def _named(self, atom: Atom) -> Atom:
        return self.names.get(atom, atom) if is_var(atom) else atom

    def _section(self, atom: Atom, dim: int, low: int, high: int, like: Op | None) -> Atom:
        return self._emit(lambda value: jax.lax.slice_in_dim(value, low, high, axis=dim), [atom], like)

    def _emit(self, function: Callable[..., Any], operands: Sequence[Atom], like: Op | None) -> Var:
        """Append the equations of a function, and return the variable of its result."""
        out, eqns = trace_equations(function, operands)
        for eqn in eqns:
            if like is None:
                self.ops.append(Op(eqn))
            else:
                # The user's line, and not ours.
                own = eqn.replace(source_info=like.eqn.source_info)
                self.ops.append(replace(like, task=None).with_eqn(own))
        return out

    def bind(self, var: Var, cut: StackCut) -> list[Var]:
        """New variables for the parts of a value."""
        own = _new_parts(var, cut)
        self._set(var, cut, own)
        return own

    def _set(self, var: Var, cut: StackCut, atoms: Iterable[Atom | None]) -> bool:
        self.parts[var] = _Parts(cut, tuple(atoms))
        return True

    def _slice(self, op: Op) -> bool:
        """Layers of a stack, cut out of the part that has them."""
        eqn = op.eqn
        if eqn.primitive.name != "slice" or eqn.invars[0] not in self.parts:
            return False
        parts = self.parts[eqn.invars[0]]
        dim, size = parts.cut.dim, parts.cut.size(eqn.invars[0].aval.shape)
        starts, limits = (list(map(int, eqn.params[key])) for key in ("start_indices", "limit_indices"))
        index = starts[dim] // size
        if any(stride != 1 for stride in eqn.params["strides"] or ()) or limits[dim] > (index + 1) * size:
            return False
        atom = self._dense(parts, eqn.invars[0].aval, op)[index] if None in parts.atoms else parts.atoms[index]
        assert atom is not None
        if atom.aval.shape == eqn.outvars[0].aval.shape:
            self.names[eqn.outvars[0]] = atom
            return True
        starts[dim] -= index * size
        limits[dim] -= index * size
        params = {**eqn.params, "start_indices": tuple(starts), "limit_indices": tuple(limits)}
        self.ops.append(op.with_eqn(eqn.replace(invars=[atom], params=params)))
        return True

    def _pad(self, op: Op) -> bool:
        """The gradient of a slice: zero, but for the part that has these layers."""
        eqn = op.eqn
        if eqn.primitive.name != "pad" or eqn.invars[0] in self.parts or eqn.outvars[0] not in self.cuts.of:
            return False
        (operand, value), (out,) = eqn.invars, eqn.outvars
        cut = self.cuts.of[out]
        dim, size = cut.dim, cut.size(out.aval.shape)
        config = [tuple(map(int, each)) for each in eqn.params["padding_config"]]
        low, _, between = config[dim]
        high = low + operand.aval.shape[dim]
        index = max(low, 0) // size
        if is_var(value) or value.val != 0 or low < 0 or between or high > (index + 1) * size:
            return False
        config[dim] = (low - index * size, (index + 1) * size - high, 0)
        part: Atom = operand
        if any(map(any, config)):
            part = _compat.new_var(out.aval.update(shape=cut.part_shape(out.aval.shape)))
            self.ops.append(
                op.with_eqn(eqn.replace(outvars=[part], params={**eqn.params, "padding_config": tuple(config)}))
            )
        return self._set(out, cut, [part if k == index else None for k in range(cut.count)])

    def _concatenate(self, op: Op) -> bool:
        """A stack that is put together from layers: each part from its own."""
        eqn = op.eqn
        if eqn.primitive.name != "concatenate" or eqn.outvars[0] not in self.cuts.of:
            return False
        out = eqn.outvars[0]
        cut = self.cuts.of[out]
        if eqn.params["dimension"] != cut.dim:
            return False
        size, at = cut.size(out.aval.shape), 0
        members: list[list[Atom]] = [[] for _ in range(cut.count)]
        for atom in eqn.invars:
            end = at + atom.aval.shape[cut.dim]
            index = at // size
            if end > (index + 1) * size:
                return False
            members[index].append(self.whole(atom, op))
            at = end
        parts = []
        for atoms in members:
            part = atoms[0]
            if len(atoms) > 1:
                part = _compat.new_var(out.aval.update(shape=cut.part_shape(out.aval.shape)))
                self.ops.append(op.with_eqn(eqn.replace(invars=atoms, outvars=[part])))
            parts.append(part)
        return self._set(out, cut, parts)

    def _reduce(self, op: Op) -> bool:
        """A reduction over layers: of each part, then of the results."""
        eqn = op.eqn
        combine = _COMBINED.get(eqn.primitive.name)
        parts = self.parts.get(eqn.invars[0]) if combine is not None else None
        if combine is None or parts is None or parts.cut.dim not in eqn.params["axes"]:
            return False
        results: list[Atom] = []
        for atom in self._dense(parts, eqn.invars[0].aval, op):
            results.append(_compat.new_var(eqn.outvars[0].aval))
            self.ops.append(op.with_eqn(eqn.replace(invars=[atom], outvars=[results[-1]])))
        total = results[0]
        for each in results[1:]:
            total = self._emit(combine, [total, each], op)
        self.names[eqn.outvars[0]] = total
        return True

    def _tied(self, op: Op) -> bool:
        """An equation that computes each part of its results from the same parts of its operands."""
        eqn = op.eqn
        cut, tie = self._tie(eqn)
        if cut is None or tie is None:
            return False
        columns = {index: self.cut(eqn.invars[index], cut.along(dim), op) for index, dim in tie.ins.items()}
        results: list[list[Atom | None]] = [[] for _ in eqn.outvars]
        for k in range(cut.count):
            zero = {index for index, column in columns.items() if column[k] is None}
            if eqn.primitive.name in ("add", "add_any") and zero and len(columns) == 2:
                # The sum of two stages' gradients.
                results[0].append(next((column[k] for index, column in columns.items() if index not in zero), None))
                continue
            operands = [self.whole(atom, op) if index not in columns else atom for index, atom in enumerate(eqn.invars)]
            for index, dim in tie.ins.items():
                own = cut.along(dim)
                operands[index] = self._dense(_Parts(own, (columns[index][k],)), eqn.invars[index].aval, op)[0]
            outs = []
            for index, var in enumerate(eqn.outvars):
                shape = cut.along(tie.outs[index]).part_shape(var.aval.shape)
                outs.append(_compat.new_var(var.aval.update(shape=shape)))
                results[index].append(outs[-1])
            self.ops.append(
                op.with_eqn(eqn.replace(invars=operands, outvars=outs, params=local_params(eqn, tie, cut.count)))
            )
        for index, var in enumerate(eqn.outvars):
            self._set(var, cut.along(tie.outs[index]), results[index])
        return True

    def _tie(self, eqn: Any) -> tuple[StackCut | None, Factor | None]:
        """The tie along which an equation is cut: that of an operand in parts, else of a result that is wanted so."""
        found = [tie for tie in ties(eqn) if len(tie.outs) == len(eqn.outvars)]
        for index, atom in enumerate(eqn.invars):
            parts = self.parts.get(atom) if is_var(atom) else None
            for tie in found:
                if parts is not None and tie.ins.get(index) == parts.cut.dim:
                    return parts.cut, tie
        for index, var in enumerate(eqn.outvars):
            cut = self.cuts.of.get(var) if is_var(var) else None
            for tie in found:
                if cut is not None and tie.outs[index] == cut.dim:
                    return cut, tie
        return None, None

    def _conditional(self, op: Op) -> bool:
        """A conditional on stacks: one on their parts, which `take_apart` gives to the stages."""
        eqn = op.eqn
        if eqn.primitive is not _compat.cond_p:
            return False
        predicate, *operands = eqn.invars
        outs = [self.cuts.of.get(var) if is_var(var) else None for var in eqn.outvars]
        arguments: list[Atom] = []
        for atom in operands:
            parts = self.parts.get(atom) if is_var(atom) else None
            arguments += [atom] if parts is None else self.dense(atom, parts.cut, op)
        branches = []
        for branch in eqn.params["branches"]:
            jaxpr, _ = _compat.split(branch)
            inner = _Cutter(self.cuts)
            invars: list[Var] = []
            for var, atom in zip(jaxpr.invars, operands, strict=True):
                parts = self.parts.get(atom) if is_var(atom) else None
                if parts is None:
                    invars.append(var)
                    continue
                invars += inner.bind(var, parts.cut)
            for each in jaxpr.eqns:
                inner.write(op.with_eqn(each))
            results: list[Atom] = []
            for atom, cut in zip(jaxpr.outvars, outs, strict=True):
                results += [inner.whole(atom, op)] if cut is None else inner.dense(atom, cut, op)
            branches.append(_compat.close(jaxpr, invars, results, [each.eqn for each in inner.ops]))
        outvars: list[Var] = []
        for var, cut in zip(eqn.outvars, outs, strict=True):
            outvars += [var] if cut is None else self.bind(var, cut)
        self.ops.append(
            op.with_eqn(
                eqn.replace(
                    invars=[predicate, *arguments],
                    outvars=outvars,
                    params={**eqn.params, "branches": tuple(branches)},
                )
            )
        )
        return True


class _StackCutter:
    """Cuts the stacks of one step."""

    def __init__(self, step: Step, cuts: StackCuts, leave: Collection[int]) -> None:
        self.step = step
        self.cuts = cuts
        self.cutter = _Cutter(cuts)
        self.inputs = {
            position: cuts.of[var]
            for position, var in enumerate(step.invars)
            if var in cuts.of and position not in leave
        }

    def run(self) -> tuple[Step, Stacks]:
        """The step on parts, and what its caller's values have to do with them."""
        step, cutter = self.step, self.cutter
        invars: list[Var] = []
        for position, var in enumerate(step.invars):
            cut = self.inputs.get(position)
            invars += [var] if cut is None else cutter.bind(var, cut)
        regions: list[Region] = []
        for region in step.regions:
            cutter.begin()
            slices = {piece: cutter.whole(stacked, None) for piece, stacked in region.slices.items()}
            if cutter.ops:
                # What a loop takes slices of is put together before it.
                regions[-1] = replace(regions[-1], ops=(*regions[-1].ops, *cutter.ops))
            cutter.begin()
            for op in region.ops:
                cutter.write(op)
            sums = tuple(pair for total, result in region.sums for pair in self._sums(total, result))
            regions.append(replace(region, ops=tuple(cutter.ops), slices=slices, sums=sums))
        outvars, outputs = self._outputs()
        regions[-1] = replace(regions[-1], ops=tuple(cutter.ops))
        stacks = Stacks(_border(step.invars, self.inputs), _border(step.outvars, outputs), self.cuts.whole)
        carried = {
            first: second
            for position, result in step.carried.items()
            for first, second in zip(stacks.inputs[position].positions, stacks.outputs[result].positions, strict=True)
        }
        parts = replace(step, invars=tuple(invars), regions=tuple(regions), outvars=tuple(outvars), carried=carried)
        return remove_dead_code(parts), stacks

    def _sums(self, total: Var, result: Var) -> list[tuple[Var, Var]]:
        """The sums of a loop that one becomes: one for each part. Each adds up a variable of its own."""
        cutter = self.cutter
        if result not in cutter.parts:
            whole = cutter.whole(result, None)
            return [(total, result if whole is result else self._copy(whole, None))]
        cut = cutter.parts[result].cut
        dense = cutter.dense(result, cut, None)
        made = {var for op in cutter.ops for var in op.writes()}
        return [
            (own, self._copy(atom, None) if atom not in made or dense.count(atom) > 1 else atom)
            for own, atom in zip(cutter.bind(total, cut), dense, strict=True)
        ]

    def _outputs(self) -> tuple[list[Atom], dict[int, StackCut]]:
        """The results of the step, and which of its caller's results are cut."""
        outvars: list[Atom] = []
        cuts: dict[int, StackCut] = {}
        state = {result: position for position, result in self.step.carried.items()}
        for result, atom in enumerate(self.step.outvars):
            parts = self.cutter.parts.get(atom) if is_var(atom) else None
            cut = parts.cut if result not in state and parts is not None else self.inputs.get(state.get(result, -1))
            if cut is None:
                outvars.append(self.cutter.whole(atom, None))
                continue
            cuts[result] = cut
            dense = self.cutter.dense(atom, cut, None)
            if result not in state:
                # State comes to lie on its stage by itself; what is no state is sent there.
                dense = [self._copy(part, self.cuts.tasks[cut.axis, cut.stage(k)]) for k, part in enumerate(dense)]
            outvars += dense
        return outvars, cuts

    def _copy(self, atom: Atom, task: Task | None) -> Var:
        var = _compat.new_var(atom.aval)
        self.cutter.ops.append(Op(_compat.copy_eqn(atom, var), task))
        return var


def _new_parts(var: Var, cut: StackCut) -> list[Var]:
    aval = var.aval.update(shape=cut.part_shape(var.aval.shape))
    return [_compat.new_var(aval) for _ in range(cut.count)]


def _border(variables: Sequence[Atom], cuts: Mapping[int, StackCut]) -> tuple[BorderValue, ...]:
    """The values of a border, in parts where one has a cut."""
    found: list[BorderValue] = []
    at = 0
    for position, var in enumerate(variables):
        found.append(BorderValue(at, cuts.get(position), tuple(var.aval.shape)))
        at += len(found[-1].positions)
    return tuple(found)


def _with_open_conditionals(step: Step) -> Step:
    """The step with the calls in its conditionals opened, and variables of their own for the bodies of each."""

    def with_open(op: Op) -> Op:
        if op.task is not None or op.eqn.primitive is not _compat.cond_p:
            return op
        return op.with_eqn(_with_open_branches(op.eqn))

    return step.with_regions(replace(region, ops=tuple(map(with_open, region.ops))) for region in step.regions)


def _with_open_branches(eqn: Any) -> Any:
    branches = []
    for branch in eqn.params["branches"]:
        jaxpr, consts = _compat.split(branch)
        if consts:
            return eqn
        invars, eqns, outs = fresh(jaxpr)
        flat = [each for inner in eqns for each in opened(inner, lambda _: True)]
        flat = [_with_open_branches(each) if each.primitive is _compat.cond_p else each for each in flat]
        branches.append(_compat.close(jaxpr, invars, outs, flat))
    return eqn.replace(params={**eqn.params, "branches": tuple(branches)})
