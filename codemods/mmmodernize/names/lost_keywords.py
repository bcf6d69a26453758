"""The keywords that calls of a function may not give today, whichever index or codemod knows of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set

from mmmodernize.names.part_index import moved_calls, old_keywords
from mmmodernize.names.renamed_keywords import OLD_KEYWORDS, RENAMED

# Of a function whose calls a codemod of its own writes anew.
_SHARD_MAP = "jax.experimental.shard_map.shard_map"
_OF_SHARD_MAP = {"auto": "gives way to `axis_names=`", "check_rep": "is `check_vma=`"}


@functools.cache
def lost_keywords() -> Mapping[str, Mapping[str, str]]:
    """The keywords that functions and classes lost, with what became of each, by the full name of these."""
    found: dict[str, dict[str, str]] = {_SHARD_MAP: dict(_OF_SHARD_MAP)}
    for name, moved in moved_calls().items():
        found.setdefault(name, {}).update(dict.fromkeys(moved.lost, "is no keyword of what took its place"))
    for name, keywords in OLD_KEYWORDS.items():
        found.setdefault(name, {}).update(dict.fromkeys(keywords, "is no keyword of it today"))
    for name, parts in old_keywords().items():
        found.setdefault(name, {}).update({own: part.told(name) for own, part in parts.items()})
    for name, renamed in RENAMED.items():
        found[name] |= {old: f"is `{new}=` since JAX {since}" for old, (new, since) in renamed.items()}
    return {name: keywords for name, keywords in found.items() if keywords}


def may_give_lost_keywords(words: Set[str]) -> bool:
    """Whether a text with these words can give a function a keyword that it lost."""
    by_own_name = _by_own_name()
    return any(not by_own_name[own].isdisjoint(words) for own in words & by_own_name.keys())


@functools.cache
def _by_own_name() -> Mapping[str, Set[str]]:
    found: dict[str, set[str]] = {}
    for name, keywords in lost_keywords().items():
        found.setdefault(name.rpartition(".")[2], set()).update(keywords)
    return found
