"""Peak memory of activations."""

from collections.abc import Iterable, Sequence

from mmruntime.schedules._action import Action


def peak(
    row: Sequence[Action], whole: Sequence[float], kept: Sequence[float], inputs: Sequence[float] | None = None
) -> float:
    """The most memory that activations take at once while a submesh runs its row.

    It does not depend on times, because only actions of the row itself take memory or free it.

    Args:
        row: Actions in issue order.
        whole: For each stage, the memory that a forward takes and a whole backward frees.
        kept: For each stage, the part that an input half leaves for the weight half.
        inputs: For each stage, what a forward takes that runs once more; that takes the rest. None where none does.
    """
    again = recomputed(row) if inputs is not None else frozenset[tuple[int, int]]()
    first = whole if inputs is None else inputs
    live = most = 0.0
    for action in row:
        stage = action.stage
        if action.kind == "F":
            live += whole[stage] if not again or (stage, action.microbatch) not in again else first[stage]
            if live > most:
                most = live
        elif action.kind == "B":
            live -= whole[stage]
        elif action.kind == "I":
            live -= whole[stage] - kept[stage]
        elif action.kind == "W":
            live -= kept[stage]
        else:
            live += whole[stage] - first[stage]
            if live > most:
                most = live
    return most


def recomputed(row: Iterable[Action]) -> frozenset[tuple[int, int]]:
    """The stages and microbatches whose forward the row runs once more."""
    return frozenset((action.stage, action.microbatch) for action in row if action.kind == "R")


def live_counts(rows: Sequence[Sequence[Action]], num_stages: int) -> tuple[float, ...]:
    """Peak of live activations on each submesh, in units of one microbatch of one submesh-sized stage.

    An activation lives from its forward until its whole backward or its weight half. A virtual stage counts
    submeshes / stages: the whole model is one unit for each submesh. Where the forward runs once more, it lives from
    there; the input, from which it does, does not count.
    """
    ones, zeros = (1.0,) * num_stages, (0.0,) * num_stages
    return tuple(peak(row, ones, ones, zeros) * len(rows) / num_stages for row in rows)
