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


# What a terminal obeys and does not show, but for the codes of our own colors: names of files and comments are those of
# strangers. Also the marks that turn the direction of writing, which make a text look like another one.
_OBEYED = re.compile(
    r"\x1b(?!\[(?:0|1|2|3[1-6])m)|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """A text of which a terminal obeys nothing but lines, tabs and colors; the rest is shown as in Python's strings."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same on one line: a name of a file may have several, which would look like messages of ours."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def title(text: str) -> str:
    """The first line of a part."""
    return click.style(text, bold=True)


def head(text: str) -> str:
    """The head of a table, or a heading."""
    return click.style(text, fg="cyan")


def place(text: str) -> str:
    """A file, with line and column, on one line whatever the file is called."""
    return click.style(one_line(text), bold=True)


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
    """A verdict of `verify`: green is equal, yellow equal but for rounding or a tolerance, red everything else."""
    nearly = "rounding" in text or "tolerance" in text
    color = "green" if text == "equal" else "yellow" if nearly else "red"
    return click.style(text, fg=color, bold=True if color == "red" else None)


def timeline(text: str) -> str:
    """The picture of a schedule with each kind of action in its color, and idle time faint."""
    return _ROW.sub(lambda row: f"{row[1]}|{_ACTION.sub(_action, row[2])}|", text)


def _action(match: re.Match[str]) -> str:
    kind = match[1]
    return click.style(match[0], dim=True) if kind is None else click.style(match[0], fg=_KINDS[kind.upper()])
