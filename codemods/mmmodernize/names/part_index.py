"""The index of what functions and classes lost while they stayed: keywords, members, places of arguments; and flags.

Beside these, what they ask for today, which defaults are others, and how names that codemods move are called under the
new one.

`old_parts.jsonl` beside this file is written by `tools/index_names.py` from the wheels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from mmmodernize.names.advice import OLDER_MEMBERS, PART_ADVICE, SAME_BY_DEFAULT, SUCCESSORS
from mmmodernize.names.name_index import TITLES, rows_of, words_beside

PARTS_FILE = files("mmmodernize.names") / "old_parts.jsonl"


@dataclass(frozen=True)
class OldPart:
    """A keyword, a member or a flag that is gone.

    Attributes:
        name: Its own name.
        package: The package, such as `jax`.
        since: The release without it.
        last_release: The last release with it.
        is_only: Of a member: whether nothing else in these packages has one of that name.
        may_be_there: Of a member: whether objects of the class may have it still, as that answers for others.
        default: Of a flag: its default in the last release that had it, which is what later releases do.
    """

    name: str
    package: str
    since: str
    last_release: str
    is_only: bool = False
    may_be_there: bool = False
    default: str = ""

    def told(self, owner: str) -> str:
        """What became of it and what to write, where it belonged to `owner`."""
        advice = PART_ADVICE.get(f"{owner}.{self.name}" if owner else self.name)
        title = TITLES[self.package]
        if advice is None and (again := SUCCESSORS.get(f"{owner}.{self.name}")):
            advice = f"write `{again}`"
        return f"is gone since {title} {self.since}; " + (advice or f"{title} {self.last_release} shows what it did")


@dataclass(frozen=True)
class ChangedPlaces:
    """Arguments that are passed by position and mean something else, or raise, since a release.

    Attributes:
        package: The package, such as `jax`.
        since: The release.
        first: How many arguments are as they were.
        was: The parameters in their order before.
        now: The parameters in their order since then; None if the rest is passed by name alone.
        takes_more: Whether any number of arguments may follow since then.
    """

    package: str
    since: str
    first: int
    was: tuple[str, ...]
    now: tuple[str, ...] | None
    takes_more: bool = False

    def raises(self, count: int) -> bool:
        """Whether a call with so many arguments by position raises, whatever they are."""
        return self.now is None or (count > len(self.now) and not self.takes_more)


@dataclass(frozen=True)
class NewRequirement:
    """A parameter that every call gives since a release.

    Attributes:
        package: The package, such as `jax`.
        since: The release.
        name: The parameter.
        place: Its place, None if it is passed by name alone.
    """

    package: str
    since: str
    name: str
    place: int | None


@dataclass(frozen=True)
class ChangedDefault:
    """A parameter that is something else since a release where a call does not give it.

    Attributes:
        package: The package, such as `jax`.
        since: The release.
        name: The parameter.
        place: Its place, None if it is passed by name alone.
        was: The default before, as text.
        now: The default since then, as text.
    """

    package: str
    since: str
    name: str
    place: int | None
    was: str
    now: str


@dataclass(frozen=True)
class MovedCall:
    """How a moved name is called under its new name, where some calls of before would fail or mean something else.

    Attributes:
        same: How many arguments by position mean what they did; None if all do.
        lost: The keywords that it has no more.
        only: The keywords that it has, None if all but `lost` may be there.
        required: The parameters that it asks for, and did not, with their places.
    """

    same: int | None
    lost: frozenset[str]
    only: frozenset[str] | None
    required: Mapping[str, int | None]


@functools.cache
def _rows() -> Sequence[tuple[str, Sequence[str], Mapping[str, Any]]]:
    """Each row, with its package and the releases of that that were compared."""
    return list(rows_of(PARTS_FILE))


def _by_owner(kind: str) -> Mapping[str, Mapping[str, OldPart]]:
    found: dict[str, dict[str, OldPart]] = {}
    for package, releases, row in _rows():
        if kind in row:
            before = releases[releases.index(row["since"]) - 1]
            marks = (row.get("only", False), row.get("may", False), row.get("default", ""))
            part = OldPart(row[kind], package, row["since"], before, *marks)
            for owner in row.get("of", ("",)):
                found.setdefault(owner, {})[part.name] = part
    return found


@functools.cache
def old_keywords() -> Mapping[str, Mapping[str, OldPart]]:
    """The keywords that functions and classes had, by the full name of these."""
    return _by_owner("keyword")


@functools.cache
def old_members() -> Mapping[str, Mapping[str, OldPart]]:
    """The members that classes had, by the full name of these."""
    found = {owner: dict(members) for owner, members in _by_owner("member").items()}
    for name, (since, is_only) in OLDER_MEMBERS.items():
        found["jax.Array"][name] = OldPart(name, "jax", since, "", is_only)
    return found


@functools.cache
def only_members() -> Mapping[str, Mapping[str, OldPart]]:
    """Old members that nothing else has, by their name, and then by the class that had them."""
    found: dict[str, dict[str, OldPart]] = {}
    for owner, members in old_members().items():
        for name, part in members.items():
            if part.is_only:
                found.setdefault(name, {})[owner] = part
    return found


@functools.cache
def old_flags() -> Mapping[str, OldPart]:
    """The flags that are gone, and have a last default."""
    return {name: part for name, part in _by_owner("flag").get("", {}).items() if part.default}


@functools.cache
def changed_places() -> Mapping[str, tuple[ChangedPlaces, ...]]:
    """The changes of arguments by position, the last first, by the full name of what is called."""
    found: dict[str, list[ChangedPlaces]] = {}
    for package, _, row in _rows():
        if "place" in row or "named" in row:
            first = row["place"] if "place" in row else row["named"]
            now = tuple(row["is"]) if "is" in row else None
            for owner in row["of"]:
                change = ChangedPlaces(package, row["since"], first, tuple(row["was"]), now, row.get("more", False))
                found.setdefault(owner, []).insert(0, change)
    return {owner: tuple(changes) for owner, changes in found.items()}


@functools.cache
def new_requirements() -> Mapping[str, tuple[NewRequirement, ...]]:
    """The parameters that calls did not give before, by the full name of what is called."""
    found: dict[str, list[NewRequirement]] = {}
    for package, _, row in _rows():
        for owner in row["of"] if "required" in row and "of" in row else ():
            found.setdefault(owner, []).append(NewRequirement(package, row["since"], row["required"], row["at"]))
    return {owner: tuple(asked) for owner, asked in found.items()}


@functools.cache
def changed_defaults() -> Mapping[str, tuple[ChangedDefault, ...]]:
    """The parameters of another default, by the full name of what is called."""
    found: dict[str, list[ChangedDefault]] = {}
    for package, _, row in _rows():
        for owner in row["of"] if "default" in row and "of" in row else ():
            if f"{owner}.{row['default']}" not in SAME_BY_DEFAULT:
                change = ChangedDefault(package, row["since"], row["default"], row["at"], row["was"], row["is"])
                found.setdefault(owner, []).append(change)
    return {owner: tuple(changes) for owner, changes in found.items()}


@functools.cache
def methods_of_classes() -> frozenset[str]:
    """The methods among these that are given no object where they are called by their class."""
    return frozenset(owner for _, _, row in _rows() if row.get("of_class") for owner in row["of"])


@functools.cache
def moved_calls() -> Mapping[str, MovedCall]:
    """How moved names are called, by the old name, where that is not as before."""
    return {
        row["moved"]: MovedCall(
            row.get("same"),
            frozenset(row["lost"]),
            frozenset(row["only"]) if "only" in row else None,
            row["required"],
        )
        for _, _, row in _rows()
        if "moved" in row
    }


@functools.cache
def part_words() -> Mapping[bytes, frozenset[bytes]]:
    """Words of files that may use an old part, and for each the words that stand beside it there."""
    found: dict[bytes, set[bytes]] = {}
    for word, beside in words_beside((*changed_places(), *new_requirements(), *changed_defaults())).items():
        found.setdefault(word, set()).update(beside)
    for index in (old_keywords(), old_members()):
        for owner, parts in index.items():
            for name in parts:
                found.setdefault(name.encode(), set()).add(owner.rpartition(".")[2].encode())
    for name, owners in only_members().items():
        found[name.encode()] |= {part.package.partition(".")[0].encode() for part in owners.values()}
    methods = [owner.rpartition(".") for owner in (*changed_places(), *new_requirements(), *changed_defaults())]
    called = {made: {own for owner, _, own in methods if owner == made} for made in _MADE_BY}
    for made, words in _MADE_BY.items():
        for name in (*old_members().get(made, ()), *called[made]):
            found[name.encode()] |= words
    return {word: frozenset(beside) for word, beside in found.items()}


# Classes whose objects are made without their name.
_MADE_BY: Mapping[str, frozenset[bytes]] = {
    "jax.Array": frozenset((b"jax", b"jnp")),
    "jax.stages.Lowered": frozenset((b"lower",)),
    "jax.stages.Compiled": frozenset((b"compile",)),
    "jax.stages.Traced": frozenset((b"trace",)),
}
