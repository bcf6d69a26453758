"""`mmrewrite explain FILE:LINE`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import click

from mmrewrite.cli.line_origin import earlier, fate, origin, source_of_generated
from mmrewrite.cli.reports._messages import Explanation
from mmrewrite.cli.session import CHANGES, NOTHING, Session
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.engine.notebook import SUFFIX, NotANotebook, Notebook
from mmrewrite.files.select import source_file
from mmrewrite.files.walk import load_file, read_file, shown
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceError, SourceText
from mmrewrite.tracking import untracked

_PLACE = re.compile(r"(.+?):(\d+)(?::\d+)?", re.DOTALL)
# As messages name the cells of a notebook.
_CELL = re.compile(rf"(.+{re.escape(SUFFIX)}), cell (\d+)", re.DOTALL)


def place_in(text: str) -> tuple[str, int] | None:
    """The file and the line that `FILE:LINE` names; None if it has not that form."""
    match = _PLACE.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def explain_line(path: str, line: int, options: SourceOptions) -> NoReturn:
    """Print what became of a line, or where it came from, and exit: with 1 for refusals under --strict.

    Args:
        path: The file, or a cell of a notebook as in `model.ipynb, cell 3`.
        line: The line in it.
        options: What to read.

    Raises:
        click.UsageError: If there is no such file or line.
    """
    cell = None if os.path.lexists(path) else _CELL.fullmatch(path)
    if cell is not None:
        path, line = cell[1], _line_of_cell(cell[1], int(cell[2]), line)
    data = _read(path)
    try:
        count = len(SourceText.decode(data).lines)
    except SourceError as problem:
        raise click.UsageError(f"{path}: {problem}") from None
    if not 1 <= line <= count:
        has = "is empty" if not count else "has 1 line" if count == 1 else f"has {count} lines"
        raise click.UsageError(f"{path} {has}, and no line {line}.")
    generated = source_of_generated(path)
    session, result = _rewritten(generated or path, options)
    sentences = (
        _of_generated(generated, result, path, data, line) if generated else _of_source(session, result, data, line)
    )
    session.show("explain", Explanation(f"{shown(path)}:{line}", tuple(sentences), (shown(path), line)))
    if options.verbose and not options.quiet:
        session.print_details(result)
    sys.exit(CHANGES if options.strict and session.refused else NOTHING)


def _read(path: str) -> bytes:
    if os.path.isdir(path):
        raise click.UsageError(f"{path} is a folder; name a file in it, and a line, as in {path}/model.py:1.")
    try:
        return read_file(path)
    except FileNotFoundError:
        raise click.UsageError(f"{path}: no such file; write FILE:LINE, as in model.py:1.") from None
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror or error}.") from None


def _notebook(path: str, data: bytes) -> Notebook | None:
    """The notebook in a file, None if it is none."""
    try:
        return Notebook.read(source_file(path, data)) if path.endswith(SUFFIX) else None
    except NotANotebook:
        return None


def _line_of_cell(path: str, number: int, line: int) -> int:
    """The line of the file that holds a line of a cell."""
    notebook = _notebook(path, _read(path))
    found = notebook.line_with(number, line) if notebook is not None else None
    if found is None:
        raise click.UsageError(f"{path} has no line {line} of code in cell {number}; cells count from 1.")
    return found


def _of_generated(source: str, result: Rewrite, path: str, data: bytes, line: int) -> Iterator[str]:
    is_itself = os.path.realpath(source) == os.path.realpath(path)
    if is_itself or load_file(source) is None:
        yield f"{shown(path)} was written from {source}, which is not there; run this where `build` was run."
        return
    found = origin(result, shown(path), data, line)
    if found is not None:
        yield from found
        return
    text = SourceText.decode(data).line(line).strip()
    yield f"{shown(path)}:{line}: {text}"
    yield (
        f"Not a line of the rewritten {source}: `build` writes a comment that names the source, and makes "
        "imports of the package relative. Any other such line was edited by hand, or the source has changed since; "
        "`mmrewrite check --out` tells."
    )


def _of_source(session: Session, result: Rewrite, data: bytes, line: int) -> Iterator[str]:
    if not (result.changed or result.refusals or result.left or result.failed):
        # The line on the terminal is that of the phase.
        settings = replace(session.hint_settings(), track=untracked)
        with session.progress.phase(f"{result.path}: looking through its revisions"):
            found = earlier(result.path, line, settings) if b"mmruntime" in data else None
        if found is not None:
            yield from found
            return
    notebook = _notebook(result.path, data)
    if notebook is None:
        yield from fate(result, line)
        return
    number, lines = notebook.code_on(line) or (0, range(0))
    yield from fate(result, line, (f"{result.path}, cell {number}", lines))


def _rewritten(path: str, options: SourceOptions) -> tuple[Session, Rewrite]:
    """The rewrite of a file, with the program that it is part of."""
    for paths in ((), (path,)):
        session = Session(replace(options, paths=paths))
        for result in session.results:
            if os.path.realpath(result.path) == os.path.realpath(path):
                return session, result
    data = load_file(path) or b""
    return session, Rewrite(shown(path), data, data)
