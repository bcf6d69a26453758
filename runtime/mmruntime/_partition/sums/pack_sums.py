"""Pack: small accumulators of one task become one flat array.

A program's call costs about a microsecond for each argument and each result, whatever their size. A layer has a dozen
parameters, most of them small, whose gradients go in and out of its backward program once per microbatch, and are read
apart only once per step, behind the loop. So the program joins them, adds them up as one array, and the optimizer's
program takes that apart: the same additions of the same numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Op, Region, Step, is_scalar, num_bytes, num_elements
from mmruntime._jaxpr.primitives import MOVES, is_constraint
from mmruntime._jaxpr.rewrite import open_calls, trace_equations
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.partial_sums import read_counts
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.programs.split_backward import halves_of

# To join more bytes costs more than the argument and the result that are saved, and is memory that programs need.
LARGEST = 1 << 14


def pack_sums(
    step: Step, placement: Placement, segments: Segments, shardings: Shardings | None
) -> tuple[Step, Placement]:
    """The step with small accumulators joined, and where it runs.

    Accumulators are joined if one program makes the terms of all of them, each device has all of each, and only
    equations of one variant behind the loop, on the same submesh, read them.

    Args:
        step: The step.
        placement: Where it runs.
        segments: Its programs.
        shardings: Their layouts; None if every submesh is one device.
    """
    for index, region in enumerate(step.regions):
        if region.loop is not None and region.index_count > 1 and any(_may_join(total) for total, _ in region.sums):
            packs = _Sums(step, index, placement, segments, shardings).packs()
            if packs:
                step, placement = _packed(step, index, placement, packs)
    return step, placement


@dataclass(frozen=True)
class _Pack:
    """Accumulators that become one.

    Attributes:
        totals: The accumulators.
        results: What is added to each, once for each body of the loop that adds to all of them.
        makers: For each of these bodies, an equation that makes one of the results.
        variant: Which of the programs behind the loop reads them.
    """

    totals: tuple[Var, ...]
    results: tuple[tuple[Var, ...], ...]
    makers: tuple[Op, ...]
    variant: int


class _Sums:
    """The accumulators of one loop, and which of them can be joined."""

    def __init__(
        self, step: Step, index: int, placement: Placement, segments: Segments, shardings: Shardings | None
    ) -> None:
        self._region = step.regions[index]
        self._placement, self._segments, self._shardings = placement, segments, shardings
        self._maker = {var: op for op in self._region.ops for var in op.writes()}
        self._program = {op: each for each in segments.by_region[index] for op in each.ops}
        self._counts = read_counts(step)
        self._readers: dict[Var, list[Op]] = defaultdict(list)
        for op in step.ops():
            for var in op.reads():
                self._readers[var].append(op)
        border = {atom for atom in step.outvars if is_var(atom)}
        self._border = border.union(*(region.slices.values() for region in step.regions))
        self._last: dict[Segment, set[Var]] = {}

    def packs(self) -> list[_Pack]:
        """What is joined, in the order of the sums."""
        results: dict[Var, list[Var]] = defaultdict(list)
        for total, result in self._region.sums:
            results[total].append(result)
        groups: dict[Any, list[Var]] = defaultdict(list)
        for total, mine in results.items():
            if self._can_join(total, mine):
                kinds = [(self._program[op], op.task, op.backward) for op in self._makers(mine)]
                types = total.aval.dtype, *(result.aval.dtype for result in mine)
                groups[types, tuple(kinds), self._readers[total][0].variant].append(total)
        return [
            _Pack(
                tuple(totals),
                tuple(zip(*(results[total] for total in totals), strict=True)),
                tuple(self._makers(results[totals[0]])),
                variant,
            )
            for (_, _, variant), totals in groups.items()
            if len(totals) > 1
        ]

    def _makers(self, results: Iterable[Var]) -> list[Op]:
        return [self._maker[result] for result in results]

    def _can_join(self, total: Var, results: Sequence[Var]) -> bool:
        readers = self._readers[total]
        if not _may_join(total) or total in self._border or not readers:
            return False
        if not all(self._is_made_last(result) for result in results):
            return False
        (home,) = {self._segments.made_on[result] for result in results}
        return all(self._placement.of[op] == home and op.variant == readers[0].variant for op in readers)

    def _is_made_last(self, result: Var) -> bool:
        """Whether one program of one task makes a term, on all of its devices, and only to add it up."""
        op = self._maker.get(result)
        if op is None or op.task is None or op.submesh_varies or op in self._placement.floating:
            return False
        if len(self._placement.of[op]) > 1 or self._counts[result] > 1:
            return False
        if self._shardings is not None and not self._shardings[result, self._placement.of[op][0]].is_fully_replicated:
            return False
        program = self._program[op]
        if program not in self._last:
            # The input half of a backward program would keep its terms until the weight half has run.
            half = halves_of(program, self._region, self._segments)[-1] if program.backward else program
            opened = [each for op in half.ops for each in open_calls(op)]
            self._last[program] = {var for each in half.ops for var in each.writes()} - _scattered(opened)
        return result in self._last[program]


def _scattered(ops: Sequence[Op]) -> set[Var]:
    """Values that are scattered into zeros: XLA scatters them into the accumulator, which is another order of sums."""
    found: set[Var] = set()
    for op in ops:
        name = op.eqn.primitive.name
        # What only rearranges or converts a value, or adds another one.
        passes = name in MOVES or is_constraint(name) or name in ("add", "add_any", "convert_element_type")
        if (passes and not found.isdisjoint(op.reads())) or name.startswith("scatter"):
            found.update(op.writes())
    return found


def _may_join(total: Var) -> bool:
    aval = total.aval
    finfo: Any = jnp.finfo
    return (
        not is_scalar(total)
        and 0 < num_bytes(total) <= LARGEST
        and jnp.issubdtype(aval.dtype, jnp.inexact)
        # Numbers of less than a byte are packed by XLA in ways of its own.
        and finfo(aval.dtype).bits >= 8
        and not getattr(aval, "weak_type", False)
    )


def _packed(step: Step, index: int, placement: Placement, packs: Sequence[_Pack]) -> tuple[Step, Placement]:
    region, after = step.regions[index], step.regions[index + 1]
    instead: dict[Var, tuple[tuple[Var, Var], ...]] = {}
    joining: dict[Op, tuple[int, ...]] = {}
    taking_apart: dict[Op, tuple[int, ...]] = {}
    for pack in packs:
        flats = []
        for results, maker in zip(pack.results, pack.makers, strict=True):
            flat, eqns = trace_equations(_join, results)
            flats.append(flat)
            ops = [Op(eqn, None, maker.backward, maker.variant) for eqn in eqns]
            joining |= dict.fromkeys(ops, placement.of[maker])
        joined, ops = _taken_apart(pack, flats[0])
        taking_apart |= dict.fromkeys(ops, placement.of[pack.makers[0]])
        instead |= dict.fromkeys(pack.totals, ())
        instead[pack.totals[0]] = tuple((joined, flat) for flat in flats)
    sums: dict[tuple[Var, Var], None] = {}
    for total, result in region.sums:
        sums |= dict.fromkeys(instead.get(total, ((total, result),)))
    loop: Region = replace(region, ops=(*region.ops, *joining), sums=tuple(sums))
    step = step.with_region(index, loop)
    step = step.with_region(index + 1, replace(after, ops=(*taking_apart, *after.ops)))
    return step, placement.with_ops({}, {**joining, **taking_apart})


def _join(*arrays: Any) -> Any:
    return jax.lax.concatenate([jax.lax.reshape(array, (array.size,)) for array in arrays], 0)


def _taken_apart(pack: _Pack, like: Var) -> tuple[Var, list[Op]]:
    """A variable for the accumulator of a pack, and the equations that make its accumulators of that."""
    joined = _compat.new_var(_compat.array_aval(like.aval.shape, pack.totals[0].aval.dtype))
    ops: list[Op] = []
    start = 0
    for total in pack.totals:
        end = start + num_elements(total)

        def piece(flat: Any, start: int = start, end: int = end, total: Var = total) -> Any:
            return jax.lax.reshape(jax.lax.slice(flat, (start,), (end,)), total.aval.shape)

        ops += [Op(eqn, variant=pack.variant) for eqn in trace_equations(piece, [joined], total)[1]]
        start = end
    return joined, ops
