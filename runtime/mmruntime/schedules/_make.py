"""`make`: a schedule from a name and sizes."""

from collections.abc import Sequence

from ._named import named
from ._schedule import Schedule


def make(
    name: str,
    num_stages: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    delay: int | None = None,
) -> Schedule:
    """The schedule called `name`.

    Each microbatch of one stage and kind runs in order, so gradients accumulate in the same order in all of them.

    Args:
        name: One of `names()`, or an alias of MultiMesh: fill-drain and breadth-first are gpipe, prefetch-wavefront
            is wavefront. MultiMesh's 1f1b is the eager order, here wavefront; 1f1b here is the classic one.
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches of one step.
        chunks: Stages on each submesh, placed round-robin (stage % num_stages). One if left out; zb-v, v-half, v-min
            and dualpipe-v have two, placed in a V.
        placement: Submesh of each stage, in any pattern; `chunks` is then not used. interleaved-1f1b takes round-robin
            patterns only and the V schedules only a V.
        delay: Ticks between groups of microbatches in wavefront and zero-bubble-h2; the number of stages if left out.

    Raises:
        ValueError: If there is no such name, a number is below one, or the placement does not suit the schedule.
    """
    return named(name, num_stages, num_microbatches, chunks, placement=placement, delay=delay)
