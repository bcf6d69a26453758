"""Sums whose terms live on several submeshes: each submesh adds up its own, and the partial sums meet once.

Two kinds occur. The gradient of tied weights, which several stages use, is a sum that would cross submeshes once per
microbatch; it gets one accumulator per submesh instead, and these are added after the loop. A norm over all gradients
is a chain of scalar additions that would hop from submesh to submesh; it becomes one partial result per submesh and one
combination.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.marks import accumulator_type
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op, Region, Step, is_tiny
from mmruntime._jaxpr.rewrite import trace_equations

_GRADIENT_SUMS = ("add_any", "add")
# Associative and commutative but for rounding, so that they may be regrouped.
_REDUCTIONS = ("add", "add_any", "mul", "max", "min", "and", "or")

Where = Callable[[Op], int | None]


def _leaves(var: Var, kinds: Sequence[str], producer: Mapping[Var, Op], uses: Mapping[Var, int]) -> list[Any]:
    """The terms of the sum that ends in `var`, left to right; sums that are also read elsewhere are terms."""
    leaves: list[Any] = []
    # A norm over all parameters is a chain as long as there are parameters, deeper than Python recurses.
    todo: list[Any] = [var]
    while todo:
        atom = todo.pop()
        op = producer.get(atom) if is_var(atom) else None
        is_sum = op is not None and op.eqn.primitive.name in kinds and uses.get(atom, 0) == 1
        terms = op.eqn.invars if op is not None and is_sum else []
        if terms and all(each.aval.shape == atom.aval.shape and each.aval.dtype == atom.aval.dtype for each in terms):
            todo.extend(reversed(terms))
        else:
            leaves.append(atom)
    return leaves


def _chain(template: Op, terms: Sequence[Any], result: Var | None = None) -> tuple[list[Op], Any]:
    """Equations that combine terms from left to right, and the variable of the result."""
    ops: list[Op] = []
    total = terms[0]
    for position, term in enumerate(terms[1:], start=2):
        last = position == len(terms) and result is not None
        out = result if last else _compat.new_var(template.eqn.outvars[0].aval)
        ops.append(Op(template.eqn.replace(invars=[total, term], outvars=[out]), None, template.backward))
        total = out
    return ops, total


def _of_type(like: Var, dtype: Any) -> Var:
    """A variable of the shape of another."""
    return _compat.new_var(like.aval if dtype == like.aval.dtype else _compat.array_aval(like.aval.shape, dtype))


def read_counts(step: Step) -> dict[Var, int]:
    """How often each variable is read."""
    counts: dict[Var, int] = defaultdict(int)
    for op in step.ops():
        for atom in op.eqn.invars:
            if is_var(atom):
                counts[atom] += 1
    for each in step.regions:
        for _, result in each.sums:
            counts[result] += 1
        for stacked in each.slices.values():
            counts[stacked] += 1
    for atom in step.outvars:
        if is_var(atom):
            counts[atom] += 1
    return counts


def split_loop_sums(
    region: Region, after: Region, producer: Mapping[Var, Op], uses: Mapping[Var, int], where: Where
) -> tuple[Region, Region, dict[Op, int]]:
    """Give each submesh its own accumulator of a loop sum whose terms lie on several.

    Args:
        region: A loop, whose equations are placed.
        after: The region behind it.
        producer: The equation that writes each variable.
        uses: How often each variable of the loop is read, loop sums included.
        where: The submesh of an equation, None if it depends on inputs alone.

    Returns:
        The loop; the region behind it, with the final additions in front; and the new equations with their submeshes.
        Final additions run where the heaviest term is made.
    """
    added: list[Op] = []
    placed: dict[Op, int] = {}
    sums: list[tuple[Var, Var]] = []
    final: list[Op] = []
    assert region.loop is not None
    # A total has a result per variant of the body.
    results: dict[Var, list[Var]] = {}
    for total, result in region.sums:
        results.setdefault(total, []).append(result)
    for total, mine in results.items():
        groups: dict[int, list[list[Var]]] = {}
        weight: dict[int, float] = {}
        for result in mine:
            by_place: dict[int, list[Var]] = {}
            for term in _leaves(result, _GRADIENT_SUMS, producer, uses):
                source = producer.get(term) if is_var(term) else None
                at = where(source) if source is not None else None
                if source is None or at is None:
                    by_place = {}
                    break
                by_place.setdefault(at, []).append(term)
                weight[at] = weight.get(at, 0.0) + _cost.flops(source.eqn)
            for at, terms in by_place.items():
                groups.setdefault(at, []).append(terms)
        if len(groups) < 2:
            sums.extend((total, result) for result in mine)
            continue
        partials = []
        wide = accumulator_type(total.aval.dtype, region.loop.accumulate)
        for at, members in groups.items():
            partial = _of_type(total, wide)
            partials.append(partial)
            for terms in members:
                source = producer[terms[0]]
                # One term is added as it is, several in the accumulator's type.
                dtype = terms[0].aval.dtype if len(terms) == 1 else wide
                ops, summed = _add_up(terms, _of_type(total, dtype), dtype, source)
                added.extend(ops)
                placed.update(dict.fromkeys(ops, at))
                sums.append((partial, summed))
        home = max(weight, key=lambda at: weight[at])
        ops, _ = _add_up(partials, total, wide, None)
        final.extend(ops)
        placed.update(dict.fromkeys(ops, home))
    region = replace(region, ops=(*region.ops, *added), sums=tuple(sums))
    return region, replace(after, ops=(*final, *after.ops)), placed


def _add_up(terms: Sequence[Var], result: Var, dtype: Any, like: Op | None) -> tuple[list[Op], Var]:
    """Equations that add terms from left to right, in a type, into a variable of their own."""

    def total(first: Any, *others: Any) -> Any:
        summed = functools.reduce(jax.lax.add, [each.astype(dtype) for each in others], first.astype(dtype))
        return summed.astype(result.aval.dtype)

    _, eqns = trace_equations(total, terms, result)
    return [Op(eqn) if like is None else Op(eqn, None, like.backward, like.variant) for eqn in eqns], result


def regroup_scalars(
    region: Region, producer: Mapping[Var, Op], uses: Mapping[Var, int], where: Where
) -> tuple[Region, dict[Op, int]]:
    """Reduce scalars from several submeshes to one per submesh before they meet.

    Returns:
        The region, and the new equations with their submeshes. The combination runs where the last of them ran.
    """
    placed: dict[Op, int] = {}
    ops: list[Op] = []
    inside = {
        atom
        for op in region.ops
        for atom in op.reads()
        if op.eqn.primitive.name in _REDUCTIONS and uses.get(atom, 0) == 1
    }
    for op in region.ops:
        kind = op.eqn.primitive.name
        out = next(iter(op.eqn.outvars), None)
        root = kind in _REDUCTIONS and is_var(out) and is_tiny(out) and where(op) is not None
        if not root or (out in inside and _feeds_same(out, kind, region.ops)):
            ops.append(op)
            continue
        kinds = ("add", "add_any") if kind in ("add", "add_any") else (kind,)
        terms = [
            leaf
            for atom in op.eqn.invars
            for leaf in (_leaves(atom, kinds, producer, uses) if is_var(atom) else [atom])
        ]
        groups: dict[int, list[Any]] = {}
        loose: list[Any] = []
        for term in terms:
            source = producer.get(term) if is_var(term) else None
            at = where(source) if source is not None else None
            if at is None:
                loose.append(term)
            else:
                groups.setdefault(at, []).append(term)
        at_root = where(op)
        if len(groups) < 2 or len(terms) <= 2 or at_root is None:
            ops.append(op)
            continue
        partials = []
        for at, members in groups.items():
            chain, partial = _chain(op, members)
            ops.extend(chain)
            placed.update(dict.fromkeys(chain, at))
            partials.append(partial)
        chain, _ = _chain(op, [*loose, *partials], out)
        ops.extend(chain)
        placed.update(dict.fromkeys(chain, at_root))
    return replace(region, ops=tuple(ops)), placed


def _feeds_same(var: Var, kind: str, ops: Sequence[Op]) -> bool:
    """Whether the one reader of `var` is a reduction of the same kind."""
    same = ("add", "add_any") if kind in ("add", "add_any") else (kind,)
    return any(op.eqn.primitive.name in same and var in op.eqn.invars for op in ops)
