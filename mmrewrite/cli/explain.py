"""`mmrewrite explain FILE:LINE`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import click

from mmrewrite.cli.line_origin import GeneratedFile, earlier, fate, generated_file, origin
from mmrewrite.cli.reports._told import Explanation
from mmrewrite.cli.session import CHANGES, NOTHING, Session
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.files.walk import load_file, shown
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceError, SourceText
from mmrewrite.tracking import untracked

_PLACE = re.compile(r"(.+?):(\d+)(?::\d+)?", re.DOTALL)


def place_in(text: str) -> tuple[str, int] | None:
    """The file and the line that `FILE:LINE` names; None if it has not that form."""
    match = _PLACE.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def explain_line(path: str, line: int, options: SourceOptions) -> NoReturn:
    """Print what became of a line, or where it came from, and exit: with 1 for refusals under --strict.

    Raises:
        click.UsageError: If there is no such file or line.
    """
    data = load_file(path)
    if data is None:
        raise click.UsageError(f"{path}: no such file, or it cannot be read.")
    try:
        count = len(SourceText.decode(data).text.splitlines())
    except SourceError as problem:
        raise click.UsageError(f"{path}: {problem}") from None
    if not 1 <= line <= count:
        raise click.UsageError(f"{path} has {count} lines, and no line {line}.")
    generated = generated_file(path)
    session, result = _rewritten(generated.source if generated else path, options)
    sentences = (
        _of_generated(generated, result, path, data, line) if generated else _of_source(session, result, data, line)
    )
    session.show("explain", Explanation(f"{shown(path)}:{line}", tuple(sentences), (shown(path), line)))
    if options.verbose and not options.quiet:
        session.print_details(result)
    sys.exit(CHANGES if options.strict and session.refused else NOTHING)


def _of_generated(generated: GeneratedFile, result: Rewrite, path: str, data: bytes, line: int) -> Iterator[str]:
    if load_file(generated.source) is None:
        yield f"{shown(path)} was written from {generated.source}, which is not there; run this where `build` was run."
        return
    found = origin(result, shown(path), data, line)
    if found is not None:
        yield from found
        return
    text = SourceText.decode(data).text.splitlines()[line - 1].strip()
    yield f"{shown(path)}:{line}: {text}"
    yield (
        f"Not a line of the rewritten {generated.source}: `build` writes a comment that names the source, and makes "
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
    yield from fate(result, line)


def _rewritten(path: str, options: SourceOptions) -> tuple[Session, Rewrite]:
    """The rewrite of a file, with the program that it is part of."""
    for paths in ((), (path,)):
        session = Session(replace(options, paths=paths))
        for result in session.results:
            if os.path.realpath(result.path) == os.path.realpath(path):
                return session, result
    data = load_file(path) or b""
    return session, Rewrite(shown(path), data, data)
