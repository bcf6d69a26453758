"""Edits of whole statements: remove one, take a block or the first item out of a `with`."""

from __future__ import annotations

import ast

from mmmodernize.sites.site import OldNameSite
from mmrewrite.codemod.layout import indentation, own_span
from mmrewrite.source.brackets import Token, split_items, tokens_between
from mmrewrite.source.spans import begins_its_line, block_around


def remove_statement(site: OldNameSite, statement: ast.stmt) -> None:
    """Remove a statement with its line; write `pass` where a block would be empty, and where the line holds more.

    A comment behind it stays.
    """
    source, (start, end) = site.source, site.span(statement)
    line, stop = source.line_starts[source.position(start)[0] - 1], source.line_end(source.position(end)[0])
    holder = site.module.parents[statement]
    block = block_around(holder, statement)
    # Others of the block may go as well: the first one keeps its place if all of them are such.
    is_inner = block[0] is statement and not isinstance(holder, ast.Module)
    is_needed = is_inner and (len(block) == 1 or all(map(_may_go, block)))
    rest = source.text[end:stop]
    if is_needed or not begins_its_line(source, statement) or (rest.strip() and not rest.lstrip().startswith("#")):
        site.edit(start, end, "pass")
        site.meant.replace(statement, "pass")
        return
    site.edit(*((start, stop - len(rest.lstrip())) if rest.strip() else (line, stop)), "")
    site.meant.remove(statement)


def _may_go(statement: ast.stmt) -> bool:
    """Whether a statement only calls something or sets an attribute."""
    return isinstance(statement, ast.Expr) or (
        isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)
    )


def with_items(site: OldNameSite, statement: ast.With) -> tuple[tuple[int, int], ...]:
    """Offsets of the items of a `with`, with the parentheses around each and their `as`.

    Raises:
        SiteRefused: If there are parentheses around all of several.
    """
    items, _ = split_items(_head(site, statement), [_end(site, item) for item in statement.items])
    if len(items) < len(statement.items):
        site.refuse("parentheses around the items of this `with` are in the way; write the items plainly")
    return items


def value_end(site: OldNameSite, statement: ast.With, item: ast.withitem) -> int:
    """Offset behind the value of an item, with its parentheses and without its `as`."""
    _, stop = with_items(site, statement)[statement.items.index(item)]
    _, end = site.span(item.context_expr)
    if item.optional_vars is None:
        return stop
    begin, _ = site.span(item.optional_vars)
    between = [token for token in _head(site, statement) if end <= token.start < begin and token.is_code]
    closing = [token for token in between if token.text == ")"]
    return closing[-1].end if closing else end


def take_out_of_with(site: OldNameSite, statement: ast.With, instead: str) -> None:
    """Remove the header of a `with`, or replace it by the statement `instead`, and move its body to the left.

    The mesh expression stays after `instead`, with edits of its own; if `instead` is empty, it goes away too.
    """
    source, node = site.source, site.node
    assert isinstance(node, ast.expr)
    site.meant.take_out(statement, node, instead)
    start, header_end, _ = own_span(source, statement)
    mesh_start, mesh_end = _value(site, statement)
    first = statement.body[0]
    if not begins_its_line(source, first):
        rest = site.span(first)[0]
        if instead:
            site.edit(start, mesh_start, instead)
            site.edit(mesh_end, rest, "; ")
        else:
            site.edit(start, rest, "")
        return
    own = indentation(source, statement)
    line_end = source.line_end(source.position(header_end - 1)[0])
    comment = source.text[header_end:line_end].lstrip(" \t")
    if instead:
        site.edit(start, mesh_start, instead)
        site.edit(mesh_end, header_end, "")
    elif comment.startswith("#"):
        site.edit(start, line_end - len(comment), "")
    else:
        site.edit(source.line_starts[statement.lineno - 1], line_end, "")
    _move_left(site, statement, source.position(header_end - 1)[0] + 1, own)


def make_above(site: OldNameSite, statement: ast.With, made: str) -> None:
    """Make the value of the first of several items in a statement above, which begins with `made`.

    Raises:
        SiteRefused: If there are parentheses around all items.
    """
    source, node = site.source, site.node
    assert isinstance(node, ast.expr)
    rest, _ = with_items(site, statement)[1]
    begin, (start, end) = site.span(statement)[0], _value(site, statement)
    site.edit(begin, start, made)
    site.edit(end, rest, f"{source.newline}{indentation(source, statement)}with ")
    site.meant.make_above(statement, node, made)


def drop_item(site: OldNameSite, statement: ast.With, item: ast.withitem) -> None:
    """Remove one of several items.

    Raises:
        SiteRefused: If there are parentheses around all items.
    """
    items, index = with_items(site, statement), statement.items.index(item)
    if index + 1 < len(items):
        site.edit(items[index][0], items[index + 1][0], "")
    else:
        site.edit(items[index - 1][1], items[index][1], "")
    site.meant.remove(item)


def _head(site: OldNameSite, statement: ast.With) -> list[Token]:
    """The tokens between `with` and its colon."""
    start, header_end, _ = own_span(site.source, statement)
    return tokens_between(site.source, start, header_end - 1)[1:]


def _end(site: OldNameSite, item: ast.withitem) -> int:
    return site.span(item.optional_vars or item.context_expr)[1]


def _value(site: OldNameSite, statement: ast.With) -> tuple[int, int]:
    """Offsets of the mesh expression, with the parentheses around it where lines need them."""
    start, end = site.span(site.node)
    if site.source.position(start)[0] == site.source.position(end)[0]:
        return start, end
    head, depth = _head(site, statement), 0
    for token in head:
        if token.start >= start:
            break
        depth += token.depth
        if token.depth > 0 and depth == 1:
            start = token.start
            closing = (other for other in head if other.start >= end and other.text == ")" and other.is_code)
            return start, next(closing).end
    return start, end


def _move_left(site: OldNameSite, statement: ast.With, first_line: int, own: str) -> None:
    source = site.source
    body = indentation(source, statement.body[0])
    # Lines of a string that spans several must keep their indentation, which is part of its value.
    inside_strings = {
        line
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        if not (isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes))
    }
    for line in range(first_line, (statement.end_lineno or statement.lineno) + 1):
        text = source.line(line)
        if line not in inside_strings and text.startswith(body) and text.strip():
            begin = source.line_starts[line - 1]
            site.edit(begin + len(own), begin + len(body), "")
