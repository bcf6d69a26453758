"""The index of names that a release of JAX, Flax, optax, chex or Orbax deprecated or removed.

`old_names.jsonl` beside this file is written by `tools/index_names.py` from the wheels. `older_names.jsonl` is kept by
hand: names that were gone before the first release that the script reads, by the packages' changelogs, of JAX its tags
since 0.2.0, and of Flax, optax, chex and Orbax the wheels of before, as the script reads them; and what the script does
not read, of `jaxlib`, `jax.tools` and `jax.test_util`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from mmmodernize.names.advice import ADVICE
from mmmodernize.names.gate import uses_any

INDEX_FILE = files("mmmodernize.names") / "old_names.jsonl"
OLDER_FILE = files("mmmodernize.names") / "older_names.jsonl"
TITLES = {"jax": "JAX", "flax": "Flax", "optax": "optax", "chex": "chex", "orbax.checkpoint": "Orbax"}
ROOTS = frozenset(package.partition(".")[0] for package in TITLES)
# The modules once, and objects today, that the modules stood for.
ONCE_MODULES_OF_THEMSELVES = frozenset(("jax.config", "flax.config"))
_VERBS = {"warns": "warns", "raises": "raises", "gone": "is gone", "there": "is there again"}


@dataclass(frozen=True)
class OldName:
    """A public name and what became of it.

    Attributes:
        name: The full name; that of a module stands for all that the module held.
        package: The package, such as `jax`.
        changes: Releases, and what they made of it: "warns", "raises", "gone", or "there" where it came back.
        message: What the package says about it, if anything.
        instead: Where the last release has the same thing, and the first release that has it there.
        last_release: The last release without any of these changes, as far as one was read.
        by_hand: What to write, for names that are kept by hand.
        like: What a module around it has under the same last name today, or where it came from.
    """

    name: str
    package: str
    changes: tuple[tuple[str, str], ...]
    message: str = ""
    instead: tuple[str, str] | None = None
    last_release: str | None = None
    by_hand: str | None = None
    like: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the last release raises where the name is used."""
        return self.changes[-1][1] in ("raises", "gone")

    @property
    def gone_since(self) -> str | None:
        """The release from which on its use raises; None if it does not today."""
        return self.gone_in(self.changes[-1][0])

    def gone_in(self, wanted: str) -> str | None:
        """The release from which on its use raises in another one, as it may be there again; None if it does not."""
        since = None
        for release, state in self.changes:
            if numbers(release) > numbers(wanted):
                break
            if state not in ("raises", "gone"):
                since = None
            elif since is None:
                since = release
        return since

    @property
    def history(self) -> str:
        """What became of it: "warns since JAX 0.8.2, raises since 0.10.0, is gone since 0.11.0"."""
        parts = [f"{_VERBS[state]} since {release}" for release, state in self.changes]
        return ", ".join(parts).replace("since ", f"since {TITLES[self.package]} ", 1)

    @property
    def advice(self) -> str:
        """What to write, as far as anybody says it."""
        title = TITLES[self.package]
        if self.by_hand is not None:
            return self.by_hand
        if self.name in ADVICE:
            return ADVICE[self.name]
        if self.instead is not None:
            return f"write `{self.instead[0]}`, which is the same ({title} {self.instead[1]} and newer)"
        said = re.search(r"\buse[: ].*", self.message, re.IGNORECASE | re.DOTALL) or _SAYS_MORE.search(self.message)
        if said is not None:
            for other in re.findall(r"(?<!\w)\w++(?:\.\w++)+", said.group()):
                if other != self.name and other in old_names() and old_names()[other].is_gone:
                    return old_names()[other].advice
            words = re.sub(r"^in favou?r of ", "use ", said.group())
            return f"{title} says: {words.rstrip('. ')}"
        around = next((ADVICE[place] for place in prefixes(self.name) if place in ADVICE), None)
        if around is not None:
            return around
        if self.like is not None:
            gone = row_around(self.like)
            if gone is not None and gone.is_gone:
                return gone.advice
            return f"`{self.like}` is what has that name today; see whether it does the same"
        before = f", and {title} {self.last_release} shows what it was" if self.last_release else ""
        return f"no successor is named{before}: do without it, or keep a copy in your project"


# What a message says beside "use": all from there on.
_SAYS_MORE = re.compile(
    r"in favou?r of .*|import [\w.]+ directly.*|It is a no-op.*|Instead, .*|You do not need .*|Typical uses .*|"
    r"no replacement .*",
    re.DOTALL,
)


def prefixes(name: str) -> Iterator[str]:
    """A full name and its parents, innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def rows_of(file: Traversable) -> Iterator[tuple[str, Sequence[str], Mapping[str, Any]]]:
    """The rows of an index, each with its package and the releases of that which were read."""
    package, releases = "", list[str]()
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "releases" in row:
            package, releases = row["package"], row["releases"]
        else:
            yield package, releases, row


@functools.cache
def old_names() -> Mapping[str, OldName]:
    """The index, by full name."""
    found: dict[str, OldName] = {}
    for package, releases, row in (*rows_of(OLDER_FILE), *rows_of(INDEX_FILE)):
        if "module" in row:
            continue
        position = releases.index(row["since"][0][0])
        found[row["name"]] = OldName(
            row["name"],
            package,
            tuple((release, state) for release, state in row["since"]),
            row.get("message", ""),
            tuple(row["instead"]) if "instead" in row else None,
            releases[position - 1] if position else None,
            row.get("advice"),
            row.get("like"),
        )
    return found


@functools.cache
def once_modules() -> frozenset[str]:
    """Modules once, and objects or other names for a module today: an import of one raises, or of something in one."""
    return ONCE_MODULES_OF_THEMSELVES | {row["module"] for _, _, row in rows_of(INDEX_FILE) if "module" in row}


def row_around(name: str) -> OldName | None:
    """The row of a full name, else that of the innermost module around it that has one."""
    return next((old_names()[each] for each in prefixes(name) if each in old_names()), None)


# Common aliases of modules: a file that uses a name through one may have the import in another file.
_ALIASES = {
    "numpy": ("jnp", "np"),
    "linen": ("nn",),
    "random": ("jr", "jrandom", "random"),
    "tree_util": ("jtu", "tu"),
    "partial_eval": ("pe",),
    "linear_util": ("lu",),
    "host_callback": ("hcb",),
    "checkpoint": ("ocp", "orbax"),
    "special": ("jss", "jsp"),
    "scipy": ("jsp",),
    "pallas": ("pl",),
    "tpu": ("pltpu",),
    "triton": ("plgpu", "pltriton"),
    "mosaic_gpu": ("plgpu", "mgpu"),
    "checkpoints": ("ckpt",),
    "jax_utils": ("flax_utils",),
}
PACKAGES = (b"jax", b"flax", b"optax", b"chex", b"orbax", b"jnp", b"nnx", b"linen", b"ocp.")


@functools.cache
def ends() -> Mapping[bytes, frozenset[bytes]]:
    """The last parts of all names that a file may be reported for, and for each what else such a file holds."""
    return words_beside((*old_names(), *once_modules()))


def words_beside(names: Iterable[str]) -> Mapping[bytes, frozenset[bytes]]:
    """The last parts of names, and for each what else a file holds that uses the name."""
    found: dict[bytes, set[bytes]] = {}
    for name in names:
        parent, _, own = name.rpartition(".")
        # Of `jax.config.config` the word before both: `self.config` has one, and is common.
        home = next((part for part in reversed(parent.split(".")) if part != own), own)
        found.setdefault(own.encode(), set()).update(each.encode() for each in (home, *_ALIASES.get(home, ())))
    return {own: frozenset(homes) for own, homes in found.items()}


def may_use_old_names(data: bytes) -> bool:
    """Whether the bytes of a file can use a name of the index. Files that name none of the packages cost nothing."""
    return uses_any(data, PACKAGES, ends())


_PACKAGE = rb"(?:jax|flax|optax|chex|orbax)"
# Between two words of one statement; what follows a word up to the end of its statement; a list in brackets.
_GAP = rb"(?:[ \t\f]|\\\r?\n)+"
_REST = rb"(?:\\\r?\n|[^#\n;])*"
_LISTED = rb"\((?:#[^\n]*|[^)#])*"
_IMPORT = re.compile(
    rb"(?:^|[;:])([ \t\f]*)(?:import%(gap)s(%(rest)s)"
    rb"|from%(gap)s([\w.]+)%(gap)simport\b(?:%(gap)s)?(%(listed)s|%(rest)s))"
    % {b"gap": _GAP, b"rest": _REST, b"listed": _LISTED},
    re.MULTILINE,
)
# A module of the packages as text, by which one may be imported or found in a table.
_IN_QUOTES = re.compile(rb"[\"']" + _PACKAGE + rb"(?:\.\w+)*[\"']")
# What modules of a project call the packages, where others import or read them there.
_COMMON = frozenset((b"jax", b"jnp", b"flax", b"linen", b"nnx", b"optax", b"chex", b"orbax", b"ocp"))
_OF_ANOTHER = re.compile(rb"\.(?:%s)\b(?!\s*\.\s*\w)" % b"|".join(sorted(_COMMON)))


def passes_modules(data: bytes) -> bool:
    """Whether a file may pass a module of the packages on as a value: a name of one stands without an attribute.

    It may also be an attribute, the text by which code imports a module, or a name that is bound to something else as
    well, so that nothing else says what another file imports here.
    """
    if not any(package in data for package in PACKAGES):
        return False
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith(b"{") or _IN_QUOTES.search(data) or _OF_ANOTHER.search(data):
        # Of the text of a notebook only a parser tells what its lines are.
        return True
    bound: dict[bytes, bytes] = {}
    others: list[bytes] = []
    for match in _IMPORT.finditer(data):
        found = dict(_modules_of(match))
        if not found:
            others.append(match[0])
        if b"*" in found or any(bound.get(name, target) != target for name, target in found.items()):
            return True
        bound |= found
        if found and match[1] and _CLASS.search(data, 0, match.start() + 1):
            # What the import binds may be an attribute.
            return True
    if not bound:
        return False
    rest = b"\n".join((_IMPORT.sub(b"\n", data), *others))
    pattern = rb"(?<![\w.])(?:%s)(?:%s\.%s(?:%s))*\b(?!%s\.)" % (
        b"|".join(map(re.escape, sorted(bound))),
        _SPACE,
        _SPACE,
        _parts_of_modules(),
        _SPACE,
    )
    return re.search(pattern, rest) is not None


_SPACE = rb"(?:\s|\\\r?\n)*"
_CLASS = re.compile(rb"^[ \t\f]*class\b", re.MULTILINE)


@functools.cache
def _parts_of_modules() -> bytes:
    """The parts of the names of modules that held an old name, as alternatives."""
    homes = {part for name in old_names() for part in name.split(".")[1:-1] if part.islower()}
    return "|".join(sorted(homes)).encode()


def _modules_of(match: re.Match[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The names that an import statement binds to modules of the packages, as far as their case tells, with these."""
    home = match[3]
    is_ours = home is not None and re.match(_PACKAGE + rb"\b", home) is not None
    for part in re.sub(rb"#[^\n]*|[\\()]", b" ", match[2] or match[4] or b"").split(b","):
        words = part.split()
        if not words or not re.fullmatch(rb"[\w.]+|\*", words[0]):
            continue
        if home is None:
            if re.match(_PACKAGE + rb"\b", words[0]) is not None:
                root = words[0].partition(b".")[0]
                yield (words[-1], words[0]) if len(words) > 1 else (root, root)
        elif (is_ours and words[0].islower()) or words[0] in _COMMON or words[0] == b"*":
            yield words[-1], b"%s.%s" % (home, words[0])


def numbers(release: str) -> tuple[int, ...]:
    """A release as four numbers, to compare it: 0.10 is (0, 10, 0, 0), as 0.10.0 is."""
    parts = [int(part) for part in release.split(".")]
    return (*parts, *[0] * (4 - len(parts)))


@functools.cache
def last_releases() -> Mapping[str, str]:
    """The last release of each package that the index knows."""
    return {package: releases[-1] for package, releases, _ in rows_of(INDEX_FILE)}


@functools.cache
def release_before(package: str, release: str) -> tuple[int, ...]:
    """The last release of a package before another, as far as the index knows."""
    known = next(releases for name, releases, _ in rows_of(INDEX_FILE) if name == package)
    return max((each for each in map(numbers, known) if each < numbers(release)), default=(0,))
