"""`mmrewrite explain FILE:LINE`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import click

from mmrewrite.cli.line_origin import GeneratedFile, earlier, fate, generated_file, origin
from mmrewrite.cli.progress import StatusLine
from mmrewrite.cli.reports._told import Explanation
from mmrewrite.cli.session import Session
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.files.walk import load_file, shown
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceError, SourceText

_PLACE = re.compile(r"(.+?):(\d+)(?::\d+)?", re.DOTALL)


def place_in(text: str) -> tuple[str, int] | None:
    """The file and the line that `FILE:LINE` names; None if it has not that form."""
    match = _PLACE.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def explain_line(path: str, line: int) -> Explanation:
    """What became of a line, or where it came from.

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
    sentences = _of_generated(generated, path, data, line) if generated else _of_source(path, data, line)
    return Explanation(f"{shown(path)}:{line}", tuple(sentences), (shown(path), line))


def _of_generated(generated: GeneratedFile, path: str, data: bytes, line: int) -> Iterator[str]:
    if load_file(generated.source) is None:
        yield f"{shown(path)} was written from {generated.source}, which is not there; run this where `build` was run."
        return
    result = _rewritten(generated.source)
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


def _of_source(path: str, data: bytes, line: int) -> Iterator[str]:
    result = _rewritten(path)
    if not (result.changed or result.refusals or result.left or result.failed):
        with StatusLine().phase(f"{shown(path)}: looking through its revisions"):
            found = earlier(path, line) if b"mmruntime" in data else None
        if found is not None:
            yield from found
            return
    yield from fate(result, line)


def _rewritten(path: str) -> Rewrite:
    """The rewrite of a file, with the program that it is part of."""
    for paths in ((), (path,)):
        session = Session(SourceOptions(paths))
        for result in session.results:
            if os.path.realpath(result.path) == os.path.realpath(path):
                return result
    data = load_file(path) or b""
    return Rewrite(shown(path), data, data)
