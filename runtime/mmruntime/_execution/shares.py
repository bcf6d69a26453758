"""Shares: which instructions of a step each process issues, and how it takes part in them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from mmruntime._partition.instructions import Instruction, RunInstruction


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
