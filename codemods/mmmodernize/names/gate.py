"""The first gate of `modernize`, on the bytes of a file, with nothing that is slow to import."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

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
    from mmmodernize.names.markers import ANYWHERE, HOMES, PACKAGES

    words = words_of(data)
    # A text repeats its words, so most markers are ruled out with a fraction of it.
    once = b" ".join(words)
    if any(all(part in once for part in parts) and marker in data for marker, parts in ANYWHERE.items()):
        return True
    found = words & HOMES.keys() if any(package in data for package in PACKAGES) else ()
    return any(not words.isdisjoint(HOMES[word].split()) for word in found)


def has_last_part(data: bytes) -> bool:
    """Whether bytes have a word that ends an old name, whatever it is a part of there."""
    from mmmodernize.names.markers import HOMES

    return not words_of(data).isdisjoint(HOMES)


def is_home(word: bytes) -> bool:
    """Whether a word ends an old name, or the name of a module that had one."""
    from mmmodernize.names.markers import HOMES

    if not _homes:
        _homes.update(HOMES)
        for homes in set(HOMES.values()):
            _homes.update(homes.split())
    return word in _homes


_homes: set[bytes] = set()


# Of one file after the other several questions are asked.
@lru_cache(maxsize=1)
def words_of(data: bytes) -> frozenset[bytes]:
    """The words of a text in bytes."""
    return frozenset(data.translate(_WORDS).split())
