"""All-gather: parameters that a mesh axis cuts, gathered once per step in front of a loop.

`microbatch(all_gather=)` asks for it. Else XLA gathers them in each program that reads them: for each microbatch,
forward and backward. Equations of the loop that only lay such a parameter out or convert it move in front of the loop
with it, so that what is gathered is what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.logical_axes import entry_names
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.ir import Op, Step, abstract
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.place import Placement

_CONSTRAINTS = frozenset(("mm_constraint", "sharding_constraint"))


def all_gather_parameters(step: Step, placement: Placement, shardings: Shardings) -> tuple[Step, Placement]:
    """The step with what its loops' `all_gather` asks for in front of them, and where it runs.

    Args:
        step: The step.
        placement: Where it runs.
        shardings: The layouts of its values.

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
    region, before = step.regions[index], step.regions[index - 1]
    of = dict(placement.of)
    near = dict(placement.near)
    inside = {var for op in region.ops for var in op.writes()} | set(region.slices)
    summed = {result for _, result in region.sums}
    # The entries of the layout of each value that is to be gathered, by what the equations of the loop call it.
    entries: dict[Var, list[tuple[str, ...]]] = {}
    moved: list[Op] = []
    # Each use of a parameter may lay it out again.
    same: dict[Hashable, Var] = {}
    alias: dict[Var, Var] = {}
    ops: list[Op] = []
    for op in region.ops:
        name = op.eqn.primitive.name
        is_outer = op.task is None and not op.backward and not any(var in inside for var in op.reads())
        can_move = name in (*_CONSTRAINTS, "convert_element_type") and is_var(op.eqn.invars[0])
        if not (is_outer and can_move) or op.eqn.outvars[0] in summed:
            ops.append(op)
            continue
        operand: Var = op.eqn.invars[0]
        (result,), source = op.eqn.outvars, alias.get(operand, operand)
        where = placement.of[op][0]
        if name in _CONSTRAINTS:
            entries[result] = _entries(shardings.in_mesh_axes(op, where).params["sharding"].spec, result)
        else:
            entries[result] = entries.get(source) or _entries(shardings[source, where].spec, source)
        inside.discard(result)
        key = (name, source, result.aval, tuple(entries.get(result, ())), placement.of[op])
        alias[result] = same.setdefault(key, result)
        if alias[result] is result:
            moved.append(_reading(op, {operand: source}))
            of[moved[-1]] = placement.of[op]
            if op in near:
                near[moved[-1]] = near[op]
    full: dict[Var, Var] = {}
    gathers: list[Op] = []
    changed: list[Op] = []
    readers: dict[Var, dict[int, None]] = {}
    for op in ops:
        for var in op.reads():
            readers.setdefault(alias.get(var, var), {}).update(dict.fromkeys(placement.of[op]))
    for var, places in readers.items():
        if var in inside:
            continue
        cut = entries.get(var) or _entries(shardings[var, next(iter(places))].spec, var)
        if not any(name in axes for entry in cut for name in entry):
            continue
        names = tuple(tuple(name for name in entry if name not in axes) for entry in cut)
        full[var], laid_out = _compat.new_var(var.aval), _compat.new_var(var.aval)
        # The first constraint keeps the parameter cut where only the loop said so.
        pair = [Op(_constraint(var, laid_out, tuple(cut))), Op(_constraint(laid_out, full[var], names))]
        gathers += pair
        of.update(dict.fromkeys(pair, tuple(places)))
    if not full:
        return step, placement
    instead_of = {var: full.get(first, first) for var, first in alias.items()} | full
    for op in ops:
        read = {k for k, atom in enumerate(op.eqn.invars) if is_var(atom) and alias.get(atom, atom) in full}
        new = _reading(op.with_eqn(_laid_out_outside(op.eqn, read)) if read else op, instead_of)
        of[new] = of[op]
        changed.append(new)
    instead = {old: new for old, new in zip(ops, changed, strict=True) if new is not old}
    near |= {instead[op]: task for op, task in placement.near.items() if op in instead}
    floating = frozenset(instead.get(op, op) for op in placement.floating)
    step = step.with_region(index - 1, replace(before, ops=(*before.ops, *moved, *gathers)))
    step = step.with_region(index, replace(region, ops=tuple(changed)))
    return step, replace(placement, of=of, near=near, floating=floating)


def _reading(op: Op, instead: Mapping[Var, Var]) -> Op:
    """An equation with other variables in the place of some that it reads."""
    if all(instead.get(var, var) is var for var in op.reads()):
        return op
    invars = [instead.get(atom, atom) if is_var(atom) else atom for atom in op.eqn.invars]
    return op.with_eqn(op.eqn.replace(invars=invars))


def _entries(spec: Any, var: Var) -> list[tuple[str, ...]]:
    """The axes that cut each dimension."""
    found = [entry_names(entry) for entry in spec]
    return [*found, *[()] * (len(var.aval.shape) - len(found))]


def _constraint(source: Var, target: Var, names: tuple[tuple[str, ...], ...]) -> Any:
    def lay_out(value: Any) -> Any:
        return constraint_p.bind(value, names=names, logical=False)

    template = _compat.split(jax.make_jaxpr(lay_out)(abstract(source)))[0].eqns[-1]
    return template.replace(invars=[source], outvars=[target])


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
        if all(new is old for new, old in zip(eqns, inner.eqns, strict=True)):
            return inner
        return inner.replace(eqns=eqns)

    body = _compat.map_jaxprs(eqn.params["jaxpr"], rewrite)
    return eqn if body is eqn.params["jaxpr"] else eqn.replace(params={**eqn.params, "jaxpr": body})
