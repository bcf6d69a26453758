"""GPipe and looped breadth-first: every microbatch through a stage before the next stage."""

from collections.abc import Sequence

from mmruntime.schedules._action import Action, Rows
from mmruntime.schedules._algorithms.wavefront import visits


def fill_drain(placement: Sequence[int], num_submeshes: int, num_microbatches: int) -> Rows:
    """GPipe (arXiv:1811.06965): stage after stage, every microbatch; backward from the last stage.

    With several stages on a submesh this is looped breadth-first (arXiv:2211.05953).

        for stage in stages:           F(stage, 0) ... F(stage, m-1)
        for stage in reversed(stages): B(stage, 0) ... B(stage, m-1)
    """
    rows: list[list[Action]] = [[] for _ in range(num_submeshes)]
    for kind, stage in visits(len(placement), "FB"):
        rows[placement[stage]] += (Action(kind, stage, microbatch) for microbatch in range(num_microbatches))
    return tuple(map(tuple, rows))
