"""Schedules that users write, as lists, text or objects. All are validated before anything runs."""

import difflib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from mmruntime.schedules._action import Action, Kind
from mmruntime.schedules._drawing.text_grid import grid
from mmruntime.schedules._schedule import Schedule, from_rows

ScheduleCell = Action | str | tuple[int, str]
RowsOfCells = Iterable[Iterable[ScheduleCell]]


@runtime_checkable
class MakesRows(Protocol):
    """An object that makes the rows of a schedule for any size."""

    def rows(self, num_stages: int, num_microbatches: int) -> RowsOfCells:
        """The cells of each submesh, for `num_stages` submeshes."""
        ...


def custom(
    order: str | os.PathLike[str] | RowsOfCells | MakesRows | Callable[[int, int], RowsOfCells],
    *,
    tasks: Mapping[str, tuple[Kind, int]] | None = None,
    num_stages: int | None = None,
    num_microbatches: int | None = None,
    placement: Sequence[int] | None = None,
    live_bound: float | Sequence[float] | None = None,
    name: str = "custom",
) -> Schedule:
    """A schedule that you write yourself, validated.

        custom([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])
        custom([["up", "up", "down", "down"]], tasks={"up": ("F", 0), "down": ("B", 0)})
        custom([[(0, "up"), (0, "down"), (1, "up"), (1, "down")]], tasks={"up": ("F", 0), "down": ("B", 0)})

    Args:
        order: One of

            - rows of cells, one row for each submesh. A cell is an `Action`, its text such as `2F0`, the name of a
              task, or (microbatch, name of a task). The k-th mention of a name without microbatch is microbatch k.
            - text in the format of `Schedule.to_csv`, or the path of a file with it.
            - an object with a method `rows(num_stages, num_microbatches)`, or a function of these, that returns rows.

        tasks: The kind of action and the stage that each task name stands for. Names match exactly.
        num_stages: Number of submeshes, for an object or function.
        num_microbatches: Number of microbatches. Follows from the cells if left out, except for an object or function.
        placement: Submesh of each stage. If left out, it follows from the cells, and a stage may have replicas, see
            `Schedule.replicas`.
        live_bound: See `Schedule.validate`.
        name: Name of the schedule.

    Raises:
        ValueError: If the schedule cannot run or a name is unknown; the text shows the rows with the failing cell in
            square brackets.
        TypeError: If an argument has none of these types.
    """
    if not isinstance(tasks, Mapping | None):
        raise TypeError(f'custom: tasks must map names to (kind, stage), such as {{"up": ("F", 0)}}; got {tasks!r}.')
    if not isinstance(num_microbatches, int | None):
        raise TypeError(f"custom: num_microbatches must be an integer; got {num_microbatches!r}.")
    if placement is not None and not _are_integers(placement):
        raise TypeError(f"custom: placement must give each stage a submesh, such as (0, 1, 1, 0); got {placement!r}.")
    if isinstance(order, os.PathLike):
        order = Path(order).read_text(encoding="utf-8")
    if isinstance(order, str):
        schedule = Schedule.from_csv(order, name)
    else:
        if isinstance(order, MakesRows) or callable(order):
            if num_stages is None or num_microbatches is None:
                raise TypeError(
                    f"{order!r} makes rows for any size: say which with num_stages= and num_microbatches=; got "
                    f"{num_stages=} and {num_microbatches=}."
                )
            order = (order.rows if isinstance(order, MakesRows) else order)(num_stages, num_microbatches)
        cells = _cells(order)
        schedule = from_rows(name, _actions(cells, tasks or {}, num_microbatches))
    if num_microbatches is not None or placement is not None:
        home = schedule.placement if placement is None else tuple(placement)
        schedule = Schedule(
            name,
            schedule.rows,
            home,
            len(home),
            num_microbatches or schedule.num_microbatches,
            schedule.fused,
            schedule.replicas if placement is None else (),
        )
    schedule.validate(live_bound)
    return schedule


def _are_integers(value: object) -> bool:
    return isinstance(value, Iterable) and all(isinstance(number, int) for number in value)


def _cells(order: object) -> list[list[ScheduleCell]]:
    """The cells of rows of any iterable types."""
    if isinstance(order, Iterable):
        rows = list(order)
        if all(isinstance(row, Iterable) and not isinstance(row, str | bytes) for row in rows):
            return [list(row) for row in rows]
    raise TypeError(f"custom: expected rows of cells, one row for each submesh; got {order!r}.")


def _actions(
    rows: list[list[ScheduleCell]], tasks: Mapping[str, tuple[Kind, int]], num_microbatches: int | None
) -> list[list[Action]]:
    """The actions that the cells stand for.

    Raises:
        ValueError: If a task name is unknown, or mentioned more or less than once for each microbatch.
        TypeError: If a cell has none of the possible types.
    """
    check_task_names(rows, tasks)
    counts = Counter(cell for row in rows for cell in row if isinstance(cell, str) and cell in tasks)
    if counts:
        expected = max(counts.values()) if num_microbatches is None else num_microbatches
        for task, count in counts.items():
            if count != expected:
                raise ValueError(
                    f"Task {task!r} has {count} microbatches, but there are {expected}. Name it once for each.\n"
                    + _marked(rows, lambda cell: cell == task)  # noqa: B023  (used before the loop goes on)
                )
    seen: Counter[str] = Counter()
    return [[_action(cell, tasks, seen) for cell in row] for row in rows]


def check_task_names(rows: Sequence[Sequence[ScheduleCell]], tasks: Collection[str]) -> None:
    """Check that every cell that is the name of a task, or holds one, names a known one.

    Raises:
        ValueError: If one does not; the text shows the rows with that cell in square brackets.
    """
    for cell in (cell for row in rows for cell in row):
        task = cell[1] if isinstance(cell, tuple) and len(cell) == 2 else cell
        if not isinstance(task, str) or task in tasks:
            continue
        if task is cell:
            try:
                Action.parse(task)
            except ValueError as error:
                if not tasks:
                    raise ValueError(f"{error}\n{_marked(rows, lambda other: other is cell)}") from None  # noqa: B023
            else:
                continue
        near = difflib.get_close_matches(task, tasks, n=1)
        raise ValueError(
            f"There is no task {task!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + f" The tasks are {', '.join(sorted(tasks)) or 'not given: pass tasks='}.\n"
            + _marked(rows, lambda other: other is cell)  # noqa: B023
        )


def _action(cell: object, tasks: Mapping[str, tuple[Kind, int]], seen: Counter[str]) -> Action:
    """The action that a cell stands for; `seen` counts the mentions of each task name so far."""
    if isinstance(cell, Action):
        return cell
    if isinstance(cell, str):
        if cell not in tasks:
            return Action.parse(cell)
        microbatch, task = seen[cell], cell
        seen[cell] += 1
    elif isinstance(cell, tuple) and len(cell) == 2 and isinstance(cell[0], int) and isinstance(cell[1], str):
        microbatch, task = cell
    else:
        raise TypeError(
            f"{cell!r} is not a cell of a schedule. Write an Action, its text such as '2F0', a task's name, or "
            "(microbatch, task's name)."
        )
    kind, stage = tasks[task]
    return Action(kind, stage, microbatch)


def _marked(rows: Sequence[Sequence[ScheduleCell]], wrong: Callable[[object], bool]) -> str:
    """The rows as text with the wrong cells in square brackets."""
    texts = [[f"{cell[1]}:{cell[0]}" if isinstance(cell, tuple) else str(cell) for cell in row] for row in rows]
    marks = [(number, k) for number, row in enumerate(rows) for k, cell in enumerate(row) if wrong(cell)]
    return grid(texts, marks=marks)
