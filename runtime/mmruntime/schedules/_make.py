"""`make`: a schedule from a name and sizes."""

from collections.abc import Sequence
from typing import Unpack

from mmruntime.schedules._catalog import AUTO, canonical_name, check_delay, named
from mmruntime.schedules._schedule import Schedule
from mmruntime.schedules._search.auto import auto
from mmruntime.schedules._search.objective import SearchOptions


def make(
    name: str,
    num_stages: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    delay: int | None = None,
    **options: Unpack[SearchOptions],
) -> Schedule:
    """The schedule called `name`.

    All schedules run the microbatches of one stage and kind in order, so all add up gradients in the same order. Only
    `dualpipe` sends microbatches both ways, each half in order; every stage but the middle one of an odd number then
    has a replica, see `Schedule.replicas`.

    Args:
        name: One of `names()` or an alias of MultiMesh; or `"auto"`, to search for the best order (call `auto` for its
            report). MultiMesh's own 1f1b is the eager order, here `wavefront`; `1f1b` here is the classic one.
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches of one step.
        chunks: Stages on each submesh, placed round-robin (stage % num_stages), or in a V for schedules that are
            V-shaped. Left out, it is one, or two for a V.
        placement: Submesh of each stage, in any pattern that suits the schedule; `chunks` is then not used.
        delay: Ticks between groups of microbatches, for schedules that run in waves; the number of stages if left out.
        **options: Costs and bounds for `"auto"`, see `auto`. Orders with a name depend on no costs.

    Raises:
        ValueError: If there is no such name, a number is below one, the placement does not suit the schedule, or
            options do not go with it.
    """
    name = canonical_name(name)
    if name == AUTO:
        check_delay(name, delay)
        return auto(num_stages, num_microbatches, chunks, placement=placement, **options).schedule
    if options:
        raise ValueError(
            f"{', '.join(options)} are for auto only: {name} is the same order whatever the costs. Leave them out, or "
            "give them to simulate()."
        )
    return named(name, num_stages, num_microbatches, chunks, placement=placement, delay=delay)
