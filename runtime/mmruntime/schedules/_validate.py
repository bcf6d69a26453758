"""Validation: a schedule is complete, in dependency order, free of deadlock, and within its memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmruntime.schedules._action import KINDS, Kind
from mmruntime.schedules._drawing.text_grid import grid
from mmruntime.schedules._memory import live_counts, recomputed

if TYPE_CHECKING:
    from mmruntime.schedules._schedule import Schedule


def check(schedule: "Schedule") -> None:
    """All that `Schedule.validate` checks but the bound on live activations."""
    _check_shape(schedule)
    positions = _check_cells(schedule)
    _check_complete(schedule, positions)
    if schedule.fused:
        _check_fused(schedule)
    _check_order(schedule, positions)


def _fail(schedule: "Schedule", problem: str, remedy: str, *marks: tuple[int, int]) -> ValueError:
    """The error with the grid of the schedule, where the cells `marks` stand in square brackets."""
    return ValueError(
        f"Schedule {schedule.name!r} cannot run: {problem} {remedy}\n"
        + grid(schedule.rows, schedule.fused, marks=marks)
    )


def _check_shape(schedule: "Schedule") -> None:
    """Check the numbers of stages and microbatches, the placement and the replicas."""
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
                f"(submeshes 0 to {num_submeshes - 1}). Write one row for each submesh."
            )
    if schedule.replicas and len(schedule.replicas) != num_stages:
        raise ValueError(
            f"The replicas {schedule.replicas} are those of {len(schedule.replicas)} stages, but there are "
            f"{num_stages} stages. Give one tuple of submeshes for each stage, empty where it has none."
        )
    for stage in range(num_stages if schedule.replicas else 0):
        homes = schedule.homes_of(stage)
        if len(set(homes)) < len(homes) or not all(0 <= submesh < num_submeshes for submesh in homes):
            raise ValueError(
                f"Stage {stage} lives on submesh {homes[0]} and its replicas on {homes[1:]}. Give different submeshes "
                f"from 0 to {num_submeshes - 1}."
            )


def _check_cells(schedule: "Schedule") -> dict[Kind, list[int]]:
    """Check each cell on its own; returns the position of every action in its row, -1 for missing ones.

    The position of `Action(kind, stage, microbatch)` is at `stage * num_microbatches + microbatch` of its kind's list.
    With a dictionary of actions instead, hashing took most of the time for large schedules.
    """
    num_stages, count, placement = schedule.num_stages, schedule.num_microbatches, schedule.placement
    replicated = bool(schedule.replicas)
    first_home: dict[int, tuple[int, int]] = {}
    positions: dict[Kind, list[int]] = {kind: [-1] * (num_stages * count) for kind in KINDS}
    for submesh, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            kind, stage, microbatch = action.kind, action.stage, action.microbatch
            cell = (submesh, position)
            if kind not in positions:
                raise _fail(schedule, f"{action} has kind {kind!r}.", "Use F, B, I, W or R.", cell)
            if not 0 <= stage < num_stages:
                raise _fail(
                    schedule,
                    f"{action} names stage {stage}, but there are {num_stages} stages.",
                    f"Use stages 0 to {num_stages - 1}.",
                    cell,
                )
            if not 0 <= microbatch < count:
                raise _fail(
                    schedule,
                    f"{action} names microbatch {microbatch}, but there are {count}.",
                    f"Use microbatches 0 to {count - 1}.",
                    cell,
                )
            index = stage * count + microbatch
            if replicated:
                _check_replica(schedule, cell, first_home.setdefault(index, cell))
            elif placement[stage] != submesh:
                raise _fail(
                    schedule,
                    f"{action} is in the row of submesh {submesh}, but stage {stage} lives on submesh "
                    f"{placement[stage]}.",
                    f"Move it to row {placement[stage]}.",
                    cell,
                )
            places = positions[kind]
            if places[index] >= 0:
                raise _fail(schedule, f"{action} appears twice.", "Keep one.", (submesh, places[index]), cell)
            places[index] = position
    return positions


def _check_replica(schedule: "Schedule", cell: tuple[int, int], first: tuple[int, int]) -> None:
    """Check that a cell is on a submesh of its stage, the one on which its microbatch started (cell `first`)."""
    submesh, position = cell
    action = schedule.rows[submesh][position]
    homes = schedule.homes_of(action.stage)
    if submesh not in homes:
        raise _fail(
            schedule,
            f"{action} is in the row of submesh {submesh}, but stage {action.stage} lives on submeshes "
            f"{', '.join(map(str, homes))}.",
            "Move it to one of these rows.",
            cell,
        )
    if first[0] != submesh:
        raise _fail(
            schedule,
            f"{action} is in the row of submesh {submesh}, but {schedule.rows[first[0]][first[1]]} in that of submesh "
            f"{first[0]}: the activations of a microbatch stay on one submesh.",
            f"Move it to row {first[0]}.",
            first,
            cell,
        )


def _check_complete(schedule: "Schedule", positions: dict[Kind, list[int]]) -> None:
    """Check that each microbatch of a stage has a forward, and one whole backward or two halves."""
    count = schedule.num_microbatches
    has_backward = schedule.has_backward
    for index, again in enumerate(positions["R"]):
        if again >= 0 and max(positions["B"][index], positions["I"][index]) < 0:
            submesh = schedule.homes[index]
            raise _fail(
                schedule,
                f"{schedule.rows[submesh][again]} runs a forward once more, but no backward pass follows.",
                "Leave it out: only a backward pass needs what it makes.",
                (submesh, again),
            )
    cells = zip(positions["F"], positions["B"], positions["I"], positions["W"], strict=True)
    for index, (forward, whole, inputs, weights) in enumerate(cells):
        if forward >= 0 and (not has_backward or ((inputs >= 0) == (weights >= 0) and (whole >= 0) != (inputs >= 0))):
            continue
        stage, microbatch = divmod(index, count)
        submesh = schedule.homes[index]
        row_end = (submesh, len(schedule.rows[submesh]))
        texts: dict[Kind, str] = {kind: f"{stage}{kind}{microbatch}" for kind in KINDS}
        if forward < 0:
            raise _fail(schedule, f"{texts['F']} is missing.", f"Add it to row {submesh}.", row_end)
        halves: list[Kind] = [kind for kind in ("I", "W") if positions[kind][index] >= 0]
        if whole >= 0:
            raise _fail(
                schedule,
                f"{texts[halves[0]]} repeats work of {texts['B']}: B is both halves of the backward pass.",
                f"Keep {texts['B']}, or {texts['I']} and {texts['W']}.",
                (submesh, whole),
                *((submesh, positions[kind][index]) for kind in halves),
            )
        if not halves:
            problem, remedy = texts["B"], f"{texts['B']}, or the halves {texts['I']} and {texts['W']},"
        else:
            problem = remedy = texts["W" if halves[0] == "I" else "I"]
        raise _fail(schedule, f"{problem} is missing.", f"Add {remedy} to row {submesh}.", row_end)


def _check_order(schedule: "Schedule", positions: dict[Kind, list[int]]) -> None:
    """Check dependencies: walk every row until it needs an action that has not run, and go on once that has."""
    rows, count, last, homes = schedule.rows, schedule.num_microbatches, schedule.num_stages - 1, schedule.homes
    forwards, wholes, inputs, repeats = positions["F"], positions["B"], positions["I"], positions["R"]
    fused = schedule.fused
    done = [0] * len(rows)
    # The submesh that waits for a cell. One entry is enough, because only one other stage reads an output.
    waiting: dict[tuple[int, int], int] = {}

    def blocker(submesh: int, position: int) -> tuple[int, int] | None:
        """The cell of another submesh that this one needs, if that has not run."""
        action = rows[submesh][position]
        kind, stage = action.kind, action.stage
        index = stage * count + action.microbatch
        if kind == "F":
            if not stage:
                return None
            source, at = homes[index - count], forwards[index - count]
        else:
            own = inputs[index] if kind == "W" else forwards[index]
            if kind in ("B", "I"):
                own = max(own, repeats[index])
            if own > position:
                raise _late(schedule, (submesh, position), (submesh, own))
            if kind in ("W", "R") or stage == last:
                return None
            source, at = homes[index + count], max(wholes[index + count], inputs[index + count])
        if source == submesh:
            if at > position:
                raise _late(schedule, (submesh, position), (submesh, at))
            return None
        return (source, at) if at >= done[source] else None

    ready = list(range(len(rows)))
    while ready:
        submesh = ready.pop()
        row = rows[submesh]
        while (position := done[submesh]) < len(row):
            # A fused pair starts when both actions can, and gives its outputs when both are done.
            is_pair = bool(fused) and row[position] in fused
            cell = blocker(submesh, position) or (blocker(submesh, position + 1) if is_pair else None)
            if cell is not None:
                waiting[cell] = submesh
                break
            done[submesh] += 1 + is_pair
            for passed in range(position, done[submesh]) if waiting else ():
                if (submesh, passed) in waiting:
                    ready.append(waiting.pop((submesh, passed)))
    if waiting:
        raise _deadlock(schedule, done, waiting)


def _late(schedule: "Schedule", cell: tuple[int, int], blocker: tuple[int, int]) -> ValueError:
    """The error for an action that comes before one of its row that it needs."""
    row = schedule.rows[cell[0]]
    action, before = row[cell[1]], row[blocker[1]]
    return _fail(
        schedule,
        f"on submesh {cell[0]}, {action} comes before {before}, which it needs.",
        f"Move {before} before {action}.",
        cell,
        blocker,
    )


def _deadlock(schedule: "Schedule", done: list[int], waiting: dict[tuple[int, int], int]) -> ValueError:
    """The error that tells one cycle of submeshes that wait for each other."""
    blockers = {submesh: cell for cell, submesh in waiting.items()}
    submesh, chain = min(blockers), list[int]()
    while submesh not in chain:
        chain.append(submesh)
        submesh = blockers[submesh][0]
    cycle = chain[chain.index(submesh) :]
    stuck = {member: schedule.rows[member][done[member]] for member in cycle}
    needed = {member: schedule.rows[blockers[member][0]][blockers[member][1]] for member in cycle}
    story = "; ".join(
        f"submesh {member} waits at {stuck[member]} for {needed[member]} of submesh {blockers[member][0]}"
        for member in cycle
    )
    first = cycle[0]
    return _fail(
        schedule,
        f"deadlock: {story}.",
        f"Move {needed[first]} before {stuck[blockers[first][0]]} on submesh {blockers[first][0]}, or "
        f"{stuck[first]} later on submesh {first}.",
        *((member, done[member]) for member in cycle),
    )


def _check_fused(schedule: "Schedule") -> None:
    """Check that fused actions are followed by a partner that does not depend on them."""
    left = set(schedule.fused)
    for submesh, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            if action not in schedule.fused:
                continue
            left.discard(action)
            partner = row[position + 1] if position + 1 < len(row) else None
            cells = [(submesh, position), (submesh, position + 1)]
            if (
                partner is None
                or (action.kind == "F") == (partner.kind == "F")
                or {"W", "R"} & {action.kind, partner.kind}
            ):
                raise _fail(
                    schedule,
                    f"{action} is fused with {partner or 'the end of its row'}.",
                    "Fuse a forward with a backward (B or I) right beside it.",
                    *cells,
                )
            if partner in schedule.fused:
                raise _fail(schedule, f"{partner} is in two fused pairs.", f"Leave {action} unfused.", *cells)
            if (action.stage, action.microbatch) == (partner.stage, partner.microbatch):
                raise _fail(
                    schedule,
                    f"{action} and {partner} are fused, but one needs the other.",
                    "Fuse different microbatches or stages.",
                    *cells,
                )
    if left:
        raise ValueError(f"The fused actions {sorted(map(str, left))} are not in any row.")


def check_live(schedule: "Schedule", live_bound: float | Sequence[float]) -> None:
    """Check the bound on live activations; the error marks the first action that exceeds it."""
    count = schedule.num_submeshes
    bounds = [live_bound] * count if isinstance(live_bound, int | float) else list(live_bound)
    if len(bounds) != count:
        raise ValueError(f"live_bound gives {len(bounds)} numbers for {count} submeshes. Give one for each, or one.")
    unit = count / schedule.num_stages
    for submesh, peak in enumerate(live_counts(schedule.rows, schedule.num_stages)):
        if peak <= bounds[submesh] + 1e-9:
            continue
        live = 0
        again = recomputed(schedule.rows[submesh])
        for position, action in enumerate(schedule.rows[submesh]):
            is_held = action.kind == ("R" if (action.stage, action.microbatch) in again else "F")
            live += is_held - (action.kind in ("B", "W"))
            if live * unit > bounds[submesh] + 1e-9:
                raise _fail(
                    schedule,
                    f"with {action} there are {live * unit:g} live activations on submesh {submesh}, "
                    f"{bounds[submesh]:g} allowed.",
                    f"Run a backward (B or W) before it, or allow {peak:g}, the peak of the row.",
                    (submesh, position),
                )
