"""Local search: reorder rows along the critical path of the simulated step."""

import random
from collections.abc import Sequence

from ._action import Action
from ._memory import peak
from ._program import Program, Run
from ._waves import Rows

# A move is compared with the order of so many moves ago.
_MEMORY = 200
# How far beyond its block an action may go.
_BEYOND = 4


def improve(
    program: Program,
    whole: Sequence[float],
    kept: Sequence[float],
    memory: Sequence[float],
    tries: int,
    bound: float,
) -> tuple[Rows, float]:
    """A better order of the program's rows, or the same.

    The step is as long as its critical path: a chain of actions that each start when the one before is done, either
    the one before in the row or the producer of its input. Only a change along that path can shorten the step. The
    path consists of blocks, actions that follow each other in one row without a gap, and every try moves one action
    of a block within it or a little beyond, as in job-shop scheduling (Nowicki and Smutnicki 1996,
    doi:10.1287/mnsc.42.6.797). A move is kept if the step is no longer than it was, or no longer than it was some
    moves ago (late acceptance, Burke and Bykov 2017, doi:10.1016/j.ejor.2016.07.012).

    Microbatches of one stage and kind stay in order, and each action stays between those of its own microbatch and
    stage that it needs and that need it. The random numbers are always the same.

    Args:
        program: What to improve; its rows are reordered.
        whole: For each stage, memory that a forward takes.
        kept: For each stage, the part of it that an input half leaves.
        memory: Most memory of each submesh.
        tries: Number of orders to run in simulated time.
        bound: No order is shorter than this; the search ends when it is reached.

    Returns:
        The rows, and the length of the step.
    """
    chance = random.Random(0)
    rows, actions = program.rows, program.actions
    run = program.run()
    assert run.finish is not None, "the search starts from a valid order"
    current = _score(run.finish)
    past = [current] * _MEMORY
    best, shortest = [list(row) for row in rows], max(run.finish)
    blocks = _critical_blocks(program, run, chance)
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
        if peak([actions[index] for index in changed], whole, kept) > memory[number] + 1e-9:
            continue
        rows[number] = changed
        run = program.run()
        place = tried % _MEMORY
        tried += 1
        if run.finish is not None and (score := _score(run.finish)) <= max(current, past[place]):
            current = score
            blocks = _critical_blocks(program, run, chance)
            if max(run.finish) < shortest * (1 - 1e-12):
                best, shortest = [list(row) for row in rows], max(run.finish)
        else:
            rows[number] = row
        past[place] = min(past[place], current)
    return tuple(tuple(actions[index] for index in row) for row in best), shortest


def _score(finish: Sequence[float]) -> float:
    """Length of the step, and of two equal ones the one whose rows finish earlier."""
    return max(finish) + 1e-3 * sum(finish) / len(finish)


def _furthest(row: Sequence[int], source: int, step: int, end: int, actions: Sequence[Action]) -> int:
    """How far an action may go: not past one of its own stage that has its kind or its microbatch."""
    mine = actions[row[source]]
    at = source
    while at != end:
        other = actions[row[at + step]]
        if other.stage == mine.stage and (other.kind == mine.kind or other.microbatch == mine.microbatch):
            break
        at += step
    return at


def _critical_blocks(program: Program, run: Run, chance: random.Random) -> list[tuple[int, int, int]]:
    """The blocks (row, first, last) of two or more actions on the critical path.

    Where the one before in the row and the producer of the input end at the same time, one of them is followed by
    chance.
    """
    rows, starts, ends = program.rows, run.starts, run.ends
    place = {index: (number, position) for number, row in enumerate(rows) for position, index in enumerate(row)}
    index = max(range(len(ends)), key=ends.__getitem__)
    number, position = place[index]
    last = position
    blocks = []
    while True:
        before = rows[number][position - 1] if position else -1
        producer = program.producer(index)
        follows_row = before >= 0 and ends[before] >= starts[index] - 1e-9
        follows_input = producer >= 0 and ends[producer] >= starts[index] - 1e-9
        if follows_row and not (follows_input and chance.random() < 0.5):
            index, position = before, position - 1
            continue
        if last > position:
            blocks.append((number, position, last))
        if producer < 0 or starts[index] <= 0:
            return blocks
        index = producer
        number, position = place[index]
        last = position
