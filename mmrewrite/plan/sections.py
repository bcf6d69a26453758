"""What a plan shows: a section for each mesh, with its devices, tables and timelines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmruntime.schedules import Simulation


@dataclass(frozen=True)
class Table:
    """Rows under a head, all text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers only."""
        return tuple(all(_is_number(row[column]) for row in self.rows) for column in range(len(self.head)))

    def __str__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]

        def text(line: Sequence[str]) -> str:
            cells = zip(line, widths, self.numeric, strict=True)
            return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

        return "\n".join([self.title, *(f"  {text(line)}" for line in lines)])


@dataclass(frozen=True)
class Grid:
    """The devices of a mesh by axis; `owners` are the stages or submeshes of each device, in the same order."""

    title: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]
    word: str

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
        """Device and owners at a place."""
        index = row * len(self.columns) + column
        return self.devices[index], self.owners[index]

    def __str__(self) -> str:
        body = []
        for row, name in enumerate(self.rows):
            cells = [self.cell(row, column) for column in range(len(self.columns))]
            body.append((name, *(f"{device}{self._mark(owners)}" for device, owners in cells)))
        return str(Table(self.title, ("", *self.columns), tuple(body)))

    def _mark(self, owners: tuple[int, ...]) -> str:
        return f" ({self.word} {', '.join(map(str, owners))})" if owners else ""


@dataclass(frozen=True)
class Timeline:
    """A schedule in simulated time, and what was assumed for it.

    `costs` is "unit", or "measured" in milliseconds.
    """

    title: str
    costs: str
    notes: tuple[str, ...]
    simulation: Simulation | None

    def draw(self, width: int = 120) -> str:
        """As text."""
        from mmruntime import schedules

        lines = [f"{self.title}", *(f"  {note}" for note in self.notes)]
        if self.simulation is not None:
            lines += ["", schedules.draw(self.simulation, width=width), "", *_numbers(self)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Section:
    """One mesh with what runs on it, ready to be shown."""

    title: str
    notes: tuple[str, ...]
    grid: Grid | None
    tables: tuple[Table, ...]
    timelines: tuple[Timeline, ...]

    def __str__(self) -> str:
        parts = ["\n".join([self.title, *(f"  {note}" for note in self.notes)])]
        parts += [str(self.grid)] if self.grid else []
        parts += [str(table) for table in self.tables]
        parts += [timeline.draw() for timeline in self.timelines]
        return "\n\n".join(parts)


def document(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """The sections as JSON values."""
    return [
        {
            "title": section.title,
            "notes": section.notes,
            "mesh": None if section.grid is None else _grid_document(section.grid),
            "tables": [table_document(table) for table in section.tables],
            "timelines": [_timeline_document(timeline) for timeline in section.timelines],
        }
        for section in sections
    ]


def table_document(table: Table) -> dict[str, Any]:
    """A table as JSON values."""
    return {"title": table.title, "head": table.head, "rows": table.rows}


def _grid_document(grid: Grid) -> dict[str, Any]:
    cells = [{"device": device, "submeshes": owners} for device, owners in zip(grid.devices, grid.owners, strict=True)]
    return {"axes": dict(grid.axes), "devices": cells}


def _timeline_document(timeline: Timeline) -> dict[str, Any]:
    simulation = timeline.simulation
    found: dict[str, Any] = {"title": timeline.title, "costs": timeline.costs, "notes": timeline.notes}
    if simulation is None:
        return found | {"schedule": None}
    schedule = simulation.schedule
    return found | {
        "schedule": schedule.name,
        "stages": schedule.num_stages,
        "submeshes": schedule.num_submeshes,
        "microbatches": schedule.num_microbatches,
        "placement": schedule.placement,
        "makespan": simulation.makespan,
        "steady": simulation.steady,
        "idle": simulation.bubble_fraction,
        "bubbles": simulation.bubbles,
        "busy": simulation.busy,
        "live": simulation.live,
        "order": [[str(action) for action in row] for row in schedule.rows],
    }


def _numbers(timeline: Timeline) -> Iterator[str]:
    simulation = timeline.simulation
    assert simulation is not None
    for label, text in numbers(simulation, timeline.costs):
        yield f"  {label}: {text}"


def numbers(simulation: Simulation, costs: str) -> tuple[tuple[str, str], ...]:
    """What a simulated step costs, as labels and text."""
    unit = " ms" if costs == "measured" else ""
    live = sorted(set(simulation.live))
    held = f"{live[0]:g}" if len(live) == 1 else f"{live[0]:g} to {live[-1]:g}"
    return (
        ("makespan of a step", f"{simulation.makespan:.6g}{unit}"),
        ("bubble, the longest idle time of a submesh", f"{simulation.bubble:.6g}{unit}"),
        ("idle, of all submeshes' time", f"{simulation.bubble_fraction:.1%}"),
        ("most live activations on a submesh, in microbatches", held),
        (
            "costs",
            "each program alone, measured"
            if costs == "measured"
            else "a submesh takes 1 for each of F, I and W, and 2 for B",
        ),
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-|[\d,]+(\.\d+)?(e[+-]\d+)?", text) is not None


def timelines_of(sections: Iterable[Section]) -> list[Timeline]:
    """Those that can be drawn."""
    return [timeline for section in sections for timeline in section.timelines if timeline.simulation is not None]
