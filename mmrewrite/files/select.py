"""Choose the files of a run: walk, prune, search for the marker, and only then apply the ignore rules.

In this order because few files have hints, and pathspec is slow to import and to match.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.files.walk import folders_above, load_file, read_file, shown, walk
from mmrewrite.results import Rewrite
from mmrewrite.source.file import SourceFile, may_import_all
from mmrewrite.tracking import Track, untracked

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern


class BadPattern(ValueError):
    """A pattern of the configuration that is none, as a sentence."""


@dataclass(frozen=True)
class RewrittenProgram:
    """The files of a run, and what becomes of them.

    Attributes:
        paths: The files and folders of the run.
        rules: The files that the run ignores.
        results: The rewrites.
    """

    paths: Sequence[str]
    rules: Rules
    results: Sequence[Rewrite]


@dataclass(frozen=True)
class Selection:
    """The files of a run.

    Attributes:
        files: The files whose content is wanted, in path order.
        looked_at: For the real path of every file at or below the paths: its path, and whether the user named it.
        unreadable: Path and reason of each file or folder that could not be read.
        passed_over: Path and marker of each folder that is a virtual environment or a mirror, and was not walked.
        starring: Other files that may import all names of one of `files`, in path order.
    """

    files: tuple[SourceFile, ...]
    looked_at: Mapping[str, tuple[str, bool]]
    unreadable: tuple[tuple[str, str], ...]
    passed_over: tuple[tuple[str, str], ...] = ()
    starring: tuple[SourceFile, ...] = ()

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
    """Which files to ignore: `exclude` patterns, relative to the configuration's folder, and `.gitignore` files.

    `problems` has a sentence for each line of a `.gitignore` that is no pattern. Such a line ignores nothing, as in
    git.
    """

    folder: Path
    exclude: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    _git: dict[str, GitIgnoreSpec | None] = field(default_factory=dict)
    _tops: dict[str, bool] = field(default_factory=dict)

    def excludes(self, path: str) -> bool:
        """Whether to ignore a file that was found by walking; `path` is absolute.

        Raises:
            BadPattern: If `exclude` has a line that is no pattern.
        """
        if self.exclude and matches(self._excluded, path, self.folder):
            return True
        return self._ignored_by_git(path)

    @cached_property
    def _excluded(self) -> GitIgnoreSpec:
        return patterns(self.exclude, "exclude")

    def _ignored_by_git(self, path: str) -> bool:
        for folder in folders_above(os.path.dirname(path)):
            spec = self._spec(folder)
            verdict = None if spec is None else spec.check_file(os.path.relpath(path, folder)).include
            if verdict is not None or self._is_top(folder):
                return bool(verdict)
        return False

    def _is_top(self, folder: str) -> bool:
        if folder not in self._tops:
            self._tops[folder] = os.path.exists(os.path.join(folder, ".git"))
        return self._tops[folder]

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._git:
            path = os.path.join(folder, ".gitignore")
            data = load_file(path)
            lines = [] if data is None else data.decode(errors="replace").splitlines()
            self._git[folder] = self._read(lines, path) if lines else None
        return self._git[folder]

    def _read(self, lines: Sequence[str], path: str) -> GitIgnoreSpec:
        try:
            return patterns(lines, path)
        except BadPattern:
            good = []
            for number, line in enumerate(lines, start=1):
                try:
                    patterns([line], path)
                    good.append(line)
                except BadPattern:
                    self.problems.append(f"{shown(path)}:{number}: `{line}` is no pattern, and ignores nothing")
            return patterns(good, path)


def patterns(lines: Iterable[str], where: str) -> GitIgnoreSpec:
    """Lines as in `.gitignore`, ready to match.

    Raises:
        BadPattern: If one of them is no pattern; `where` says whose they are.
    """
    from pathspec import GitIgnoreSpec

    lines = list(lines)
    try:
        # Other backends are not always there.
        return GitIgnoreSpec.from_lines(lines, _linear_pattern(), backend="simple")
    except (ValueError, IndexError, re.error):
        if len(lines) > 1:
            for line in lines:
                patterns([line], where)
        raise BadPattern(f"`{where}`: {lines[0]!r} is no pattern; write one as in `.gitignore`") from None


@cache
def _linear_pattern() -> type[GitIgnoreSpecPattern]:
    """Patterns of pathspec, without what takes time that grows by a power of a name's length for each further star."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    class LinearPattern(GitIgnoreSpecPattern):
        @classmethod
        def pattern_to_regex(cls, pattern: Any) -> Any:
            regex, include = super().pattern_to_regex(pattern)
            return _linear(regex) if isinstance(regex, str) else regex, include

    return LinearPattern


# What pathspec writes for `*`, and for `**/` at the beginning and inside of a pattern.
_STARS, _ABOVE, _BETWEEN = re.compile(r"(?:\[\^/\]\*)+"), "(?:.+/)?", "(?:/.+)?"


def _linear(regex: str) -> str:
    """The regular expression of a pattern, which takes of each star but the last what is next, and tries no other."""
    first, *rest = regex.split(_BETWEEN)
    if rest:
        *inner, last = rest
        start, above, first = first.rpartition(_ABOVE)
        parts = [f"{start}(?>(?:.+?/)??{_in_folder(first)}(?=/))" if above else f"{_in_folder(first)}"]
        parts += [f"(?>(?:/.+?)??{_in_folder(part)}(?=/))" for part in inner]
        return "".join((*parts, _BETWEEN, _in_folder(last)))
    return _in_folder(first)


def _in_folder(regex: str) -> str:
    """The same for a part without `**`: what stands between two stars of a name is taken where it is found first."""
    first, *rest = _STARS.split(regex)
    *inner, last = rest or [""]
    between = (f"(?>[^/]*?{part})" if "/" not in part.replace("[^/]", "") else f"[^/]*{part}" for part in inner)
    return "".join((first, *between, *(["[^/]*"] if rest else []), last))


def matches(spec: GitIgnoreSpec, path: str, folder: Path) -> bool:
    """Whether an absolute path is below `folder` and matches there."""
    inside = os.path.relpath(path, folder)
    return not inside.startswith("..") and spec.match_file(inside)


def select_files(
    paths: Iterable[str],
    rules: Rules,
    wanted: Callable[[bytes], bool] = may_have_hints,
    suffixes: tuple[str, ...] = (".py",),
    track: Track = untracked,
) -> Selection:
    """Read the files at and below `paths`, and select those whose content is wanted.

    The ignore rules do not apply to a file that is itself one of `paths`. `track` shows how many files were found.
    """
    found: dict[str, SourceFile] = {}
    unreadable: dict[str, str] = {}
    looked_at: dict[str, tuple[str, bool]] = {}
    passed_over: dict[str, str] = {}
    starring: dict[str, SourceFile] = {}
    for path, named in track("Reading files", _all(paths, unreadable, passed_over, suffixes), None):
        real = os.path.realpath(path)
        # A folder may hold a file that is named as well, and the rules do not apply to that one.
        if real in looked_at and (looked_at[real][1] or not named):
            continue
        looked_at[real] = (path, named)
        try:
            data = read_file(path)
        except OSError as error:
            unreadable[shown(path)] = error.strerror or str(error)
            continue
        if wanted(data) and (named or not rules.excludes(os.path.abspath(path))):
            found[real] = source_file(path, data)
        elif may_import_all(data) and path.endswith(".py"):
            starring[real] = source_file(path, data)
    return Selection(
        tuple(sorted(found.values(), key=_path)),
        looked_at,
        tuple(sorted(unreadable.items())),
        tuple(sorted(passed_over.items())),
        tuple(sorted(starring.values(), key=_path)),
    )


def _path(file: SourceFile) -> str:
    return file.path


def _all(
    paths: Iterable[str], unreadable: dict[str, str], passed_over: dict[str, str], suffixes: tuple[str, ...]
) -> Iterator[tuple[str, bool]]:
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            unreadable[shown(path)] = "no such file or folder" if missing else error.strerror or str(error)
            continue
        if stat.S_ISDIR(mode):
            for below in walk(path, unreadable, passed_over):
                if below.endswith(suffixes):
                    yield below, False
        elif stat.S_ISREG(mode):
            yield path, True
        else:
            unreadable[shown(path)] = "neither a file nor a folder"


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
