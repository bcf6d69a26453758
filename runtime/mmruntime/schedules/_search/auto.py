"""`auto`: search for the best order under given costs and a bound on memory."""

import inspect
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._catalog import AUTO, check_sizes, named, names, placements, suits
from mmruntime.schedules._schedule import Schedule
from mmruntime.schedules._search.choice import Choice, Considered
from mmruntime.schedules._search.list_scheduling import (
    Pick,
    PipelineModel,
    Policy,
    Preference,
    Recompute,
    hops_to_end,
    list_schedule,
)
from mmruntime.schedules._search.local_search import improve
from mmruntime.schedules._search.lower_bound import shortest_step
from mmruntime.schedules._search.objective import Objective, SearchOptions, objective_for
from mmruntime.schedules._simulate import simulate

# Budgets of the search, as actions run in simulated time: for policies, and for local search. Not seconds, because
# every process of a step has to find the same order, and clocks differ.
_POLICY_WORK = 400_000
_MOVE_WORK = 4_000_000
# Policies are compared on fewer microbatches, with about so many actions; the best then run on all of them.
_SAMPLE_ACTIONS = 1_600
# Overhead of a trial, in actions.
_TRIAL_WORK = 100
_FINALISTS = 4
# Steps after which the time per step without a barrier repeats, in most cases.
_STEADY_STEPS = 4
# Most changes of one stage's bound to try.
_TUNING = 50
_NO_CAP = 10**9
# The options that `simulate` has as well.
_COSTS = frozenset(inspect.signature(simulate).parameters)


@dataclass(frozen=True)
class _Candidate:
    """An order, ranked by time, then peak memory, then simplicity (`NamedSchedule.rank`)."""

    time: float
    memory: float
    rank: int
    origin: str
    rows: Rows
    objective: Objective

    @property
    def key(self) -> tuple[float, float, int]:
        """Sort key. Rounded, because sums in another order differ in their last bits."""
        return (float(f"{self.time:.9g}"), float(f"{self.memory:.9g}"), self.rank)


def auto(
    num_stages: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    **options: Unpack[SearchOptions],
) -> Choice:
    """Search for the order with the shortest step under these costs that fits the memory.

    The candidates are

    - all named schedules that suit the placement;
    - list schedules under many policies: microbatches in flight at each stage, which action goes first, and when a
      weight half may fill a gap (the parameters of the heuristic in arXiv:2401.10241, section 3.1, and some more), with
      the number in flight tuned stage by stage for the best of them;
    - where forwards may run once more (`input_bytes`): both kinds with as many as the bound on memory asks for, in the
      gaps where the order leaves some;
    - the best of both, improved by local search along the critical path.

    So the result is never worse than the best named schedule that fits. It is the same on every run and every machine.

    Args:
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches of one step.
        chunks: Stages on each submesh. One if left out; two are tried round-robin and in a V.
        placement: Submesh of each stage, instead of `chunks`.
        **options: As for `simulate`: `forward`, `backward_input`, `backward_weight`, `backward`, `latency`,
            `barrier`, `transfer_bytes`, `bandwidth`. And

            - `memory`: bound on what a submesh may hold, one number for all or one for each, in the unit of
              `Simulation.live`, or in bytes with `activation_bytes`. No bound if left out.
            - `activation_bytes`, `weight_activation_bytes`: as for `simulate`.
            - `input_bytes`: as for `simulate`. Without it, no forward runs once more.
            - `split`: whether the backward pass may run in two halves; true if left out.
            - `effort`: how long to search; 1 if left out, 10 for ten times as many trials.

    Raises:
        ValueError: If a number is out of range, or the memory cannot hold one microbatch.
    """
    check_sizes(num_stages, num_microbatches, chunks)
    effort = options.get("effort", 1.0)
    if not effort > 0:
        raise ValueError(f"effort must be above 0; got {effort}. 1 takes a few seconds, 0.1 a tenth of that.")
    split = options.get("split", True)
    found: list[_Candidate] = []
    considered: list[Considered] = []
    bounds = []
    homes = placements(num_stages, chunks, placement)
    for home in homes:
        objective = objective_for(home, num_stages, num_microbatches, options)
        bounds.append(shortest_step(objective.pipeline, split=split, barrier=objective.barrier))
        for rank, name in enumerate(names()):
            if not suits(name, home):
                continue
            schedule = named(name, num_stages, num_microbatches, placement=home)
            # Replicas hold weights twice, and the bound on memory only counts activations.
            if schedule.replicas or (schedule.splits_backward and not split):
                continue
            # A fused pair costs as much as its parts here, because nobody has measured one.
            time, memory = objective.time(schedule.rows), max(objective.peaks(schedule.rows))
            fits = objective.fits(schedule.rows)
            considered.append(Considered(name, home, time, memory, fits))
            rows, origin = schedule.rows, f"the order of {name}"
            if not fits and objective.pipeline.recomputable:
                rows = recompute_where_full(rows, objective.pipeline)
                origin += ", with forwards run once more"
                time, memory, fits = objective.time(rows), max(objective.peaks(rows)), objective.fits(rows)
            if fits:
                found.append(_Candidate(time, memory, rank, origin, rows, objective))
        found += _list_schedules(objective, effort / len(homes))
    bound = min(bounds)
    found.sort(key=lambda each: each.key)
    found += _improved(found, bound, effort)
    best = min(found, key=lambda each: each.key)
    pipeline = best.objective.pipeline
    schedule = Schedule(AUTO, best.rows, pipeline.placement, len(pipeline.placement), num_microbatches)
    costs: dict[str, Any] = {name: value for name, value in options.items() if name in _COSTS}
    return Choice(
        schedule=schedule,
        simulation=simulate(schedule, **costs),
        lower_bound=bound,
        origin=best.origin,
        considered=tuple(sorted(considered, key=lambda other: (other.time, other.memory))),
        memory=pipeline.memory,
    )


def _list_schedules(objective: Objective, effort: float) -> list[_Candidate]:
    """The best list schedules. Policies are compared on some of the microbatches; the best then run on all."""
    pipeline = objective.pipeline
    stages = len(pipeline.placement)
    count = min(pipeline.num_microbatches, max(_SAMPLE_ACTIONS // (3 * stages), 3 * stages))
    sample = replace(objective, pipeline=replace(pipeline, num_microbatches=count))
    trials = max(12, round(_POLICY_WORK * effort / (3 * stages * count + _TRIAL_WORK)))
    able = pipeline.recomputable
    if able:
        # As many again for the same policies with forwards once more, in two ways.
        trials *= 3

    def rated(policy: Policy) -> tuple[tuple[float, float], int, Policy]:
        rows = list_schedule(sample.pipeline, policy)
        key = (float(f"{sample.time(rows):.9g}"), sum(sample.peaks(rows)))
        return key, len(tried), policy

    tried: list[tuple[tuple[float, float], int, Policy]] = []
    for policy in itertools.islice(_policies(objective), trials * 2 // 3):
        tried.append(rated(policy))
    # Uneven stages need uneven numbers in flight: hill climbing, one number at a time.
    chance = random.Random(0)
    best = min(tried)
    bound = shortest_step(sample.pipeline, split=objective.split, barrier=objective.barrier)
    for _ in range(min(trials - len(tried), _TUNING * stages)):
        if best[0][0] <= bound * (1 + 1e-9):
            break
        caps = [min(cap, count) for cap in best[2].caps]
        again = list(best[2].recompute)
        if again and chance.random() < 0.3:
            again[chance.choice(able)] = chance.choice(("when full", "at first", "always"))
        else:
            stage = chance.randrange(stages)
            caps[stage] = max(1, caps[stage] + chance.choice((-1, 1)))
        tried.append(rated(replace(best[2], caps=tuple(caps), recompute=tuple(again))))
        if tried[-1][0] <= best[0]:
            best = tried[-1]
    found = []
    for _, _, policy in sorted(tried)[:_FINALISTS]:
        rows = list_schedule(pipeline, policy)
        found.append(
            _Candidate(
                objective.time(rows), max(objective.peaks(rows)), len(names()), _describe(policy), rows, objective
            )
        )
    return found


def _describe(policy: Policy) -> str:
    """The policy in words, for `Choice.origin`."""
    first = {
        "backward": "backwards first",
        "forward": "forwards first",
        "alternate": "forwards and backwards in turn",
    }[policy.prefer]
    flight = ", ".join(map(str, policy.caps)) if max(policy.caps) < _NO_CAP else "any number of"
    halves = "weight halves in the gaps" if policy.split else "whole backwards"
    again = ", forwards once more where memory is full" if policy.recompute else ""
    return f"a list schedule: {first}, {halves}, {flight} microbatches in flight by stage{again}"


def _policies(objective: Objective) -> Iterator[Policy]:
    """Policies to try, the more promising ones first; each with forwards once more too, where they may."""
    pipeline = objective.pipeline
    able = pipeline.recomputable
    needed = max(need - most for need, most in zip(pipeline.least_memory(), pipeline.memory, strict=True))
    stages = range(len(pipeline.placement))
    ways: tuple[Recompute, ...] = ("when full", "at first") if able else ()
    again: list[tuple[Recompute, ...]] = [tuple(way if stage in able else "never" for stage in stages) for way in ways]
    for policy in _plain_policies(objective):
        if not able or needed <= 1e-9:
            yield policy
        for way in again:
            yield replace(policy, recompute=way)


def _plain_policies(objective: Objective) -> Iterator[Policy]:
    """Policies that run no forward once more."""
    pipeline = objective.pipeline
    placement, costs = pipeline.placement, pipeline.costs
    stages = range(len(placement))
    hops = hops_to_end(placement)
    down = costs.backward_input if objective.split else costs.backward
    # Little's law: a stage needs as many microbatches in flight as the busiest submesh, which sets the pace, can work
    # on during a trip from the stage's forward to its backward.
    work, forwards = [0.0] * pipeline.num_submeshes, [0.0] * pipeline.num_submeshes
    for stage in stages:
        work[placement[stage]] += costs.forward[stage] + costs.backward[stage]
        forwards[placement[stage]] += costs.forward[stage]
    trip = [0.0] * len(placement)
    for stage in reversed(stages):
        further = stage + 1 < len(placement)
        hop = 2 * pipeline.latency[stage] if further and placement[stage + 1] != placement[stage] else 0.0
        trip[stage] = costs.forward[stage] + down[stage] + hop + (trip[stage + 1] if further else 0.0)
    needed = [max(1, math.ceil(time / (max(work) or 1.0))) for time in trip]
    # Forwards alone fill the time until the first microbatch is back.
    away = [time - own for time, own in zip(trip, down, strict=True)]
    filled = [max(1, math.ceil(time / (forwards[home] or 1.0))) for time, home in zip(away, placement, strict=True)]
    caps = [
        hops,
        tuple(filled),
        tuple(2 * hop - 1 for hop in hops),
        tuple(max(1, number - 1) for number in filled),
        tuple(hop + 1 for hop in hops),
        tuple(-(-3 * hop // 2) for hop in hops),
        (_NO_CAP,) * len(hops),
        *(tuple(number + extra for number in needed) for extra in (0, 1, 2)),
        *(tuple(2 * hop + extra for hop in hops) for extra in (0, 1)),
    ]
    picks: list[tuple[Pick, Pick]] = [("high", "high")]
    if len(set(placement)) < len(placement):
        picks = [*picks, ("old", "old"), ("low", "high"), ("high", "low")]
    preferences: tuple[Preference, ...] = ("alternate", "backward", "forward")
    for (forward_pick, backward_pick), prefer in itertools.product(picks, preferences):
        for weight_slack, cap in itertools.product((math.inf, 0.0, 0.5) if objective.split else (), caps):
            yield Policy(True, cap, prefer, forward_pick, backward_pick, weight_slack)
        for cap in caps:
            yield Policy(False, cap, prefer, forward_pick, backward_pick)


def _improved(found: Sequence[_Candidate], bound: float, effort: float) -> list[_Candidate]:
    """The best orders after local search, as far as it shortened them."""
    better = []
    starts: dict[Rows, _Candidate] = {}
    for each in found:
        starts.setdefault(each.rows, each)
    for start in list(starts.values())[:_FINALISTS]:
        pipeline = start.objective.pipeline
        barrier = start.objective.barrier
        steps = 1 if barrier else _STEADY_STEPS
        tries = round(_MOVE_WORK * effort / _FINALISTS / steps / (sum(map(len, start.rows)) + _TRIAL_WORK))
        rows, time = improve(
            start.objective.timed(start.rows),
            pipeline.whole,
            pipeline.kept,
            pipeline.inputs,
            pipeline.memory,
            tries,
            bound,
            barrier,
        )
        if time < start.time * (1 - 1e-9):
            origin = f"{start.origin}, improved from {start.time:.6g} by moving actions along the critical path"
            memory = max(start.objective.peaks(rows))
            better.append(_Candidate(time, memory, len(names()) + 1, origin, rows, start.objective))
    return better


def lower_bound(
    num_stages: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    **options: Unpack[SearchOptions],
) -> float:
    """A time per step that no order can beat under these costs and this memory; arguments as for `auto`.

    It is the largest of several simple bounds (the critical path of one microbatch, the work of a submesh between the
    path to it and the path from it, the time for which microbatches hold memory), so the best order may take longer.
    """
    check_sizes(num_stages, num_microbatches, chunks)
    objectives = [
        objective_for(home, num_stages, num_microbatches, options) for home in placements(num_stages, chunks, placement)
    ]
    return min(shortest_step(each.pipeline, split=each.split, barrier=each.barrier) for each in objectives)


def recompute_where_full(rows: Rows, pipeline: PipelineModel) -> Rows:
    """The rows, with a forward run once more for each microbatch whose activations found no memory.

    The earlier ones keep their activations, in as much memory as the largest forward leaves that runs once more. The
    result may still be too large: an order with more microbatches in flight than there is memory for their inputs.
    """
    able = set(pipeline.recomputable)
    return tuple(_row(row, pipeline, memory, able) for row, memory in zip(rows, pipeline.memory, strict=True))


def _row(row: tuple[Action, ...], pipeline: PipelineModel, memory: float, able: set[int]) -> tuple[Action, ...]:
    whole, kept, inputs = pipeline.whole, pipeline.kept, pipeline.inputs
    more = max((whole[action.stage] - inputs[action.stage] for action in row if action.stage in able), default=0.0)
    live = 0.0
    waiting: set[tuple[int, int]] = set()
    result: list[Action] = []
    for action in row:
        stage, key = action.stage, (action.stage, action.microbatch)
        if action.kind == "F":
            if stage in able and live + whole[stage] > memory - more + 1e-9:
                waiting.add(key)
                live += inputs[stage]
            else:
                live += whole[stage]
        elif action.kind == "W":
            live -= kept[stage]
        else:
            if key in waiting:
                result.append(Action("R", stage, action.microbatch))
                live += whole[stage] - inputs[stage]
            live -= whole[stage] - (kept[stage] if action.kind == "I" else 0.0)
        result.append(action)
    return tuple(result)
