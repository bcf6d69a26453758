"""Results of earlier runs, in the platform's cache folder: a run over files that have not changed reads its results.

A result is found by all that it depends on: the bytes and the names of the files, the settings, and the code of the
tool and its codemods. Files that the engine came upon on its way (imported modules, mostly) are not known before it has
run, so they are listed with the result and compared when it is found. So no result is ever stale.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import marshal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from typing import Any

from mmrewrite import __version__
from mmrewrite.cli.replay import code_states, spec_state
from mmrewrite.engine.settings import Settings
from mmrewrite.files.cache_folder import cache_folder, hash_of, keep_in, kept, kept_name
from mmrewrite.files.select import Rules, Selection
from mmrewrite.files.walk import folder_states, load_file, load_place
from mmrewrite.results import CompatUse, Edit, HintError, HintReference, LeftAlone, Refusal, Rewrite
from mmrewrite.source.file import SourceFile

_KIND = "results"
_LAYOUT = 3
# What the results do not depend on.
_NOT_ASKED = frozenset(("jobs", "track"))


@dataclasses.dataclass(eq=False)
class Watched:
    """The ways of an engine to other files, which note what it asks for.

    Attributes:
        selection: The files of the run.
        rules: The files that the run ignores.
        asked: For each question, a hash of its answer, as far as these are noted.
        is_noted: Whether they are: only results that are kept are compared with them.
        is_kept: Whether the results are kept for the next run.
    """

    selection: Selection
    rules: Rules
    asked: dict[str, str] = dataclasses.field(default_factory=dict)
    is_noted: bool = True
    is_kept: bool = False

    def load(self, place: str) -> bytes | None:
        """The bytes of a file that a name leads into, and what a folder holds."""
        data = load_place(place)
        if self.is_noted:
            self.asked[f"load {place}"] = hash_of(data)
        return data

    def adopt(self, place: str) -> SourceFile | None:
        """The file of the run at a place that imports lead to."""
        file = self.selection.adopt(place, self.rules)
        if self.is_noted:
            self.asked[f"adopt {place}"] = _identity(file)
        return file

    def importing(self, wanted: Callable[[bytes], bool]) -> Iterable[SourceFile]:
        """The files of the run that are not selected and pass a test; the answer depends on all of them."""
        if self.is_noted:
            self.asked["all"] = self._all()
        return self.selection.importing(wanted, self.rules)

    def _all(self) -> str:
        digest = hashlib.sha256()
        for file in self.selection.importing(lambda _: True, self.rules):
            digest.update(_identity(file).encode())
        return digest.hexdigest()

    def still(self, asked: Mapping[str, str]) -> bool:
        """Whether every question still has its answer."""
        for question, answer in asked.items():
            kind, _, place = question.partition(" ")
            if kind == "load":
                now = hash_of(load_place(place))
            elif kind == "adopt":
                now = _identity(self.selection.adopt(place, self.rules))
            else:
                now = self._all()
            if now != answer:
                return False
        return True


def cached(
    engine: str,
    settings: Settings,
    watched: Watched,
    compute: Callable[[], Sequence[Rewrite]],
    *,
    enabled: bool = True,
) -> tuple[Rewrite, ...]:
    """The results of an engine, from an earlier run if nothing has changed that they depend on.

    Args:
        engine: Its name.
        settings: The user's options.
        watched: The files of the run; the engine must get at others through this alone.
        compute: Runs the engine.
        enabled: Whether to look for results and to keep them.
    """
    files = watched.selection.files
    folder = cache_folder(_KIND) if enabled and files else None
    if folder is None:
        watched.is_noted = False
        return tuple(compute())
    name = _name(engine, settings, (*files, *watched.selection.starring))
    found = _read(folder, name, watched)
    if found is not None:
        return found
    results = tuple(compute())
    # What went wrong may go well next time: memory, or the depth of the stack.
    if not any(result.failure for result in results):
        _keep(folder, name, watched.asked, results)
        watched.is_kept = True
    return results


def _name(engine: str, settings: Settings, files: Iterable[SourceFile]) -> str:
    parts = [f"{_LAYOUT} {__version__} {sys.version} {engine} {_canonical(settings)}", *_code()]
    parts += [_identity(file) for file in files]
    return kept_name("\0".join(parts).encode(errors="surrogateescape"))


def _canonical(settings: Settings) -> str:
    """The settings as text, the same for equal settings."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for name, value in values.items():
        if isinstance(value, frozenset):
            values[name] = sorted(value)
        elif isinstance(value, Mapping):
            values[name] = sorted((key, sorted(names)) for key, names in value.items())
    return repr({name: value for name, value in values.items() if name not in _NOT_ASKED})


def _code() -> Iterator[str]:
    """The state of the code: our own, LibCST's, and that of codemods of other packages."""
    from mmrewrite.codemod.plugins import DIRECTIVE_RECORDS, HINTS, MODERNIZE, plugins

    yield from code_states()
    tops = {
        plugin.module.partition(".")[0]
        for group in (HINTS, MODERNIZE, DIRECTIVE_RECORDS)
        for plugin in plugins(group).values()
    }
    for top in sorted(tops):
        spec = PathFinder.find_spec(top)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from folder_states(folder)
        yield from spec_state(spec)


def _identity(file: SourceFile | None) -> str:
    if file is None:
        return "none"
    return repr((file.path, file.module, file.is_package, file.root, hash_of(file.data)))


def _read(folder: str, name: str, watched: Watched) -> tuple[Rewrite, ...] | None:
    """The results that were kept, None if there are none, or they are damaged or out of date."""
    data = kept(folder, name)
    if data is None:
        return None
    try:
        asked, items = marshal.loads(data)
        if not watched.still(asked):
            return None
        known = {file.path: file.data for file in watched.selection.files}
        results = tuple(_result(item, known) for item in items)
    except (ValueError, EOFError, TypeError):
        return None
    watched.asked, watched.is_kept = asked, True
    return results


def _result(item: Sequence[Any], known: Mapping[str, bytes]) -> Rewrite:
    path, mark, result, edits, refusals, errors, left, failure, compat = item
    original = known[path] if path in known else load_file(path)
    if original is None or hash_of(original) != mark:
        raise ValueError(path)
    # The hint of each is a tuple yet.
    refused: list[Any] = [Refusal(*values) for values in refusals]
    return Rewrite(
        path,
        original,
        original if result is None else result,
        tuple(
            Edit(start, end, text, names, tuple(HintReference(*hint) for hint in hints))
            for start, end, text, names, hints in edits
        ),
        tuple(dataclasses.replace(each, hint=HintReference(*each.hint)) if each.hint else each for each in refused),
        tuple(HintError(*values) for values in errors),
        tuple(LeftAlone(*values) for values in left),
        failure,
        tuple(CompatUse(*values) for values in compat),
    )


def _keep(folder: str, name: str, asked: Mapping[str, str], results: Iterable[Rewrite]) -> None:
    items = [
        (each.path, hash_of(each.original), each.result if each.changed else None, *dataclasses.astuple(each)[3:])
        for each in results
    ]
    # A cache that cannot be written is none; the run goes on.
    with contextlib.suppress(OSError):
        keep_in(folder, name, marshal.dumps((dict(asked), items)))
