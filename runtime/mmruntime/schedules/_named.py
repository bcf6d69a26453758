"""The schedules that have a name."""

import difflib
from collections.abc import Callable, Sequence

from ._list import one_forward_one_backward
from ._schedule import Schedule
from ._waves import Rows, fill_drain, visits, waves

ALIASES = {
    "fill-drain": "gpipe",
    "breadth-first": "gpipe",
    "prefetch-wavefront": "wavefront",
}


def _gpipe(placement: Sequence[int], p: int, m: int) -> Rows:
    return fill_drain(placement, p, m)


def _one_f_one_b(placement: Sequence[int], p: int, m: int) -> Rows:
    return one_forward_one_backward(placement, p, m)


def _wavefront(placement: Sequence[int], p: int, m: int) -> Rows:
    path = visits(len(placement), "FB")
    return waves(path, placement, p, m, delay=len(placement))


ANY_PLACEMENT: dict[str, Callable[[Sequence[int], int, int], Rows]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "wavefront": _wavefront,
}


def names() -> tuple[str, ...]:
    """The canonical names that `make` knows."""
    return tuple(ANY_PLACEMENT)


def make(
    name: str,
    num_stages: int,
    num_microbatches: int,
    chunks: int = 1,
    *,
    placement: Sequence[int] | None = None,
) -> Schedule:
    """The schedule called `name`."""
    canonical = ALIASES.get(name, name)
    if canonical not in names():
        known = sorted({*names(), *ALIASES})
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(
            f"Unknown schedule {name!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + f" Known schedules: {', '.join(known)}."
        )
    for what, number in (("num_stages", num_stages), ("num_microbatches", num_microbatches), ("chunks", chunks)):
        if number < 1:
            raise ValueError(f"{what} must be at least 1; got {number}.")
    home = tuple(placement) if placement is not None else tuple(range(num_stages)) * chunks
    rows = ANY_PLACEMENT[canonical](home, num_stages, num_microbatches)
    return Schedule(canonical, rows, home, len(home), num_microbatches)
