"""Whether every hint comment of a file has an outcome that a person is shown."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from fixture_files import source_files, tree

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

# Written anew here, so that a comment that the tool does not find is missed by no mistake that both share.
_CARRIER = re.compile(r"(?<![`\"'])#[ \t]*mm\b[ \t]*[:;]?[ \t]*", re.IGNORECASE)


def without_outcome(result: Rewrite) -> list[str]:
    """The directives that are neither rewritten, nor refused, nor an error, nor reported as left: line and text.

    Nothing of a file with an error is rewritten, so that the error is about all its hints.
    """
    if result.failed:
        return []
    done = {(hint.line, hint.column) for edit in result.edits for hint in edit.hints}
    done |= {(refusal.hint.line, refusal.hint.column) for refusal in result.refusals if refusal.hint is not None}
    left = {(item.line, item.column) for item in result.left}
    source = SourceText.decode(result.original).text
    return [
        f"{line}: {text}"
        for line, start, column, text in directives(source)
        if (line, column) not in done | left and (line, start) not in left
    ]


def folder_without_outcome(folder: Path) -> list[str]:
    """The same for all programs of a folder that are rewritten together."""
    files = tree(folder)
    load = {f"./{path}": data for path, data in files.items()}
    results = rewrite_project(source_files(files), Registry(), load=load.get)
    return [line for result in results for line in without_outcome(result)]


def directives(source: str) -> Iterator[tuple[int, int, int, str]]:
    """Line, column of the comment, own column, and text of each directive in the comments of a program."""
    for token in _comments(source):
        match = _CARRIER.search(token.string)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                statements = ast.parse(token.string[match.end() :]).body if match is not None else []
        except SyntaxError:
            # An error, unless the comment stands where none is a hint: in code that is commented out.
            continue
        for statement in statements:
            text = ast.unparse(statement)
            if match is None or text in SWITCHES or text.startswith(f"{IGNORE}["):
                continue
            # With another beginning, other words are prose.
            if match[0] == "# mm: " or ("(" in text and text.partition("(")[0] in DIRECTIVES):
                start = token.start[1] + match.start() + 1
                yield token.start[0], start, token.start[1] + match.end() + statement.col_offset + 1, text


def _comments(source: str) -> Iterator[tokenize.TokenInfo]:
    # `tokenize` counts lines as the parser does only where they end in a line feed.
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        yield from (
            token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
        )
    except (tokenize.TokenError, SyntaxError):
        return
