"""Named schedules: their records, found by walking `_algorithms`, and one of them for given sizes and placement."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence

from mmruntime.schedules import _algorithms
from mmruntime.schedules._action import Action
from mmruntime.schedules._named_schedule import NamedSchedule, ScheduleSizes
from mmruntime.schedules._placements import check_placement, renumbered, round_robin
from mmruntime.schedules._schedule import Schedule


def check_sizes(num_submeshes: int, num_microbatches: int, chunks: int | None) -> None:
    """Raise ValueError unless all are whole numbers of at least 1 (chunks may be None)."""
    numbers = {"num_stages": num_submeshes, "num_microbatches": num_microbatches}
    if chunks is not None:
        numbers["chunks"] = chunks
    check_counts(numbers)


def check_counts(numbers: Mapping[str, int]) -> None:
    """Raise ValueError unless these parameters are whole numbers of at least 1."""
    for parameter, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{parameter} must be a whole number of at least 1; got {number!r}.")


def check_delay(name: str, delay: int | None) -> None:
    """Raise ValueError if there is a delay and the schedule has no groups to delay."""
    delayed = [record.name for record in NAMED_SCHEDULES.values() if record.has_delay]
    if delay is not None and name not in delayed:
        text = f"got {delay=} for auto" if name == AUTO else f"{name} has no groups to delay"
        raise ValueError(f"delay is for {' and '.join(delayed)} only; {text}.")


def placements(num_submeshes: int, chunks: int | None, placement: Sequence[int] | None) -> tuple[tuple[int, ...], ...]:
    """The given placement; without one, all placements with so many chunks that some named schedule is written for.

    Raises:
        ValueError: If the placement names a submesh that does not exist.
    """
    if placement is not None:
        return (check_placement(placement, num_submeshes),)
    patterns = [record.placements.pattern(num_submeshes, chunks or 1) for record in NAMED_SCHEDULES.values()]
    return tuple(dict.fromkeys(pattern for pattern in patterns if pattern is not None))


def suits(name: str, placement: Sequence[int]) -> bool:
    """Whether the schedule with this canonical name is written for this placement."""
    return NAMED_SCHEDULES[name].placements.allows(placement)


def named(
    name: str,
    num_submeshes: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    delay: int | None = None,
) -> Schedule:
    """The schedule with this canonical name; see `make`."""
    check_sizes(num_submeshes, num_microbatches, chunks)
    record = NAMED_SCHEDULES[name]
    rule = record.placements
    anywhere = ", ".join(other.name for other in NAMED_SCHEDULES.values() if other.placements.takes_any)
    if placement is not None:
        home = check_placement(placement, num_submeshes)
    else:
        count = chunks or rule.chunks
        pattern = rule.pattern(num_submeshes, count)
        if pattern is None and rule.needs_chunks:
            raise ValueError(
                f"{name} has {rule.needs_chunks}; got {chunks=}. Leave chunks out, or choose one of {anywhere}."
            )
        home = pattern or round_robin(num_submeshes, count)
    check_delay(name, delay)
    if not rule.allows(home):
        raise ValueError(
            f"{name} needs {rule.needs}; got {home}. Place the stages like that, with {rule.hint} in mm.stage or in "
            f"the hint stages({rule.hint}), or choose one of {anywhere} or auto, which take any placement."
        )
    shape, used = renumbered(home)
    order = record.order(ScheduleSizes(shape, num_microbatches, delay))
    rows: list[tuple[Action, ...]] = [()] * num_submeshes
    for submesh, row in zip(used, order.rows, strict=True):
        rows[submesh] = row
    replicas = tuple(tuple(used[replica] for replica in stage) for stage in order.replicas)
    return Schedule(name, tuple(rows), home, len(home), num_microbatches, order.fused, replicas)


# The schedule of a microbatch loop that names none.
DEFAULT = "gpipe"
# Not a named schedule: a search among them and beyond, see `auto`.
AUTO = "auto"


def _records() -> Iterator[NamedSchedule]:
    for module in pkgutil.iter_modules(_algorithms.__path__):
        values = vars(importlib.import_module(f"{_algorithms.__name__}.{module.name}")).values()
        yield from (value for value in values if isinstance(value, NamedSchedule))


NAMED_SCHEDULES = {record.name: record for record in sorted(_records(), key=lambda record: record.rank)}
_ALIASES = {alias: record.name for record in NAMED_SCHEDULES.values() for alias in record.aliases}


def names() -> tuple[str, ...]:
    """The canonical names that `make` knows, apart from `"auto"`."""
    return tuple(NAMED_SCHEDULES)


def canonical_name(name: str) -> str:
    """The canonical name for a name or alias; `"auto"` is its own.

    Raises:
        ValueError: If there is no such schedule. The text lists the names and the nearest one.
    """
    known = (*NAMED_SCHEDULES, *_ALIASES, AUTO)
    if name not in known:
        near = difflib.get_close_matches(str(name).lower(), known, n=1)
        raise ValueError(
            f"Unknown schedule {name!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + f" Known schedules: {', '.join(sorted(known))}."
        )
    return _ALIASES.get(name, name)


def find_record(name: str) -> NamedSchedule | None:
    """The record for a name or alias, None for `"auto"` and for unknown names."""
    return NAMED_SCHEDULES.get(_ALIASES.get(name, name))
