"""GPipe and looped breadth-first: a submesh runs all microbatches of one stage before it goes on to the next."""

from collections.abc import Iterable

from mmruntime.schedules._action import Action, Kind
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import ANY_PLACEMENT


def breadth_first(sizes: ScheduleSizes) -> Order:
    """All forwards, stage by stage, then all backwards from the last stage.

    for stage in stages:           F(stage, 0) ... F(stage, m-1)
    for stage in reversed(stages): B(stage, 0) ... B(stage, m-1)
    """
    rows: list[list[Action]] = [[] for _ in range(sizes.num_submeshes)]
    passes: list[tuple[Kind, Iterable[int]]] = [("F", range(sizes.num_stages)), ("B", range(sizes.num_stages)[::-1])]
    for kind, stages in passes:
        for stage in stages:
            rows[sizes.placement[stage]] += [Action(kind, stage, each) for each in range(sizes.num_microbatches)]
    return Order(tuple(map(tuple, rows)))


GPIPE = NamedSchedule(
    name="gpipe",
    aliases=("fill-drain", "breadth-first"),
    rank=10,
    summary="all forwards, then all backwards",
    source="https://arxiv.org/abs/1811.06965",
    order=breadth_first,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)/v", live="m"),
)

# The same order: with one stage on each submesh it is GPipe, with several it is looped.
LOOPED_BFS = NamedSchedule(
    name="looped-bfs",
    rank=50,
    summary="GPipe over several stages on each submesh",
    source="https://arxiv.org/abs/2211.05953",
    order=breadth_first,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)/v", live="m"),
)
