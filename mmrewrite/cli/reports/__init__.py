"""What commands print on standard output: one module for each format, over the same results.

The name of a module is that of its format, with hyphens for underscores: `json.py` is `--format json`. Its `RENDERERS`
map the names of commands to functions from the command's result to the whole output. The package is walked, so a format
that is added needs a file here and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrewrite.results import Rewrite

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned

Renderer = Callable[[Any], str | bytes]

DEFAULT_FORMAT = "text"


class NotShown(Exception):
    """Why a result cannot be shown in a format, in a sentence."""


@dataclass(frozen=True)
class RewriteReport:
    """The result of `diff`, `check`, `apply`, `build` and `modernize`.

    Attributes:
        command: The name of the command.
        results: What becomes of each file, in path order.
        top: The folder that paths in a patch are relative to.
        shows_patch: Whether the patch is what the command prints; not so once the files are written.
        color: Whether the output goes to a reader who sees colors.
        noun: What the command rewrites, in the singular.
        unreadable: Path and reason of each file that could not be read.
        unwritten: Path and reason of each file that could not be written.
        problems: A sentence for each generated file that is out of date or was edited by hand.
        plan: Makes the plan of the rewritten program, for the formats that show it; None where there is none to show.
        evidence: The JSON document of `verify`, if the user gave one.
    """

    command: str
    results: tuple[Rewrite, ...]
    top: str
    shows_patch: bool = True
    color: bool = False
    noun: str = "hint"
    unreadable: tuple[tuple[str, str], ...] = ()
    unwritten: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    plan: Callable[[], Planned] | None = None
    evidence: Mapping[str, Any] | None = None


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
