"""All-gather: parameters that a mesh axis cuts, gathered once per step in front of a loop.

`microbatch(all_gather=)` asks for it. Else XLA gathers them in each program that reads them: for each microbatch,
forward and backward. Equations of the loop that only lay such a parameter out or convert it move in front of the loop
with it, so that what is gathered is what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.logical_axes import entry_names
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.ir import Op, Region, Step
from mmruntime._jaxpr.rewrite import renamed, trace_equations
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.place import Placement

_CONSTRAINTS = frozenset(("mm_constraint", "sharding_constraint"))


def all_gather_parameters(step: Step, placement: Placement, shardings: Shardings) -> tuple[Step, Placement]:
    """The step with what its loops' `all_gather` asks for in front of them, and where it runs.

    Raises:
        ValueError: If no submesh has an axis to gather over.
    """
    for index, region in enumerate(step.regions):
        if region.loop is not None and region.loop.all_gather:
            _check_axes(region.loop.all_gather, placement)
            step, placement = _gathered(step, index, region.loop.all_gather, placement, shardings)
    return step, placement


def _check_axes(axes: Collection[str], placement: Placement) -> None:
    known = dict.fromkeys(axis for mesh in placement.submeshes.meshes for axis in mesh.axis_names)
    for axis in axes:
        if axis not in known:
            raise ValueError(
                f"microbatch: all_gather={axis!r} is no axis of the submeshes of this step, which have "
                f"{', '.join(known)}. Name the mesh axis that cuts the parameters, or leave all_gather= out."
            )


def _gathered(
    step: Step, index: int, axes: Collection[str], placement: Placement, shardings: Shardings
) -> tuple[Step, Placement]:
    region = step.regions[index]
    front = _front_of_loop(region, placement, shardings)
    gathers, full = _gathers(front, axes, placement, shardings)
    if not full:
        return step, placement
    # What the loop reads in the place of each variable.
    instead_of = {var: full.get(first, first) for var, first in front.alias.items()} | full
    instead: dict[Op, Op] = {}
    for op in front.staying:
        read = {k for k, atom in enumerate(op.eqn.invars) if is_var(atom) and front.alias.get(atom, atom) in full}
        instead[op] = _reading(op.with_eqn(_laid_out_outside(op.eqn, read)) if read else op, instead_of)
    before = step.regions[index - 1]
    step = step.with_region(index - 1, replace(before, ops=(*before.ops, *front.moved, *gathers)))
    step = step.with_region(index, replace(region, ops=tuple(instead.values())))
    like = {new: old for old, new in instead.items() if new is not old}
    return step, placement.with_ops({**front.moved, **like}, gathers)


# The axes that cut each dimension of a value.
_Entries = list[tuple[str, ...]]


@dataclass(eq=False, frozen=True)
class _FrontOfLoop:
    """The equations of a loop that only lay out and convert values from in front of it.

    Attributes:
        staying: The other equations of the loop.
        moved: Equations to move in front of the loop, and which of the loop each of them was.
        alias: For what these give, and what others give that do the same, the variable to read.
        entries: How each of these variables is laid out.
        inside: What the other equations make, and the slices of the batch.
    """

    staying: list[Op] = field(default_factory=list)
    moved: dict[Op, Op] = field(default_factory=dict)
    alias: dict[Var, Var] = field(default_factory=dict)
    entries: dict[Var, _Entries] = field(default_factory=dict)
    inside: set[Var] = field(default_factory=set)


def _front_of_loop(region: Region, placement: Placement, shardings: Shardings) -> _FrontOfLoop:
    found = _FrontOfLoop(inside={var for op in region.ops for var in op.writes()}.union(region.slices))
    summed = {result for _, result in region.sums}
    # Each use of a parameter may lay it out again.
    same: dict[Hashable, Var] = {}
    for op in region.ops:
        name = op.eqn.primitive.name
        is_outer = op.task is None and not op.backward and found.inside.isdisjoint(op.reads())
        can_move = name in (*_CONSTRAINTS, "convert_element_type") and is_var(op.eqn.invars[0])
        if not (is_outer and can_move) or op.eqn.outvars[0] in summed:
            found.staying.append(op)
            continue
        operand: Var = op.eqn.invars[0]
        (result,), source = op.eqn.outvars, found.alias.get(operand, operand)
        where = placement.of[op][0]
        if name in _CONSTRAINTS:
            entries = _entries(shardings.in_mesh_axes(op, where).params["sharding"].spec, result)
        else:
            entries = found.entries.get(source) or _entries(shardings[source, where].spec, source)
        found.entries[result] = entries
        found.inside.discard(result)
        found.alias[result] = same.setdefault((name, source, result.aval, tuple(entries), placement.of[op]), result)
        if found.alias[result] is result:
            found.moved[_reading(op, {operand: source})] = op
    return found


def _gathers(
    front: _FrontOfLoop, axes: Collection[str], placement: Placement, shardings: Shardings
) -> tuple[dict[Op, tuple[int, ...]], dict[Var, Var]]:
    """The equations that gather what the loop reads, with their submeshes; and the gathered variable of each."""
    readers: dict[Var, dict[int, None]] = {}
    for op in front.staying:
        for var in op.reads():
            readers.setdefault(front.alias.get(var, var), {}).update(dict.fromkeys(placement.of[op]))
    gathers: dict[Op, tuple[int, ...]] = {}
    full: dict[Var, Var] = {}
    for var, places in readers.items():
        if var in front.inside:
            continue
        cut = front.entries.get(var) or _entries(shardings[var, next(iter(places))].spec, var)
        if not any(name in axes for entry in cut for name in entry):
            continue
        names = tuple(tuple(name for name in entry if name not in axes) for entry in cut)
        full[var], laid_out = _compat.new_var(var.aval), _compat.new_var(var.aval)
        # The first constraint keeps the parameter cut where only the loop said so.
        pair = Op(_constraint(var, laid_out, tuple(cut))), Op(_constraint(laid_out, full[var], names))
        gathers |= dict.fromkeys(pair, tuple(places))
    return gathers, full


def _reading(op: Op, instead: Mapping[Var, Var]) -> Op:
    """An equation with other variables in the place of some that it reads."""
    eqn = renamed(op.eqn, instead, {})
    return op if eqn is op.eqn else op.with_eqn(eqn)


def _entries(spec: Any, var: Var) -> _Entries:
    """The axes that cut each dimension."""
    found = [entry_names(entry) for entry in spec]
    return [*found, *[()] * (len(var.aval.shape) - len(found))]


def _constraint(source: Var, target: Var, names: tuple[tuple[str, ...], ...]) -> Any:
    def lay_out(value: Any) -> Any:
        return constraint_p.bind(value, names=names, logical=False)

    return trace_equations(lay_out, [source], target)[1][-1]


def _laid_out_outside(eqn: Any, positions: Collection[int]) -> Any:
    """A call without the constraints that its body starts with for these operands, at any depth of calls."""
    if eqn.primitive is not _compat.jit_p and eqn.primitive is not _compat.remat_p:
        return eqn

    def rewrite(inner: Any) -> Any:
        given = {inner.invars[position] for position in positions}
        eqns = []
        for each in inner.eqns:
            read = {position for position, atom in enumerate(each.invars) if is_var(atom) and atom in given}
            if read and each.primitive.name in _CONSTRAINTS:
                given.add(each.outvars[0])
                eqns.append(_compat.copy_eqn(each.invars[0], each.outvars[0]))
                continue
            if read and each.primitive.name == "convert_element_type":
                given.add(each.outvars[0])
            eqns.append(_laid_out_outside(each, read) if read else each)
        return _compat.with_eqns(inner, eqns)

    body = _compat.map_jaxprs(eqn.params["jaxpr"], rewrite)
    return eqn if body is eqn.params["jaxpr"] else eqn.replace(params={**eqn.params, "jaxpr": body})
