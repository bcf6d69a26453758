"""Peak memory of activations."""

from collections.abc import Sequence

from ._action import Action


def peak(row: Sequence[Action], whole: Sequence[float], kept: Sequence[float]) -> float:
    """The most memory that activations take at once while a submesh runs its row.

    It does not depend on times, because only actions of the row itself take memory or free it.

    Args:
        row: Actions in issue order.
        whole: For each stage, the memory that a forward takes and a whole backward frees.
        kept: For each stage, the part that an input half leaves for the weight half.
    """
    live = most = 0.0
    for action in row:
        stage = action.stage
        if action.kind == "F":
            live += whole[stage]
            if live > most:
                most = live
        elif action.kind == "B":
            live -= whole[stage]
        elif action.kind == "I":
            live -= whole[stage] - kept[stage]
        else:
            live -= kept[stage]
    return most


def live_counts(rows: Sequence[Sequence[Action]], num_stages: int) -> tuple[float, ...]:
    """Peak of live activations on each submesh, in units of one microbatch of one submesh-sized stage.

    An activation lives from its forward until its whole backward or its weight half. A virtual stage counts
    submeshes / stages: the whole model is one unit for each submesh.
    """
    ones = (1.0,) * num_stages
    return tuple(peak(row, ones, ones) * len(rows) / num_stages for row in rows)
