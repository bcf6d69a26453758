"""Delay: what devices of a submesh add up with each other, they add up once per step, not once per microbatch.

Where mesh axes cut the examples, each gradient is a sum over them, for which XLA puts an all-reduce into every program
that computes a part of it: once per microbatch. But a loop adds the gradients of its microbatches up as well, and in
which order makes no difference. So each shard keeps an accumulator of its own, and these are added up behind the loop,
in the program of the optimizer: one reduction per step and parameter. An accumulator then takes as much memory as a
gradient with a copy on each device does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.logical_axes import spec_axes
from mmruntime._core.marks import accumulator_type
from mmruntime._jaxpr.ir import Op, Step, at_line, shard_bytes
from mmruntime._partition.layouts.propagate import PropagatedLayouts
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.placement.partial_sums import read_counts, split_loop_sums
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.sums.shard_terms import Axes, LaidOutBody, ShardTerms, reduced
from mmruntime._partition.tracing.trace import remove_dead_code

# Of one operand; they move no data between examples.
_THIN = frozenset(("mm_constraint", "sharding_constraint", "convert_element_type", "copy", "neg", "transpose"))


@dataclass(frozen=True)
class DelayedSums:
    """What a loop adds up over devices once per step.

    Attributes:
        count: How many accumulators.
        size: Their bytes on each device.
        axes: The axes that they are added up over.
        num_microbatches: How many microbatches the loop has.
        kept: What is added up for each microbatch all the same, and why.
    """

    count: int
    size: int
    axes: Axes
    num_microbatches: int
    kept: tuple[str, ...]


def split_by_program(step: Step, placement: Placement, segments: Segments) -> tuple[Step, Placement]:
    """The step with an accumulator for each program that makes terms of a sum, where a submesh has several.

    Else the term of one program would be given to the next whole, and so be added up over devices before.
    """
    for index, region in enumerate(step.regions):
        if region.loop is None or region.loop.count < 2 or region.loop.sync != "step":
            continue
        programs = [each for each in segments.by_region[index] if placement.submeshes.meshes[each.submesh].size > 1]
        numbers = {
            op: number
            for number, each in enumerate(programs)
            for op in each.ops
            if len(placement.of[op]) == 1 and op not in placement.floating
        }
        producer = {var: op for op in step.ops() for var in op.writes()}

        def number(op: Op, numbers: Mapping[Op, int] = numbers, producer: Mapping[Var, Op] = producer) -> int | None:
            # What only lays a term out may run with its reader, in another program than the one that makes the term.
            while op.eqn.primitive.name in _THIN and (made := [producer[var] for var in op.reads() if var in producer]):
                op = made[0]
            return numbers.get(op)

        after = step.regions[index + 1]
        region, after, placed = split_loop_sums(region, after, producer, read_counts(step), number)
        if placed:
            step = remove_dead_code(step.with_region(index, region).with_region(index + 1, after))
            of = dict(placement.of)
            of.update((op, (programs[each].submesh,)) for op, each in placed.items())
            placement = replace(placement, of=of)
    return step, placement


def delay_sums(
    step: Step, placement: Placement, segments: Segments, shardings: Shardings, known: PropagatedLayouts
) -> tuple[Step, Placement, dict[int, DelayedSums]]:
    """The step with its loops' sums over devices behind the loops, and where it runs; what became of each loop's sums.

    Args:
        step: The step.
        placement: Where it runs.
        segments: Its programs.
        shardings: Their layouts.
        known: What was propagated before; what is propagated here is added.
    """
    found: dict[int, DelayedSums] = {}
    for index, region in enumerate(step.regions):
        if region.loop is None or region.loop.count < 2 or region.loop.sync != "step":
            continue
        loop = _LoopSums(step, index, placement, segments, shardings, known)
        if loop.delayed or loop.kept:
            step, placement = loop.rewritten()
            found[index] = loop.report()
    return step, placement, found


class _LoopSums:
    """The sums of one loop."""

    def __init__(
        self,
        step: Step,
        index: int,
        placement: Placement,
        segments: Segments,
        shardings: Shardings,
        known: PropagatedLayouts,
    ) -> None:
        self.step, self.index, self.placement = step, index, placement
        self.region = step.regions[index]
        assert self.region.loop is not None
        self.all_gather = self.region.loop.all_gather
        self.every = segments.by_region[index]
        self.segments = [each for each in self.every if placement.submeshes.meshes[each.submesh].size > 1]
        self.shardings = shardings
        self.made_on = segments.made_on
        # How often each result is summed up, and what else reads variables of the loop.
        self.results: dict[Var, list[Var]] = defaultdict(list)
        for total, result in self.region.sums:
            self.results[result].append(total)
        self.known = known
        self.terms = {each: self._terms(each, self._candidates(each)) for each in self.segments}
        self.delayed, cut = self._delayed()
        said = dict.fromkeys(_said(eqn) for terms in self.terms.values() for eqn in terms.sums)
        self.kept = (*said, *([_said_of_cut(cut)] if cut else ()))

    def _candidates(self, segment: Segment) -> list[Var]:
        """The results of a segment that are summed up by one accumulator each, and computed here only."""
        alone = {var for op in segment.ops if len(self.placement.of[op]) == 1 for var in op.writes()}
        return [
            result
            for result, totals in self.results.items()
            if result in alone and len(totals) == 1 and self.made_on[result][0] == segment.submesh
        ]

    def _terms(self, segment: Segment, wanted: list[Var]) -> ShardTerms:
        read = {var for other in self.every if other is not segment for var in other.reads}
        outside = [var for var in segment.writes if var not in wanted or var in read]
        mesh = self.placement.submeshes.meshes[segment.submesh]
        laid_out = _compat.split(self.shardings.body(segment))[0].eqns
        specs = {var: self.shardings[var, segment.submesh].spec for var in segment.reads}
        eqns = [op.eqn for op in segment.ops]
        return ShardTerms(
            LaidOutBody(self.step.like, eqns, laid_out, specs, mesh, self.all_gather, self.known), wanted, outside
        )

    def _delayed(self) -> tuple[dict[Var, Axes], set[Var]]:
        """The accumulators that can be kept apart, as all of their terms can, over the same axes.

        Returns:
            The axes of each, and accumulators that are left because they are themselves cut over such axes.
        """
        axes = {var: each for terms in self.terms.values() for var, each in terms.axes.items()}
        found: dict[Var, Axes] = {}
        refused: set[Var] = set()
        cut: set[Var] = set()
        for total, result in self.region.sums:
            each = axes.get(result)
            if each is None or found.setdefault(total, each) != each:
                refused.add(total)
            elif spec_axes(self.shardings[total, self.made_on[result][0]].spec) & set(each) - set(self.all_gather):
                # It would take as many times the memory as the axes have devices.
                cut.add(total)
        return {total: each for total, each in found.items() if total not in refused | cut}, cut

    def rewritten(self) -> tuple[Step, Placement]:
        """The step with these accumulators, and where it runs."""
        if not self.delayed:
            return self.step, self.placement
        instead: dict[Op, list[Op]] = {}
        terms: dict[Var, Var] = {}
        place = {op: number for number, op in enumerate(self.region.ops)}
        for segment in self.segments:
            wanted = [var for var in self._candidates(segment) if self.results[var][0] in self.delayed]
            found = self.terms[segment]
            if found.axes.keys() & found.wanted != set(wanted):
                found = self._terms(segment, wanted)
            # A program's equations stand in another order than those of the loop.
            places = [place[op] for op in segment.ops]
            eqns, own = found.rewritten(sorted(range(len(places)), key=places.__getitem__))
            terms |= own
            for op, new in zip(segment.ops, eqns, strict=True):
                if len(new) != 1 or new[0] is not op.eqn:
                    instead[op] = [op.with_eqn(eqn) for eqn in new]
        loop = self.region.loop
        assert loop is not None
        totals = {
            total: self._apart(total, terms[result], loop.accumulate)
            for total, result in self.region.sums
            if total in self.delayed
        }
        sums = [
            (totals[total], terms[result]) if total in totals else (total, result) for total, result in self.region.sums
        ]
        ops = [new for op in self.region.ops for new in instead.get(op, [op])]
        region = replace(self.region, ops=tuple(ops), sums=tuple(sums))
        final: dict[Op, tuple[int, ...]] = {}
        home = {total: self.made_on[result][0] for total, result in self.region.sums}
        for total, apart in totals.items():
            layout = self.shardings[total, home[total]]
            # Where parameters are cut, those that read it say how.
            given = None if self.all_gather and layout.is_fully_replicated else layout
            final.update((Op(eqn), (home[total],)) for eqn in reduced(apart, total, given))
        after = self.step.regions[self.index + 1]
        step = self.step.with_region(self.index, region)
        step = step.with_region(self.index + 1, replace(after, ops=(*final, *after.ops)))
        return step, self.placement.with_ops({new: op for op, ops in instead.items() for new in ops}, final)

    def _apart(self, total: Var, like: Var, accumulate: str) -> Var:
        """An accumulator for a total, of the shape of another variable."""
        aval = like.aval
        dtype = accumulator_type(total.aval.dtype, accumulate)
        return _compat.new_var(aval if dtype == aval.dtype else _compat.array_aval(aval.shape, dtype))

    def report(self) -> DelayedSums:
        """What is added up when."""
        axes = tuple(dict.fromkeys(axis for each in self.delayed.values() for axis in each))
        home = {total: self.made_on[result][0] for total, result in self.region.sums}
        assert self.region.loop is not None
        size = 0
        for total, apart in self.delayed.items():
            layout = self.shardings[total, home[total]]
            kept = [_without(entry, apart) for entry in layout.spec]
            wide = self._apart(total, total, self.region.loop.accumulate)
            size += shard_bytes(wide, NamedSharding(layout.mesh, PartitionSpec(*kept)))
        return DelayedSums(len(self.delayed), size, axes, self.region.loop.count, self.kept)


def _without(entry: Any, axes: Axes) -> Any:
    names = (entry,) if isinstance(entry, str) else entry or ()
    return tuple(name for name in names if name not in axes) or None


def _said(eqn: Any) -> str:
    return f"{eqn.primitive.name}{at_line(eqn)}"


def _said_of_cut(cut: Collection[Var]) -> str:
    return f"{len(cut)} accumulators that the same axes cut, which keeps each device's share small"
