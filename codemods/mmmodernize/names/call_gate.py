"""Which files may call a function that another one holds with a keyword that it lost, by text alone.

    table = {"clip": jnp.clip}        # one file
    table["clip"](x, a_max=1)         # another, which imports it

No word of the second says that it calls a function of JAX, and none of the first that a keyword is gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from functools import cache

from mmmodernize.names.gate import words_of
from mmmodernize.names.markers import markers
from mmmodernize.names.reexports import TakenNames


def held_across(files: Mapping[str, bytes], others: Mapping[str, bytes], taken: TakenNames) -> frozenset[str]:
    """The files of a run that are read for such calls alone.

    Args:
        files: The bytes of all files, by path.
        others: Those that are not read anyway.
        taken: What the files import.

    Returns:
        The paths of the files that may have such a call, of those that hold its function, and of the files between
        them by imports, through which it may be passed.
    """
    packages = markers().packages
    # To look for words costs more than that.
    if not any(package in data for data in files.values() for package in packages):
        return frozenset()
    asked = {path: keywords for path, data in others.items() if (keywords := _keywords_given(data))}
    if not asked:
        return frozenset()
    from mmmodernize.names.name_index import passes_modules

    wanted = frozenset[bytes]().union(*asked.values())
    own = frozenset(own for own, (_, lost) in _held().items() if not lost.isdisjoint(wanted))
    holders = {path: held for path, data in files.items() if (held := frozenset(_held_in(data, own)))}
    passed = own if any(map(passes_modules, files.values())) else frozenset()
    held = frozenset[bytes]().union(*holders.values())
    callers = {path for path, keywords in asked.items() if not _lost_by(held).isdisjoint(keywords)}
    givers = {path for path, held in holders.items() if not _lost_by(held).isdisjoint(wanted)}
    # A module may come to a file that names none.
    readers = {
        path for path, keywords in asked.items() if not _lost_by(passed & words_of(files[path])).isdisjoint(keywords)
    }
    return frozenset(readers | callers | (givers | taken.between(callers, givers) if callers else set()))


def _keywords_given(data: bytes) -> Set[bytes]:
    """The keywords that some function lost and that a text gives to anything."""
    return {word for word in words_of(data) & _keywords() if _given(word).search(data)}


def _held_in(data: bytes, own: Set[bytes]) -> Iterator[bytes]:
    """The functions that a text may hold: it names one, beside a word that names its home, and does not call it."""
    if any(package in data for package in markers().packages):
        words = words_of(data)
        for each in words & own:
            if not words.isdisjoint(_held()[each][0]) and _not_called(each).search(data):
                yield each


def _lost_by(functions: Collection[bytes]) -> frozenset[bytes]:
    return frozenset[bytes]().union(*(_held()[own][1] for own in functions))


@cache
def _held() -> Mapping[bytes, tuple[frozenset[bytes], frozenset[bytes]]]:
    """By the own names of functions: words that name their homes, and the keywords that they lost."""
    return {own: (frozenset(homes.split()), frozenset(lost.split())) for own, (homes, lost) in markers().held.items()}


@cache
def _keywords() -> frozenset[bytes]:
    return _lost_by(_held())


@cache
def _given(keyword: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"[(,\s\"]%s\s*=(?!=)" % keyword)


@cache
def _not_called(own: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\b%s\b(?!\s*\()" % own)
