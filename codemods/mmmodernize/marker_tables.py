"""What a file holds if a codemod may have a site there, made from the codemods and the indices.

No run needs it where that has been made already: see `mmmodernize.names.markers`. It imports nothing that a build of
the wheel has not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmmodernize.doubts.held_functions import held_functions
from mmmodernize.names.changed_meanings import meaning_words
from mmmodernize.names.name_index import PACKAGES, ends, words_beside
from mmmodernize.names.old_keywords import lost_keywords
from mmmodernize.names.part_index import part_words
from mmmodernize.names.private_index import PRIVATE_WORDS
from mmmodernize.registry import MODERNIZE_PACKAGE, ModernizeRegistry

if TYPE_CHECKING:
    from mmmodernize.names.markers import Tables

_WORD = re.compile(rb"\w+")
# These look for words that stand beside others alone.
_INDEXED = ("move_names", "report_old_names", "report_old_parts")


def tables() -> Tables:
    """The four tables of `Markers`, of our own codemods."""
    registry = ModernizeRegistry()
    own = [codemod for codemod in registry.values() if codemod.__module__.startswith(f"{MODERNIZE_PACKAGE}.")]
    found = {
        marker
        for codemod in own
        if codemod.__module__.rpartition(".")[2] not in _INDEXED
        for marker in codemod.markers()
    }
    anywhere = sorted(each for each in found if not any(other in each for other in found - {each}))
    homes: dict[bytes, set[bytes]] = {}
    for words in (ends(), part_words(), meaning_words(), PRIVATE_WORDS):
        for word, beside in words.items():
            homes.setdefault(word, set()).update(beside)
    return (
        {marker: tuple(_WORD.findall(marker)) for marker in anywhere},
        tuple(PACKAGES),
        # A thousand tuples take longer to make than the few that are looked at take to split.
        {word: b" ".join(sorted(beside)) for word, beside in sorted(homes.items())},
        dict(_held()),
    )


def _held() -> Mapping[bytes, tuple[bytes, bytes]]:
    homes = words_beside(held_functions())
    keywords: dict[bytes, set[bytes]] = {}
    for name in held_functions():
        own = name.rpartition(".")[2].encode()
        keywords.setdefault(own, set()).update(each.encode() for each in lost_keywords()[name])
    return {own: (b" ".join(sorted(homes[own])), b" ".join(sorted(lost))) for own, lost in sorted(keywords.items())}
