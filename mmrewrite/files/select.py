"""Choose the files of a run: walk, prune, search for the marker, and only then apply the ignore rules.

In this order because few files have hints, and pathspec is slow to import and to match.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mmrewrite.directives.vocabulary import may_have_hints
from mmrewrite.project.facts import SourceFile

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MANIFEST = "mmrewrite-manifest.json"

_PRUNED = frozenset(("__pycache__", "node_modules", "site-packages"))


@dataclass(frozen=True)
class Selection:
    """The files of a run.

    Attributes:
        files: The files whose content is wanted, in path order.
        looked_at: For the real path of every file at or below the paths: its path, and whether the user named it.
        unreadable: Path and reason of each file that could not be read.
    """

    files: tuple[SourceFile, ...]
    looked_at: Mapping[str, tuple[str, bool]]
    unreadable: tuple[tuple[str, str], ...]

    def adopt(self, place: str, rules: Rules) -> SourceFile | None:
        """A file of the run whose content was not wanted at first; None if it is not of the run."""
        path, named = self.looked_at.get(os.path.realpath(place), (None, False))
        data = load_file(path) if path is not None else None
        if path is None or data is None or not (named or not rules.excludes(os.path.abspath(path))):
            return None
        return source_file(path, data)

    def importing(self, wanted: Callable[[bytes], bool], rules: Rules) -> Iterator[SourceFile]:
        """Files of the run that are not selected, and whose content is wanted now."""
        known = {file.path for file in self.files}
        for place, (path, _) in sorted(self.looked_at.items()):
            data = load_file(path) if shown(path) not in known else None
            file = self.adopt(place, rules) if data is not None and wanted(data) else None
            if file is not None:
                yield file


@dataclass(eq=False)
class Rules:
    """Which files to ignore: `exclude` patterns, relative to the configuration's folder, and `.gitignore` files."""

    folder: Path
    exclude: Sequence[str] = ()
    _git: dict[str, GitIgnoreSpec | None] = field(default_factory=dict)
    _tops: dict[str, bool] = field(default_factory=dict)

    def excludes(self, path: str) -> bool:
        """Whether to ignore a file that was found by walking; `path` is absolute."""
        if self.exclude:
            from pathspec import GitIgnoreSpec

            inside = os.path.relpath(path, self.folder)
            if not inside.startswith("..") and GitIgnoreSpec.from_lines(self.exclude).match_file(inside):
                return True
        return self._ignored_by_git(path)

    def _ignored_by_git(self, path: str) -> bool:
        folder = os.path.dirname(path)
        while True:
            spec = self._spec(folder)
            if spec is not None:
                verdict = spec.check_file(os.path.relpath(path, folder)).include
                if verdict is not None:
                    return verdict
            parent = os.path.dirname(folder)
            if parent == folder or self._is_top(folder):
                return False
            folder = parent

    def _is_top(self, folder: str) -> bool:
        if folder not in self._tops:
            self._tops[folder] = os.path.exists(os.path.join(folder, ".git"))
        return self._tops[folder]

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._git:
            try:
                with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                self._git[folder] = None
            else:
                from pathspec import GitIgnoreSpec

                self._git[folder] = GitIgnoreSpec.from_lines(lines)
        return self._git[folder]


def select_files(
    paths: Iterable[str],
    rules: Rules,
    wanted: Callable[[bytes], bool] = may_have_hints,
    suffixes: tuple[str, ...] = (".py",),
) -> Selection:
    """Read the files at and below `paths`, and select those whose content is wanted.

    The ignore rules do not apply to a file that is itself one of `paths`.
    """
    found: dict[str, SourceFile] = {}
    unreadable: dict[str, str] = {}
    looked_at: dict[str, tuple[str, bool]] = {}
    for path, named in _all(paths, unreadable, suffixes):
        real = os.path.realpath(path)
        if real in looked_at:
            continue
        looked_at[real] = (path, named)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            unreadable[shown(path)] = error.strerror or str(error)
            continue
        if wanted(data) and (named or not rules.excludes(os.path.abspath(path))):
            found[real] = source_file(path, data)
    files = sorted(found.values(), key=lambda file: file.path)
    return Selection(tuple(files), looked_at, tuple(sorted(unreadable.items())))


def _all(paths: Iterable[str], unreadable: dict[str, str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    for path in paths:
        if os.path.isdir(path):
            for below in walk(path):
                if below.endswith(suffixes):
                    yield below, False
        elif os.path.exists(path):
            yield path, True
        else:
            unreadable[shown(path)] = "no such file or folder"


def walk(folder: str) -> Iterator[str]:
    """Files below a folder, sorted by name in each folder. Links are not followed.

    Virtual environments and mirrors of ours are skipped; both are recognized by a file in them.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names or MANIFEST in names:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and entry.name not in _PRUNED:
                yield from walk(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path


def source_file(path: str, data: bytes) -> SourceFile:
    """A file, with the name under which modules of its package import it."""
    absolute = os.path.abspath(path)
    folder, name = os.path.split(absolute)
    is_package = name == "__init__.py"
    parts = [] if is_package else [name.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return SourceFile(shown(path), data, ".".join(parts), is_package, folder.replace(os.sep, "/"))


def shown(path: str) -> str:
    """A path for messages: relative if it is below the current folder, else absolute."""
    relative = os.path.relpath(path)
    text = os.path.abspath(path) if relative.startswith("..") else relative
    return text.replace(os.sep, "/")


def load_file(path: str) -> bytes | None:
    """The bytes of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
