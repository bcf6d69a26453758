"""The record of a named schedule: the one place for its name, its algorithm and its closed forms."""

from collections.abc import Callable
from dataclasses import dataclass

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._placements import PlacementRule


@dataclass(frozen=True)
class ScheduleSizes:
    """The arguments of a schedule's algorithm.

    Attributes:
        placement: Submesh of each stage. Submeshes are numbered 0, 1, ... in order of first use, without gaps.
        num_microbatches: Number of microbatches m.
        delay: Ticks between groups of microbatches, for schedules with `NamedSchedule.has_delay`; None by default.
    """

    placement: tuple[int, ...]
    num_microbatches: int
    delay: int | None = None

    @property
    def num_stages(self) -> int:
        """Number of virtual stages."""
        return len(self.placement)

    @property
    def num_submeshes(self) -> int:
        """Number of submeshes in use, p."""
        return 1 + max(self.placement)

    @property
    def chunks(self) -> int:
        """Stages on each submesh, v, where all have the same number."""
        return len(self.placement) // self.num_submeshes


@dataclass(frozen=True)
class Order:
    """The result of a schedule's algorithm, with the attributes of `Schedule`."""

    rows: Rows
    fused: frozenset[Action] = frozenset()
    replicas: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ClosedForms:
    """Idle time and memory of one step as formulas, in the notation of the papers.

    The variables are p submeshes with v stages each, m microbatches, and the times tF, tI, tW of a forward and of the
    input and weight halves of a backward of a submesh-sized stage; tB is tI + tW. A step takes m(tF+tB) and the idle
    time. Tests compare the formulas with simulated steps, and the documentation shows them.

    Attributes:
        idle: Idle time of a submesh if all submeshes wait for each other at the end of the step.
        live: Live activations at the peak of the submesh that holds most, in the unit of `Simulation.live`.
        idle_without_barrier: Idle time if no submesh waits at the end of the step; `idle` if left out.
        only_if: Conditions besides m >= 2p, in the words of the documentation.
        are_bounds: Whether idle time and memory are at most so much, rather than exactly.
    """

    idle: str
    live: str
    idle_without_barrier: str | None = None
    only_if: tuple[str, ...] = ()
    are_bounds: bool = False


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule that users choose by name.

    Attributes:
        name: Its canonical name.
        rank: Its place in lists of names, simple schedules first; `auto` breaks ties by it.
        summary: What characterises the order, in one line.
        source: Link to the paper or program that it comes from.
        order: Its algorithm.
        placements: The placements it is written for.
        closed_forms: Its idle time and memory.
        aliases: Further names.
        splits_backward: Whether backward passes run in two halves, given enough submeshes and microbatches.
        has_replicas: Whether stages have replicas (see `Schedule.replicas`), given enough of both.
        has_delay: Whether it has groups of microbatches whose distance `make(delay=...)` sets.
    """

    name: str
    rank: int
    summary: str
    source: str
    order: Callable[[ScheduleSizes], Order]
    placements: PlacementRule
    closed_forms: ClosedForms
    aliases: tuple[str, ...] = ()
    splits_backward: bool = False
    has_replicas: bool = False
    has_delay: bool = False
