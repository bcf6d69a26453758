"""Trace: a step to flat equations with their tasks, microbatch loops opened, dead code removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var, split
from mmruntime._core.marks import LOOPS, TASKS, LoopSpec
from mmruntime._core.registry import Registration
from mmruntime._frontend.constraint import placed_later
from mmruntime._jaxpr.canonical_forms import sharing_equal_traces
from mmruntime._jaxpr.ir import Op, Region, Step, at_line
from mmruntime._jaxpr.rewrite import has_effects, needed
from mmruntime._partition.tracing.assign_tasks import TaskFinder
from mmruntime._partition.tracing.own_meshes import border_shardings
from mmruntime._partition.tracing.refs import without_refs
from mmruntime._partition.tracing.scan_tasks import MarkedScan, scans_of_tasks

_NEEDS_MESH = "needs a mesh in context, and in a step each task has a mesh of its own"
# What JAX's errors about shardings without a mesh begin with. JAX advises `jax.set_mesh`, which is no help: each task
# has a mesh of its own, and tracing has none.
_WITHOUT_MESH = {
    "with_sharding_constraint requires a non-empty mesh": (
        "jax.lax.with_sharding_constraint{line} has a PartitionSpec and no mesh. In a step each task has a mesh of its "
        "own: write mm.with_sharding_constraint(x, P(...)) there, and map the names of the spec in logical_axes= of "
        "the MultiMesh or the task."
    ),
    "Reshard should only be used with": (
        "jax.sharding.reshard{line} asks for the types of an explicit mesh, and got a sharding without one. In a step "
        "each task has a mesh of its own, whose axes are automatic: write mm.reshard in its place, or leave it out. "
        "Numbers are the same."
    ),
    "Using PartitionSpec when you are not under a mesh context": (
        "The call{line} gives an array the PartitionSpec of an explicit mesh, by reshard or out_sharding=, and there "
        "is no such mesh. In a step each task has a mesh of its own, whose axes are automatic: write mm.reshard, or "
        "out_sharding=mm.out_sharding(P(...)), which are these outside of steps. Numbers are the same."
    ),
    "Please set a mesh via `jax.set_mesh` if a PartitionSpec is passed to device_put": (
        f"jax.device_put{{line}} has a PartitionSpec, which {_NEEDS_MESH}: leave the call out there, or write "
        "mm.with_sharding_constraint(x, P(...)) in its place."
    ),
    "jit requires a non-empty mesh in context": (
        f"jax.jit{{line}} has a PartitionSpec among its shardings, which {_NEEDS_MESH}: leave the sharding out there."
    ),
    "The context mesh cannot be empty": (
        f"jax.shard_map{{line}} without mesh= {_NEEDS_MESH}: write mm.shard_map there, in a task, over whose mesh it "
        "runs."
    ),
    "Context mesh cannot be empty": (
        f"explicit_axes{{line}} {_NEEDS_MESH}, whose axes are automatic: call its function itself there."
    ),
}


def trace(fun: Callable[..., Any], args: Sequence[Any], registrations: Sequence[Registration]) -> tuple[Step, Any]:
    """Trace `fun` on abstract arguments.

    Args:
        fun: A function of flat or nested array arguments.
        args: `jax.ShapeDtypeStruct`s without shardings: types of traced values carry them.
        registrations: The registrations in force.

    Returns:
        The step, and the tree structure of what `fun` returns.

    Raises:
        RuntimeError: If `jax.lax.with_sharding_constraint` is given a spec without a mesh.
        ValueError: If `jax.sharding.reshard` or an `out_sharding=` is, or what `jax.typeof` says of a traced array; or
            if the step reads a value that a task has kept in an object.
    """
    with placed_later(), sharing_equal_traces():
        try:
            closed, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
        except (RuntimeError, ValueError) as error:
            what = next((what for start, what in _WITHOUT_MESH.items() if str(error).startswith(start)), None)
            if what is None:
                raise
            line = f" at {where}" if (where := _compat.raised_at(error)) else ""
            raise type(error)(what.format(line=line)) from error
    jaxpr, consts = split(without_refs(closed) if _compat.has_refs(split(closed)[0]) else closed)
    step = remove_dead_code(_Flattener(TaskFinder(registrations), jaxpr).step(jaxpr, consts))
    _refuse_escaped(step)
    return step, jax.tree.structure(shapes)


def _refuse_escaped(step: Step) -> None:
    """Refuses values that a task keeps in an object of Python for others: to them it is no value that they can have."""
    for var, value in step.constants.items():
        if not _compat.is_tracer(value):
            continue
        made = _compat.made_at(value)
        reader = next((op.eqn for region in step.regions for op in region.ops if var in op.reads()), None)
        raise ValueError(
            f"mjit: a value{made and f' made at {made}'} is kept in an object, such as a list, an attribute or a "
            f"generator, and read from it{at_line(reader) if reader is not None else ''}. The function that made it is "
            "traced on its own, as all tasks are, since each becomes a program of its own: return the value from it, "
            "and pass it on as an argument."
        )


class _Flattener:
    def __init__(self, finder: TaskFinder, like: Any) -> None:
        self.finder = finder
        self.like = like
        self.constants: dict[Var, Any] = {}
        # The regions that are complete, and the equations since.
        self.regions: list[Region] = []
        self.ops: list[Op] = []

    def step(self, jaxpr: Any, consts: Sequence[Any]) -> Step:
        self.constants.update(zip(jaxpr.constvars, consts, strict=True))
        env: dict[Var, Atom] = {}
        self._flatten(jaxpr.eqns, env, None, None)
        self._close_region()
        outvars = tuple(_read(env, atom) for atom in jaxpr.outvars)
        return Step(self.like, tuple(jaxpr.invars), self.constants, tuple(self.regions), outvars)

    def _close_region(self) -> None:
        self.regions.append(Region(tuple(self.ops)))
        self.ops = []

    def _flatten(
        self,
        eqns: Sequence[Any],
        env: dict[Var, Atom],
        prefix: Any,
        into: list[Op] | None,
        callers: tuple[Any, ...] = (),
    ) -> None:
        """Append equations in terms of the step's own variables.

        Args:
            eqns: Equations of some jaxpr.
            env: Values of that jaxpr's variables in terms of the step's own; the equations' results are added.
            prefix: Name stack of the call whose body the jaxpr is.
            into: The list to append to; None at the step's own level, where a microbatch loop starts new regions.
            callers: The calls in whose bodies the equations are, the innermost first.
        """
        for eqn in eqns:
            target = self.ops if into is None else into
            stack = eqn.source_info.name_stack if prefix is None else prefix + eqn.source_info.name_stack
            eqn = eqn.replace(
                invars=[_read(env, atom) for atom in eqn.invars],
                source_info=eqn.source_info.replace(name_stack=stack),
            )
            spec = LOOPS.find(eqn.params["name"]) if eqn.primitive is _compat.jit_p else None
            if spec is not None:
                if into is not None:
                    raise ValueError(
                        f"microbatch: the loop{at_line(eqn)} lies inside another microbatch loop. "
                        "Cut the batch once, in one microbatch call."
                    )
                self._open_loop(eqn, spec, env)
                continue
            body = self._body_to_open(eqn)
            if body is not None:
                inner, consts = body
                ins, outs = border_shardings(eqn)
                operands = self._laid_out(eqn, eqn.invars, ins, into)
                inner_env: dict[Var, Atom] = dict(zip(inner.invars, operands, strict=True))
                self._bind_constants(inner, consts, inner_env)
                self._flatten(inner.eqns, inner_env, stack, into, (eqn, *callers))
                results = self._laid_out(eqn, [_read(inner_env, atom) for atom in inner.outvars], outs, into)
                env.update((outer, atom) for outer, atom in zip(eqn.outvars, results, strict=True) if is_var(outer))
                continue
            outvars = []
            for var in eqn.outvars:
                if is_var(var):
                    env[var] = fresh = _compat.new_var(var.aval)
                    outvars.append(fresh)
                else:
                    outvars.append(var)
            task, backward = self.finder.find(eqn)
            op = Op(eqn.replace(outvars=outvars), task, backward, callers=callers)
            target.extend([op] if task is not None else self._cut_scan(op, stack))

    def _laid_out(
        self, call: Any, atoms: Sequence[Atom], shardings: Sequence[Any], into: list[Op] | None
    ) -> Sequence[Atom]:
        """Operands or results of a call of `jax.jit`, with constraints for the shardings that it was given for them."""
        if not any(sharding is not None for sharding in shardings):
            return atoms
        laid_out = []
        for atom, sharding in zip(atoms, shardings, strict=True):
            if sharding is not None and is_var(atom):
                fresh = _compat.new_var(atom.aval)
                eqn = _compat.constraint_eqn(atom, fresh, sharding).replace(source_info=call.source_info)
                (self.ops if into is None else into).append(Op(eqn, *self.finder.find(eqn)))
                atom = fresh
            laid_out.append(atom)
        return laid_out

    def _body_to_open(self, eqn: Any) -> tuple[Any, list[Any]] | None:
        """The body of a call that is to be replaced by its equations, None for any other equation."""
        if eqn.primitive is _compat.jit_p:
            return None if TASKS.find(eqn.params["name"]) is not None else split(eqn.params["jaxpr"])
        if self.finder.find(eqn)[0] is not None:
            return None
        # Rematerialisation and custom derivatives stay whole, unless tasks or loops are inside: a checkpoint around
        # a whole model would otherwise be one equation for all submeshes.
        body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if body is None or not _compat.is_jaxpr(body) or eqn.primitive is _compat.scan_p:
            return None
        inner, consts = split(body)
        if len(inner.invars) != len(eqn.invars) or len(inner.outvars) != len(eqn.outvars):
            return None
        if self.finder.inside(inner, _is_loop):
            return inner, consts
        return None

    def _cut_scan(self, op: Op, stack: Any) -> list[Op]:
        """The scans of the tasks in the body of one; the equation itself if it is no scan, or has no tasks inside."""
        if op.eqn.primitive is not _compat.scan_p:
            return [op]
        inner, consts = split(op.eqn.params["jaxpr"])
        if holds_loop(inner) or not self.finder.may_be_inside(inner):
            return [op]
        env: dict[Var, Atom] = {var: _compat.new_var(var.aval) for var in inner.invars}
        self._bind_constants(inner, consts, env)
        ops: list[Op] = []
        self._flatten(inner.eqns, env, stack, ops)
        invars = tuple(env[var] for var in inner.invars)
        found = scans_of_tasks(MarkedScan(op, invars, tuple(ops), tuple(_read(env, atom) for atom in inner.outvars)))
        if found is None:
            self.finder.warn_of_circle(op.eqn, [each.task for each in ops if each.task is not None])
            return [op]
        return found

    def _bind_constants(self, inner: Any, consts: Sequence[Any], env: dict[Var, Atom]) -> None:
        for var, value in zip(inner.constvars, consts, strict=True):
            env[var] = fresh = _compat.new_var(var.aval)
            self.constants[fresh] = value

    def _open_loop(self, eqn: Any, spec: LoopSpec, env: dict[Var, Atom]) -> None:
        """Make a region of a microbatch loop, which `microbatch` writes as `jit{scan{body; add(carry, result)}}`.

        `jax.vmap` of one moves dimensions before and after the scan; these equations stay outside of the loop.
        """
        inner, consts = split(eqn.params["jaxpr"])
        scans = [position for position, e in enumerate(inner.eqns) if e.primitive is _compat.scan_p]
        as_written = len(inner.eqns) == len(scans) == 1 and list(inner.outvars) == list(inner.eqns[0].outvars)
        if not (as_written or (len(scans) == 1 and _is_mapped_only(eqn))):
            raise ValueError(_transformed(eqn))
        scan = inner.eqns[scans[0]]
        if not _is_sum_over_slices(scan, spec):
            raise ValueError(_transformed(eqn))
        outer_env: dict[Var, Atom] = dict(zip(inner.invars, eqn.invars, strict=True))
        self._bind_constants(inner, consts, outer_env)
        stack = eqn.source_info.name_stack
        self._flatten(inner.eqns[: scans[0]], outer_env, stack, None)
        operands = [_read(outer_env, atom) for atom in scan.invars]
        body, body_consts = split(scan.params["jaxpr"])
        num_carry = len(scan.outvars)
        num_consts = len(operands) - num_carry - spec.num_batch_operands

        ops: list[Op] = []
        slices: dict[Var, Var] = {}
        sums: list[tuple[Var, Var]] = []
        body_env: dict[Var, Atom] = dict(zip(body.invars[:num_consts], operands[:num_consts], strict=True))
        carries = body.invars[num_consts : num_consts + num_carry]
        for var, stacked in zip(body.invars[num_consts + num_carry :], operands[num_consts + num_carry :], strict=True):
            body_env[var] = piece = _compat.new_var(var.aval)
            slices[piece] = self._as_var(stacked)
        self._bind_constants(body, body_consts, body_env)

        # The new carry is add(carry, result). The additions go: each submesh adds to accumulators of its own.
        producer = {var: e for e in body.eqns for var in e.outvars}
        additions = [producer.get(atom) if is_var(atom) else None for atom in body.outvars]
        dropped = {id(add) for add in additions}
        self._flatten([e for e in body.eqns if id(e) not in dropped], body_env, stack, ops)
        seen: set[Var] = set()
        for outer, carry, add in zip(scan.outvars, carries, additions, strict=True):
            assert add is not None
            result = _read(body_env, add.invars[1])
            if not is_var(result) or result in seen or not any(result in op.eqn.outvars for op in ops):
                result = self._copy(result, carry.aval, ops)
            seen.add(result)
            total = _compat.new_var(carry.aval)
            if is_var(outer):
                outer_env[outer] = total
            sums.append((total, result))
        self._close_region()
        self.regions.append(Region(tuple(ops), spec, slices, tuple(sums)))
        self._flatten(inner.eqns[scans[0] + 1 :], outer_env, stack, None)
        env.update(
            (outer, _read(outer_env, atom))
            for outer, atom in zip(eqn.outvars, inner.outvars, strict=True)
            if is_var(outer)
        )

    def _as_var(self, atom: Atom) -> Var:
        return atom if is_var(atom) else self._copy(atom, atom.aval, self.ops)

    def _copy(self, atom: Atom, aval: Any, into: list[Op]) -> Var:
        """A variable of its own for a literal, or for a value that is used elsewhere too."""
        var = _compat.new_var(aval)
        into.append(Op(_compat.copy_eqn(atom, var)))
        return var


def _is_loop(eqn: Any) -> bool:
    """Whether an equation is a microbatch loop."""
    return eqn.primitive is _compat.jit_p and LOOPS.find(eqn.params["name"]) is not None


def holds_loop(jaxpr: Any) -> bool:
    """Whether a microbatch loop is in a jaxpr, at whatever depth."""
    return any(map(_is_loop, _compat.every_equation(jaxpr.eqns)))


def _is_mapped_only(eqn: Any) -> bool:
    """Whether `jax.vmap` is the only transformation around an equation."""
    around = {name for name, is_transformation in _compat.scopes(eqn) if is_transformation}
    return around == {"vmap"}


def _transformed(eqn: Any) -> str:
    """The message about a transformation around a microbatch loop."""
    if getattr(jax.config, "jax_scan3", False):
        return (
            f"microbatch: under jax_scan3 JAX rewrites the loop{at_line(eqn)}, so that it cannot be cut. Switch it off."
        )
    return (
        f"microbatch: the loop{at_line(eqn)} was itself differentiated, which cannot be pipelined. Put jax.grad or "
        "jax.value_and_grad inside: mm.microbatch(jax.value_and_grad(loss), ...)."
    )


def _is_sum_over_slices(scan: Any, spec: LoopSpec) -> bool:
    """Whether a scan still is `carry = add(carry, result)` over as many slices as its mark says.

    Differentiation adds operands, carries and results, which their number alone does not show.
    """
    body = split(scan.params["jaxpr"])[0]
    num_carry = len(scan.outvars)
    first_slice = len(scan.invars) - spec.num_batch_operands
    first_carry = first_slice - num_carry
    if first_carry < 0 or len(body.invars) != len(scan.invars) or len(body.outvars) != num_carry:
        return False
    for position, (outer, inner) in enumerate(zip(scan.invars, body.invars, strict=True)):
        stacked = (spec.count,) if position >= first_slice else ()
        if outer.aval.shape != (*stacked, *inner.aval.shape):
            return False
    producer = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    adds = [producer.get(atom) if is_var(atom) else None for atom in body.outvars]
    carries = body.invars[first_carry:first_slice]
    return all(
        add is not None and add.primitive is _compat.add_p and add.invars[0] is carry
        for add, carry in zip(adds, carries, strict=True)
    )


def _read(env: dict[Var, Atom], atom: Atom) -> Atom:
    return env.get(atom, atom) if is_var(atom) else atom


def remove_dead_code(step: Step) -> Step:
    """The step without equations that no output needs, and without loop sums that nobody reads."""
    live = {atom for atom in step.outvars if is_var(atom)}
    regions: list[Region] = []
    for region in reversed(step.regions):
        sums = tuple((total, result) for total, result in region.sums if total in live)
        live |= {result for _, result in sums}
        # Equations with effects, such as `jax.debug.print`, are there for their effect, as in JAX's own pass.
        kept, live = needed(region.ops, live, has_effects)
        slices = {piece: stacked for piece, stacked in region.slices.items() if piece in live}
        live |= set(slices.values())
        if kept or sums or region.loop is None:
            regions.append(replace(region, ops=tuple(kept), slices=slices, sums=sums))
    constants = {var: value for var, value in step.constants.items() if var in live}
    return replace(step, regions=tuple(regions[::-1]), constants=constants)
