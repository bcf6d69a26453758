"""The parts of a plan: a section for each mesh, with its devices, tables and timelines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmruntime.schedules import Simulation

PAGE_WIDTH = 1340
_PLACE = re.compile(r"(.+?):\d+(?::|$)", re.DOTALL)
_WIDEST = 20_000
# Characters of a time axis that still shows something.
_NARROWEST = 24


@dataclass(frozen=True)
class PlanTable:
    """Rows of text under a head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers only."""
        return tuple(all(_is_number(row[column]) for row in self.rows) for column in range(len(self.head)))


@dataclass(frozen=True)
class PlanGrid:
    """The devices of a mesh, row-major over `axes`; `owners` has the submeshes of each device, in the same order."""

    title: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the slices of the last axis."""
        name, size = self.axes[-1]
        return tuple(f"{name} {index}" for index in range(size))

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the slices of all other axes, together."""
        parts = [[f"{name} {index}" for index in range(size)] for name, size in self.axes[:-1]]
        return tuple(", ".join(part) for part in itertools.product(*parts))

    def cell(self, row: int, column: int) -> tuple[int, tuple[int, ...]]:
        """The device in a row and column, and its submeshes."""
        index = row * len(self.columns) + column
        return self.devices[index], self.owners[index]


@dataclass(frozen=True)
class PlanTimeline:
    """A simulated schedule, and the assumptions behind it.

    Attributes:
        title: Which loop and which schedule.
        costs: "unit", or "measured" in milliseconds.
        notes: Assumptions, or the reason why there is no simulation.
        simulation: The schedule in simulated time; None if it cannot be made from the source.
        fused: For stages whose forward and backward run as one program: the kinds of action in it, such as "FB".
        outside: Milliseconds of the busiest submesh outside of microbatches, by measurement; None if not measured.
    """

    title: str
    costs: str
    notes: tuple[str, ...]
    simulation: Simulation | None
    fused: Mapping[int, str] = field(default_factory=dict)
    outside: float | None = None

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """Time and memory of the simulated step, as labels and text."""
        assert self.simulation is not None
        measured = self.costs == "measured"
        unit = " ms" if measured else ""
        live = sorted(set(self.simulation.live))
        most_live = f"{live[0]:g}" if len(live) == 1 else f"{live[0]:g} to {live[-1]:g}"
        costs = "each program alone, measured" if measured else "a submesh takes 1 for each of F, I and W, and 2 for B"
        outside = (
            () if self.outside is None else (("outside of microbatches, busiest submesh", f"{self.outside:.6g} ms"),)
        )
        return (
            (f"makespan of {'the microbatches' if measured else 'a step'}", f"{self.simulation.makespan:.6g}{unit}"),
            *outside,
            ("bubble, the longest idle time of a submesh", f"{self.simulation.bubble:.6g}{unit}"),
            ("idle, of all submeshes' time", f"{self.simulation.bubble_fraction:.1%}"),
            ("most live activations on a submesh, in microbatches", most_live),
            ("costs", costs),
        )

    @property
    def readable_width(self) -> int:
        """Pixels in which most actions of the step have room for their label."""
        assert self.simulation is not None
        longest = max(map(len, self.simulation.schedule.rows), default=0)
        return min(_WIDEST, max(PAGE_WIDTH, 160 + 30 * longest))

    def as_text(self, width: int) -> str:
        """The simulation drawn with at most `width` characters to a line, if that leaves room for a picture."""
        # The one arrow from the tool to the runtime: `mmruntime.schedules` is plain Python and imports no JAX.
        from mmruntime import schedules

        assert self.simulation is not None
        # `draw` is told the width of the time axis alone.
        last, peak = len(self.simulation.live) - 1, max(self.simulation.live, default=0)
        beside = len(f"submesh {last} ||") + len(f" peak {peak:g}")
        return schedules.draw(self.simulation, width=max(_NARROWEST, width - beside))

    def as_svg(self, width: int) -> str:
        """The simulation as an SVG picture of its own that is `width` pixels wide."""
        from mmruntime import schedules

        assert self.simulation is not None
        return schedules.svg(self.simulation, width=width, merged=self.fused)

    def as_svg_in_page(self, width: int) -> str:
        """The simulation as an SVG picture for a page, which has the rules of `picture_style`."""
        from mmruntime import schedules

        assert self.simulation is not None
        return schedules.svg(self.simulation, width=width, merged=self.fused, style="")


@dataclass(frozen=True)
class PlanSection:
    """One mesh with the tasks and loops that run on it, or one traced step.

    Attributes:
        title: What it is about.
        notes: Remarks.
        grid: The devices of the mesh, if known.
        tables: Its tables.
        timelines: Its microbatch loops.
        proofs: Of a traced step: how the results of microbatches make up those of the whole batch, in lines.
    """

    title: str
    notes: tuple[str, ...]
    grid: PlanGrid | None
    tables: tuple[PlanTable, ...]
    timelines: tuple[PlanTimeline, ...]
    proofs: tuple[str, ...] = ()

    @property
    def files(self) -> frozenset[str]:
        """The files of its mesh, its steps, tasks and loops."""
        places = (self.title, *(row[0] for table in self.tables for row in table.rows))
        found = (_PLACE.match(each) for each in (*places, *(timeline.title for timeline in self.timelines)))
        return frozenset(each[1] for each in found if each is not None)


def picture_style() -> str:
    """The rules by which pictures in a page follow light and dark."""
    from mmruntime.schedules._drawing.svg import DARK_STYLE

    return DARK_STYLE


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-|[\d,]+(\.\d+)?(e[+-]\d+)?", text) is not None
