"""What a schedule costs: time, idle time and memory, from the costs of its pieces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from ._action import Action
from ._costs import Cost, Costs, per_stage, stage_costs
from ._schedule import Schedule
from ._validate import live_counts

# Steps simulated at most until the time per step repeats; a handful is enough for every named schedule.
_MOST_STEPS = 64


class Event(NamedTuple):
    """When one action ran.

    Attributes:
        action: What ran.
        submesh: Where.
        start: When it started, in the unit of the costs.
        end: When it ended.
    """

    action: Action
    submesh: int
    start: float
    end: float


class Run(NamedTuple):
    """Times of one pass over a program, each shaped like the rows."""

    starts: list[list[float]]
    ends: list[list[float]]
    finish: list[float]


class Program:
    """A schedule's rows as numbers, so that running them in simulated time is quick.

    Every action waits for at most one thing from elsewhere: a forward for its input, a backward for its cotangent.
    These things have slots; an action has the slot it needs and the slot it fills. The schedule must be valid.
    """

    def __init__(
        self,
        schedule: Schedule,
        costs: Costs,
        latency: float = 0,
        transfer_time: Sequence[float] | None = None,
        fused: Sequence[float] | None = None,
        fused_release: Literal["end", "computed"] = "end",
    ) -> None:
        count, stages = schedule.num_microbatches, schedule.num_stages
        placement = schedule.placement
        self.latency = latency
        # One slot is full from the start and one is never read, besides those of the values that stages exchange.
        always, nowhere = 2 * stages * count, 2 * stages * count + 1
        self.num_slots = 2 * stages * count + 2
        self.open = [*range(count), *range((2 * stages - 1) * count, 2 * stages * count), always]
        self.needs: list[list[int]] = []
        self.fills: list[list[int]] = []
        self.lasts: list[list[float]] = []
        # Link of the transfer after an action: -1 if the value stays on its submesh.
        self.links: list[list[int]] = []
        self.joined: list[list[bool]] = []
        self.occupied = list(transfer_time) if transfer_time is not None else [0.0] * stages
        self.sends: list[list[float]] = []
        link_of: dict[tuple[int, int], int] = {}
        for submesh, row in enumerate(schedule.rows):
            needs, fills, lasts, links, sends = [], [], [], [], []
            for action in row:
                kind, stage, microbatch = action.kind, action.stage, action.microbatch
                target = -1
                if kind == "F":
                    needs.append(stage * count + microbatch)
                    lasts.append(costs.forward[stage])
                    if stage + 1 < stages:
                        target = stage + 1
                        fills.append(target * count + microbatch)
                    else:
                        fills.append(nowhere)
                elif kind == "W":
                    needs.append(always)
                    fills.append(nowhere)
                    lasts.append(costs.backward_weight[stage])
                else:
                    needs.append((stages + stage) * count + microbatch)
                    lasts.append((costs.backward if kind == "B" else costs.backward_input)[stage])
                    if stage:
                        target = stage - 1
                        fills.append((stages + target) * count + microbatch)
                    else:
                        fills.append(nowhere)
                if target < 0 or placement[target] == submesh:
                    links.append(-1)
                    sends.append(0.0)
                else:
                    links.append(link_of.setdefault((submesh, placement[target]), len(link_of)))
                    # The value that crosses a cut is as large as its cotangent: that of the earlier stage's output.
                    sends.append(self.occupied[min(stage, target)])
            self.needs.append(needs)
            self.fills.append(fills)
            self.lasts.append(lasts)
            self.links.append(links)
            self.sends.append(sends)
            first = [action in schedule.fused for action in row] if schedule.fused else [False] * len(row)
            if fused is not None:
                for position in (at for at, starts_pair in enumerate(first) if starts_pair):
                    pair = lasts[position] + lasts[position + 1]
                    scale = fused[row[position].stage] / pair if pair else 1.0
                    lasts[position] *= scale
                    lasts[position + 1] *= scale
            # Released as computed, a pair is no different from two actions.
            self.joined.append(first if fused_release == "end" else [False] * len(row))
        self.num_links = len(link_of)

    def run(self, ready: Sequence[float] | None = None) -> Run:
        """Run every row as early as it can; row r may start at `ready[r]` (0 if left out)."""
        num_rows = len(self.needs)
        finish = list(ready) if ready is not None else [0.0] * num_rows
        arrival = [-1.0] * self.num_slots
        for slot in self.open:
            arrival[slot] = 0.0
        link_free = [0.0] * self.num_links
        done = [0] * num_rows
        starts: list[list[float]] = [[] for _ in range(num_rows)]
        ends: list[list[float]] = [[] for _ in range(num_rows)]
        waiting: dict[int, int] = {}
        latency = self.latency
        todo = list(range(num_rows))
        while todo:
            row = todo.pop()
            needs, fills, lasts = self.needs[row], self.fills[row], self.lasts[row]
            links, joined, sends = self.links[row], self.joined[row], self.sends[row]
            row_starts, row_ends = starts[row], ends[row]
            clock = finish[row]
            position, length = done[row], len(needs)
            while position < length:
                arrived = arrival[needs[position]]
                if arrived < 0:
                    waiting[needs[position]] = row
                    break
                block = 1
                if joined[position]:
                    second = arrival[needs[position + 1]]
                    if second < 0:
                        waiting[needs[position + 1]] = row
                        break
                    arrived = max(arrived, second)
                    block = 2
                if arrived > clock:
                    clock = arrived
                block_end = clock + lasts[position] + (lasts[position + 1] if block == 2 else 0.0)
                for _ in range(block):
                    row_starts.append(clock)
                    clock += lasts[position]
                    row_ends.append(clock)
                    out = block_end
                    link = links[position]
                    slot = fills[position]
                    if link >= 0:
                        if sends[position]:
                            if link_free[link] > out:
                                out = link_free[link]
                            out += sends[position]
                            link_free[link] = out
                        out += latency
                    arrival[slot] = out
                    if slot in waiting:
                        todo.append(waiting.pop(slot))
                    position += 1
            done[row] = position
            finish[row] = clock
        return Run(starts, ends, finish)

    def steady(self, step: Sequence[float]) -> float:
        """Time per step when a submesh starts its next step as soon as its own work of the last one is done.

        Steps are simulated one after the other until the times at which the submeshes finish move on by the same
        amount, over one step or several; that amount is then exact (the system is linear in max-plus algebra).

        Args:
            step: When each row finishes the first step.
        """
        history = [list(step)]
        while len(history) < _MOST_STEPS:
            history.append(self.run(history[-1]).finish)
            for back in range(1, len(history)):
                moves = [now - then for now, then in zip(history[-1], history[-1 - back], strict=True)]
                if max(moves) - min(moves) <= 1e-9 * max(history[-1]):
                    return max(moves) / back
        half = _MOST_STEPS // 2
        return (max(history[-1]) - max(history[half - 1])) / (_MOST_STEPS - half)


@dataclass(frozen=True)
class Simulation:
    """What one step of a schedule costs. Times are in the unit of the given costs.

    Attributes:
        schedule: What was simulated.
        barrier: Whether every submesh waits for all others at the end of the step.
        makespan: Time of one step that starts everywhere at 0 and ends when the last submesh is done.
        busy: Time that each submesh computes.
        live: Peak of live activations on each submesh, in units of one microbatch of one submesh-sized stage; an
            activation lives from its forward to its whole backward or weight half.
        peak_bytes: Peak bytes of activations on each submesh, None unless `activation_bytes` was given.
        starts: When each action starts; shaped like `schedule.rows`.
        ends: When each action ends.
    """

    schedule: Schedule
    barrier: bool
    makespan: float
    busy: tuple[float, ...]
    live: tuple[float, ...]
    peak_bytes: tuple[float, ...] | None
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    _program: Program = field(repr=False, compare=False)

    @cached_property
    def steady(self) -> float:
        """Time per step in the long run without a barrier.

        A submesh starts its next step as soon as its own work is done, which a global norm, a check for NaNs or a
        host that waits for the loss rules out.
        """
        return self._program.steady([row[-1] if row else 0.0 for row in self.ends])

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
        """Largest idle time of a submesh in one step; with equal stages all have the same."""
        return max(self.bubbles)

    @property
    def bubble_fraction(self) -> float:
        """Share of the time of all submeshes that is idle."""
        return sum(self.bubbles) / (len(self.busy) * self.step_time) if self.step_time else 0.0

    @cached_property
    def timeline(self) -> tuple[Event, ...]:
        """Start and end of every action, ordered by start, then submesh."""
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
) -> Simulation:
    """Run the schedule in simulated time.

    A submesh runs its row in order, each action as soon as its inputs have arrived. A single number for a cost is
    that of a submesh-sized stage: with v chunks on each submesh a chunk costs 1/v of it. A sequence gives the cost of
    every virtual stage as it is.

    Args:
        schedule: What to run. It is validated first.
        forward: Time of a forward (F).
        backward_input: Time of the input half of the backward pass (I).
        backward_weight: Time of the weight half (W).
        latency: Time from the end of an action until its output is on another submesh.
        barrier: Whether a step ends for all submeshes at once. Decides `step_time` and the bubbles; `makespan` and
            `steady` are given in any case.
        backward: Time of a whole backward (B); the sum of its halves if left out.
        fused: Time of a fused forward and backward; the sum of both if left out. The pair's first stage counts.
        fused_release: Whether a fused pair starts when both inputs are there and gives its outputs at its end
            (`"end"`), or its parts start and give their outputs one after the other (`"computed"`).
        transfer_bytes: Bytes of a stage's output for one microbatch. A single number is not divided among chunks:
            an activation between layers is as large whatever the cut. A link (one direction of a pair of submeshes)
            carries one output at a time.
        bandwidth: Bytes per unit of time on each link.
        activation_bytes: Bytes that a microbatch keeps on its submesh, from the forward to its whole backward or
            weight half.
        weight_activation_bytes: The part of it that the weight half needs; the rest goes with the input half. All of
            it if left out.

    Raises:
        ValueError: If the schedule is not valid, or a cost is negative, not finite or of the wrong length.
    """
    schedule.validate()
    stages, submeshes = schedule.num_stages, schedule.num_submeshes
    costs = stage_costs(stages, submeshes, forward, backward_input, backward_weight, backward)
    if latency < 0 or not bandwidth > 0:
        raise ValueError(f"latency must be at least 0 and bandwidth above 0; got {latency=} and {bandwidth=}.")
    if fused_release not in ("end", "computed"):
        raise ValueError(f"fused_release must be 'end' or 'computed'; got {fused_release!r}.")
    sizes = (transfer_bytes,) * stages if isinstance(transfer_bytes, int | float) else transfer_bytes
    program = Program(
        schedule,
        costs,
        latency,
        [size / bandwidth for size in per_stage(sizes, "transfer_bytes", stages, submeshes)],
        None if fused is None else per_stage(fused, "fused", stages, submeshes),
        fused_release,
    )
    run = program.run()
    return Simulation(
        schedule=schedule,
        barrier=barrier,
        makespan=max(run.finish),
        busy=tuple(map(sum, program.lasts)),
        live=live_counts(schedule),
        peak_bytes=_peak_bytes(schedule, activation_bytes, weight_activation_bytes),
        starts=tuple(map(tuple, run.starts)),
        ends=tuple(map(tuple, run.ends)),
        _program=program,
    )


def _peak_bytes(schedule: Schedule, activation: Cost | None, weight: Cost | None) -> tuple[float, ...] | None:
    if activation is None:
        if weight is not None:
            raise ValueError("weight_activation_bytes is a part of activation_bytes, which is missing. Give both.")
        return None
    stages, submeshes = schedule.num_stages, schedule.num_submeshes
    whole = per_stage(activation, "activation_bytes", stages, submeshes)
    kept = whole if weight is None else per_stage(weight, "weight_activation_bytes", stages, submeshes)
    for stage in range(stages):
        if kept[stage] > whole[stage]:
            raise ValueError(
                f"weight_activation_bytes of stage {stage} is {kept[stage]:g}, more than its activation_bytes "
                f"{whole[stage]:g}; it is a part of them."
            )
    peaks = []
    for row in schedule.rows:
        live = peak = 0.0
        for action in row:
            stage = action.stage
            if action.kind == "F":
                live += whole[stage]
                peak = max(peak, live)
            elif action.kind == "B":
                live -= whole[stage]
            elif action.kind == "I":
                live -= whole[stage] - kept[stage]
            else:
                live -= kept[stage]
        peaks.append(peak)
    return tuple(peaks)
