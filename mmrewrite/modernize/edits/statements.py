"""Edits of whole statements: remove one."""

from __future__ import annotations

import ast

from mmrewrite.modernize.site import OldNameSite


def remove_statement(site: OldNameSite, statement: ast.stmt) -> None:
    """Remove a statement with its line; write `pass` where a block would be empty, and where the line holds more."""
    start, end = site.span(statement)
    text = site.source.text
    line = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    holder = site.module.parents[statement]
    blocks = [getattr(holder, name, None) or [] for name in ("body", "orelse", "finalbody")]
    block = next(block for block in blocks if statement in block)
    # Others of the block may go as well: the first one keeps its place if all of them are such.
    is_needed = block[0] is statement and not isinstance(holder, ast.Module) and all(map(_may_go, block))
    if is_needed or text[line:start].strip() or text[end:stop].strip():
        site.edit(start, end, "pass")
    else:
        site.edit(line, min(stop + 1, len(text)), "")


def _may_go(statement: ast.stmt) -> bool:
    """Whether a statement only calls something or sets an attribute."""
    return isinstance(statement, ast.Expr) or (
        isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)
    )
