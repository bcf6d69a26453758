"""Simulation of one step: time, idle time and memory of a schedule, from the costs of its actions."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from mmruntime.schedules._action import Action
from mmruntime.schedules._costs import Cost, activation_sizes, per_stage, stage_costs, transfer_times
from mmruntime.schedules._memory import live_counts, peak
from mmruntime.schedules._schedule import Schedule
from mmruntime.schedules._timing import TimedSchedule


class Event(NamedTuple):
    """An action in simulated time.

    Attributes:
        action: The action.
        submesh: The submesh that ran it.
        start: Its start, in the unit of the costs.
        end: Its end.
    """

    action: Action
    submesh: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """Time and memory of one step of a schedule. Times are in the unit of the costs.

    Attributes:
        schedule: The simulated schedule.
        barrier: Whether every submesh waits for all others at the end of the step.
        makespan: Time from the start of the step, on all submeshes at once, until the last submesh is done.
        busy: Time for which each submesh computes.
        live: Peak of live activations on each submesh, in units of one microbatch of one submesh-sized stage; an
            activation lives from its forward (or from the one that runs once more) to its whole backward or weight
            half.
        peak_bytes: Peak bytes of activations on each submesh, None unless `activation_bytes` was given.
        starts: Start of each action; shaped like `schedule.rows`.
        ends: End of each action; shaped like `schedule.rows`.
    """

    schedule: Schedule
    barrier: bool
    makespan: float
    busy: tuple[float, ...]
    live: tuple[float, ...]
    peak_bytes: tuple[float, ...] | None
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    _timed: TimedSchedule = field(repr=False, compare=False)

    @cached_property
    def steady(self) -> float:
        """Time per step, over many steps, without a barrier.

        A submesh starts its next step as soon as its own work is done. A global norm of the gradients, a check for
        NaNs or a host that waits for the loss is a barrier.
        """
        return self._timed.steady([row[-1] if row else 0.0 for row in self.ends])

    @property
    def step_time(self) -> float:
        """`makespan` behind a barrier, `steady` without one."""
        return self.makespan if self.barrier else self.steady

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Idle time of each submesh in one step."""
        return tuple(self.step_time - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """Largest idle time of a submesh in one step; with equal stages all submeshes idle for as long."""
        return max(self.bubbles)

    @property
    def bubble_fraction(self) -> float:
        """Idle share of the time of all submeshes."""
        return sum(self.bubbles) / (len(self.busy) * self.step_time) if self.step_time else 0.0

    @cached_property
    def timeline(self) -> tuple[Event, ...]:
        """All actions with their times, ordered by start, then submesh."""
        events = [
            Event(action, submesh, start, end)
            for submesh, row in enumerate(self.schedule.rows)
            for action, start, end in zip(row, self.starts[submesh], self.ends[submesh], strict=True)
        ]
        return tuple(sorted(events, key=lambda event: (event.start, event.submesh, event.end)))


def simulate(
    schedule: Schedule,
    forward: Cost = 1,
    backward_input: Cost = 1,
    backward_weight: Cost = 1,
    latency: float = 0,
    barrier: bool = True,
    *,
    backward: Cost | None = None,
    fused: Cost | None = None,
    fused_release: Literal["end", "computed"] = "end",
    transfer_bytes: Cost = 0,
    bandwidth: float = math.inf,
    activation_bytes: Cost | None = None,
    weight_activation_bytes: Cost | None = None,
    input_bytes: Cost | None = None,
) -> Simulation:
    """Run the schedule in simulated time.

    A submesh runs its row in order, each action as soon as its inputs have arrived. A single number is the cost of a
    submesh-sized stage: with v chunks on each submesh, a chunk costs 1/v of it. A sequence gives the cost of every
    virtual stage.

    Args:
        schedule: The schedule to run. It is validated first.
        forward: Time of a forward (F), and of a forward once more (R).
        backward_input: Time of the input half of the backward pass (I).
        backward_weight: Time of the weight half (W).
        latency: Time from the end of an action until its output is on another submesh.
        barrier: Whether submeshes wait for each other at the end of a step, for `step_time` and the bubbles; `makespan`
            and `steady` do not depend on it.
        backward: Time of a whole backward (B); the sum of its halves if left out.
        fused: Time of a fused pair, for the stage of its first action; the sum of both if left out.
        fused_release: Whether a fused pair starts when both inputs are there and gives its outputs at its end
            (`"end"`), or its parts start and give their outputs one after the other (`"computed"`).
        transfer_bytes: Bytes of a stage's output for one microbatch. A single number is not divided among chunks: the
            activation between two layers has the same size wherever the model is cut. A link (one direction of a pair
            of submeshes) carries one output at a time.
        bandwidth: Bytes per unit of time on each link.
        activation_bytes: Bytes that a microbatch holds on its submesh, from its forward to its whole backward or
            weight half.
        weight_activation_bytes: The part of these bytes that the weight half needs; the input half frees the rest. All
            of them if left out.
        input_bytes: The part of these bytes that a forward keeps which runs once more (R); that makes the rest again.
            All of them if left out.

    Raises:
        TypeError: If the schedule is not a `Schedule`, or a cost is not a number.
        ValueError: If the schedule is not valid, or a cost is negative, not finite or of the wrong length.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f'simulate: expected a Schedule, such as make("1f1b", 4, 8); got {schedule!r}.')
    schedule.validate()
    stages, submeshes = schedule.num_stages, schedule.num_submeshes
    costs = stage_costs(stages, submeshes, forward, backward_input, backward_weight, backward)
    if fused_release not in ("end", "computed"):
        raise ValueError(f"fused_release must be 'end' or 'computed'; got {fused_release!r}.")
    sizes = activation_sizes(activation_bytes, weight_activation_bytes, input_bytes, stages, submeshes)
    timed = TimedSchedule(
        schedule.rows,
        schedule.homes,
        schedule.num_microbatches,
        costs,
        latency=latency,
        transfers=transfer_times(transfer_bytes, bandwidth, latency, stages, submeshes),
        fused=schedule.fused,
        fused_costs=None if fused is None else per_stage(fused, "fused", stages, submeshes),
        fused_at_once=fused_release == "end",
    )
    run = timed.run()
    assert run.finish is not None, "a valid schedule cannot deadlock"
    return Simulation(
        schedule=schedule,
        barrier=barrier,
        makespan=max(run.finish),
        busy=tuple(sum(timed.lasts[index] for index in row) for row in timed.rows),
        live=live_counts(schedule.rows, stages),
        peak_bytes=None
        if sizes is None
        else tuple(peak(row, sizes.whole, sizes.kept, sizes.inputs) for row in schedule.rows),
        starts=tuple(tuple(run.starts[index] for index in row) for row in timed.rows),
        ends=tuple(tuple(run.ends[index] for index in row) for row in timed.rows),
        _timed=timed,
    )
