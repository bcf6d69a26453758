"""Cut: how many layers each stage gets where `stage(weights="auto")` leaves that to the schedule.

A cut that balances the layers alone is not the best one: what comes before the first layer and behind the last one,
such as an embedding, a head and the loss, is work of the first and the last stage, and what a heavy stage costs depends
on the schedule. So cuts are compared by the simulated time of the loop's own schedule; for a schedule that is searched
for, the best few cuts by the search itself, within its bound on memory: in bytes, also the few that need least.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmruntime import schedules
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.task import StageSlice, Task, searched_slice
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op, Region, Step, tasks_of
from mmruntime._partition.pipeline.layer_bytes import LayerBytes, Trial, layer_bytes, trial
from mmruntime._partition.pipeline.loop_schedule import Sizes, best_choice
from mmruntime.schedules import cut

# All cuts are compared where there are at most so many; else neighbours of the best one so far.
_ALL = 300
# Cuts for which a schedule is searched.
_SEARCHED = 3
# Simulated actions beyond which fewer microbatches stand for all.
_ACTIONS = 4096

Bounds = tuple[int, ...]


@dataclass(frozen=True)
class LayerWork:
    """Operations of a loop over layers for one microbatch, forward and backward.

    Attributes:
        layers: Those of each layer.
        before: Those of what comes before the first layer.
        behind: Those of what comes behind the last layer.
    """

    layers: tuple[tuple[float, float], ...]
    before: tuple[float, float] = (0.0, 0.0)
    behind: tuple[float, float] = (0.0, 0.0)

    def of_stages(self, bounds: Bounds) -> list[tuple[float, float]]:
        """The operations of each stage, forward and backward, where stage k has the layers from bound k to k + 1."""
        stages = [
            (sum(work[0] for work in self.layers[start:end]), sum(work[1] for work in self.layers[start:end]))
            for start, end in itertools.pairwise(bounds)
        ]
        stages[0] = stages[0][0] + self.before[0], stages[0][1] + self.before[1]
        stages[-1] = stages[-1][0] + self.behind[0], stages[-1][1] + self.behind[1]
        return stages


def cut_layers(step: Step, multimesh: MultiMesh) -> Step:
    """The step with numbers for the weights of "auto", so that every later pass sees one cut."""
    found: dict[StageSlice, Bounds] = {}
    trials: list[Trial] = []
    for piece, index in _loops(step):
        if piece.axis not in multimesh.shape:
            continue
        slices = multimesh.shape[piece.axis]
        stages = slices * piece.chunks
        if piece.count < stages:
            continue
        region = step.regions[index]
        work = _work(piece, region)
        held = None
        if (request := _search(region)) is not None and request.memory_bytes is not None:
            if not trials:
                trials.append(_trial(step, multimesh))
            held = _held(piece, trials[0])
        found[piece] = best_cut(work, stages, *_times(piece, region, slices, work, held))
    return _with_cuts(step, found)


def _with_cuts(step: Step, found: Mapping[StageSlice, Bounds]) -> Step:
    """The step with these cuts of loops, by the slices of their first layers."""
    tasks: dict[Task, Task] = {}
    for task in tasks_of(step.ops()):
        own = searched_slice(task)
        if own is not None and (bounds := found.get(replace(own, index=0))) is not None:
            tasks[task] = task.replace(mesh_slice=replace(own, weights=_weights(bounds)))
    if not tasks:
        return step
    return step.with_regions(
        replace(
            region, ops=tuple(replace(op, task=tasks.get(op.task, op.task)) if op.task else op for op in region.ops)
        )
        for region in step.regions
    )


def _weights(bounds: Bounds) -> tuple[float, ...]:
    """Weights of layers with which each stage gets those between two bounds."""
    return tuple(1 / (end - start) for start, end in itertools.pairwise(bounds) for _ in range(start, end))


def _trial(step: Step, multimesh: MultiMesh) -> Trial:
    """The step with each loop cut evenly."""
    even: dict[StageSlice, Bounds] = {}
    for piece, _ in _loops(step):
        stages = multimesh.shape.get(piece.axis, 1) * piece.chunks
        if piece.count >= stages:
            even[piece] = cut([1.0] * piece.count, stages)
    return trial(_with_cuts(step, even), multimesh)


def _held(piece: StageSlice, made: Trial) -> LayerBytes:
    """What the layers of a loop hold, as a trial has it."""

    def layer_of(op: Op) -> int | None:
        own = None if op.task is None else op.task.mesh_slice
        is_own = isinstance(own, StageSlice) and replace(own, index=0, weights=piece.weights) == piece
        return own.index if is_own and isinstance(own, StageSlice) else None

    regions = made.step.regions
    most = max(range(len(regions)), key=lambda index: sum(layer_of(op) is not None for op in regions[index].ops))
    return layer_bytes(made, most, layer_of, piece.count)


Time = Callable[[Bounds], float]


def best_cut(work: LayerWork, stages: int, times: Sequence[Time], need: Time | None = None) -> Bounds:
    """The cut into contiguous non-empty stages with the shortest time.

    Args:
        work: The operations of the layers.
        stages: How many stages, at most as many as layers.
        times: The time of a cut; infinite if it cannot be. The first is asked for many cuts, each further one for the
            best few by the one before.
        need: The memory that a cut needs, of which the few that need least are also among the best few; the
            least counts where times are equal.
    """
    count = len(work.layers)
    known: dict[Bounds, float] = {}

    def time(bounds: Bounds) -> float:
        if bounds not in known:
            known[bounds] = times[0](bounds)
        return known[bounds]

    if math.comb(count - 1, stages - 1) <= _ALL:
        for inner in itertools.combinations(range(1, count), stages - 1):
            time((0, *inner, count))
    else:
        _improve(_first_cuts(work, stages), time)
    ranked = sorted(known, key=lambda bounds: (known[bounds], _unevenness(bounds)))
    for better in times[1:]:
        few = ranked[:_SEARCHED]
        if need is not None:
            few = list(dict.fromkeys([*few, *sorted(ranked, key=need)[:_SEARCHED]]))
        exact = {bounds: better(bounds) for bounds in few}
        ranked = sorted(few, key=lambda bounds: (exact[bounds], need(bounds) if need else 0.0, known[bounds]))
    return ranked[0]


def _first_cuts(work: LayerWork, stages: int) -> Iterator[Bounds]:
    """Cuts that balance the layers alone, and with what comes before and behind them."""
    totals = [sum(layer) for layer in work.layers]
    yield cut(totals, stages)
    totals[0] += sum(work.before)
    totals[-1] += sum(work.behind)
    yield cut(totals, stages)


def _improve(first: Iterable[Bounds], time: Callable[[Bounds], float]) -> None:
    """Move bounds by one or two layers for as long as that is shorter."""
    best = min(first, key=time)
    while True:
        moved = min(_neighbours(best), key=time, default=best)
        if time(moved) >= time(best):
            return
        best = moved


def _neighbours(bounds: Bounds) -> Iterator[Bounds]:
    for position in range(1, len(bounds) - 1):
        for by in (-2, -1, 1, 2):
            inner = bounds[position] + by
            if bounds[position - 1] < inner < bounds[position + 1]:
                yield (*bounds[:position], inner, *bounds[position + 1 :])


def _unevenness(bounds: Bounds) -> int:
    return sum((end - start) ** 2 for start, end in itertools.pairwise(bounds))


def _loops(step: Step) -> Iterator[tuple[StageSlice, int]]:
    """Each loop over layers to cut, by the slice of its first layer, and the region where it has most to do."""
    regions: dict[StageSlice, dict[int, float]] = {}
    for number, region in enumerate(step.regions):
        for op in region.ops:
            if op.task is not None and (piece := searched_slice(op.task)) is not None:
                spent = regions.setdefault(replace(piece, index=0), {})
                spent[number] = spent.get(number, 0.0) + _cost.flops(op.eqn) * region.index_count
    for piece, spent in regions.items():
        yield piece, max(spent, key=lambda number: (spent[number], -number))


def _work(piece: StageSlice, region: Region) -> LayerWork:
    """The operations of one microbatch. What has no task of these layers counts where it stands in the program."""
    layers = [[0.0, 0.0] for _ in range(piece.count)]
    # By direction: what stands before the first layer, and behind the last one so far. Backward passes come in reverse.
    first, since, begun = [0.0, 0.0], [0.0, 0.0], [False, False]
    for op in region.ops:
        if op.variant:
            continue
        work, way = _cost.flops(op.eqn), int(op.backward)
        own = None if op.task is None else searched_slice(op.task)
        if own is not None and replace(own, index=0) == piece:
            # What stands between two layers counts for the second.
            layers[own.index][way] += work + since[way]
            begun[way], since[way] = True, 0.0
        elif begun[way]:
            since[way] += work
        else:
            first[way] += work
    return LayerWork(
        tuple((forward, backward) for forward, backward in layers), (first[0], since[1]), (since[0], first[1])
    )


def _search(region: Region) -> schedules.Auto | None:
    """The search for a loop's schedule; None if it has one by name or by itself."""
    wanted = None if region.loop is None else region.loop.schedule
    if isinstance(wanted, schedules.Auto):
        return wanted
    return schedules.Auto() if wanted == schedules.AUTO else None


def _times(
    piece: StageSlice, region: Region, slices: int, work: LayerWork, held: LayerBytes | None
) -> tuple[list[Time], Time | None]:
    """How the time of a cut is found out, and the memory that it needs, if that is bounded in bytes.

    In a loop the time is that of its schedule, else that of the heaviest stage.
    """

    def heaviest(bounds: Bounds) -> float:
        return max(forward + backward for forward, backward in work.of_stages(bounds))

    if region.loop is None:
        return [heaviest], None
    count, request = region.loop.count, _search(region)
    placement = [piece.position(number, slices) for number in range(slices * piece.chunks)]
    stand_in = "zb-v" if piece.placement == "v" else "1f1b" if piece.chunks == 1 else "interleaved-1f1b"
    try:
        order = _order(region.loop.schedule if request is None else stand_in, slices, count, placement)
    except ValueError:
        # It does not suit the stages, which is said where the schedule is made.
        return [heaviest], None

    def simulated(bounds: Bounds) -> float:
        return schedules.simulate(order, *_costs(work.of_stages(bounds))).step_time

    if request is None:
        return [simulated], None

    def searched(bounds: Bounds) -> float:
        forward, inputs, weights = _costs(work.of_stages(bounds))
        own = None if held is None else held.of_stages(bounds)

        def search(wish: schedules.Auto, sizes: Sizes) -> schedules.Choice:
            return wish.choose(
                slices,
                count,
                placement,
                forward=forward,
                backward_input=inputs,
                backward_weight=weights,
                activation_bytes=sizes[0],
                weight_activation_bytes=sizes[1],
                input_bytes=None if own is None else list(map(min, own.inputs, sizes[0])),
            )

        if own is None:
            same = [1.0] * len(placement), [0.0] * len(placement)
            return search(request, same).simulation.step_time
        try:
            in_halves = list(map(max, own.whole, own.late)), own.late
            found = best_choice(request, search, in_halves, (own.whole, [0.0] * len(placement)))
        except ValueError:
            # Its memory cannot hold a microbatch; where none can, the schedule's own search says so.
            return math.inf
        return found.simulation.step_time

    if held is None:
        return [simulated, searched], None
    own = held

    def need(bounds: Bounds) -> float:
        used = [0.0] * slices
        for where, size in zip(placement, own.of_stages(bounds).whole, strict=True):
            used[where] += size
        return max(used)

    return [simulated, searched], need


def _order(wanted: object, slices: int, count: int, placement: Sequence[int]) -> schedules.Schedule:
    """The schedule of a loop, of fewer microbatches where there are very many: the steady state repeats itself."""
    if isinstance(wanted, schedules.Schedule):
        return wanted
    fewer = 2 * len(placement)
    if len(placement) * count > _ACTIONS and count > fewer:
        with contextlib.suppress(ValueError):
            return schedules.make(str(wanted), slices, fewer, placement=placement)
    return schedules.make(str(wanted), slices, count, placement=placement)


def _costs(stages: Sequence[tuple[float, float]]) -> tuple[list[float], list[float], list[float]]:
    """Costs of passes, as `simulate` takes them; each half of a backward pass counts half."""
    halves = [backward / 2 for _, backward in stages]
    return [forward for forward, _ in stages], halves, halves
