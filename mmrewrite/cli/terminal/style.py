"""The colors of text: what they mean, the same in all commands, and whether to print them.

That is as the user says, else as the environment does, else on terminals. Renderers always color; `click.echo` takes
colors away where nobody would see them.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO, Any

import click

AUTO, ALWAYS, NEVER = "auto", "always", "never"
_OPTION = f"{__name__}.option"
# Of actions of a schedule, by their kind.
_KINDS = {"F": "blue", "B": "green", "I": "cyan", "W": "magenta", "R": "yellow"}
_ROW = re.compile(r"(?m)^(submesh \d+ +)\|([^|]*)\|$")
_ACTION = re.compile(r"([FBIWR])\d* *|\.+", re.IGNORECASE)


# Between the first two characters of our own codes, up to where they are printed: a file that has such codes as well
# cannot know it, so that of its codes none is obeyed.
_OURS = os.urandom(8).hex()
# What a terminal obeys and does not show: names of files and comments are those of strangers. Also the marks that turn
# the direction of writing, which make a text look like another one.
_OBEYED = re.compile(
    rf"\x1b(?!{_OURS}\[)|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """A text in which a terminal obeys nothing but line ends, tabs and our colors.

    The rest is shown as in Python's strings.
    """
    return _shown(text).replace(_OURS, "")


def _shown(text: str) -> str:
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The text on one line: a name of a file may have several, which would look like messages of ours."""
    return _shown(text.replace("\n", "\\n").replace("\t", "\\t"))


def styled(text: str, **how: Any) -> str:
    """A text between the codes that `click.style` gives it, to be printed by `visible`."""
    before, _, after = click.style("|", **how).replace("\x1b", f"\x1b{_OURS}").partition("|")
    return f"{before}{_shown(text)}{after}"


def title(text: str) -> str:
    """The first line of a part."""
    return styled(text, bold=True)


def head(text: str) -> str:
    """The head of a table, or a heading."""
    return styled(text, fg="cyan")


def place(text: str) -> str:
    """A file, with line and column, on one line whatever the file is called."""
    return styled(one_line(text), bold=True)


def name(text: str) -> str:
    """The name of a codemod."""
    return styled(text, fg="cyan")


def error(text: str) -> str:
    """What went wrong."""
    return styled(text, fg="red")


def doubt(text: str) -> str:
    """Text for the reader to look at, such as a refusal."""
    return styled(text, fg="yellow")


def verdict(text: str) -> str:
    """A verdict of `verify`: green is equal, yellow equal but for rounding or a tolerance, red everything else."""
    nearly = "rounding" in text or "tolerance" in text
    color = "green" if text == "equal" else "yellow" if nearly else "red"
    return styled(text, fg=color, bold=True if color == "red" else None)


def timeline(text: str) -> str:
    """The picture of a schedule with each kind of action in its color, and idle time faint."""
    return _ROW.sub(lambda row: f"{row[1]}|{_ACTION.sub(_action, row[2])}|", text)


def _action(match: re.Match[str]) -> str:
    kind = match[1]
    return styled(match[0], dim=True) if kind is None else styled(match[0], fg=_KINDS[kind.upper()])


def set_color(context: click.Context, option: click.Parameter, value: str) -> None:
    """Have everything that the command prints follow `--color`, NO_COLOR or FORCE_COLOR."""
    context.meta[_OPTION] = value
    context.color = True if value == ALWAYS else False if value == NEVER else color_of_environment()


def color_of_environment() -> bool | None:
    """What NO_COLOR and FORCE_COLOR say: see https://no-color.org and https://force-color.org; None if nothing.

    A terminal that calls itself dumb, as some editors have them, shows the codes of colors.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def sees_color(stream: IO[Any]) -> bool:
    """Whether what goes to a stream may have colors; for bytes, which click passes on as they are."""
    context = click.get_current_context(silent=True)
    chosen = context.color if context is not None else None
    return stream.isatty() if chosen is None else chosen


def colors_patch() -> bool:
    """Whether a patch on standard output has colors: for a terminal, or as the option says.

    FORCE_COLOR, which many CI systems set, is no reason: `git apply` may read the patch.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_OPTION) == ALWAYS:
        return True
    return sys.stdout.isatty() and sees_color(sys.stdout)
