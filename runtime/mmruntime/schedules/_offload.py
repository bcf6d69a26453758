"""Offload on paper: which activations the host could hold meanwhile, while its links to the devices have time.

Nothing runs so: it says what offload would gain, beside forwards that run once more, which do run.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Unpack

from mmruntime.schedules._costs import Cost, activation_sizes
from mmruntime.schedules._search.auto import auto
from mmruntime.schedules._search.objective import SearchOptions
from mmruntime.schedules._simulate import Simulation

# How much more memory the orders may take that are tried: what lies on the host is taken off afterwards.
_RELAXED = (1.0, 1.25, 1.5, 2.0, 3.0, math.inf)


class HostCopy(NamedTuple):
    """A copy of one microbatch's activations between a submesh and the host, in simulated time.

    Attributes:
        kind: `"O"` offload, to the host; `"L"` load, back.
        stage: Virtual stage.
        microbatch: Index of the microbatch.
        start: Its start, in the unit of the costs.
        end: Its end.
    """

    kind: Literal["O", "L"]
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class Offload:
    """What a step would hold if the host held activations meanwhile. On paper: no step of `mmruntime` does so.

    Attributes:
        simulation: The simulated step, whose times stay as they are.
        copies: For each submesh, its copies in order of their start.
        peak_bytes: Peak bytes of activations on each submesh.
        share: The part of all bytes of activations that goes to the host.
    """

    simulation: Simulation
    copies: tuple[tuple[HostCopy, ...], ...]
    peak_bytes: tuple[float, ...]
    share: float


def offload(
    simulation: Simulation,
    *,
    activation_bytes: Cost,
    host_bandwidth: float,
    weight_activation_bytes: Cost | None = None,
) -> Offload:
    """Copy activations to the host and back, as far as that takes no time of the step.

    A submesh has a link to the host in each direction, which carries one copy at a time, beside its computation. What
    is made by a forward goes when that ends, and is back when its backward, or the input half, starts. Those that
    would lie longest go first (as in PipeOffload, arXiv:2503.01328). What runs its forward once more stays.

    Args:
        simulation: A simulated step.
        activation_bytes: As for `simulate`.
        host_bandwidth: Bytes per unit of time on each link.
        weight_activation_bytes: As for `simulate`.

    Raises:
        TypeError: If a number is none.
        ValueError: If a number is out of range, or a sequence of the wrong length.
    """
    if not isinstance(host_bandwidth, int | float) or not host_bandwidth > 0:
        raise ValueError(f"host_bandwidth must be a number above 0; got {host_bandwidth!r}.")
    schedule = simulation.schedule
    sizes = activation_sizes(
        activation_bytes, weight_activation_bytes, None, schedule.num_stages, schedule.num_submeshes
    )
    assert sizes is not None
    rows, peaks, moved = [], [], 0.0
    for submesh in range(schedule.num_submeshes):
        copies = _copies(simulation, submesh, sizes.whole, host_bandwidth)
        moved += sum(sizes.whole[copy.stage] for copy in copies if copy.kind == "O")
        rows.append(tuple(sorted(copies, key=lambda copy: (copy.start, copy.kind))))
        peaks.append(_peak(simulation, submesh, copies, sizes.whole, sizes.kept))
    total = schedule.num_microbatches * sum(sizes.whole)
    return Offload(simulation, tuple(rows), tuple(peaks), moved / total if total else 0.0)


def auto_offload(
    num_stages: int, num_microbatches: int, *, host_bandwidth: float, **options: Unpack[SearchOptions]
) -> Offload:
    """The shortest step found that fits the memory with the host's help, on paper.

    `auto` searches within more memory than there is, and what the host could hold meanwhile is taken off.

    Args:
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches of one step.
        host_bandwidth: As for `offload`.
        **options: As for `auto`, with `memory` and `activation_bytes`.

    Raises:
        TypeError: If a number is none.
        ValueError: If `memory` or `activation_bytes` is missing, a number is out of range, or the memory cannot hold
            one microbatch.
    """
    memory, activation = options.get("memory"), options.get("activation_bytes")
    if memory is None or activation is None:
        raise ValueError(
            "auto_offload needs memory= and activation_bytes=: without a bound there is nothing to offload."
        )
    bounds = [float(memory)] * num_stages if isinstance(memory, int | float) else list(map(float, memory))
    effort = options.get("effort", 1.0)
    found: list[Offload] = []
    for more in _RELAXED:
        tried = SearchOptions(**options)
        tried["effort"] = effort if more == 1 else effort / len(_RELAXED)
        tried["memory"] = [most * more for most in bounds]
        plan = offload(
            auto(num_stages, num_microbatches, **tried).simulation,
            activation_bytes=activation,
            host_bandwidth=host_bandwidth,
            weight_activation_bytes=options.get("weight_activation_bytes"),
        )
        if more == 1 or all(peak <= most + 1e-9 for peak, most in zip(plan.peak_bytes, bounds, strict=True)):
            found.append(plan)
    return min(found, key=lambda plan: plan.simulation.step_time)


class _HostLink:
    """A link to the host: the times at which it is busy."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []

    def earliest(self, start: float, last: float) -> float:
        """The earliest start of a copy that takes so long and begins no sooner."""
        for begin, end in self._busy:
            if start + last <= begin:
                break
            start = max(start, end)
        return start

    def latest(self, end: float, last: float) -> float:
        """The latest end of a copy that takes so long and is done by then."""
        for begin, until in reversed(self._busy):
            if end - last >= until:
                break
            end = min(end, begin)
        return end

    def take(self, start: float, end: float) -> None:
        bisect.insort(self._busy, (start, end))


def _copies(simulation: Simulation, submesh: int, whole: Sequence[float], bandwidth: float) -> list[HostCopy]:
    schedule = simulation.schedule
    made: dict[tuple[int, int], float] = {}
    lives: list[tuple[float, float, int, int]] = []
    times = zip(schedule.rows[submesh], simulation.starts[submesh], simulation.ends[submesh], strict=True)
    for action, start, end in times:
        key = (action.stage, action.microbatch)
        if action.kind == "F" and key not in schedule.recomputed:
            made[key] = end
        elif action.kind in "BI" and key in made:
            lives.append((made[key], start, *key))
    to_host, back = _HostLink(), _HostLink()
    copies = []
    for begin, end, stage, microbatch in sorted(lives, key=lambda life: (life[0] - life[1], life[0])):
        last = whole[stage] / bandwidth
        leaves, returns = to_host.earliest(begin, last), back.latest(end, last)
        if last and leaves + last <= returns - last:
            to_host.take(leaves, leaves + last)
            back.take(returns - last, returns)
            copies.append(HostCopy("O", stage, microbatch, leaves, leaves + last))
            copies.append(HostCopy("L", stage, microbatch, returns - last, returns))
    return copies


def _peak(
    simulation: Simulation, submesh: int, copies: Sequence[HostCopy], whole: Sequence[float], kept: Sequence[float]
) -> float:
    """The most bytes of activations that the submesh holds at once; what is freed makes room for what starts then."""
    schedule = simulation.schedule
    events: list[tuple[float, int, float]] = []
    times = zip(schedule.rows[submesh], simulation.starts[submesh], simulation.ends[submesh], strict=True)
    for action, start, end in times:
        stage, again = action.stage, (action.stage, action.microbatch) in schedule.recomputed
        if action.kind == ("R" if again else "F"):
            events.append((start, 1, whole[stage]))
        elif action.kind in "BIW":
            left = kept[stage] if action.kind == "I" else 0.0
            events.append((end, 0, left - (kept[stage] if action.kind == "W" else whole[stage])))
    for copy in copies:
        size = whole[copy.stage]
        events.append((copy.end, 0, -size) if copy.kind == "O" else (copy.start, 1, size))
    live = most = 0.0
    for _, _, change in sorted(events):
        live += change
        most = max(most, live)
    return most
