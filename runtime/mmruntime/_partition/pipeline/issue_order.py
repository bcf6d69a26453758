"""Issue order: one order of all programs of a microbatch loop, in which the runner issues them.

One thread issues for all submeshes. Dispatch is asynchronous (https://docs.jax.dev/en/latest/async_dispatch.html) and a
device runs its programs in the order of issue, so issuing by simulated start time keeps every device supplied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mmruntime import schedules
from mmruntime._compat import Var
from mmruntime._jaxpr.ir import Region
from mmruntime._partition.pipeline.loop_schedule import LoopSchedule
from mmruntime._partition.pipeline.pipeline_stages import Stage, dependencies, pipeline_stages
from mmruntime._partition.programs.segment import Segment

# Simulated times of programs. Only their ratio matters: a backward has two matrix products where a forward has one.
_FORWARD, _BACKWARD = 1, 2

# A program and the microbatch that it runs for.
ProgramRun = tuple[Segment, int]


@dataclass(eq=False, slots=True, frozen=True)
class Pipeline:
    """A microbatch loop as a pipeline.

    Attributes:
        variants: The stages of each variant of the body, in the order in which a microbatch passes through them.
        others: Programs that belong to no stage; they run when a stage needs them, or as soon as they can.
        schedule: The schedule of the stages.
        choice: The report of the search, if the schedule was searched for.
        order: Programs and microbatches in order of issue.
        again: Forward passes that run once more for some microbatches: what stands for that in `order`, and the
            program of the forward pass.
    """

    variants: tuple[tuple[Stage, ...], ...]
    others: tuple[Segment, ...]
    schedule: schedules.Schedule
    choice: schedules.Choice | None
    order: tuple[ProgramRun, ...]
    again: Mapping[Segment, Segment] = field(default_factory=dict)

    @property
    def repeated(self) -> frozenset[ProgramRun]:
        """The forward passes that run once more, each with its microbatch."""
        return frozenset((self.again[each], microbatch) for each, microbatch in self.order if each in self.again)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the first variant; all variants have their stages on the same submeshes."""
        return self.variants[0]


def order_loop(
    region: Region,
    chosen: LoopSchedule,
    segments: Sequence[Segment],
    made_on: Mapping[Var, tuple[int, ...]],
) -> Pipeline:
    """The pipeline of a loop, with its order of issue."""
    assert region.loop is not None
    waits = dependencies(segments, made_on)
    variants: list[tuple[Stage, ...]] = []
    others: list[Segment] = []
    for variant in sorted({each.variant for each in segments}):
        stages, rest = pipeline_stages([each for each in segments if each.variant == variant], waits)
        variants.append(stages)
        others.extend(rest)
    again: dict[Segment, Segment] = {}
    queues: list[list[ProgramRun]] = []
    for row in chosen.schedule.rows:
        queue: list[ProgramRun] = []
        for action in row:
            variant = region.variant_of[action.microbatch] if region.variant_of else 0
            stage = variants[variant][action.stage]
            if action.kind == "F":
                queue.append((stage.forward, action.microbatch))
            if action.kind == "R":
                queue.append((again.setdefault(stage.forward, replace(stage.forward, part="R")), action.microbatch))
            if action.kind in ("B", "I"):
                queue.extend((each, action.microbatch) for each in stage.backward)
            if action.kind in ("B", "W"):
                queue.extend((each, action.microbatch) for each in stage.weights)
        queues.append(queue)
    free = {each: region.microbatches(each.variant) for each in others}
    waits.update((each, (*waits[forward], forward)) for forward, each in again.items())
    order = _issue(queues, free, waits, sliced=region.num_slices > 1)
    repeats = {each: forward for forward, each in again.items()}
    return Pipeline(tuple(variants), tuple(others), chosen.schedule, chosen.choice, order, repeats)


def _issue(
    queues: Sequence[Sequence[ProgramRun]],
    free: Mapping[Segment, Sequence[int]],
    waits: Mapping[Segment, tuple[Segment, ...]],
    *,
    sliced: bool,
) -> tuple[ProgramRun, ...]:
    """One order of all programs: by simulated start time, with the order of each queue kept.

    Args:
        queues: The programs of each submesh, in the schedule's order.
        free: Programs of no stage and their microbatches. One that a stage depends on runs right before that stage,
            so that its results are not held in memory for longer; the others run as soon as they can.
        waits: The programs that each program reads from.
        sliced: Whether programs of other variants are those of other slices of the same microbatch.
    """
    needed = _sources([cell[0] for queue in queues for cell in queue], waits)
    all_queues = [list(queue) for queue in queues]
    all_queues += [[(each, k) for k in microbatches] for each, microbatches in free.items() if each not in needed]
    # No set: every process must find the same order, and programs hash by their address.
    on_demand = dict.fromkeys((each, k) for each, microbatches in free.items() if each in needed for k in microbatches)
    done: dict[ProgramRun, float] = {}
    busy: dict[int, float] = defaultdict(float)
    position = [0] * len(all_queues)
    order: list[ProgramRun] = []

    def sources(cell: ProgramRun) -> list[ProgramRun]:
        each, number = cell
        return [(source, number + source.variant - each.variant if sliced else number) for source in waits[each]]

    def ready(cell: ProgramRun) -> ProgramRun | None:
        """The cell if its inputs are there, else a program on demand that makes one of them and can run, else None."""
        for need in sources(cell):
            if need not in done:
                return ready(need) if need in on_demand else None
        return cell

    while any(at < len(queue) for at, queue in zip(position, all_queues, strict=True)):
        best: tuple[float, int, ProgramRun] | None = None
        for index, queue in enumerate(all_queues):
            if position[index] == len(queue):
                continue
            cell = ready(queue[position[index]])
            if cell is None:
                continue
            start = max([busy[cell[0].submesh], *[done[source] for source in sources(cell)]])
            if best is None or start < best[0]:
                best = (start, index, cell)
        if best is None:
            # Every queue waits for another one.
            return _in_program_order([*all_queues, list(on_demand)])
        start, index, cell = best
        if cell not in on_demand:
            position[index] += 1
        segment = cell[0]
        cost = (_FORWARD if segment.forward else 0) + (_BACKWARD if segment.backward else 0)
        done[cell] = busy[segment.submesh] = start + cost
        order.append(cell)
    return tuple(order)


def _sources(segments: Iterable[Segment], waits: Mapping[Segment, tuple[Segment, ...]]) -> set[Segment]:
    """The transitive dependencies of the segments."""
    sources: set[Segment] = set()
    todo = list(dict.fromkeys(segments))
    while todo:
        for source in waits[todo.pop()]:
            if source not in sources:
                sources.add(source)
                todo.append(source)
    return sources


def _in_program_order(queues: Sequence[Sequence[ProgramRun]]) -> tuple[ProgramRun, ...]:
    """Microbatch by microbatch: for programs whose dependencies do not form a pipeline."""
    cells = [cell for queue in queues for cell in queue]
    return tuple(sorted(cells, key=lambda cell: (cell[1], cell[0].level, cell[0].submesh)))
