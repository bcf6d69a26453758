"""Print what a command has to show, and what it has to say."""

from __future__ import annotations

import sys

import click

from mmrewrite.cli.reports import DEFAULT_FORMAT
from mmrewrite.cli.terminal.style import visible

_AS_JSON = ("json", "sarif", "github-review")


def print_output(output: str | bytes, output_format: str) -> None:
    """Print what a renderer has made: for machines and browsers in UTF-8, for people as the terminal takes it."""
    if isinstance(output, bytes) and not sys.stdout.isatty():
        # A patch, with the bytes of the files.
        click.echo(output, nl=False)
    elif isinstance(output, bytes):
        click.echo(visible(output.decode(errors="backslashreplace")), nl=False)
    elif output_format == DEFAULT_FORMAT:
        click.echo(visible(output), nl=False)
    elif output_format in _AS_JSON:
        # All that is not ASCII is written as escapes.
        click.echo(encoded(output.replace("\x7f", "\\u007f")), nl=False)
    else:
        click.echo(encoded(visible(output)), nl=False)


def encoded(output: str) -> bytes:
    """A document in UTF-8; bytes in names of files that are not become escapes."""
    return output.encode(errors="backslashreplace")


def say(text: str, *, color: bool | None = None) -> None:
    """Print a message, on standard error; in color as said, else as the command does."""
    click.echo(visible(text), err=True, color=color)
