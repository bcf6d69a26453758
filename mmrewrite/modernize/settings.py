"""The settings of `mmrewrite modernize`."""

from __future__ import annotations

from dataclasses import dataclass

from mmrewrite.engine.settings import Settings

DEFAULT_TARGET = (0, 10)


@dataclass(frozen=True, kw_only=True)
class ModernizeSettings(Settings):
    """The settings of the engine for old names. `target` is the oldest JAX that the written code must run on."""

    target: tuple[int, ...] = DEFAULT_TARGET
