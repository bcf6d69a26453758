"""Print again what an equal run has printed, before slow imports.

A run of paths alone, not on a terminal, depends on nothing but what `_inputs` lists and what the engine asked for on
its way, which is kept with the output and compared again. So no output is ever stale, as no result is: see
`mmrewrite.cli.cache`.
"""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from mmrewrite import __version__
from mmrewrite.cli.quick import plain_paths
from mmrewrite.codemod.plugins import has_plugins
from mmrewrite.codemod.products import HINTS, OLD_NAMES
from mmrewrite.files.cache_folder import cache_folder, hash_of, keep_in, kept, kept_name
from mmrewrite.files.walk import (
    OWN_FILE,
    PYPROJECT,
    SUFFIXES,
    folder_states,
    folders_above,
    load_file,
    load_place,
    read_file,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, TextIO

_KIND = "outputs"
_LAYOUT = 2
# The statuses of runs that have got to their end.
_WHOLE = (0, 1, 2)
_GITIGNORE = ".gitignore"
_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TERM")
# Settings that say which files are read, so that those of `_inputs` would be others.
_CHOOSES_PATHS = b"include"


class Replay:
    """One run: what it depends on, and what it prints."""

    def __init__(self, arguments: Sequence[str], paths: Sequence[str], folder: str) -> None:
        self._arguments, self._paths, self._folder = arguments, paths, folder
        self._key = self._made_key()
        # What the engine asked for beside the files of the run, and a hash of each answer; None if nobody keeps that.
        self.asked: Mapping[str, str] | None = None
        self._printed: list[_Copying] = []

    def _made_key(self) -> str | None:
        try:
            return kept_name("\0".join(_inputs(self._arguments, self._paths)).encode(errors="surrogateescape"))
        except _CannotReplay:
            return None

    def print_again(self) -> int | None:
        """Print what an equal run printed, and give its exit status; None if there was none."""
        if self._key is None:
            return None
        data = kept(self._folder, self._key)
        if data is None:
            return None
        asked, printed, said, status = marshal.loads(data)
        if any(_answer(question) != answer for question, answer in asked.items()):
            return None
        for stream, content in ((sys.stdout, printed), (sys.stderr, said)):
            stream.buffer.write(content)
            stream.flush()
        return int(status)

    def begin(self) -> None:
        """Copy what is printed from now on."""
        if self._key is not None:
            self._printed = [_Copying(sys.stdout.buffer), _Copying(sys.stderr.buffer)]
            sys.stdout = _text_over(self._printed[0], sys.stdout)
            plain = sys.stderr
            sys.stderr = _text_over(self._printed[1], plain)
            # For what is said of this run alone, such as how far it is.
            sys.stderr.__dict__["uncopied"] = plain

    def keep(self, status: object) -> None:
        """Keep what was printed for the next run, if the files are still what they were."""
        if self._key is None or self.asked is None or status not in _WHOLE or self._made_key() != self._key:
            return
        if any(stream.is_broken for stream in self._printed):
            return
        answers = {question: _answer(question) for question in self.asked}
        if any(question.startswith("load ") and answers[question] != self.asked[question] for question in answers):
            return
        sys.stdout.flush()
        sys.stderr.flush()
        data = marshal.dumps((answers, *(bytes(stream.copy) for stream in self._printed), status))
        # A cache that cannot be written is none.
        with contextlib.suppress(OSError):
            keep_in(self._folder, self._key, data)


def replay_of(arguments: Sequence[str]) -> Replay | None:
    """The replay of a command line; None if it cannot have one."""
    paths = plain_paths(arguments)
    if paths is None or not _is_plain(sys.stdout) or not _is_plain(sys.stderr) or any(map(has_plugins, sys.path)):
        return None
    folder = cache_folder(_KIND)
    return Replay(arguments, paths, folder) if folder is not None else None


def _is_plain(stream: TextIO | None) -> bool:
    return isinstance(stream, io.TextIOWrapper) and not stream.isatty()


class _CannotReplay(Exception):
    """Something that the run depends on cannot be told."""


def _inputs(arguments: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """All that a run depends on before it begins."""
    here = os.getcwd()
    yield f"{_LAYOUT} {__version__} {sys.version} {here} {list(arguments)!r}"
    yield repr(sorted(item for item in os.environ.items() if item[0] in _VARIABLES or "MMREWRITE" in item[0]))
    yield repr((sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors))
    yield from code_states()
    yield from _configuration(here)
    try:
        for root in (here, *paths):
            yield f"{root} {os.path.realpath(root)}"
            yield from _above(os.path.abspath(root))
        for path in paths:
            yield from _below(path)
    except OSError:
        raise _CannotReplay from None


def _configuration(here: str) -> Iterator[str]:
    """The files in which the configuration may stand, up to the one that counts."""
    for folder in folders_above(here):
        for name in (OWN_FILE, PYPROJECT):
            data = load_file(os.path.join(folder, name))
            yield f"{folder} {name} {hash_of(data)}"
            if data is not None and _CHOOSES_PATHS in data:
                raise _CannotReplay
        if os.path.isfile(os.path.join(folder, OWN_FILE)) or os.path.isfile(os.path.join(folder, PYPROJECT)):
            return


def _above(path: str) -> Iterator[str]:
    """What the folders above a path say of it: ignore rules, where a repository ends, and packages."""
    for folder in folders_above(os.path.dirname(path)):
        yield _folder_says(folder)


def _folder_says(folder: str) -> str:
    ignored = load_file(os.path.join(folder, _GITIGNORE))
    names = (os.path.exists(os.path.join(folder, name)) for name in (".git", "__init__.py"))
    return f"{folder} {hash_of(ignored)} {[*names]}"


def _below(path: str) -> Iterator[str]:
    """The files at or below a path that may be read."""
    unreadable: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    files = [path] if os.path.isfile(path) else list(walk(path, unreadable, passed_over))
    if unreadable or not os.path.exists(path):
        raise _CannotReplay
    yield repr(sorted(passed_over.items()))
    folders = {os.path.dirname(file) for file in files}
    while above := {os.path.dirname(folder) for folder in folders if len(folder) > len(path)} - folders:
        folders |= above
    yield from map(_folder_says, sorted(folders))
    for file in files:
        if file.endswith(SUFFIXES) or file == path:
            yield f"{file} {hash_of(read_file(file))}"


def _answer(question: str) -> str:
    """What decides the answer of a question of the engine, beside the inputs of the run."""
    kind, _, place = question.partition(" ")
    return hash_of(load_place(place)) if kind == "load" else os.path.realpath(place)


class _Copying(io.RawIOBase):
    """A stream that keeps a copy of what goes through it."""

    name = "copy"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.copy = bytearray()
        # Nobody reads the pipe any more, or the disk is full: what follows is not printed.
        self.is_broken = False

    def writable(self) -> bool:
        """Whether it takes what is printed."""
        return True

    def fileno(self) -> int:
        """The number of the other stream."""
        return self._stream.fileno()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write, and keep a copy."""
        self.copy += data
        with self._watched():
            return self._stream.write(data)

    def flush(self) -> None:
        """Have the other stream write what it holds."""
        # Python closes this one when it goes, perhaps after the other.
        if not self._stream.closed:
            with self._watched():
                self._stream.flush()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.is_broken = True
            raise


def _text_over(stream: _Copying, like: TextIO) -> TextIO:
    return io.TextIOWrapper(stream, like.encoding, like.errors, write_through=True)


def code_states() -> Iterator[str]:
    """The state of every module of the tool, of its codemods and of LibCST: an edit of one is another tool."""
    for package in ("mmrewrite", HINTS, OLD_NAMES):
        for folder in getattr(sys.modules.get(package) or __import__(package), "__path__", ()):
            yield from folder_states(folder)
    yield from spec_state(PathFinder.find_spec("libcst"))


def spec_state(spec: ModuleSpec | None) -> Iterable[str]:
    """The state of the file of a module."""
    if spec is None or spec.origin is None:
        return ()
    status = os.stat(spec.origin)
    return (f"{spec.origin} {status.st_size} {status.st_mtime_ns}",)
