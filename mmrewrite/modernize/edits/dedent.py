"""Take a block, or the first item, out of a `with`."""

from __future__ import annotations

import ast

from mmrewrite.codemod.layout import indentation, own_span
from mmrewrite.modernize.site import OldNameSite


def take_out_of_with(site: OldNameSite, statement: ast.With, instead: str) -> None:
    """Remove the header of a `with`, or replace it by the statement `instead`, and move its body to the left.

    The mesh expression stays after `instead`, with edits of its own; if `instead` is empty, it goes away too.
    """
    source = site.source
    start, header_end, _ = own_span(source, statement)
    mesh_start, mesh_end = site.span(site.node)
    first = statement.body[0]
    on_one_line = first.lineno == source.position(header_end - 1)[0]
    if on_one_line:
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
        SiteRefused: If there are parentheses or comments around the items.
    """
    source, (item, following, *_) = site.source, statement.items
    begin, (start, end) = site.span(statement)[0], site.span(item.context_expr)
    _, item_end = site.span(item.optional_vars or item.context_expr)
    rest, _ = site.span(following.context_expr)
    if source.text[begin:start].strip() != "with" or set(source.text[item_end:rest]) - set(", \t\r\n\\"):
        site.refuse("parentheses around the items of this `with` are in the way; write the items plainly")
    site.edit(begin, start, made)
    site.edit(end, rest, f"{source.newline}{indentation(source, statement)}with ")


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
