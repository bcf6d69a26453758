"""All named schedules, found by walking `_algorithms`: a record in any module there is registered."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterator

from mmruntime.schedules import _algorithms
from mmruntime.schedules._named_schedule import NamedSchedule

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
