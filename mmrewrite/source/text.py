"""The text of one Python file, decoded so that it can be encoded to the same bytes again."""

from __future__ import annotations

import ast
import bisect
import codecs
import re
import sys
import warnings
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

# PEP 263: an encoding is declared in a comment on the first or the second line.
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"^[ \t\f]*(?:#.*)?$")
# `str.splitlines` also splits at form feeds and Unicode's separators, at which Python's parser does not.
_NEWLINE = re.compile("\r\n|\r|\n")


class TooDeep(RecursionError):
    """A text is nested too deeply for a parser. Of any other RecursionError the text is not the cause."""


def parse_quietly(text: str) -> ast.Module:
    """`ast.parse` without the warnings about the user's code, such as those about escapes in its strings.

    Raises:
        SyntaxError: If it is not Python.
        ValueError: If it has a null byte or half of a character.
        TooDeep: If it is nested too deeply for Python's parser.
    """
    module = _parsed(text, "exec")
    assert isinstance(module, ast.Module)
    return module


def expression_in(text: str) -> ast.expr | None:
    """The expression that a text is, such as that of an annotation in quotes; None if it is none."""
    try:
        expression = _parsed(text, "eval")
    except (SyntaxError, ValueError, TooDeep):
        return None
    assert isinstance(expression, ast.Expression)
    return expression.body


def _parsed(text: str, mode: str) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text, mode=mode)
        except MemoryError:
            # CPython's parser says so when its own stack is full.
            raise TooDeep("too deep for the parser") from None
        except RecursionError:
            if _is_half_full():
                raise
            raise TooDeep("too deep for the parser") from None


def _is_half_full() -> bool:
    """Whether half of Python's stack is taken, so that the text is not alone to blame if there is no more."""
    frame, left = sys._getframe(), sys.getrecursionlimit() // 2
    while frame.f_back is not None and left > 0:
        frame, left = frame.f_back, left - 1
    return left == 0


def quoted(value: str) -> str:
    """A string as a Python literal in double quotes, whatever is in it."""
    # `repr` of the whole would choose the quotes itself, and formatters prefer double ones.
    return '"' + "".join({'"': '\\"', "'": "'"}.get(each) or repr(each)[1:-1] for each in value) + '"'


def has_lines(text: str) -> bool:
    """Whether a text goes over several lines, whatever ends them."""
    return "\n" in text or "\r" in text


class SourceError(ValueError):
    """The bytes of a file are not text in the encoding that it declares."""


class Columns:
    """The columns of one line: those of `ast` count bytes of UTF-8, ours characters."""

    def __init__(self, text: str) -> None:
        # A table, since a line of a program may have a million characters, and as many nodes.
        ends = None if text.isascii() else accumulate(len(letter.encode(errors="surrogatepass")) for letter in text)
        self._ends = None if ends is None else array("L", ends)

    def characters(self, column: int) -> int:
        """The characters before a column of `ast`."""
        return column if self._ends is None else bisect.bisect_right(self._ends, column)


@dataclass(frozen=True)
class SourceText:
    """The decoded text of a file, with tables between offsets and (line, column).

    Line endings are kept. A byte order mark is not part of `text`; `encode` puts it back.
    """

    text: str
    encoding: str
    has_bom: bool

    @classmethod
    def decode(cls, data: bytes) -> SourceText:
        """Read `data` as Python would: byte order mark, then PEP 263 comment, then UTF-8.

        Raises:
            SourceError: If the encoding is unknown, or the bytes are not text in it.
        """
        has_bom = data.startswith(codecs.BOM_UTF8)
        body = data[len(codecs.BOM_UTF8) :] if has_bom else data
        encoding = _declared_encoding(body)
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise SourceError(
                f"unknown encoding {encoding!r} in the coding comment; name one that Python has"
            ) from None
        try:
            text = body.decode(encoding)
            # Encodings with shift sequences, such as ISO-2022-JP, have several byte strings for one text.
            same = text.encode(encoding) == body
        except LookupError:
            # Codecs from bytes to bytes, such as `hex` and `zlib`, are found and then refuse to decode.
            raise SourceError(
                f"{encoding!r} in the coding comment is no encoding of text; save the file as UTF-8 and remove "
                "that comment"
            ) from None
        except UnicodeError as error:
            raise SourceError(
                f"not text in {encoding} ({error}); save it as UTF-8 or name its encoding in a coding comment"
            ) from None
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            raise SourceError(f"line {line} has a null byte, so this is no source of Python; remove it")
        if not same:
            raise SourceError(f"{encoding} text that does not encode back to the same bytes; save it as UTF-8")
        return cls(text, encoding, has_bom)

    def encode(self, text: str) -> bytes:
        """The bytes of `text` in the encoding of this file, with its byte order mark."""
        return (codecs.BOM_UTF8 if self.has_bom else b"") + text.encode(self.encoding)

    @cached_property
    def newline(self) -> str:
        """The line ending of the first line; new lines get the same."""
        match = _NEWLINE.search(self.text)
        return match.group() if match else "\n"

    @cached_property
    def line_starts(self) -> tuple[int, ...]:
        """Offset of every line's first character."""
        return (0, *(match.end() for match in _NEWLINE.finditer(self.text)))

    @property
    def lines(self) -> list[str]:
        """The lines as Python counts them, without their line endings; none behind the last ending."""
        found = _NEWLINE.split(self.text)
        return found if found[-1] else found[:-1]

    def line(self, number: int) -> str:
        """Text of line `number`, counted from 1, without its line ending."""
        if self._last_line[0] != number:
            text = self.text[self.line_starts[number - 1] : self._break(number)].rstrip("\r\n")
            self._last_line[:] = number, text
        return str(self._last_line[1])

    @cached_property
    def _last_line(self) -> list[int | str]:
        # A line of a million characters is asked for as often as it has nodes.
        return [0, ""]

    def line_end(self, number: int) -> int:
        """Offset just after the line ending of line `number`, and of the lines that a backslash alone makes part of it.

        What is written there comes behind a statement that ends on the line.
        """
        while self._is_continued(number):
            number += 1
        return self._break(number)

    def _break(self, number: int) -> int:
        return self.line_starts[number] if number < len(self.line_starts) else len(self.text)

    def _is_continued(self, number: int) -> bool:
        end = self._break(number)
        if number >= len(self.line_starts) or "\\" not in self.text[max(end - 3, 0) : end]:
            return False
        line = self.line(number)
        return line.endswith("\\") and "#" not in line and self.line(number + 1).strip(" \t\f\\")[:1] in ("", "#")

    def offset(self, line: int, column: int) -> int:
        """Offset of a position of `ast`, whose columns count bytes of UTF-8."""
        start = self.line_starts[line - 1]
        if self._is_ascii:
            return start + column
        if line not in self._columns:
            self._columns[line] = Columns(self.line(line))
        return start + self._columns[line].characters(column)

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    @cached_property
    def _columns(self) -> dict[int, Columns]:
        return {}

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1, columns in characters."""
        line = bisect.bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1


def encode_buffer(text: str) -> bytes:
    """The bytes of a text that an editor holds, in the encoding that it declares, else in UTF-8."""
    data = text.encode(errors="replace")
    try:
        return text.encode(_declared_encoding(data))
    except (LookupError, UnicodeError):
        return data


def _declared_encoding(body: bytes) -> str:
    first, _, rest = body.partition(b"\n")
    match = _COOKIE.match(first)
    if match is None and _BLANK.match(first.rstrip(b"\r")):
        match = _COOKIE.match(rest.partition(b"\n")[0])
    return match.group(1).decode("ascii") if match else "utf-8"
