"""`make`: a schedule from a name and sizes."""

from collections.abc import Sequence
from typing import Unpack

from ._auto import SearchOptions, auto
from ._named import canonical_name, named
from ._schedule import Schedule


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

    Each microbatch of one stage and kind runs in order, so gradients accumulate in the same order in all of them. Only
    dualpipe sends microbatches two ways, each half in order; every stage but the middle one of an odd number then has
    a replica, see `Schedule.replicas`.

    Args:
        name: One of `names()`, or an alias of MultiMesh: fill-drain and breadth-first are gpipe, prefetch-wavefront
            is wavefront. MultiMesh's 1f1b is the eager order, here wavefront; 1f1b here is the classic one. Or
            `"auto"`, to search for the best order; call `auto` for the report that goes with it.
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches of one step.
        chunks: Stages on each submesh, placed round-robin (stage % num_stages). One if left out; zb-v, v-half, v-min
            and dualpipe-v have two, placed in a V, and dualpipe has one.
        placement: Submesh of each stage, in any pattern; `chunks` is then not used. interleaved-1f1b takes round-robin
            patterns only, the V schedules only a V, and dualpipe one stage on each submesh.
        delay: Ticks between groups of microbatches in wavefront and zero-bubble-h2; the number of stages if left out.
        **options: Costs and bounds for `"auto"`, see `auto`. Orders with a name depend on no costs.

    Raises:
        ValueError: If there is no such name, a number is below one, the placement does not suit the schedule, or
            options do not go with it.
    """
    name = canonical_name(name)
    if name == "auto":
        if delay is not None:
            raise ValueError(f"delay is for wavefront and zero-bubble-h2 only; got {delay=} for auto.")
        return auto(num_stages, num_microbatches, chunks, placement=placement, **options).schedule
    if options:
        raise ValueError(
            f"{', '.join(options)} are for auto only: {name} is the same order whatever the costs. Leave them out, or "
            "give them to simulate()."
        )
    return named(name, num_stages, num_microbatches, chunks, placement=placement, delay=delay)
