"""Wavefront orders for any placement: every microbatch takes one step along the same path in each tick."""

from collections.abc import Sequence

from mmruntime.schedules._action import Action, Kind
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule, Order, ScheduleSizes
from mmruntime.schedules._placements import ANY_PLACEMENT


def visits(num_stages: int, kinds: str) -> list[tuple[Kind, int]]:
    """The path of one microbatch: the kind and stage of each of its actions.

    Args:
        num_stages: Number of stages.
        kinds: `"FB"` for up the stages and down them, `"FIW"` for input halves down and then weight halves up.
    """
    up, down = range(num_stages), range(num_stages - 1, -1, -1)
    if kinds == "FB":
        passes: list[tuple[Kind, range]] = [("F", up), ("B", down)]
    else:
        passes = [("F", up), ("I", down), ("W", up)]
    return [(kind, stage) for kind, stages in passes for stage in stages]


def waves(sizes: ScheduleSizes, path: Sequence[tuple[Kind, int]]) -> Order:
    """All microbatches along `path`, in groups of as many microbatches as there are submeshes.

    In a group one microbatch starts in each tick, and a group starts `delay` ticks (the number of stages if left out)
    after the one before it. Within a tick the visit furthest along the path comes first, so that memory is freed
    before more is taken:

        for tick in ticks:
            for k, (kind, stage) in reversed(list(enumerate(path))):
                run (kind, stage) for the microbatch that started at tick - k, if there is one

    Raises:
        ValueError: If the delay is shorter than a group, so that two microbatches would start in one tick.
    """
    group = sizes.num_submeshes
    delay = sizes.num_stages if sizes.delay is None else sizes.delay
    if delay < group:
        raise ValueError(f"{delay=} must be at least the number of submeshes in use, {group}.")
    cells = sorted(
        (delay * (microbatch // group) + microbatch % group + k, -k, microbatch)
        for k in range(len(path))
        for microbatch in range(sizes.num_microbatches)
    )
    rows: list[list[Action]] = [[] for _ in range(group)]
    for _, minus_k, microbatch in cells:
        kind, stage = path[-minus_k]
        rows[sizes.placement[stage]].append(Action(kind, stage, microbatch))
    return Order(tuple(map(tuple, rows)))


def wavefront(sizes: ScheduleSizes) -> Order:
    """MultiMesh's wavefront, eager 1F1B: waves of forwards and whole backwards."""
    return waves(sizes, visits(sizes.num_stages, "FB"))


def zero_bubble_waves(sizes: ScheduleSizes) -> Order:
    """MultiMesh's own ZB-H2: waves of forwards, input halves and weight halves."""
    return waves(sizes, visits(sizes.num_stages, "FIW"))


WAVEFRONT = NamedSchedule(
    name="wavefront",
    aliases=("prefetch-wavefront",),
    rank=30,
    summary="eager 1F1B, MultiMesh's `1f1b`: more warm-up forwards hide transfers",
    source="https://nv-legate.github.io/multimesh-jax/",
    order=wavefront,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)(tF+tB)", live="2p-1"),
    has_delay=True,
)

ZERO_BUBBLE_WAVES = NamedSchedule(
    name="zero-bubble-h2",
    rank=130,
    summary="MultiMesh's own variant of ZB-H2",
    source="https://arxiv.org/abs/2401.10241",
    order=zero_bubble_waves,
    placements=ANY_PLACEMENT,
    closed_forms=ClosedForms(idle="(p-1)max(tF, tF+tI-2tW)", idle_without_barrier="(p-1)max(0, tF+tI-2tW)", live="2p"),
    splits_backward=True,
    has_delay=True,
)
