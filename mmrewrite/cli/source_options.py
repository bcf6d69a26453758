"""The values of the options that commands share; the options themselves are in `mmrewrite.cli.options`."""

from __future__ import annotations

from dataclasses import dataclass

from mmrewrite.cli.options import OUTPUT_LIMIT, TIME_LIMIT
from mmrewrite.cli.reports import DEFAULT_FORMAT


@dataclass(frozen=True)
class SourceOptions:
    """The options of every command that reads sources."""

    paths: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    jobs: int = 1
    strict: bool = False
    quiet: bool = False
    verbose: bool = False
    config: str | None = None
    output_format: str = DEFAULT_FORMAT
    no_cache: bool = False
    stdin_filename: str | None = None
    since: str | None = None
    evidence: str | None = None
    entry: str | None = None
    arguments: str | None = None
    time_limit: float = TIME_LIMIT
    memory_limit: float | None = None
    output_limit: float = OUTPUT_LIMIT
