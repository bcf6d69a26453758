"""An import statement without some of its names: the layout and the comments of the others stay."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from mmrewrite.codemod.comments import is_for_tools
from mmrewrite.source.brackets import brackets_of, own_comment, tokens_between, without_items, without_listed
from mmrewrite.source.spans import span
from mmrewrite.source.text import SourceText, has_lines


@dataclass(frozen=True)
class ImportParts:
    """What goes of an import statement with some of its names.

    Attributes:
        removed: The parts of the text to remove, None if the rest is better written anew, on one line.
        comments: The comments at the ends of their lines, which go with them, by name: offsets.
    """

    removed: tuple[tuple[int, int], ...] | None
    comments: dict[ast.alias, tuple[int, int]]


def one_line(source: SourceText, statement: ast.Import | ast.ImportFrom, dropped: Collection[ast.alias]) -> str:
    """The statement without the names `dropped`, on one line. It must have other names."""
    found = [token for token in tokens_between(source, *span(source, statement)) if token.is_code]
    word = next(index for index, token in enumerate(found) if token.text == "import")
    head = source.text[found[0].start : found[word].end]
    kept = [source.text[slice(*span(source, alias))] for alias in statement.names if alias not in dropped]
    return f"{head} {', '.join(kept)}"


def parts_that_go(
    source: SourceText,
    statement: ast.Import | ast.ImportFrom,
    dropped: Collection[ast.alias],
    moved: Collection[ast.alias] = (),
) -> ImportParts:
    """The parts of the text to remove with the names `dropped`. Those in `moved` are imported from elsewhere.

    A comment goes with a name if that moves, or if it is for a tool.
    """
    brackets = brackets_of(source, span(source, statement), statement.names)
    if brackets is None:
        return ImportParts(_between(source, statement, dropped), {})
    gone = [index for index, alias in enumerate(statement.names) if alias in dropped]
    comments = {}
    for index in gone:
        comment = own_comment(source, brackets, index)
        alias = statement.names[index]
        if comment is not None and (alias in moved or is_for_tools(source.text[slice(*comment)])):
            comments[alias] = comment
    removed = tuple(without_items(source, brackets, gone, comments.values()))
    left = _left(source, statement, removed)
    return ImportParts(removed if has_lines(left) or "#" in left else None, comments)


def _between(
    source: SourceText, statement: ast.Import | ast.ImportFrom, dropped: Collection[ast.alias]
) -> tuple[tuple[int, int], ...] | None:
    """The parts to remove of names without brackets, None if one line is left."""
    gone = [index for index, alias in enumerate(statement.names) if alias in dropped]
    if len(gone) == len(statement.names):
        return None if not has_lines(_left(source, statement, ())) else ()
    removed = tuple(without_listed([span(source, alias) for alias in statement.names], gone))
    return removed if has_lines(_left(source, statement, removed)) else None


def _left(source: SourceText, statement: ast.Import | ast.ImportFrom, removed: Collection[tuple[int, int]]) -> str:
    """The text of a statement without some parts of it."""
    start, end = span(source, statement)
    bounds = [start, *(place for part in removed for place in part), end]
    return "".join(source.text[begin:stop] for begin, stop in zip(bounds[::2], bounds[1::2], strict=True))
