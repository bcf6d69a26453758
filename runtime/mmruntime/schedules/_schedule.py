"""A pipeline schedule as a plain value: which submesh does what, in which order."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ._action import Action
from ._grid import grid
from ._validate import validate

_FUSED_TEXT = re.compile(r"\((\d+[FBIW]\d+);(\d+[FBIW]\d+)\)OVERLAP_F_B")


@dataclass(frozen=True)
class Schedule:
    """The order in which every submesh issues its actions.

    Attributes:
        name: What it is called in reports; `make` puts the canonical name here.
        rows: `rows[submesh]` are the actions of that submesh in issue order.
        placement: `placement[stage]` is the submesh that runs the stage.
        num_stages: Number of (virtual) stages, `len(placement)`.
        num_microbatches: Number of microbatches of one step.
        fused: Actions that run as one program with the action after them in their row (overlapped forward and
            backward, as in DualPipe-V). A runtime may run the two one after the other; only the time changes.
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]
    placement: tuple[int, ...]
    num_stages: int
    num_microbatches: int
    fused: frozenset[Action] = frozenset()

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.name!r}: {len(self.rows)} submeshes, {self.num_stages} stages, "
            f"{self.num_microbatches} microbatches, {sum(map(len, self.rows))} actions>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{grid(self.rows, self.fused)}"

    @property
    def num_submeshes(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def splits_backward(self) -> bool:
        """Whether some stage runs the input half of its backward pass apart from the weight half."""
        return any(action.kind == "I" for row in self.rows for action in row)

    @property
    def has_backward(self) -> bool:
        """Whether there is a backward pass at all; false for a forward-only (inference) schedule."""
        return any(action.kind != "F" for row in self.rows for action in row)

    @property
    def odd_stages(self) -> frozenset[int]:
        """Every other stage of each submesh, from its second on: what pictures set apart."""
        stages_of: list[list[int]] = [[] for _ in self.rows]
        for stage, submesh in enumerate(self.placement):
            stages_of[submesh].append(stage)
        return frozenset(stage for stages in stages_of for stage in stages[1::2])

    def forward_only(self) -> "Schedule":
        """The same order without its backward actions, for a step that takes no gradient."""
        rows = tuple(tuple(action for action in row if action.kind == "F") for row in self.rows)
        return Schedule(self.name, rows, self.placement, self.num_stages, self.num_microbatches)

    def validate(self, live_bound: float | Sequence[float] | None = None) -> None:
        """Check that the schedule can run and computes each gradient once.

        Checked: the placement, every action exactly once on its stage's submesh, each microbatch of a stage with one
        whole backward or one input half and one weight half, dependency order inside each row, no deadlock across
        rows, fused pairs, and the bound on live activations.

        Args:
            live_bound: Most activations that a submesh (all of them, or one number for each) may hold, in units of
                one microbatch of one submesh-sized stage, as in `Simulation.live`. No bound if left out.

        Raises:
            ValueError: If a check fails. The text shows the grid with the failing cell in square brackets.
        """
        validate(self, live_bound)

    def to_csv(self) -> str:
        """The schedule as CSV text, one line for each submesh, one cell for each action.

        This is the compute-only form that users of PyTorch's pipelining know. A fused pair is one cell,
        `(0F3;7B1)OVERLAP_F_B`.
        """
        return "".join(",".join(_cells(row, self.fused, "({};{})OVERLAP_F_B")) + "\n" for row in self.rows)

    @staticmethod
    def from_csv(text: str, name: str = "custom") -> "Schedule":
        """The schedule written as `text` in the form of `to_csv`; empty cells are skipped.

        The placement follows from the lines on which the stages appear. The result is not validated.

        Raises:
            ValueError: If a cell is not an action, or a stage appears on two lines. The text names line and cell.
        """
        rows: list[tuple[Action, ...]] = []
        fused: set[Action] = set()
        for line_number, line in enumerate(text.strip("\r\n").splitlines(), 1):
            row: list[Action] = []
            for cell_number, cell in enumerate(line.split(","), 1):
                cell = cell.strip().strip('"')
                if not cell:
                    continue
                pair = _FUSED_TEXT.fullmatch(cell)
                try:
                    actions = [Action.parse(part) for part in (pair.groups() if pair else (cell,))]
                except ValueError as error:
                    raise ValueError(f"line {line_number}, cell {cell_number}: {error}") from None
                if pair:
                    fused.add(actions[0])
                row += actions
            rows.append(tuple(row))
        return from_rows(name, rows, fused=fused)


def from_rows(name: str, rows: Iterable[Iterable[Action]], *, fused: Collection[Action] = ()) -> Schedule:
    """The schedule with these rows; placement, stages and microbatches follow from the actions.

    Raises:
        ValueError: If there is no action, a stage is missing, or a stage appears in two rows.
    """
    settled = tuple(tuple(row) for row in rows)
    home: dict[int, int] = {}
    for submesh, row in enumerate(settled):
        for action in row:
            if home.setdefault(action.stage, submesh) != submesh:
                raise ValueError(
                    f"Stage {action.stage} appears in rows {home[action.stage]} and {submesh}: a stage has one home. "
                    f"Move {action} to row {home[action.stage]}.\n"
                    + grid(settled, fused, marks=[(submesh, row.index(action))])
                )
    if not home:
        raise ValueError("The schedule has no actions: give each row at least one, such as 0F0.")
    missing = sorted(set(range(max(home) + 1)) - set(home))
    if missing:
        raise ValueError(
            f"Stages must be numbered 0 to {max(home)} without gaps, but {missing} appear nowhere.\n"
            + grid(settled, fused)
        )
    num_microbatches = 1 + max(action.microbatch for row in settled for action in row)
    placement = tuple(home[stage] for stage in range(len(home)))
    return Schedule(name, settled, placement, len(placement), num_microbatches, frozenset(fused))


def _cells(row: Sequence[Action], fused: Collection[Action], pair: str) -> list[str]:
    cells: list[str] = []
    waiting: Action | None = None
    for action in row:
        if waiting is not None:
            cells.append(pair.format(waiting, action))
            waiting = None
        elif action in fused:
            waiting = action
        else:
            cells.append(str(action))
    if waiting is not None:
        cells.append(str(waiting))
    return cells
