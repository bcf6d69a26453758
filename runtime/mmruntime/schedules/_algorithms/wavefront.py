"""Orders that a formula gives for any placement: all microbatches in waves over one list of stage visits."""

from collections.abc import Sequence

from mmruntime.schedules._action import Action, Kind, Rows


def visits(num_stages: int, kinds: str) -> list[tuple[Kind, int]]:
    """What one microbatch goes through: up the stages, down them, and with `"FIW"` then all of their weights."""
    up, down = range(num_stages), range(num_stages - 1, -1, -1)
    if kinds == "FB":
        passes: list[tuple[Kind, range]] = [("F", up), ("B", down)]
    else:
        passes = [("F", up), ("I", down), ("W", up)]
    return [(kind, stage) for kind, stages in passes for stage in stages]


def waves(
    path: Sequence[tuple[Kind, int]],
    placement: Sequence[int],
    num_submeshes: int,
    num_microbatches: int,
    delay: int,
) -> Rows:
    """MultiMesh's wavefront: microbatches in groups of as many as there are submeshes in use.

    Every microbatch takes one visit of `path` in each tick. In a group one microbatch starts in each tick, and a
    group starts `delay` ticks after the one before it; within a tick the latest visit comes first:

        for tick in ticks:
            for k, (kind, stage) in reversed(list(enumerate(path))):
                run (kind, stage) for the microbatch that started at tick - k, if there is one

    Raises:
        ValueError: If the delay is shorter than a group, so that two microbatches would start in one tick.
    """
    group = len(set(placement))
    if delay < group:
        raise ValueError(f"{delay=} must be at least the number of submeshes in use, {group}.")
    cells = sorted(
        (delay * (microbatch // group) + microbatch % group + k, -k, microbatch)
        for k in range(len(path))
        for microbatch in range(num_microbatches)
    )
    rows: list[list[Action]] = [[] for _ in range(num_submeshes)]
    for _, minus_k, microbatch in cells:
        kind, stage = path[-minus_k]
        rows[placement[stage]].append(Action(kind, stage, microbatch))
    return tuple(map(tuple, rows))
