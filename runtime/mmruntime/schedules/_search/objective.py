"""The objective of `auto`: the time of a step under given costs, within a bound on memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from mmruntime.schedules._action import Rows
from mmruntime.schedules._costs import ActivationSizes, Cost, activation_sizes, stage_costs, transfer_times
from mmruntime.schedules._memory import peak
from mmruntime.schedules._search.list_scheduling import PipelineModel
from mmruntime.schedules._timing import TimedSchedule


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of `auto`, which documents them."""

    forward: Cost
    backward_input: Cost
    backward_weight: Cost
    backward: Cost | None
    latency: float
    barrier: bool
    transfer_bytes: Cost
    bandwidth: float
    memory: float | Sequence[float] | None
    activation_bytes: Cost | None
    weight_activation_bytes: Cost | None
    input_bytes: Cost | None
    split: bool
    effort: float


@dataclass(frozen=True)
class Objective:
    """A pipeline with its bound on memory, and how the time of a step is counted.

    Attributes:
        pipeline: The pipeline. Its latency includes the time that a link is busy.
        transfers: For each stage, how long a link is busy with its output.
        latency: Time from the end of an action, or of its transfer, to the arrival.
        barrier: Whether submeshes wait for each other at the end of a step.
        split: Whether the backward pass may run in two halves.
    """

    pipeline: PipelineModel
    transfers: tuple[float, ...]
    latency: float
    barrier: bool
    split: bool

    def timed(self, rows: Rows) -> TimedSchedule:
        """The rows, ready to run in simulated time."""
        count = self.pipeline.num_microbatches
        return TimedSchedule(
            rows,
            [submesh for submesh in self.pipeline.placement for _ in range(count)],
            count,
            self.pipeline.costs,
            latency=self.latency,
            transfers=self.transfers,
        )

    def time(self, rows: Rows) -> float:
        """Time per step."""
        timed = self.timed(rows)
        finish = timed.run().finish
        assert finish is not None, "only valid orders are compared"
        return max(finish) if self.barrier else timed.steady(finish)

    def peaks(self, rows: Rows) -> tuple[float, ...]:
        """Peak memory of each submesh."""
        inputs = self.pipeline.inputs if self.pipeline.recomputable else None
        return tuple(peak(row, self.pipeline.whole, self.pipeline.kept, inputs) for row in rows)

    def fits(self, rows: Rows) -> bool:
        """Whether every submesh stays within its bound."""
        return all(most <= memory + 1e-9 for most, memory in zip(self.peaks(rows), self.pipeline.memory, strict=True))


def objective_for(
    home: tuple[int, ...], num_submeshes: int, num_microbatches: int, options: SearchOptions
) -> Objective:
    """The objective for a placement.

    Raises:
        TypeError: If a cost is not a number or a sequence of numbers.
        ValueError: If a cost is out of range, or a sequence has the wrong length.
    """
    stages = len(home)
    split = options.get("split", True)
    costs = stage_costs(
        stages,
        num_submeshes,
        options.get("forward", 1),
        options.get("backward_input", 1),
        options.get("backward_weight", 1),
        options.get("backward"),
    )
    latency = options.get("latency", 0.0)
    transfers = transfer_times(
        options.get("transfer_bytes", 0), options.get("bandwidth", math.inf), latency, stages, num_submeshes
    )
    unit = num_submeshes / stages
    sizes = activation_sizes(
        options.get("activation_bytes"),
        options.get("weight_activation_bytes"),
        options.get("input_bytes"),
        stages,
        num_submeshes,
    )
    sizes = sizes or ActivationSizes(*[(unit,) * stages] * 3)
    bound = options.get("memory")
    memory = (
        (math.inf if bound is None else float(bound),) * num_submeshes
        if bound is None or isinstance(bound, int | float)
        else tuple(map(float, bound))
    )
    if len(memory) != num_submeshes:
        raise ValueError(
            f"memory gives {len(memory)} numbers for {num_submeshes} submeshes. Give one for each, or one."
        )
    pipeline = PipelineModel(
        placement=home,
        num_submeshes=num_submeshes,
        num_microbatches=num_microbatches,
        costs=costs,
        latency=tuple(latency + transfer for transfer in transfers),
        whole=sizes.whole,
        kept=sizes.kept,
        inputs=sizes.inputs,
        memory=memory,
    )
    return Objective(pipeline, transfers, latency, options.get("barrier", True), split)
