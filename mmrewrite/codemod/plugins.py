"""Codemods and directives of other packages, by their entry points.

A package that has `mmrewrite.modernize`, `mmrewrite.codemods` or `mmrewrite.directives` among its entry points is found
once it is installed. Nothing of it is imported before it is needed. Every run asks whether there are any, so that this
imports nothing that is slow.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any, NamedTuple

MODERNIZE, HINTS, DIRECTIVE_RECORDS = "mmrewrite.modernize", "mmrewrite.codemods", "mmrewrite.directives"


class BadPlugin(Exception):
    """What is wrong with a package's entry point, as a sentence."""


class Plugin(NamedTuple):
    """One entry point: its name, `module:attribute`, and the package that has it."""

    name: str
    value: str
    package: str

    @property
    def module(self) -> str:
        """The module that holds it."""
        return self.value.partition(":")[0]

    def load(self) -> Any:
        """The object.

        Raises:
            BadPlugin: If it cannot be imported.
        """
        module, _, attribute = self.value.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:
            # Whatever a stranger's module raises: the user has to know whose it is.
            raise BadPlugin(
                f"`{self.name}` of the package {self.package} cannot be imported from {self.value} "
                f"({type(error).__name__}: {error}); correct or uninstall that package"
            ) from None


def plugins(group: str) -> dict[str, Plugin]:
    """The entry points of a group, by name.

    Raises:
        BadPlugin: If two packages have one of the same name.
    """
    return _installed(tuple(sys.path)).get(group, {})


@functools.cache
def _installed(path: tuple[str, ...]) -> dict[str, dict[str, Plugin]]:
    if not any(map(has_plugins, path)):
        return {}
    # This import takes longer than all the rest of a short run.
    from importlib.metadata import distributions

    found: dict[str, dict[str, Plugin]] = {}
    for distribution in distributions(path=list(path)):
        package = str(distribution.metadata["Name"])
        for point in distribution.entry_points:
            if point.group in (MODERNIZE, HINTS, DIRECTIVE_RECORDS):
                plugin = Plugin(point.name, point.value, package)
                other = found.setdefault(point.group, {}).setdefault(point.name, plugin)
                if other != plugin:
                    raise BadPlugin(
                        f"the packages {other.package} and {package} both have a `{point.name}` in the entry points "
                        f"{point.group}; uninstall one"
                    )
    return found


_FILE = "entry_points.txt"
_MARK = b"[mmrewrite."


def has_plugins(folder: str) -> bool:
    """Whether a folder of the import path may hold a package with entry points for us."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return False
    for name in names:
        path = os.path.join(name, _FILE)
        try:
            # Whoever opens a pipe waits for a writer, and the current folder may be one of these.
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    if _MARK in file.read():
                        return True
        except OSError:
            continue
    return False
