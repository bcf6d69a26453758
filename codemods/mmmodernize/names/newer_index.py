"""The index of names that came with a release of JAX, Flax, optax, chex or Orbax, or came back.

Upgrades to an older release ask for it; nothing else reads it. `newer_names.jsonl` beside this file is written by
`tools/index_names.py` from the wheels.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise

from mmmodernize.names.gate import uses_any
from mmmodernize.names.name_index import PACKAGES, TITLES, numbers, old_names, prefixes, rows_of, words_beside

NEWER_FILE = files("mmmodernize.names") / "newer_names.jsonl"


@dataclass(frozen=True)
class NewerName:
    """A public name that was not there in some release and came later.

    Attributes:
        name: The full name; that of a module stands for all that came with it.
        package: The package, such as `jax`.
        changes: Releases in which it "came", or "went" before it came back, in their order.
        releases: All releases of the package that were read.
    """

    name: str
    package: str
    changes: tuple[tuple[str, str], ...]
    releases: tuple[str, ...]

    def comes_after(self, wanted: str) -> str | None:
        """The release in which the name comes, if it is not there in `wanted`; None if it is, or never comes."""
        state = "went" if self.changes[0][1] == "came" else "came"
        for release, change in self.changes:
            if numbers(release) <= numbers(wanted):
                state = change
            elif change == "came":
                return release if state == "went" else None
        return None

    def told(self, release: str, wanted: str) -> str:
        """With which release it comes, as far as the releases were read."""
        title = TITLES[self.package]
        before = next(first for first, second in pairwise(self.releases) if second == release)
        verb = "came" if (release, "came") == self.changes[0] else "came back"
        if numbers(before) < numbers(wanted):
            # Of some packages not every release is read.
            return f"{verb} after {title} {before}, with {release} at the latest"
        return f"{verb} with {title} {release}"


@functools.cache
def newer_names() -> Mapping[str, NewerName]:
    """The index, by full name."""
    changes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    homes: dict[str, tuple[str, tuple[str, ...]]] = {}
    for package, releases, row in rows_of(NEWER_FILE):
        change = "came" if "came" in row else "went"
        for own in row["names"]:
            name = f"{row['in']}.{own}"
            changes[name].append((row[change], change))
            homes[name] = package, tuple(releases)
    return {name: NewerName(name, homes[name][0], tuple(found), homes[name][1]) for name, found in changes.items()}


@dataclass(frozen=True)
class Lacking:
    """The names that some releases lack and later ones have.

    Attributes:
        wanted: The releases, by package.
        names: What is said of each name: its row, and the release with which it comes.
    """

    wanted: Mapping[str, str]
    names: Mapping[str, tuple[NewerName, str]]

    @classmethod
    def of(cls, wanted: Mapping[str, str]) -> Lacking:
        """What the releases in `wanted` lack. What they had and lost is left out: there it is an old name."""
        found: dict[str, tuple[NewerName, str]] = {}
        for name, row in newer_names().items():
            release = row.comes_after(wanted[row.package]) if row.package in wanted else None
            old = old_names().get(name)
            if release is not None and (old is None or old.gone_in(wanted[row.package]) is None):
                found[name] = row, release
        return cls(wanted, found)

    def of_name(self, name: str) -> tuple[NewerName, str] | None:
        """The latest release that a full name waits for: its own, or that of a module around it."""
        found = [self.names[each] for each in prefixes(name) if each in self.names]
        return max(reversed(found), key=lambda item: numbers(item[1]), default=None)

    @functools.cached_property
    def words(self) -> Mapping[bytes, frozenset[bytes]]:
        """Words of files that may use one of the names, and for each the words that stand beside it there."""
        return words_beside(self.names)

    def may_be_in(self, data: bytes) -> bool:
        """Whether the bytes of a file can use one of the names."""
        return uses_any(data, PACKAGES, self.words)
