"""Edits of the arguments of a call: name one, insert, append or remove one, pass one by position."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection

from mmmodernize.sites.site import OldNameSite
from mmrewrite.source.brackets import (
    arguments_of,
    brackets_of,
    call_brackets,
    text_before,
    tokens_between,
    without_items,
)
from mmrewrite.source.spans import leading_space


def name_argument(site: OldNameSite, call: ast.Call, index: int, name: str) -> None:
    """Give the positional argument at `index` a name."""
    start, _ = _place(site, call, call.args[index])
    site.edit(start, start, f"{name}=")
    site.meant.name(call.args[index], name)


def insert_argument(site: OldNameSite, call: ast.Call, before: ast.expr, argument: str) -> None:
    """Insert an argument before another."""
    start, _ = _place(site, call, before)
    site.edit(start, start, f"{argument}, ")
    site.meant.insert_argument(before, argument)


def append_argument(site: OldNameSite, call: ast.Call, argument: str) -> None:
    """Append an argument, on a line of its own if the others have lines of their own."""
    site.meant.append_argument(call, argument)
    brackets = call_brackets(site.source, call)
    if not brackets.items:
        site.edit(brackets.opening + 1, brackets.opening + 1, argument)
        return
    (start, end), comma = brackets.items[-1], brackets.commas[-1]
    if comma is None:
        if _is_bare_generator(site, call):
            site.edit(start, start, "(")
            argument = f"), {argument}"
        else:
            argument = f", {argument}"
        site.edit(end, end, argument)
        return
    stop = site.source.line_end(site.source.position(comma)[0])
    rest = site.source.text[comma + 1 : stop]
    if rest.strip() and not rest.lstrip().startswith("#"):
        site.edit(comma + 1, comma + 1, f" {argument},")
        return
    behind = comma + 1 + len(rest.rstrip("\r\n"))
    indent = leading_space(text_before(site.source, start) + "x")
    site.edit(behind, behind, f"{site.source.newline}{indent}{argument},")


def make_positional(site: OldNameSite, keyword: ast.keyword) -> None:
    """Pass a named argument by its position, which is where it stands."""
    found = tokens_between(site.source, *site.span(keyword))
    name, sign, value, *_ = (token for token in found if token.is_code)
    if any(token.is_comment and token.start < value.start for token in found):
        site.edit(name.start, name.end, "")
        site.edit(sign.start, sign.end, "")
    else:
        site.edit(name.start, value.start, "")
    site.meant.unname(keyword)


def value_start(site: OldNameSite, keyword: ast.keyword) -> int:
    """Offset of the value of a named argument, with its parentheses."""
    _, _, value, *_ = (token for token in tokens_between(site.source, *site.span(keyword)) if token.is_code)
    return value.start


def remove_keyword(site: OldNameSite, keyword: ast.keyword) -> None:
    """Remove a named argument, as `remove_keywords` does."""
    call = site.module.parents[keyword]
    assert isinstance(call, ast.Call)
    remove_keywords(site, call, [keyword])


def remove_keywords(site: OldNameSite, call: ast.Call, keywords: Collection[ast.keyword]) -> None:
    """Remove named arguments of a call with their commas, and with their lines; comments stay."""
    for keyword in keywords:
        site.meant.remove(keyword)
    gone = [index for index, argument in enumerate(arguments_of(call)) if argument in keywords]
    for start, end in without_items(site.source, call_brackets(site.source, call), gone):
        site.edit(start, end, "")


def exchange_keywords(site: OldNameSite, call: ast.Call, keywords: Collection[ast.keyword], argument: str) -> None:
    """Remove named arguments of a call and append another, in the place of those at its end."""
    at_end = [*itertools.takewhile(lambda each: each in keywords, reversed(arguments_of(call)))]
    if not at_end:
        remove_keywords(site, call, keywords)
        append_argument(site, call, argument)
        return
    remove_keywords(site, call, [each for each in keywords if each is not at_end[-1]])
    site.replace(at_end[-1], argument)


def _place(site: OldNameSite, call: ast.Call, argument: ast.expr) -> tuple[int, int]:
    return call_brackets(site.source, call).items[arguments_of(call).index(argument)]


def _is_bare_generator(site: OldNameSite, call: ast.Call) -> bool:
    """Whether the only argument is a generator in the brackets of the call."""
    (only,) = call.args[:1] or (None,)
    return isinstance(only, ast.GeneratorExp) and site.span(only)[1] == site.span(call)[1]


def append_element(site: OldNameSite, elements: ast.Tuple, element: str) -> None:
    """Append an element to a tuple in parentheses."""
    brackets = brackets_of(site.source, site.span(elements), elements.elts)
    assert brackets is not None
    end = brackets.items[-1][1]
    site.edit(end, end, f", {element}")
    site.meant.insert_behind(elements.elts[-1], element)
