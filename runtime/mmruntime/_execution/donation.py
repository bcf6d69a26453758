"""Donate: which arguments each program may overwrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from mmruntime._partition.instructions import Program, Run, Work


def donations(program: Program, owned: Iterable[int], shape_of: Mapping[int, Hashable]) -> dict[Work, tuple[int, ...]]:
    """Which arguments each program may overwrite.

    An argument is donated if, in every run of the program, the runtime owns it, nobody reads it later, and a
    result of the same shape, type and layout can take its memory.

    Args:
        program: The instructions.
        owned: Slots that hold nothing of the user's, or what the user donated.
        shape_of: Shape, type and layout of each slot.

    Returns:
        Positions of the donated arguments.
    """
    ours = set(owned)
    state = {place[0] for place in program.inputs if place is not None}
    candidates: dict[Work, set[int]] = {}
    for instruction in program.instructions:
        if not isinstance(instruction, Run):
            continue
        sums = range(len(instruction.work.sums))
        ending = set(instruction.frees)
        fit = {
            position
            for position, slot in enumerate(instruction.args)
            if position in sums or (slot in ours and slot in ending and instruction.args.count(slot) == 1)
        }
        candidates[instruction.work] = candidates.get(instruction.work, fit) & fit
    result = {}
    for instruction in program.instructions:
        if not isinstance(instruction, Run) or instruction.work in result:
            continue
        room = Counter(shape_of[slot] for slot in instruction.results)
        chosen = []
        num_sums = len(instruction.work.sums)
        # Sums are added to in place; then donated state is updated in place, rather than written over a temporary.
        order = sorted(candidates[instruction.work], key=lambda p: (p >= num_sums, instruction.args[p] not in state, p))
        for position in order:
            shape = shape_of[instruction.args[position]]
            if room[shape] > 0:
                room[shape] -= 1
                chosen.append(position)
        result[instruction.work] = tuple(sorted(chosen))
    return result
