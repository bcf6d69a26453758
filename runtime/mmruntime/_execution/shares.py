"""Shares: which instructions of a step each process issues, and how it takes part in them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from mmruntime._partition.pipeline.instructions import Instruction, RunInstruction


class Share(enum.IntEnum):
    """How a process takes part in an instruction.

    `RUN` and `MOVE` are its own alone; in `RUN_TOGETHER`, a program on devices of several processes, and `CROSS`, a
    transfer from or to another process, others take part.
    """

    RUN = 0
    MOVE = 1
    CROSS = 2
    RUN_TOGETHER = 3


def shares(
    instructions: Sequence[Instruction], owners: Mapping[int, tuple[int, ...]], me: int
) -> list[tuple[int, Share]]:
    """The instructions that a process issues, in their one order: index, and how it takes part.

    Args:
        instructions: All instructions of a step.
        owners: The processes of each submesh's devices.
        me: The process.
    """
    found = []
    for index, item in enumerate(instructions):
        ends = (item.spec.submesh,) if isinstance(item, RunInstruction) else (item.source, item.target)
        if not any(me in owners[where] for where in ends):
            continue
        alone = all(owners[where] == (me,) for where in ends)
        if isinstance(item, RunInstruction):
            found.append((index, Share.RUN if alone else Share.RUN_TOGETHER))
        else:
            found.append((index, Share.MOVE if alone else Share.CROSS))
    return found


def receive_late(
    own: Sequence[tuple[int, Share]],
    instructions: Sequence[Instruction],
    owners: Mapping[int, tuple[int, ...]],
    me: int,
) -> list[tuple[int, Share]]:
    """Put what a process only receives in front of the first of its instructions that reads it, or at the end.

    For channels whose receiving call waits: what the process can issue meanwhile, it issues, and its own messages leave
    earlier. No circle of waits comes of it. Of all messages that are waited for, take the earliest in the one order:
    its sender waits, if at all, in front of an instruction that is earlier still, for a message that is earlier again.

    Args:
        own: The instructions that the process issues; see `shares`.
        instructions: All instructions of a step.
        owners: The processes of each submesh's devices.
        me: The process.
    """
    read: dict[int, int] = {}
    for place, (index, _) in enumerate(own):
        for slot in instructions[index].args:
            read.setdefault(slot, place)
    places = []
    for place, (index, share) in enumerate(own):
        item = instructions[index]
        receives = share is Share.CROSS and not isinstance(item, RunInstruction) and me not in owners[item.source]
        # In front of what is there already: -1 before 0.
        places.append((min([read.get(slot, len(own)) for slot in item.results]), -1) if receives else (place, 0))
    return [own[place] for place in sorted(range(len(own)), key=places.__getitem__)]
