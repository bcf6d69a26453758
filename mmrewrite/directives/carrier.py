"""What hints are carried by, as far as bytes show it: the first gate, which most files do not pass.

Apart from the vocabulary, since a run that finds no hint needs no more than this.
"""

from __future__ import annotations

import re

PACKAGE = "mmrewrite"

# What a hint comment begins with.
CARRIER = "# mm: "

# What is no carrier but looks like one where a directive follows: `# MM: stages`, `# [mm] stages`, `# mn: stages`. The
# last of the separators are arrows, dashes, and the colon of East Asian keyboards.
_SEPARATOR = (
    "(?:[:;,.|!>-]|=>|\N{RIGHTWARDS ARROW}|\N{RIGHTWARDS DOUBLE ARROW}|\N{EN DASH}|\N{EM DASH}|\N{FULLWIDTH COLON})"
)
# Possessive, and with a bound on what is looked through again for each `#`: this is matched against all bytes of all
# files, and must take no longer than these are.
_NAMES = r"[mMnN]{1,3}|[mM][mM][rR](?:[eE][wW][rR][iI][tT][eE])?|[hH][iI][nN][tT][sS]?"
BEGINNING = (
    r"#[#:!*-]{0,80}+[ \t]*+(?=[mMnNhH@(<\[{])(?:[@(<\[{]?[mM][mM]\b[])>}]?[ \t]*+"
    rf"{_SEPARATOR}*+[ \t]*+(?=[a-zA-Z])|mm:|hints\.(?=[a-z]++\()|"
    rf"(?:{_NAMES})[ \t]*+:++[ \t]*+(?=[a-zA-Z]))"
)
_IN_BYTES = re.compile(BEGINNING.encode())

# What begins no comment, but stands in one: `# TODO: mm: stages`. Quoted, it is spoken about.
INSIDE = r"""mm:(?<![\w`'"]mm:)(?=[ \t]*+[a-z_]++[ \t]*+(?:[(;#\[\r\n]|\Z))"""


def may_have_hints(data: bytes) -> bool:
    """The first gate: whether a file can hold a hint at all, or a comment that looks like one."""
    return PACKAGE.encode() in data or has_carrier(data)


def has_carrier(data: bytes) -> bool:
    """Whether a file may hold a hint comment, or a comment that looks like one."""
    # Few files have the last, whose pattern takes as long to compile as some files to read.
    return _IN_BYTES.search(data) is not None or (b"mm:" in data and re.search(INSIDE.encode(), data) is not None)
