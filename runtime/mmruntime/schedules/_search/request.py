"""`Auto`: a request for a search that runs once the stages and their costs are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmruntime.schedules._catalog import named
from mmruntime.schedules._costs import Cost, numbers
from mmruntime.schedules._search.auto import auto
from mmruntime.schedules._search.choice import Choice
from mmruntime.schedules._simulate import simulate


@dataclass(frozen=True)
class Auto:
    """A request to search for the best schedule; `microbatch(schedule="auto")` is short for `Auto()`.

        mm.microbatch(..., schedule=schedules.Auto(memory=6))
        mm.microbatch(..., schedule=step.measure(params, batch).auto(memory=6))

    Attributes:
        memory: Most activations that a submesh may hold, one number for all or one for each, in the unit of
            `Simulation.live`: one microbatch of one submesh-sized stage. `"1f1b"` is the peak of 1F1B on the submesh
            that holds most; None is no bound.
        memory_bytes: The bound in bytes, instead of `memory`: the residuals that forward passes leave for backward
            passes, and what input halves leave for weight halves, on all devices of a submesh together.
        split: Whether the backward pass may run in two halves.
        recompute: Whether stages may drop what forward passes leave and run them once more, where the order is shorter
            so or does not fit otherwise. Counts with `memory_bytes` only: what is saved is known in bytes.
        barrier: Whether all submeshes wait for each other at the end of a step, as they do for a global norm.
        effort: How long to search: 1 is a few seconds.
        forward: Time of each stage's forward pass; counted from the program if left out, as are the next two.
        backward_input: Time of the input half of the backward pass.
        backward_weight: Time of the weight half.
        latency: Time of a transfer, in the unit of these times.

    Raises:
        ValueError: If `memory` and `memory_bytes` are both set, only some of the times are, or `memory` is another text
            than "1f1b".
    """

    memory: float | Sequence[float] | Literal["1f1b"] | None = "1f1b"
    memory_bytes: float | Sequence[float] | None = None
    split: bool = True
    recompute: bool = True
    barrier: bool = True
    effort: float = 1.0
    forward: Sequence[float] | None = None
    backward_input: Sequence[float] | None = None
    backward_weight: Sequence[float] | None = None
    latency: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.memory, str) and self.memory != "1f1b":
            raise ValueError(
                f"Auto: memory must be a number, one for each submesh, '1f1b' or None; got {self.memory!r}."
            )
        if self.memory_bytes is not None and self.memory != "1f1b":
            raise ValueError(
                f"Auto: give memory= or memory_bytes=, not both; got {self.memory!r}, {self.memory_bytes!r}."
            )
        times = (self.forward, self.backward_input, self.backward_weight)
        if any(time is None for time in times) and (self.latency or any(time is not None for time in times)):
            raise ValueError(
                "Auto: forward, backward_input, backward_weight and latency go together, in one unit of time. Give all "
                "of them, or none and they are counted from the program."
            )
        # The specification of a microbatch loop must be hashable, and lists are not.
        for name in ("memory", "memory_bytes", "forward", "backward_input", "backward_weight"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float | str):
                object.__setattr__(self, name, numbers(f"Auto: {name}", value, "a number, or one for each of them"))

    def memory_bound(
        self, num_submeshes: int, num_microbatches: int, placement: Sequence[int] | None = None
    ) -> float | Sequence[float] | None:
        """The bound of the search: `memory_bytes` if set, else `memory` with a number in place of `"1f1b"`.

        Raises:
            ValueError: If a number is below one, or the placement names a submesh that does not exist.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        if isinstance(self.memory, str):
            return max(simulate(named(self.memory, num_submeshes, num_microbatches, placement=placement)).live)
        return self.memory

    def choose(
        self,
        num_submeshes: int,
        num_microbatches: int,
        placement: Sequence[int],
        *,
        forward: Sequence[float],
        backward_input: Sequence[float],
        backward_weight: Sequence[float],
        activation_bytes: Cost,
        weight_activation_bytes: Cost | None = None,
        input_bytes: Cost | None = None,
    ) -> Choice:
        """Run the search. The arguments are those of `auto`; costs are counted from the program.

        Raises:
            ValueError: If a number of the search is out of range, or the memory cannot hold one microbatch.
        """
        times = (forward, backward_input, backward_weight)
        if self.forward is not None and self.backward_input is not None and self.backward_weight is not None:
            times = (self.forward, self.backward_input, self.backward_weight)
        return auto(
            num_submeshes,
            num_microbatches,
            placement=placement,
            forward=times[0],
            backward_input=times[1],
            backward_weight=times[2],
            latency=self.latency,
            memory=self.memory_bound(num_submeshes, num_microbatches, placement),
            activation_bytes=None if self.memory_bytes is None else activation_bytes,
            weight_activation_bytes=None if self.memory_bytes is None else weight_activation_bytes,
            input_bytes=None if self.memory_bytes is None or not self.recompute else input_bytes,
            split=self.split,
            barrier=self.barrier,
            effort=self.effort,
        )
