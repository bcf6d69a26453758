"""Whether to print colors: as the user says, else as the environment does, else on terminals."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

AUTO, ALWAYS, NEVER = "auto", "always", "never"
_OPTION = f"{__name__}.option"


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
