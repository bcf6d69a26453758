"""Edits of the arguments of a call: name one, append one, remove one."""

from __future__ import annotations

import ast
import re

from mmrewrite.modernize.site import OldNameSite

_SPACE = re.compile(r"(?:\s|#[^\n]*|\\\r?\n)*")
_CLOSING = re.compile(r"(?:(?:\s|#[^\n]*|\\\r?\n)*\))+")
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")
_INDENT = re.compile(r"[ \t]*")
_SPACE_ONLY = re.compile(r" *")
_COMMA = re.compile(r"(?:[\s)]|#[^\n]*|\\\r?\n)*,")


def name_argument(site: OldNameSite, call: ast.Call, index: int, name: str) -> None:
    """Give the positional argument at `index` a name."""
    before = call.args[index - 1] if index else None
    start = site.span(before if before is not None else call.func)[1]
    text = site.source.text
    if before is None:
        start = text.index("(", start) + 1
    else:
        comma = _COMMA.match(text, start)
        assert comma is not None
        start = comma.end()
    space = _SPACE.match(text, start)
    assert space is not None
    site.edit(space.end(), space.end(), f"{name}=")


def append_argument(site: OldNameSite, call: ast.Call, argument: str) -> None:
    """Append an argument, on a line of its own if the others have lines of their own."""
    text, end = site.source.text, site.span(call)[1] - 1
    values = (*call.args, *(word.value for word in call.keywords))
    if not values:
        site.edit(end, end, argument)
        return
    last = max(site.span(value)[1] for value in values)
    comma = _COMMA.match(text, last, end)
    if comma is None:
        # A parenthesis around the last argument belongs to it.
        closing = _CLOSING.match(text, last, end)
        stop = closing.end() if closing else last
        site.edit(stop, stop, f", {argument}")
        return
    rest = _REST_OF_LINE.match(text, comma.end(), end)
    if rest is None:
        site.edit(comma.end(), comma.end(), f" {argument},")
        return
    first = text.rfind("\n", 0, site.span(values[-1])[0]) + 1
    indent = _INDENT.match(text, first)
    assert indent is not None
    site.edit(rest.end(), rest.end(), f"{site.source.newline}{indent.group()}{argument},")


def remove_keyword(site: OldNameSite, keyword: ast.keyword) -> None:
    """Remove a keyword argument, with the comma before it, or behind it where it is the first."""
    start, end = site.span(keyword)
    text = site.source.text
    before = text[:start].rstrip()
    if before.endswith(","):
        site.edit(len(before) - 1, end, "")
        return
    comma = _COMMA.match(text, end)
    if comma is None:
        site.edit(start, end, "")
        return
    gap = _SPACE_ONLY.match(text, comma.end())
    assert gap is not None
    site.edit(start, gap.end(), "")
