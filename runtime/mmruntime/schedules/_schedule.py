"""A pipeline schedule as a plain value: the actions of every submesh, in order."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mmruntime.schedules._action import Action
from mmruntime.schedules._drawing.text_grid import grid
from mmruntime.schedules._memory import recomputed
from mmruntime.schedules._validate import check, check_live

_FUSED_TEXT = re.compile(r"\((\d+[FBIW]\d+);(\d+[FBIW]\d+)\)OVERLAP_F_B")


@dataclass(frozen=True)
class Schedule:
    """The order in which every submesh issues its actions.

    Attributes:
        name: Its name in reports; the canonical name if `make` made it.
        rows: `rows[submesh]` are the actions of that submesh in issue order.
        placement: `placement[stage]` is the submesh that runs the stage.
        num_stages: Number of (virtual) stages, `len(placement)`.
        num_microbatches: Number of microbatches of one step.
        fused: Actions that run as one program with the action after them in their row (overlapped forward and
            backward, as in DualPipe-V). A runtime may also run the two one after the other, which only takes longer.
        replicas: `replicas[stage]` are further submeshes that also hold the stage's weights and run it for some of the
            microbatches, as in DualPipe; `rows` say which microbatch runs where. Empty if no stage has replicas.
        slices: Into how many slices of its sequence each microbatch is cut. Each slice then counts as a microbatch
            everywhere here, in `num_microbatches`, actions and simulations.
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]
    placement: tuple[int, ...]
    num_stages: int
    num_microbatches: int
    fused: frozenset[Action] = frozenset()
    replicas: tuple[tuple[int, ...], ...] = ()
    slices: int = 1

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
        """Whether some stage runs the halves of its backward pass separately."""
        return any(action.kind == "I" for row in self.rows for action in row)

    @cached_property
    def recomputed(self) -> frozenset[tuple[int, int]]:
        """The stages and microbatches whose forward runs once more (R), and keeps its input alone until then."""
        return recomputed(action for row in self.rows for action in row)

    @property
    def has_backward(self) -> bool:
        """Whether there is a backward pass; false for a forward-only (inference) schedule."""
        return any(action.kind != "F" for row in self.rows for action in row)

    @property
    def odd_stages(self) -> frozenset[int]:
        """Every other stage of each submesh, from its second on, which pictures set apart."""
        return frozenset(stage for submesh in range(len(self.rows)) for stage in self.stages_of(submesh)[1::2])

    def stages_of(self, submesh: int) -> tuple[int, ...]:
        """The stages whose weights the submesh holds, in ascending order."""
        return tuple(stage for stage in range(self.num_stages) if submesh in self.homes_of(stage))

    def homes_of(self, stage: int) -> tuple[int, ...]:
        """The submeshes that run a stage: its own first, then its replicas."""
        return (self.placement[stage], *(self.replicas[stage] if self.replicas else ()))

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """The submesh of each stage and microbatch, at `stage * num_microbatches + microbatch`."""
        count = self.num_microbatches
        homes = [submesh for submesh in self.placement for _ in range(count)]
        if self.replicas:
            for submesh, row in enumerate(self.rows):
                for action in row:
                    homes[action.stage * count + action.microbatch] = submesh
        return tuple(homes)

    def forward_only(self) -> "Schedule":
        """The order without its backward actions, for a step that takes no gradient."""
        rows = tuple(tuple(action for action in row if action.kind == "F") for row in self.rows)
        return replace(self, rows=rows, fused=frozenset())

    def validate(self, live_bound: float | Sequence[float] | None = None) -> None:
        """Check that the schedule can run and computes each gradient once.

        The checks: the placement; every action exactly once, on a submesh of its stage; for each microbatch of a stage
        one whole backward, or one input half and one weight half; no forward once more that no backward follows;
        dependency order inside each row; no deadlock across rows; fused pairs; and the bound on live activations.

        Args:
            live_bound: Most activations that a submesh may hold, one number for all or one for each, in units of one
                microbatch of one submesh-sized stage, as in `Simulation.live`. No bound if left out.

        Raises:
            ValueError: If a check fails. The text shows the grid with the failing cell in square brackets.
        """
        _ = self._is_valid
        if live_bound is not None:
            check_live(self, live_bound)

    @cached_property
    def _is_valid(self) -> bool:
        """True, or the error; asked once, as a search simulates one schedule again and again, with other costs."""
        check(self)
        return True

    def to_csv(self) -> str:
        """The schedule as CSV text, one line for each submesh, one cell for each action.

        This is the compute-only format of `torch.distributed.pipelining`. A fused pair is one cell,
        `(0F3;7B1)OVERLAP_F_B`.
        """
        return "".join(",".join(_cells(row, self.fused, "({};{})OVERLAP_F_B")) + "\n" for row in self.rows)

    @staticmethod
    def from_csv(text: str, name: str = "custom") -> "Schedule":
        """The schedule written as `text` in the format of `to_csv`; empty cells are skipped.

        The placement follows from the lines on which the stages appear, see `from_rows`. The result is not validated.

        Raises:
            ValueError: If a cell is not an action, or a microbatch of a stage appears on two lines. The text names line
                and cell.
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

    The submesh of a stage is the row of its first microbatch. Rows with others of its microbatches are its replicas.

    Raises:
        ValueError: If there is no action, a stage is missing, or one microbatch of a stage appears in two rows.
    """
    all_rows = tuple(tuple(row) for row in rows)
    row_of: dict[tuple[int, int], int] = {}
    for submesh, row in enumerate(all_rows):
        for action in row:
            first = row_of.setdefault((action.stage, action.microbatch), submesh)
            if first != submesh:
                raise ValueError(
                    f"Stage {action.stage} appears in rows {first} and {submesh} for microbatch {action.microbatch}: "
                    "its backward pass needs what its forward pass left on its submesh. "
                    f"Move {action} to row {first}.\n" + grid(all_rows, fused, marks=[(submesh, row.index(action))])
                )
    if not row_of:
        raise ValueError("The schedule has no actions: give each row at least one, such as 0F0.")
    homes: dict[int, list[int]] = {}
    for (stage, _), submesh in sorted(row_of.items()):
        rows_of_stage = homes.setdefault(stage, [])
        if submesh not in rows_of_stage:
            rows_of_stage.append(submesh)
    missing = sorted(set(range(max(homes) + 1)) - set(homes))
    if missing:
        raise ValueError(
            f"Stages must be numbered 0 to {max(homes)} without gaps, but {missing} appear nowhere.\n"
            + grid(all_rows, fused)
        )
    num_microbatches = 1 + max(microbatch for _, microbatch in row_of)
    placement = tuple(homes[stage][0] for stage in range(len(homes)))
    replicas = tuple(tuple(homes[stage][1:]) for stage in range(len(homes)))
    return Schedule(
        name,
        all_rows,
        placement,
        len(placement),
        num_microbatches,
        frozenset(fused),
        replicas if any(replicas) else (),
    )


def _cells(row: Sequence[Action], fused: Collection[Action], pair: str) -> list[str]:
    """The cells of a row as text; a fused pair is one cell in the format `pair`."""
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
