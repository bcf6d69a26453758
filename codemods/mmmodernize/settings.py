"""The settings of `mmrewrite modernize`."""

from __future__ import annotations

from dataclasses import dataclass

from mmrewrite.engine.settings import Settings

DEFAULT_TARGET = (0, 10)


@dataclass(frozen=True, kw_only=True)
class ModernizeSettings(Settings):
    """The settings of the engine for old names.

    Attributes:
        target: The oldest JAX that the written code must run on.
        is_upgrade: Whether the files are known to be for older releases, so that every changed meaning is reported.
        releases: Packages and the releases of them that an upgrade leads to: what is written must run on these.
    """

    target: tuple[int, ...] = DEFAULT_TARGET
    is_upgrade: bool = False
    releases: tuple[tuple[str, str], ...] = ()
