"""Whether a schedule can run: complete, in dependency order, free of deadlock, within its memory."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._action import Action
from ._grid import grid

if TYPE_CHECKING:
    from ._schedule import Schedule


def validate(schedule: "Schedule", live_bound: float | Sequence[float] | None = None) -> None:
    """See `Schedule.validate`."""
    _check_shape(schedule)
    _check_cells(schedule)
    _check_complete(schedule)
    _check_order(schedule)
    _check_fused(schedule)
    if live_bound is not None:
        _check_live(schedule, live_bound)


def needs(action: Action, num_stages: int, split: frozenset[tuple[int, int]]) -> list[Action]:
    """The actions that must have run before `action`.

    Args:
        action: Any action of the schedule.
        num_stages: Number of virtual stages.
        split: The pairs (stage, microbatch) whose backward pass is in two halves.
    """
    kind, stage, microbatch = action.kind, action.stage, action.microbatch
    if kind == "F":
        return [Action("F", stage - 1, microbatch)] if stage else []
    if kind == "W":
        return [Action("I", stage, microbatch)]
    before = [Action("F", stage, microbatch)]
    if stage + 1 < num_stages:
        before.append(Action("I" if (stage + 1, microbatch) in split else "B", stage + 1, microbatch))
    return before


def live_counts(schedule: "Schedule") -> tuple[float, ...]:
    """Peak of live activations on each submesh, in units of one microbatch of one submesh-sized stage.

    An activation lives from its forward until its whole backward or its weight half. A virtual stage counts
    submeshes / stages, because a step's whole model is one unit for each submesh.
    """
    unit = schedule.num_submeshes / schedule.num_stages
    peaks = []
    for row in schedule.rows:
        live = peak = 0
        for action in row:
            if action.kind == "F":
                live += 1
                peak = max(peak, live)
            elif action.kind != "I":
                live -= 1
        peaks.append(peak * unit)
    return tuple(peaks)


def _fail(schedule: "Schedule", problem: str, remedy: str, *marks: tuple[int, int]) -> ValueError:
    return ValueError(
        f"Schedule {schedule.name!r} cannot run: {problem} {remedy}\n"
        + grid(schedule.rows, schedule.fused, marks=marks)
    )


def _check_shape(schedule: "Schedule") -> None:
    num_stages, num_submeshes = schedule.num_stages, schedule.num_submeshes
    if num_stages < 1 or schedule.num_microbatches < 1:
        raise ValueError(
            f"A schedule needs at least one stage and one microbatch; got {num_stages} stages and "
            f"{schedule.num_microbatches} microbatches."
        )
    if len(schedule.placement) != num_stages:
        raise ValueError(
            f"The placement {schedule.placement} names the submesh of {len(schedule.placement)} stages, but there "
            f"are {num_stages} stages. Give one submesh for each stage."
        )
    for stage, submesh in enumerate(schedule.placement):
        if not 0 <= submesh < num_submeshes:
            raise ValueError(
                f"The placement puts stage {stage} on submesh {submesh}, but there are {num_submeshes} rows "
                f"(submeshes 0 to {num_submeshes - 1})."
            )


def _check_cells(schedule: "Schedule") -> None:
    seen: dict[Action, tuple[int, int]] = {}
    for submesh, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            cell = (submesh, position)
            if action.kind not in ("F", "B", "I", "W"):
                raise _fail(schedule, f"{action} has kind {action.kind!r}.", "Use F, B, I or W.", cell)
            if not 0 <= action.stage < schedule.num_stages:
                raise _fail(
                    schedule,
                    f"{action} names stage {action.stage}, but there are {schedule.num_stages} stages.",
                    f"Use stages 0 to {schedule.num_stages - 1}.",
                    cell,
                )
            if not 0 <= action.microbatch < schedule.num_microbatches:
                raise _fail(
                    schedule,
                    f"{action} names microbatch {action.microbatch}, but there are {schedule.num_microbatches}.",
                    f"Use microbatches 0 to {schedule.num_microbatches - 1}.",
                    cell,
                )
            home = schedule.placement[action.stage]
            if home != submesh:
                raise _fail(
                    schedule,
                    f"{action} is in the row of submesh {submesh}, but stage {action.stage} lives on submesh {home}.",
                    f"Move it to row {home}.",
                    cell,
                )
            if action in seen:
                raise _fail(schedule, f"{action} appears twice.", "Keep one of the two.", seen[action], cell)
            seen[action] = cell


def _check_complete(schedule: "Schedule") -> None:
    present = {action for row in schedule.rows for action in row}
    has_backward = schedule.has_backward
    for stage in range(schedule.num_stages):
        row_end = (schedule.placement[stage], len(schedule.rows[schedule.placement[stage]]))
        for microbatch in range(schedule.num_microbatches):
            forward, whole, inputs, weights = (
                Action("F", stage, microbatch),
                Action("B", stage, microbatch),
                Action("I", stage, microbatch),
                Action("W", stage, microbatch),
            )
            if forward not in present:
                raise _fail(schedule, f"{forward} is missing.", f"Add it to row {row_end[0]}.", row_end)
            if not has_backward:
                continue
            halves = [action for action in (inputs, weights) if action in present]
            if whole in present and halves:
                row = schedule.rows[row_end[0]]
                raise _fail(
                    schedule,
                    f"{halves[0]} repeats work of {whole}: B is both halves of the backward pass.",
                    f"Keep {whole}, or {inputs} and {weights}.",
                    *((row_end[0], row.index(action)) for action in (whole, *halves)),
                )
            if whole not in present and len(halves) < 2:
                lacking = whole if not halves else (weights if halves[0] == inputs else inputs)
                raise _fail(
                    schedule,
                    f"{lacking} is missing.",
                    f"Add {lacking} to row {row_end[0]}"
                    + (f", or the halves {inputs} and {weights}." if lacking == whole else "."),
                    row_end,
                )


def _check_order(schedule: "Schedule") -> None:
    rows = schedule.rows
    split = frozenset((action.stage, action.microbatch) for row in rows for action in row if action.kind == "I")
    cell_of = {action: (submesh, position) for submesh, row in enumerate(rows) for position, action in enumerate(row)}
    done = [0] * len(rows)
    waiting: dict[Action, int] = {}
    ready = list(range(len(rows)))
    while ready:
        submesh = ready.pop()
        row = rows[submesh]
        while done[submesh] < len(row):
            action = row[done[submesh]]
            blocker = next(
                (
                    before
                    for before in needs(action, schedule.num_stages, split)
                    if done[cell_of[before][0]] <= cell_of[before][1]
                ),
                None,
            )
            if blocker is not None:
                if cell_of[blocker][0] == submesh:
                    raise _fail(
                        schedule,
                        f"on submesh {submesh}, {action} comes before {blocker}, which it needs.",
                        f"Move {blocker} before {action}.",
                        cell_of[action],
                        cell_of[blocker],
                    )
                waiting[blocker] = submesh
                break
            done[submesh] += 1
            if action in waiting:
                ready.append(waiting.pop(action))
    stuck = {submesh: rows[submesh][at] for submesh, at in enumerate(done) if at < len(rows[submesh])}
    if not stuck:
        return
    waits_for = {submesh: blocker for blocker, submesh in waiting.items()}
    submesh, chain = min(stuck), list[int]()
    while submesh not in chain:
        chain.append(submesh)
        submesh = cell_of[waits_for[submesh]][0]
    circle = chain[chain.index(submesh) :]
    story = "; ".join(
        f"submesh {member} waits at {stuck[member]} for {waits_for[member]} of submesh {cell_of[waits_for[member]][0]}"
        for member in circle
    )
    raise _fail(
        schedule,
        f"deadlock. {story[0].upper()}{story[1:]}.",
        f"Move {waits_for[circle[0]]} before {stuck[cell_of[waits_for[circle[0]]][0]]} on submesh "
        f"{cell_of[waits_for[circle[0]]][0]}, or {stuck[circle[0]]} later on submesh {circle[0]}.",
        *(cell_of[stuck[member]] for member in circle),
    )


def _check_fused(schedule: "Schedule") -> None:
    following = {first: second for row in schedule.rows for first, second in itertools.pairwise(row)}
    for action in sorted(schedule.fused, key=str):
        partner = following.get(action)
        if partner is None or {action.kind, partner.kind} not in ({"F", "B"}, {"F", "I"}):
            raise _fail(
                schedule,
                f"{action} is marked as fused with the next action of its row, which is {partner or 'nothing'}.",
                "Fuse a forward with a backward (B or I) right after it, or the other way round.",
            )
        if action.microbatch == partner.microbatch and action.stage == partner.stage:
            raise _fail(
                schedule,
                f"{action} is fused with {partner}, which needs it.",
                "Fuse two different microbatches or stages.",
            )


def _check_live(schedule: "Schedule", live_bound: float | Sequence[float]) -> None:
    count = schedule.num_submeshes
    bounds = [live_bound] * count if isinstance(live_bound, int | float) else list(live_bound)
    if len(bounds) != count:
        raise ValueError(f"live_bound gives {len(bounds)} numbers for {count} submeshes. Give one for each, or one.")
    unit = count / schedule.num_stages
    for submesh, row in enumerate(schedule.rows):
        live = 0.0
        for position, action in enumerate(row):
            if action.kind == "F":
                live += unit
            elif action.kind != "I":
                live -= unit
            if live > bounds[submesh] + 1e-9:
                raise _fail(
                    schedule,
                    f"{action} is the activation that exceeds the bound on submesh {submesh}: {live:g} live, "
                    f"{bounds[submesh]:g} allowed (peak {live_counts(schedule)[submesh]:g}).",
                    f"Run a backward (B or W) before it, or allow {live_counts(schedule)[submesh]:g}.",
                    (submesh, position),
                )
