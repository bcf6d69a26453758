"""The colors of text: what they mean is the same in all commands.

Renderers always color; `click.echo` takes colors away where nobody would see them.
"""

from __future__ import annotations

import re

import click

# Of actions of a schedule, by their kind.
_KINDS = {"F": "blue", "B": "green", "I": "cyan", "W": "magenta", "R": "yellow"}
_ROW = re.compile(r"(?m)^(submesh \d+ +)\|([^|]*)\|$")
_ACTION = re.compile(r"([FBIWR])\d* *|\.+", re.IGNORECASE)


def title(text: str) -> str:
    """The first line of a part."""
    return click.style(text, bold=True)


def head(text: str) -> str:
    """The head of a table, or a heading."""
    return click.style(text, fg="cyan")


def place(text: str) -> str:
    """A file, with line and column."""
    return click.style(text, bold=True)


def name(text: str) -> str:
    """The name of a codemod."""
    return click.style(text, fg="cyan")


def error(text: str) -> str:
    """What went wrong."""
    return click.style(text, fg="red")


def doubt(text: str) -> str:
    """What the reader should look at, as what was refused."""
    return click.style(text, fg="yellow")


def verdict(text: str) -> str:
    """A verdict of `verify`: green is equal, yellow equal but for rounding, red everything else."""
    color = "green" if text == "equal" else "yellow" if "rounding" in text else "red"
    return click.style(text, fg=color, bold=True if color == "red" else None)


def timeline(text: str) -> str:
    """The picture of a schedule with each kind of action in its color, and idle time faint."""
    return _ROW.sub(lambda row: f"{row[1]}|{_ACTION.sub(_action, row[2])}|", text)


def _action(match: re.Match[str]) -> str:
    kind = match[1]
    return click.style(match[0], dim=True) if kind is None else click.style(match[0], fg=_KINDS[kind.upper()])
