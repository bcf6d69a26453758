"""The report of `auto`: the schedule that it chose, and the named ones beside it."""

import math
from collections import Counter
from dataclasses import dataclass

from mmruntime.schedules._placements import v_placement
from mmruntime.schedules._schedule import Schedule
from mmruntime.schedules._simulate import Simulation


@dataclass(frozen=True)
class Considered:
    """A named schedule that `auto` considered.

    Attributes:
        name: Its name.
        placement: Submesh of each stage.
        time: Time per step.
        memory: Peak memory of the submesh that needs most, in the unit of the bound.
        fits: Whether every submesh stays within its bound.
    """

    name: str
    placement: tuple[int, ...]
    time: float
    memory: float
    fits: bool


@dataclass(frozen=True)
class Choice:
    """The result of `auto`.

    Attributes:
        schedule: The best order found.
        simulation: The simulated step of that order.
        lower_bound: Time that no order can beat, see `lower_bound`.
        origin: Description of where the order comes from.
        considered: The named schedules, shortest step first.
        memory: The bound on the memory of each submesh.
    """

    schedule: Schedule
    simulation: Simulation
    lower_bound: float
    origin: str
    considered: tuple[Considered, ...]
    memory: tuple[float, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choice and the reasons for it, in a few sentences."""
        time = self.simulation.step_time
        gap = time / self.lower_bound - 1 if self.lower_bound else 0.0
        lines = [
            f"auto chose {self.origin}.",
            f"Time per step {time:.6g}, idle {self.simulation.bubble_fraction:.2%}, live activations "
            f"{', '.join(f'{live:g}' for live in self.simulation.live)}.",
            "Memory has no bound."
            if min(self.memory, default=math.inf) == math.inf
            else f"Memory may be {', '.join(f'{most:g}' for most in self.memory)}.",
            f"No order is shorter than {self.lower_bound:.6g}"
            + (": this one cannot be beaten." if gap <= 1e-9 else f"; at most {gap:.2%} is left to gain."),
        ]
        if self.schedule.recomputed:
            count = self.schedule.num_microbatches
            again = Counter(stage for stage, _ in self.schedule.recomputed)
            lines.append(
                "Forwards that run once more, to hold less: "
                + ", ".join(f"{again[stage]} of {count} of stage {stage}" for stage in sorted(again))
                + "."
            )
        fitting = [other for other in self.considered if other.fits]
        if fitting:
            more = fitting[0].time / time - 1 if time else 0.0
            lines.append(
                f"The best named one that fits, {fitting[0].name}, "
                + (f"takes {more:.2%} longer." if more > 1e-9 else "takes as long.")
            )
        else:
            lines.append("No named one fits the memory.")
        return tuple(lines)

    @property
    def report(self) -> str:
        """The reasons, and a line for each named schedule."""
        lines = list(self.reasons)
        several = len({other.placement for other in self.considered}) > 1
        for other in self.considered:
            shape = "V" if other.placement == v_placement(self.schedule.num_submeshes) else "round-robin"
            lines.append(
                f"  {other.name:<17} {other.time:>10.6g}  memory {other.memory:g}"
                + (f", {shape}" if several else "")
                + ("" if other.fits else ", too much")
            )
        return "\n".join(lines)
