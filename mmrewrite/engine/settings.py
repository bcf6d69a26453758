"""What a rewrite is given: the user's settings, and the files with the ways to get at others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.project.facts import Adopt, Importing, Loader, SourceFile


@dataclass(frozen=True)
class Settings:
    """What the user asked for, beyond the files.

    `selected` names the codemods that may run, None for all. `axes` are logical axis names and their device axes for
    meshes that have no `axes(...)` hint. `width` is how long a generated line may be. `jaxtyping` is whether the
    annotations of tasks say how their values are laid out.
    """

    selected: frozenset[str] | None = None
    axes: tuple[tuple[str, str | None], ...] = ()
    jobs: int = 1
    width: int = 100
    jaxtyping: bool = False


@dataclass(frozen=True)
class Sources:
    """The files given, and how to get at others."""

    given: Sequence[SourceFile]
    load: Loader
    adopt: Adopt
    importing: Importing
