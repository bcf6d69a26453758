"""An import statement without some of its names: the layout and the comments of the others stay."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from mmrewrite.source.spans import span
from mmrewrite.source.text import SourceText

_OWN_LINE_COMMENT = re.compile(r"\n[ \t]*(#)")
_COMMA = re.compile(r"\s*,")


def one_line(source: SourceText, statement: ast.Import | ast.ImportFrom, dropped: Collection[ast.alias]) -> str:
    """The statement without the names `dropped`, on one line. It must have other names."""
    head = source.text[span(source, statement)[0] : span(source, statement.names[0])[0]].rstrip("( \t\\\r\n")
    kept = [source.text[slice(*span(source, alias))] for alias in statement.names if alias not in dropped]
    return f"{head} {', '.join(kept)}"


def parts_that_go(
    source: SourceText, statement: ast.Import | ast.ImportFrom, dropped: Collection[ast.alias]
) -> list[tuple[int, int]] | None:
    """The parts of the text to remove with the names `dropped`, or None if one line without comments is left.

    The statement must have other names. One line is better written anew by `one_line`, without brackets.
    """
    text, (start, end) = source.text, span(source, statement)
    found: list[tuple[int, int]] = []
    for begin, stop in _parts(source, statement, dropped):
        if found and begin <= found[-1][1]:
            begin = found.pop()[0]
        found.append((begin, stop))
    bounds = [start, *(place for part in found for place in part), end]
    left = "".join(text[begin:stop] for begin, stop in zip(bounds[::2], bounds[1::2], strict=True))
    return found if "\n" in left or "#" in left else None


def _parts(
    source: SourceText, statement: ast.Import | ast.ImportFrom, dropped: Collection[ast.alias]
) -> Iterator[tuple[int, int]]:
    text, names = source.text, statement.names
    last_kept = max(index for index, alias in enumerate(names) if alias not in dropped)
    for index, alias in enumerate(names[:last_kept]):
        if alias in dropped:
            following = next(span(source, each)[0] for each in names[index:] if each not in dropped)
            # A comment on a line of its own is about the name below it.
            above = _OWN_LINE_COMMENT.search(text, span(source, alias)[1], following)
            yield span(source, alias)[0], above.start(1) if above else following
    if last_kept + 1 < len(names):
        # Names at the end go in one piece, as only one of the commas around them stays.
        before = span(source, names[last_kept])[1]
        begin, stop = span(source, names[last_kept + 1])[0], span(source, names[-1])[1]
        if "#" not in text[before:begin]:
            yield before, stop
        else:
            comma = _COMMA.match(text, stop)
            yield begin, comma.end() if comma else stop
