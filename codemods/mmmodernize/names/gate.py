"""The first gate of `modernize`, on the bytes of a file, with nothing that is slow to import."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache

from mmmodernize.names.markers import markers

# Every byte that cannot be part of a name in ASCII becomes a space.
_WORDS = bytes(byte if chr(byte).isalnum() or byte == ord("_") or byte > 127 else 32 for byte in range(256))


def uses_any(data: bytes, packages: Iterable[bytes], homes: Mapping[bytes, Collection[bytes]]) -> bool:
    """Whether bytes name one of `packages`, and have a word of `homes` and one that names its home."""
    if not any(package in data for package in packages):
        return False
    words = words_of(data)
    return any(not words.isdisjoint(homes[word]) for word in words & homes.keys())


def may_have_old_names(data: bytes) -> bool:
    """Whether a codemod of ours may have a site in a file: what the codemods say together, or more."""
    known = markers()
    words, once = words_of(data), once_in(data)
    if any(all(part in once for part in parts) and marker in data for marker, parts in known.anywhere.items()):
        return True
    found = words & known.homes.keys() if any(package in data for package in known.packages) else ()
    return any(not words.isdisjoint(known.homes[word].split()) for word in found)


def has_last_part(data: bytes) -> bool:
    """Whether bytes have a word that ends an old name, whatever it is a part of there."""
    return not words_of(data).isdisjoint(markers().homes)


def is_home(word: bytes) -> bool:
    """Whether a word ends an old name, or the name of a module that had one."""
    return word in _homes()


@cache
def _homes() -> frozenset[bytes]:
    homes = markers().homes
    return frozenset(homes).union(*(each.split() for each in set(homes.values())))


@lru_cache(maxsize=1)
def once_in(data: bytes) -> bytes:
    """The words of a text, each once: a text repeats them, so most are ruled out with a fraction of it."""
    return b" ".join(words_of(data))


# Of one file after the other several questions are asked.
@lru_cache(maxsize=1)
def words_of(data: bytes) -> frozenset[bytes]:
    """The words of a text in bytes."""
    return frozenset(data.translate(_WORDS).split())
