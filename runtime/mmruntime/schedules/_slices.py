"""Schedules for microbatches in slices of their sequence: Seq1F1B, and GPipe on slices.

A slice runs like a microbatch of its own, number `microbatch * slices + slice`. Its forward pass comes after that of
the slice before it, whose keys and values it reads; its backward pass comes after that of the slice behind it.

Source: Sun, Zhao, Han, Yang, Liu, Shi, Sun, "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language
Model Training", https://arxiv.org/abs/2406.03488.
"""

from ._action import Action, Rows
from ._named import check_counts
from ._registry import canonical_name
from ._schedule import Schedule

# The schedules that have an order of slices.
SLICED = ("gpipe", "1f1b")


def sliced(name: str, num_stages: int, num_microbatches: int, slices: int) -> Schedule:
    """The schedule called `name` for microbatches in slices, with one stage on each submesh.

    Of p stages, stage s runs p - s - 1 + (slices - 1) forward passes ahead in `1f1b`, as the first backward pass of a
    microbatch waits for its last slice. A submesh is idle for (p - 1) (tF + tB) / slices of a step, where tF and tB are
    the times of a whole microbatch, and holds at most p - s + slices - 1 slices of activations, of which each is one
    of `slices` parts of a microbatch. In `gpipe` it holds all slices.

    Args:
        name: `1f1b` or `gpipe`.
        num_stages: Number of submeshes.
        num_microbatches: Number of microbatches.
        slices: Slices of each.

    Raises:
        ValueError: If the schedule has no order of slices, or a number is below one.
    """
    name = canonical_name(name)
    if name not in SLICED:
        raise ValueError(
            f"{name} has no order for slices of a sequence; {' and '.join(SLICED)} have. Write one of these, or leave "
            "slices out."
        )
    check_counts({"num_stages": num_stages, "num_microbatches": num_microbatches, "slices": slices})
    units = num_microbatches * slices
    rows: list[tuple[Action, ...]] = []
    for stage in range(num_stages):
        ahead = units if name == "gpipe" else min(num_stages - stage - 1 + slices - 1, units)
        row = [Action("F", stage, unit) for unit in range(ahead)]
        for position in range(units):
            if ahead + position < units:
                row.append(Action("F", stage, ahead + position))
            microbatch, behind = divmod(position, slices)
            row.append(Action("B", stage, microbatch * slices + slices - 1 - behind))
        rows.append(tuple(row))
    return Schedule(name, tuple(rows), tuple(range(num_stages)), num_stages, units, slices=slices)


def check_slices(rows: Rows, slices: int) -> None:
    """Check that the slices of each microbatch follow each other.

    Raises:
        ValueError: If a forward pass comes before that of the slice before it, or a backward pass before that of the
            slice behind it.
    """
    place = {action: (number, position) for number, row in enumerate(rows) for position, action in enumerate(row)}
    for action, (number, position) in place.items():
        step = {"F": -1, "B": 1, "I": 1}.get(action.kind, 0)
        other = action.microbatch + step
        if not step or other < 0 or other // slices != action.microbatch // slices:
            continue
        found = place.get(Action(action.kind, action.stage, other))
        if found is not None and (found[0] != number or found[1] > position):
            raise ValueError(
                f"{action} comes before {Action(action.kind, action.stage, other)}: forward passes of a microbatch's "
                "slices run from the first to the last, and backward passes from the last to the first, each stage on "
                "one submesh."
            )
