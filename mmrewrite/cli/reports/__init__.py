"""What commands print on standard output: one module for each format, over the same results.

The name of a module is that of its format: `json.py` is `--format json`. Its `RENDERERS` map the names of commands to
functions from the command's result to the whole output. The package is walked, so a format that is added needs a file
here and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmrewrite.results import Rewrite

Renderer = Callable[[Any], str | bytes]

DEFAULT_FORMAT = "text"


class NotShown(Exception):
    """Why a result cannot be shown in a format, in a sentence."""


@dataclass(frozen=True)
class RewriteReport:
    """The result of `diff`, `check`, `apply`, `build` and `modernize`.

    Attributes:
        results: What becomes of each file, in path order.
        top: The folder that paths in a patch are relative to.
        shows_patch: Whether the patch is what the command prints; not so once the files are written.
        color: Whether the output goes to a reader who sees colors.
    """

    results: tuple[Rewrite, ...]
    top: str
    shows_patch: bool
    color: bool


def render(command: str, output_format: str, result: object) -> str | bytes:
    """The whole output of a command, in a format that it has.

    Raises:
        NotShown: If the format cannot show this result.
    """
    return _renderers(output_format)[command](result)


def formats_of(command: str) -> tuple[str, ...]:
    """The formats that a command has, the default first."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    known = [name for name in names if command in _renderers(name)]
    return tuple(sorted(known, key=lambda name: (name != DEFAULT_FORMAT, name)))


def _renderers(output_format: str) -> Mapping[str, Renderer]:
    renderers: Mapping[str, Renderer] = importlib.import_module(f"{__name__}.{output_format}").RENDERERS
    return renderers
