"""Local search: reorder rows along the critical path of the simulated step."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._memory import peak
from mmruntime.schedules._timing import TimedRun, TimedSchedule

# A move is compared with the step of so many moves ago.
_MEMORY = 200
# Places beyond its block to which an action may move.
_BEYOND = 4


def improve(
    timed: TimedSchedule,
    whole: Sequence[float],
    kept: Sequence[float],
    inputs: Sequence[float],
    memory: Sequence[float],
    tries: int,
    bound: float,
    barrier: bool = True,
) -> tuple[Rows, float]:
    """A better order of the rows, or the same.

    The step is as long as its critical path: a chain of actions each of which starts when the one before it ends, the
    one before it being its predecessor in the row or the producer of its input. Only a change along that path can
    shorten the step. Without a barrier the path continues in the step before, from the start of a row to its end, and
    closes to a cycle; the time per step is that of the slowest cycle.

    The path consists of blocks: actions that follow each other in one row without a gap. Every try moves one action of
    a block within it or a little beyond, as in job-shop scheduling (Nowicki and Smutnicki 1996,
    doi:10.1287/mnsc.42.6.797). A move is kept if the step is no longer than before the move, or no longer than some
    moves ago (late acceptance, Burke and Bykov 2017, doi:10.1016/j.ejor.2016.07.012), which leads out of local minima.

    Microbatches of one stage and kind stay in order, and so do the actions of one stage and microbatch. The seed is
    fixed, because every process has to find the same order.

    Args:
        timed: The order to improve. Its rows are reordered in place, for speed.
        whole: For each stage, memory that a forward takes.
        kept: For each stage, the part of it that an input half leaves.
        inputs: For each stage, the part of it that a forward takes which runs once more.
        memory: Bound on the memory of each submesh.
        tries: Number of orders to run in simulated time.
        bound: Time that no order can beat; the search ends when it is reached.
        barrier: Whether a step ends for all rows at once.

    Returns:
        The rows, and the length of the step.
    """
    chance = random.Random(0)
    rows, actions = timed.rows, timed.actions
    held = inputs if any(action.kind == "R" for action in actions) else None
    state = _look(timed, barrier)
    assert state is not None, "local search starts from a valid order"
    current = state.score
    past = [current] * _MEMORY
    best, shortest = [list(row) for row in rows], state.time
    blocks = _critical_blocks(timed, state, chance)
    tried = 0
    for _ in range(4 * tries):
        if tried == tries or not blocks or shortest <= bound * (1 + 1e-9):
            break
        number, first, last = blocks[chance.randrange(len(blocks))]
        row = rows[number]
        source = chance.randint(first, last)
        step = chance.choice((-1, 1))
        end = max(0, first - _BEYOND) if step < 0 else min(len(row) - 1, last + _BEYOND)
        target = _furthest(row, source, step, end, actions)
        if target == source:
            continue
        if chance.random() < 0.7:
            target = source + step * chance.randint(1, abs(target - source))
        changed = list(row)
        changed.insert(target, changed.pop(source))
        if peak([actions[index] for index in changed], whole, kept, held) > memory[number] + 1e-9:
            continue
        rows[number] = changed
        state = _look(timed, barrier)
        place = tried % _MEMORY
        tried += 1
        if state is not None and state.score <= max(current, past[place]):
            current = state.score
            blocks = _critical_blocks(timed, state, chance)
            if state.time < shortest * (1 - 1e-12):
                best, shortest = [list(row) for row in rows], state.time
        else:
            rows[number] = row
        past[place] = min(past[place], current)
    return tuple(tuple(actions[index] for index in row) for row in best), shortest


class _State(NamedTuple):
    """A step in simulated time.

    Attributes:
        time: Time of the step.
        score: Time and tie-break, the smaller the better.
        begins: Start of each row.
        run: Starts and ends of the actions.
    """

    time: float
    score: float
    begins: Sequence[float]
    run: TimedRun


def _look(timed: TimedSchedule, barrier: bool) -> _State | None:
    """Time the current rows; None on deadlock. Ties go to the step whose rows finish earlier."""
    run = timed.run()
    if run.finish is None:
        return None
    mean = sum(run.finish) / len(run.finish)
    if barrier:
        return _State(max(run.finish), max(run.finish) + 1e-3 * mean, [0.0] * len(run.finish), run)
    time, begins = timed.settle(run.finish)
    return _State(time, time + 1e-3 * mean, begins, timed.run(begins))


def _furthest(row: Sequence[int], source: int, step: int, end: int, actions: Sequence[Action]) -> int:
    """The furthest position up to `end` to which the action at `source` may move in direction `step`.

    It may not pass an action of its own stage that has the same kind or the same microbatch.
    """
    mine = actions[row[source]]
    at = source
    while at != end:
        other = actions[row[at + step]]
        if other.stage == mine.stage and (other.kind == mine.kind or other.microbatch == mine.microbatch):
            break
        at += step
    return at


def _critical_blocks(timed: TimedSchedule, state: _State, chance: random.Random) -> list[tuple[int, int, int]]:
    """The blocks (row, first, last) of two or more actions on the critical path, which is followed back from its end.

    Where the predecessor in the row and the producer of the input end at the same time, chance decides between them.
    """
    rows, (starts, ends, _) = timed.rows, state.run
    place = {index: (number, position) for number, row in enumerate(rows) for position, index in enumerate(row)}
    index = max(range(len(ends)), key=ends.__getitem__)
    number, position = place[index]
    last = position
    blocks = []
    wrapped: set[int] = set()
    while True:
        before = rows[number][position - 1] if position else -1
        producer = timed.producer(index)
        follows_row = before >= 0 and ends[before] >= starts[index] - 1e-9
        follows_input = producer >= 0 and ends[producer] >= starts[index] - 1e-9
        if follows_row and not (follows_input and chance.random() < 0.5):
            index, position = before, position - 1
            continue
        if last > position:
            blocks.append((number, position, last))
        begins = starts[index] <= state.begins[number] + 1e-9
        if begins and state.begins[number] > 0 and number not in wrapped:
            # Without a barrier, the first action of a row waited for the row's last one in the step before.
            wrapped.add(number)
            index = rows[number][-1]
        elif producer < 0 or begins:
            return blocks
        else:
            index = producer
        number, position = place[index]
        last = position
