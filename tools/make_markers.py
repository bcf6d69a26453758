"""Write codemods/mmmodernize/names/markers.py: what a file holds in which a codemod of `modernize` may have a site.

Run it when a codemod or the index of old names changes; a test says so.

python tools/make_markers.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmmodernize.doubts.held_functions import held_functions
from mmmodernize.names.changed_meanings import meaning_words
from mmmodernize.names.lost_keywords import lost_keywords
from mmmodernize.names.name_index import PACKAGES, ends, words_beside
from mmmodernize.names.part_index import part_words
from mmmodernize.names.private_index import PRIVATE_WORDS
from mmmodernize.registry import MODERNIZE_PACKAGE, ModernizeRegistry

PLACE = Path(__file__).resolve().parents[1] / "codemods" / "mmmodernize" / "names" / "markers.py"
WORD = re.compile(rb"\w+")
# These look for words that stand beside others alone.
INDEXED = ("move_names", "report_old_names", "report_old_parts")
HEAD = '''"""What the bytes of a file hold if a codemod may have a site there. Made by tools/make_markers.py.

The codemods know it better, and take longer to import than a thousand files take to read. What others install is not
here.
"""

# fmt: off
# ruff: noqa: E501

# Any of these, each with the words in it.
ANYWHERE = {
'''
PACKAGE_HEAD = """
# Or one of these, and then the last part of an old name, as a word, beside a word that names its home.
PACKAGES = (
"""


HELD_HEAD = """}

# Functions that lost keywords, by their own names: words that name their homes, and the keywords.
HELD = {
"""


def content() -> str:
    registry = ModernizeRegistry()
    own = [codemod for name, codemod in registry.items() if codemod.__module__.startswith(f"{MODERNIZE_PACKAGE}.")]
    markers = {
        marker
        for codemod in own
        if codemod.__module__.rpartition(".")[2] not in INDEXED
        for marker in codemod.markers()
    }
    anywhere = sorted(each for each in markers if not any(other in each for other in markers - {each}))
    every: dict[bytes, set[bytes]] = {}
    for words in (ends(), part_words(), meaning_words(), PRIVATE_WORDS):
        for word, homes in words.items():
            every.setdefault(word, set()).update(homes)
    # A thousand tuples take longer to make than the few that are looked at take to split.
    homes_of = {word: b" ".join(sorted(homes)) for word, homes in sorted(every.items())}
    return "".join(
        (
            HEAD,
            *_rows({marker: tuple(WORD.findall(marker)) for marker in anywhere}),
            "}\n",
            PACKAGE_HEAD,
            *(f"    {package!r},\n" for package in PACKAGES),
            ")\nHOMES = {\n",
            *_rows(homes_of),
            HELD_HEAD,
            *_rows(_held()),
            "}\n",
        )
    )


def _held() -> Mapping[bytes, tuple[bytes, bytes]]:
    homes = words_beside(held_functions())
    keywords: dict[bytes, set[bytes]] = {}
    for name in held_functions():
        own = name.rpartition(".")[2].encode()
        keywords.setdefault(own, set()).update(each.encode() for each in lost_keywords()[name])
    return {own: (b" ".join(sorted(homes[own])), b" ".join(sorted(lost))) for own, lost in sorted(keywords.items())}


def _rows(values: Mapping[bytes, object]) -> Iterator[str]:
    return (f"    {key!r}: {value!r},\n" for key, value in values.items())


if __name__ == "__main__":
    PLACE.write_text(content(), encoding="utf-8")
