"""Positions of the protocol: a line from 0, and a column in the units that client and server agreed on."""

from __future__ import annotations

from typing import Literal

from mmrewrite.source.text import SourceText

# A column counts units of this many bytes: those of UTF-8 (1), UTF-16 (2) or characters (4).
Units = Literal["utf-8", "utf-16", "utf-32"]
Position = tuple[int, int]

_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


def position_at(source: SourceText, offset: int, units: Units) -> Position:
    """The position of an offset."""
    line, column = source.position(min(offset, len(source.text)))
    start = source.line_starts[line - 1]
    text = source.text[start : start + column - 1]
    if text.isascii() or units == "utf-32":
        return line - 1, column - 1
    codec, width = _CODECS[units]
    return line - 1, len(text.encode(codec, errors="surrogatepass")) // width


def offset_at(source: SourceText, position: Position, units: Units) -> int:
    """The offset of a position; the end of its line, or of the text, if it lies behind that."""
    line, character = max(0, position[0]), max(0, position[1])
    if line >= len(source.line_starts):
        return len(source.text)
    text = source.line(line + 1)
    if not text.isascii() and units != "utf-32":
        codec, width = _CODECS[units]
        character = len(text.encode(codec, errors="surrogatepass")[: character * width].decode(codec, errors="ignore"))
    return source.line_starts[line] + min(character, len(text))


def replace_range(source: SourceText, start: Position, end: Position, text: str, units: Units) -> SourceText:
    """The text after one change of the client."""
    first, last = offset_at(source, start, units), offset_at(source, end, units)
    return SourceText(source.text[:first] + text + source.text[max(first, last) :], source.encoding, source.has_bom)
