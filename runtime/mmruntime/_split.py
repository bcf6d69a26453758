"""Split: the backward programs of a loop in two, so that a schedule may put weight gradients off.

The input half makes what other submeshes wait for, the cotangents of activations; the weight half makes what
only this submesh's accumulators wait for. Calls are opened first (a task's transposed jit, rematerialised
bodies), so the cut goes through equations, and each equation is in one of the halves: no work is done twice.
The zero-bubble schedules need this (Qi et al., https://arxiv.org/abs/2401.10241, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._ir import Op, Region, Step, num_elements
from mmruntime._segment import Segment, Segments, connect


def split_backward(step: Step, segments: Segments, index: int) -> None:
    """Cut each backward program of a loop into its two halves, where it has two. In place.

    Args:
        step: The step.
        segments: Its segments.
        index: The loop's region.
    """
    region = step.regions[index]
    halves: list[Segment] = []
    for segment in segments.by_region[index]:
        halves.extend(_halves(segment, region, segments) if segment.backward else [segment])
    segments.by_region[index] = halves
    for segment in halves:
        for op in segment.ops:
            for var in op.writes():
                segments.made_on.setdefault(var, (segment.submesh,))
    connect(step, segments)


def _halves(segment: Segment, region: Region, segments: Segments) -> list[Segment]:
    ops = [opened for op in segment.ops for opened in (open_calls(op) if op.backward else [op])]
    summed = {result for _, result in region.sums}
    others = {var for each in segments if each is not segment for var in each.reads}
    awaited = {var for var in segment.writes if var not in summed or var in others}
    late = _weight_half(ops, summed, awaited)
    if not late or len(late) == len(ops):
        return [segment]
    early_ops = [op for op in ops if op not in late]
    first = Segment(segment.region, segment.submesh, segment.level, early_ops, part="I", variant=segment.variant)
    second = Segment(
        segment.region,
        segment.submesh,
        segment.level,
        [op for op in ops if op in late],
        part="W",
        variant=segment.variant,
    )
    second.input_half = first
    return [first, second]


def _weight_half(ops: Sequence[Op], summed: set[Var], awaited: set[Var]) -> set[Op]:
    """The backward equations that make weight gradients out of cotangents, and nothing that is awaited elsewhere.

    These are the last equations before each accumulator: the contraction over the batch, and what only reshapes,
    converts or adds up its result. What leads to several accumulators, or comes before the contraction, carries
    cotangents on through the layers; on the first stage too, whose inputs nobody asks the cotangent of.
    """
    needed: set[Var] = set(awaited)
    ending: set[Var] = set(summed)
    late: set[Op] = set()
    for op in reversed(ops):
        written = list(op.writes())
        is_needed = any(var in needed for var in written)
        if op.backward and not is_needed and not op.eqn.effects and written and all(var in ending for var in written):
            late.add(op)
            if _is_thin(op):
                ending.update(op.reads())
                continue
        needed.update(var for var in op.reads() if op not in late)
        ending.difference_update(op.reads())
    return late


def _is_thin(op: Op) -> bool:
    """Whether an equation only rearranges or adds up values of the size of its result."""
    size = num_elements(op.eqn.outvars[0])
    return all(num_elements(var) == size for var in op.reads()) and (
        len(list(op.reads())) == 1 or op.eqn.primitive in (_compat.add_p, _compat.add_any_p)
    )


def open_calls(op: Op) -> list[Op]:
    """The equations inside of an equation that is a call, at any depth; the equation itself if it is none."""
    body = _body(op.eqn)
    if body is None:
        return [op]
    inner, consts = body
    if consts:
        return [op]
    return [Op(eqn, op.task, op.backward, op.variant, op.roams) for eqn in _open(op.eqn, inner)]


def _body(eqn: Any) -> tuple[Any, list[Any]] | None:
    """The jaxpr of a call: of an equation that computes just what its one inner jaxpr computes."""
    if eqn.primitive is not _compat.jit_p and eqn.primitive is not _compat.remat_p:
        return None
    return _compat.split(eqn.params["jaxpr"])


def _open(call: Any, inner: Any) -> list[Any]:
    env: dict[Var, Any] = dict(zip(inner.invars, call.invars, strict=True))
    # A result of the call takes the place of the inner variable, if one inner equation writes it.
    written = {var for eqn in inner.eqns for var in eqn.outvars if is_var(var)}
    aliases: list[tuple[Var, Any]] = []
    for outer, atom in zip(call.outvars, inner.outvars, strict=True):
        if not is_var(outer):
            continue
        if is_var(atom) and atom in written and atom not in env:
            env[atom] = outer
        else:
            aliases.append((outer, atom))

    def read(atom: Any) -> Any:
        return env.get(atom, atom) if is_var(atom) else atom

    result: list[Any] = []
    for eqn in inner.eqns:
        for var in eqn.outvars:
            if is_var(var) and var not in env:
                env[var] = _compat.new_var(var.aval)
        stack = call.source_info.name_stack + eqn.source_info.name_stack
        opened = eqn.replace(
            invars=[read(atom) for atom in eqn.invars],
            outvars=[env[var] if is_var(var) else var for var in eqn.outvars],
            source_info=eqn.source_info.replace(name_stack=stack),
        )
        body = _body(opened)
        result.extend([opened] if body is None or body[1] else _open(opened, body[0]))
    result.extend(_compat.copy_eqn(read(atom), outer) for outer, atom in aliases)
    return result
