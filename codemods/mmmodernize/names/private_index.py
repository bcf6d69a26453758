"""The index of private names, those below a part `_src`, that a release of JAX, optax, chex or Orbax removed.

Programs that import one are asked for it; nothing else reads it. `private_names.jsonl` beside this file is written by
`tools/index_names.py`: from the wheels, of JAX also from its tags before 0.4.16.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files

from mmmodernize.names.advice import ADVICE
from mmmodernize.names.name_index import TITLES, OldName, prefixes, row_around, rows_of
from mmmodernize.names.newer_index import newer_names

PRIVATE_FILE = files("mmmodernize.names") / "private_names.jsonl"
PART = "_src"


def is_private(name: str) -> bool:
    """Whether a full name is, or lies in, a private module."""
    return PART in name.split(".")


@functools.cache
def private_names() -> Mapping[str, OldName]:
    """The index, by full name; the row of a module stands for all that it held and that has no row of its own."""
    found: dict[str, OldName] = {}
    for package, releases, row in rows_of(PRIVATE_FILE):
        since = row["gone"]
        before = releases[releases.index(since) - 1]
        for own in row["names"]:
            name = f"{row['in']}.{own}"
            advice = _advice(name, row)
            found[name] = OldName(name, package, ((since, "gone"),), last_release=before, by_hand=advice)
    return found


def _advice(name: str, row: Mapping[str, str]) -> str | None:
    """What to write: for the name or a public one of its kind, by where it is today, or for the modules around it."""
    places = [each.replace(f".{PART}", "") for each in prefixes(name)]
    own = name.rpartition(".")[2]
    said = ADVICE.get(name) or ADVICE.get(places[0])
    if said is not None:
        return said
    if "same" in row:
        again = "; it is private too, and may go as well" if is_private(row["same"]) else ""
        came = newer_names().get(f"{row['same']}.{own}")
        since = f" ({TITLES[came.package]} {came.changes[-1][0]} and newer)" if came is not None else ""
        return f"write `{row['same']}.{own}`, which is the same{since}{again}"
    if "like" in row:
        return f"`{row['like']}.{own}` is what has that name today; see whether it does the same"
    return next((ADVICE[place] for place in places if place in ADVICE and place != "jax.config"), None)


def private_name(name: str) -> OldName | None:
    """The row of a private name that is gone, else that of what is gone around it; None if neither is known."""
    if not is_private(name):
        return None
    return next((private_names()[each] for each in prefixes(name) if each in private_names()), None)


@functools.cache
def last_parts() -> frozenset[str]:
    """The last parts of all names."""
    return frozenset(name.rpartition(".")[2] for name in private_names())


# A file that names one of these beside `_src` may have a use. Files without it are not asked.
PRIVATE_WORDS: Mapping[bytes, frozenset[bytes]] = {
    PART.encode(): frozenset((b"jax", b"flax", b"optax", b"chex", b"orbax")),
}


@functools.cache
def row_of(name: str) -> OldName | None:
    """The row of a name or of what is around it, a private one first."""
    return private_name(name) or row_around(name)


def is_gone(name: str) -> bool:
    """Whether a name raises on today's release, as far as the indexes know."""
    row = row_of(name)
    return row is not None and row.is_gone
