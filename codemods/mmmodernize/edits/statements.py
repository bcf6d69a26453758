"""Edits of whole statements: remove one."""

from __future__ import annotations

import ast

from mmmodernize.sites.site import OldNameSite
from mmrewrite.source.brackets import text_before


def remove_statement(site: OldNameSite, statement: ast.stmt) -> None:
    """Remove a statement with its line; write `pass` where a block would be empty, and where the line holds more.

    A comment behind it stays.
    """
    source, (start, end) = site.source, site.span(statement)
    line, stop = source.line_starts[source.position(start)[0] - 1], source.line_end(source.position(end)[0])
    holder = site.module.parents[statement]
    blocks = [getattr(holder, name, None) or [] for name in ("body", "orelse", "finalbody")]
    block = next(block for block in blocks if statement in block)
    # Others of the block may go as well: the first one keeps its place if all of them are such.
    is_inner = block[0] is statement and not isinstance(holder, ast.Module)
    is_needed = is_inner and (len(block) == 1 or all(map(_may_go, block)))
    rest = source.text[end:stop]
    if is_needed or text_before(source, start).strip() or (rest.strip() and not rest.lstrip().startswith("#")):
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
