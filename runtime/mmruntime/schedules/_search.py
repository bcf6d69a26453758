"""Local search: reorder rows along the critical path of the simulated step."""

import random
from collections.abc import Sequence

from ._memory import peak
from ._program import Program, Run
from ._waves import Rows


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
    the one before in the row or the producer of its input. Only a change along that path can shorten the step, so
    every try moves one action of it to another place within its block (actions that follow each other in one row
    without a gap), as in job-shop scheduling (Nowicki and Smutnicki 1996, doi:10.1287/mnsc.42.6.797; the moves to
    either end of a block are those of Balas and Vazacopoulos 1998, doi:10.1287/mnsc.44.2.262). A move is kept if it
    makes the step no longer and the rows together finish no later, or by chance if the step stays the same.

    Microbatches of one stage and kind stay in order, and each action stays between those of its own microbatch and
    stage that it needs and that need it. The random numbers are always the same.

    Args:
        program: What to improve; its rows are reordered.
        whole: For each stage, memory that a forward takes.
        kept: For each stage, the part of it that an input half leaves.
        memory: Most memory of each submesh.
        tries: Number of moves to try.
        bound: No order is shorter than this; the search ends when it is reached.

    Returns:
        The rows, and the length of the step.
    """
    chance = random.Random(0)
    rows, actions = program.rows, program.actions
    keys = [(action.kind, action.stage) for action in actions]
    items = [(action.stage, action.microbatch) for action in actions]
    row_of = [0] * len(actions)
    for number, row in enumerate(rows):
        for index in row:
            row_of[index] = number
    run = program.run()
    assert run.finish is not None, "the search starts from a valid order"
    length, total = max(run.finish), sum(run.finish)
    best, best_length = [list(row) for row in rows], length
    moves = _critical_moves(program, run, chance)
    for _ in range(tries):
        if best_length <= bound * (1 + 1e-9) or not moves:
            break
        number, source, target = moves[chance.randrange(len(moves))]
        row = rows[number]
        if not _may_move(row, source, target, keys, items):
            continue
        changed = list(row)
        changed.insert(target, changed.pop(source))
        if peak([actions[index] for index in changed], whole, kept) > memory[number] + 1e-9:
            continue
        rows[number] = changed
        run = program.run()
        if run.finish is None:
            rows[number] = row
            continue
        new_length, new_total = max(run.finish), sum(run.finish)
        better = (new_length, new_total) <= (length, total)
        if not better and not (new_length <= length * (1 + 1e-9) and chance.random() < 0.1):
            rows[number] = row
            continue
        length, total = new_length, new_total
        moves = _critical_moves(program, run, chance)
        if length < best_length * (1 - 1e-9):
            best, best_length = [list(row) for row in rows], length
    return tuple(tuple(actions[index] for index in row) for row in best), best_length


def _may_move(
    row: Sequence[int],
    source: int,
    target: int,
    keys: Sequence[tuple[str, int]],
    items: Sequence[tuple[int, int]],
) -> bool:
    """Whether an action may pass those between: none of its own stage and kind, none of its stage and microbatch."""
    mine = row[source]
    passed = row[target:source] if target < source else row[source + 1 : target + 1]
    return all(keys[index] != keys[mine] and items[index] != items[mine] for index in passed)


def _critical_moves(program: Program, run: Run, chance: random.Random) -> list[tuple[int, int, int]]:
    """Moves (row, from, to) that take a critical action to either end of its block.

    Where the one before in the row and the producer of the input end at the same time, one of them is followed by
    chance.
    """
    rows, starts, ends = program.rows, run.starts, run.ends
    place = {index: (number, position) for number, row in enumerate(rows) for position, index in enumerate(row)}
    index = max(range(len(ends)), key=ends.__getitem__)
    number, position = place[index]
    block_end = position
    moves = []
    while True:
        before = rows[number][position - 1] if position else -1
        producer = program.producer(index)
        follows_row = before >= 0 and ends[before] >= starts[index] - 1e-9
        follows_input = producer >= 0 and ends[producer] >= starts[index] - 1e-9
        if follows_row and not (follows_input and chance.random() < 0.5):
            index, position = before, position - 1
            continue
        for inner in range(position, block_end + 1):
            if inner > position:
                moves.append((number, inner, position))
            if inner < block_end:
                moves.append((number, inner, block_end))
        if producer < 0 or starts[index] <= 0:
            return moves
        index = producer
        number, position = place[index]
        block_end = position
