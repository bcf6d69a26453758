"""Meshes, steps, tasks and microbatch loops as the source has them.

Only literals have a known value; any other expression is kept as text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrittenValue:
    """An argument: its text in the source, and its value if it is a literal, else None."""

    text: str
    literal: int | str | None = None

    @property
    def number(self) -> int | None:
        """The literal, if it is a whole number. `True` is none, though Python's bool is an int."""
        return self.literal if isinstance(self.literal, int) and not isinstance(self.literal, bool) else None

    def __str__(self) -> str:
        return self.text if self.literal is not None else f"`{self.text}` (an expression)"


# The number of layers where the source gives none: `mm.stage_scan` takes it from its stack when it runs.
ALL_LAYERS = WrittenValue("*")


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of the user's file: that of the hint, or of the call if it was there before any rewrite."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class MeshSite:
    """A mesh. `unknown` names the sizes that are expressions; None if all are literals."""

    place: SourceLine
    name: str
    axes: tuple[tuple[str, WrittenValue], ...]
    logical_axes: tuple[tuple[str, str], ...]
    unknown: str | None = None

    @property
    def sizes(self) -> dict[str, int] | None:
        """Size of each axis; None if one of them is unknown."""
        sizes = {name: value.number for name, value in self.axes}
        known = {name: size for name, size in sizes.items() if size is not None}
        return known if known and len(known) == len(sizes) else None


@dataclass(frozen=True)
class StepSite:
    """A function that is compiled for a mesh."""

    place: SourceLine
    name: str


@dataclass(frozen=True)
class TaskSite:
    """A call or a scope that runs as a task, or a stack of layers that runs as one task for each slice of an axis.

    Attributes:
        place: The line of its hint or call.
        code: The function that is called, or the scope that is matched, as text.
        name: The task's name; None if it gets one when it runs.
        mesh_slice: The slice of the mesh, by axis; for layers their axis alone.
        layers: The number of layers that are dealt out to the slices of the axis; None for a single task.
        unknown: The expression that chooses the slice; None if the slice is known.
        rounds: In how many rounds layers are dealt out.
        is_folded: Whether every other round goes back.
    """

    place: SourceLine
    code: str
    name: WrittenValue | None
    mesh_slice: tuple[tuple[str, WrittenValue], ...]
    layers: WrittenValue | None = None
    unknown: str | None = None
    rounds: int = 1
    is_folded: bool = False


@dataclass(frozen=True)
class LoopSite:
    """A microbatch loop. `custom` says whether it has a `custom_schedule`."""

    place: SourceLine
    size: WrittenValue | None
    count: WrittenValue | None
    schedule: WrittenValue | None
    custom: bool
    slices: WrittenValue | None = None
