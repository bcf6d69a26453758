"""What commands print on standard output: one module for each format, over the same results.

The name of a module is that of its format, with hyphens for underscores: `json.py` is `--format json`. Its `RENDERERS`
map the names of commands to functions from the command's result to the whole output. The package is walked, so a format
that is added needs a file here; one that is JSON is named in `terminal.output` too, one that shows plans in `session`.
What several formats show alike is in the modules with an underscore: a review (`_review`), its evidence, an upgrade.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

Renderer = Callable[[Any], str | bytes]

DEFAULT_FORMAT = "text"


class NotShown(Exception):
    """Why a result cannot be shown in a format, in a sentence."""


def render(command: str, output_format: str, result: object) -> str | bytes:
    """The whole output of a command, in a format that it has.

    Raises:
        NotShown: If the format cannot show this result.
    """
    return _renderers(output_format)[command](result)


def formats_of(command: str) -> tuple[str, ...]:
    """The formats that a command has, the default first."""
    modules = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    known = [name.replace("_", "-") for name in modules if command in _renderers(name)]
    return tuple(sorted(known, key=lambda name: (name != DEFAULT_FORMAT, name)))


def _renderers(output_format: str) -> Mapping[str, Renderer]:
    module = importlib.import_module(f"{__name__}.{output_format.replace('-', '_')}")
    renderers: Mapping[str, Renderer] = module.RENDERERS
    return renderers
