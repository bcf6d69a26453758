"""The arguments of an engine: the user's settings, and the files with the ways to get at others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmrewrite.tracking import Track, untracked

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmrewrite.project.facts import Adopt, Importing, Loader, SourceFile


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The user's options that every engine has.

    `selected` names the codemods that may run, None for those that run unasked. `width` is the longest line that a
    rewrite may make, in columns; lines that are longer already may stay so. `jobs` is the largest number of processes.
    `ignored` has the codemods that must not write into a file, by its path. `track` shows how far the engine is.
    """

    selected: frozenset[str] | None = None
    width: int = 100
    jobs: int = 1
    ignored: Mapping[str, frozenset[str]] = field(default_factory=dict)
    track: Track = field(default=untracked, compare=False, repr=False)

    def runs(self, name: str, *, on_request_only: bool = False) -> bool:
        """Whether the codemod called `name` may write anything."""
        return not on_request_only if self.selected is None else name in self.selected

    def ignores(self, name: str, path: str) -> bool:
        """Whether the codemod called `name` must not write into the file at `path`."""
        return name in self.ignored.get(path, ())


@dataclass(frozen=True, kw_only=True)
class HintSettings(Settings):
    """The settings of the engine for hints.

    `axes` are logical axis names and their device axes for meshes that have no `axes(...)` hint. `jaxtyping` says that
    the annotations of tasks are layouts of their values, `by_name` that files were named one by one, so that they may
    be part of a program. `chosen` is the path and the line of a hint: then only that one is rewritten, with those that
    it stands or falls with and the meshes that they run on.
    """

    axes: tuple[tuple[str, str | None], ...] = ()
    jaxtyping: bool = False
    by_name: bool = False
    chosen: tuple[str, int] | None = None


def no_file(_: str) -> None:
    """A loader for modules that stand alone: no name leads into another file."""


def no_importers(_: Callable[[bytes], bool]) -> Iterable[SourceFile]:
    """A search through the other files of a run that has none."""
    return ()


@dataclass(frozen=True)
class Sources:
    """The files of a run that may change, and how to get at others: see `rewrite_project`."""

    files: Sequence[SourceFile]
    load: Loader = no_file
    adopt: Adopt = no_file
    importing: Importing = no_importers
    starring: Sequence[SourceFile] = ()
