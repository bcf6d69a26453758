"""Costs: what the times of single instructions say of all that do the same, and of the stages of a loop."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mmruntime._inspect.timeline import StageCost
from mmruntime._partition.pipeline.instructions import Instruction, Program, RunInstruction
from mmruntime._partition.programs.segment import Segment


def typical(program: Program, seconds: Sequence[float]) -> list[float]:
    """For each instruction the median over all that do the same, as each alone was run a few times only."""

    def kind(item: Instruction) -> Any:
        return item.spec if isinstance(item, RunInstruction) else (item.source, item.target, item.values)

    alike: dict[Any, list[float]] = defaultdict(list)
    for item, cost in zip(program.instructions, seconds, strict=True):
        alike[kind(item)].append(cost)
    medians = {key: statistics.median(costs) for key, costs in alike.items()}
    return [medians[kind(item)] for item in program.instructions]


def stage_costs(
    program: Program, seconds: Sequence[float], summary: Callable[[Sequence[float]], float]
) -> list[tuple[StageCost, ...]]:
    """The cost of each stage of each loop: `summary` (a median or a minimum) over its microbatches."""
    runs: dict[Segment, list[float]] = defaultdict(list)
    for item, cost in zip(program.instructions, seconds, strict=True):
        if not isinstance(item, RunInstruction) or item.spec.kind == "again":
            continue
        if item.spec.segment is not None and item.microbatch is not None:
            runs[item.spec.segment].append(cost)
    once = {segment: summary(costs) for segment, costs in runs.items()}
    loops = []
    for pipeline in program.pipelines:
        stages = []
        for stage in pipeline.stages:
            backward = sum(once[each] for each in stage.backward)
            weights = sum(once[each] for each in stage.weights)
            stages.append(StageCost(once[stage.forward], backward, weights))
        loops.append(tuple(stages))
    return loops
