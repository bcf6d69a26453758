"""The sources of a workspace, with open files as the editor has them, and what the engine says about them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmrewrite.cli.config import Config, ignored_codemods, read_config, selected_codemods
from mmrewrite.codemod.products import old_names
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.directives.vocabulary import DIRECTIVES
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.files.cache_folder import cache_folder
from mmrewrite.files.select import Rules, Selection, select_files, source_file
from mmrewrite.files.walk import SUFFIXES, load_file, shown
from mmrewrite.lsp.answers import (
    LARGEST,
    CheckedWorkspace,
    RegionRewrite,
    Request,
    Severity,
    ShownProblem,
    StepOnLine,
)
from mmrewrite.lsp.completion import axis_names
from mmrewrite.lsp.positions import Position, Units, position_at
from mmrewrite.lsp.suggestion import MISSING
from mmrewrite.plan.line_facts import line_facts
from mmrewrite.plan.read_placement import may_place, read_regions
from mmrewrite.plan.sites import SourceLine
from mmrewrite.plan.stages import plan_regions
from mmrewrite.plan.traced_bytes import KIND, traces_of
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import HintReference, Rewrite
from mmrewrite.source.failure import is_bug
from mmrewrite.source.jit_kinds import JIT_KINDS, is_jit_decorator
from mmrewrite.source.names import read_names
from mmrewrite.source.spans import first_line
from mmrewrite.source.text import SourceError, SourceText, encode_buffer, parse_quietly

_PLACE_IN_MESSAGE = re.compile(r"\(line (\d+), column (\d+)\)")
_LINK = re.compile(r"^See (https://\S+?)[.,]?(?:\s|$)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]+")
_TOO_LARGE = (
    f"longer than {LARGEST:,} characters, and not looked at here, so that other files need not wait for it; "
    "`mmrewrite check` reads it"
)
_UNKNOWN = (
    "Not known without tracing the program: bytes of values and parameters, and FLOPs. "
    "`mmrewrite plan --entry MODULE:STEP --args MODULE:FUNCTION` traces it; the bytes are shown here then, for as "
    "long as its sources stay as they are."
)


@dataclass(eq=False)
class Workspace:
    """The files of a run, in the current folder."""

    _selection: Selection | None = field(default=None, init=False)
    _config: Config | None = field(default=None, init=False)
    # What became of the files when they were last looked at, for requests that follow with no keystroke between.
    _last: tuple[Mapping[str, bytes], tuple[Rewrite, ...]] | None = field(default=None, init=False)

    def check(self, request: Request) -> CheckedWorkspace:
        """The problems of all files.

        Raises:
            ConfigError: If the configuration is wrong.
            BadPattern: If one of its patterns is.
        """
        sources = self._sources(request)
        results = self._results(sources)
        problems: dict[str, list[ShownProblem]] = {}
        for path, message in sources.selection.unreadable:
            problems.setdefault(os.path.realpath(path), []).append(
                ShownProblem((0, 0), (0, 0), message, "error", "unreadable")
            )
        for result in results:
            if result.path.endswith(".py"):
                problems.setdefault(os.path.realpath(result.path), []).extend(_problems(result, request.units))
        for path in (*sources.large, *request.large):
            problems[os.path.realpath(path)] = [ShownProblem((0, 0), (0, 0), _TOO_LARGE, "information", "size")]
        texts = (file.data.decode(errors="replace") for file in sources.files)
        return CheckedWorkspace(
            {path: tuple(found) for path, found in problems.items()},
            {os.path.realpath(result.path): frozenset(each.line for each in _hints(result)) for result in results},
            axis_names(texts, [name for name, _ in sources.config.axes]),
        )

    def rewrite(self, request: Request) -> RegionRewrite:
        """The rewrite of the hints of a line, with those that they stand or fall with."""
        sources = self._sources(request)
        path = shown(os.path.realpath(request.path))
        results = sources.rewrite((path, request.line))
        failures = list(_why_not(results, path))
        changed = [result for result in results if result.changed]
        notebooks = [result.path for result in changed if not result.path.endswith(".py")]
        if notebooks:
            failures.append(f"{notebooks[0]} changes as well, and is a notebook: run `mmrewrite apply`")
        if failures or not changed:
            return RegionRewrite({}, 0, failures[0] if failures else "there is nothing to rewrite")
        edits = {os.path.realpath(result.path): tuple(_edits(result, request.units)) for result in changed}
        hints = {
            (result.path, hint.line, hint.column) for result in changed for edit in result.edits for hint in edit.hints
        }
        return RegionRewrite(edits, len(hints))

    def step(self, request: Request) -> StepOnLine | None:
        """The compiled step on a line of a file without hints; None if there is none."""
        sources = self._sources(request)
        data = sources.load(request.path)
        name = None if data is None or may_have_hints(data) else _compiled_on(data, request.line)
        if name is None:
            return None
        known = sources.config.suggest
        about = str(known.get("entry", "")).rpartition(":")[2].rpartition(".")[2]
        is_told = ("args" in known or known.get("run")) and ("device" in known or "cluster" in known)
        if about != name or not is_told:
            return StepOnLine(name, MISSING.format(step=name))
        return StepOnLine(name, None)

    def describe(self, request: Request) -> str | None:
        """What is known about the hints of a line, as Markdown; None if it has none."""
        sources = self._sources(request)
        path = shown(os.path.realpath(request.path))
        results = self._results(sources)
        result = next((each for each in results if each.path == path), None)
        hints = [] if result is None else [hint for hint in _hints(result) if hint.line == request.line]
        if result is None or not hints:
            return None
        parts = [f"```python\n# mm: {hint.text}\n```\n\n{_meaning(hint)}".rstrip() for hint in hints]
        parts += _fate(result, request.line)
        regions = read_regions(sources.files, results, sources.load, tuple(Registry()))
        known = list(line_facts(plan_regions(regions, None), SourceLine(path, request.line)))
        parts += ["\n".join(known)] if known else []
        return "\n\n".join([*parts, *_bytes(sources, os.path.realpath(request.path), request.line)])

    def _results(self, sources: _OpenSources) -> tuple[Rewrite, ...]:
        if self._last is None or self._last[0] != sources.buffers:
            self._last = sources.buffers, sources.rewrite()
        return self._last[1]

    def _sources(self, request: Request) -> _OpenSources:
        if request.fresh or self._selection is None or self._config is None:
            self._last = None
            self._config = read_config(Path.cwd())
            included = tuple(str(self._config.folder / path) for path in self._config.include)
            paths = (included or (".",)) if request.walks else ()
            rules = Rules(self._config.folder, self._config.exclude)
            self._selection = select_files(paths, rules, may_place, SUFFIXES)
        rules = Rules(self._config.folder, self._config.exclude)
        buffers = {os.path.realpath(path): encode_buffer(text) for path, text in request.buffers.items()}
        others = {os.path.realpath(path) for path in request.others}
        # Those that are open are not read from the disk either.
        large = [file.path for file in self._selection.files if len(file.data) > LARGEST]
        passed_over = {os.path.realpath(path) for path in (*large, *request.large)} - buffers.keys()
        files = [file for file in self._selection.files if os.path.realpath(file.path) not in passed_over]
        selection = _with_buffers(replace(self._selection, files=tuple(files)), buffers, others, rules)
        return _OpenSources(self._config, rules, selection, buffers, tuple(passed_over))


@dataclass(frozen=True)
class _OpenSources:
    """The files of one look at the workspace; the `large` ones are passed over."""

    config: Config
    rules: Rules
    selection: Selection
    buffers: Mapping[str, bytes]
    large: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.selection.files

    def rewrite(self, chosen: tuple[str, int] | None = None) -> tuple[Rewrite, ...]:
        """What becomes of the files, or of one hint with those that it stands or falls with."""
        registry, others = Registry(), old_names().registry()
        settings = HintSettings(
            selected=selected_codemods(self.config.select, self.config.ignore, registry, others, registry),
            width=self.config.width,
            ignored=ignored_codemods(
                self.config, [path for path, _ in self.selection.looked_at.values()], registry, others
            ),
            axes=self.config.axes,
            jaxtyping=self.config.jaxtyping,
            chosen=chosen,
        )
        return rewrite_project(
            self.files, registry, load=self.load, adopt=self.adopt, importing=self.importing, settings=settings
        )

    def load(self, place: str) -> bytes | None:
        """The bytes of a file, as the editor has them if it is open."""
        real = os.path.realpath(place)
        return self.buffers[real] if real in self.buffers else load_file(place)

    def adopt(self, place: str) -> SourceFile | None:
        """The file of the run at a place that imports lead to."""
        file = self.selection.adopt(place, self.rules)
        return None if file is None else self._current(file)

    def importing(self, wanted: Callable[[bytes], bool]) -> Iterator[SourceFile]:
        """The files of the run that are not selected and pass a test."""
        for file in self.selection.importing(lambda _: True, self.rules):
            current = self._current(file)
            if wanted(current.data):
                yield current

    def _current(self, file: SourceFile) -> SourceFile:
        real = os.path.realpath(file.path)
        return replace(file, data=self.buffers[real]) if real in self.buffers else file


def _with_buffers(
    selection: Selection, buffers: Mapping[str, bytes], others: Collection[str], rules: Rules
) -> Selection:
    """The files of the run with open ones as the editor has them.

    An open file is of the run, unless it is excluded, or is one of the `others`, which are of another folder's run.
    """
    looked_at = dict(selection.looked_at)
    files = {os.path.realpath(file.path): file for file in selection.files}
    for real, data in buffers.items():
        if real in others and real not in looked_at:
            continue
        path, named = looked_at.get(real, (real, False))
        files.pop(real, None)
        if not named and rules.excludes(os.path.abspath(path)):
            continue
        looked_at[real] = (path, named)
        if may_place(data):
            files[real] = source_file(path, data)
    ordered = tuple(sorted(files.values(), key=lambda file: file.path))
    unreadable = tuple(each for each in selection.unreadable if os.path.realpath(each[0]) not in buffers)
    return replace(selection, files=ordered, looked_at=looked_at, unreadable=unreadable)


def _problems(result: Rewrite, units: Units) -> Iterator[ShownProblem]:
    try:
        source = SourceText.decode(result.original)
    except SourceError:
        source = SourceText("", "utf-8", False)

    def at(line: int, column: int) -> Position:
        if line > len(source.line_starts):
            return 0, 0
        return position_at(source, source.line_starts[line - 1] + column - 1, units)

    def end_of(line: int, column: int) -> Position:
        text = source.line(line) if line <= len(source.line_starts) else ""
        word = _WORD.match(text, column - 1)
        return at(line, word.end() + 1 if word else len(text) + 1)

    if result.failure is not None:
        found = _PLACE_IN_MESSAGE.search(result.failure)
        line, column = (int(found[1]), int(found[2])) if found else (1, 1)
        yield ShownProblem(at(line, column), end_of(line, column), result.failure, "error", "unreadable")
    for error in result.errors:
        start, end = at(error.line, error.column), at(error.line, error.column + error.length)
        yield ShownProblem(start, end, error.message, "error", "hint", fix=error.fix)
    for refusal in result.refusals:
        severity: Severity = "information" if refusal.is_consequence else "warning"
        start, end = at(refusal.line, refusal.column), end_of(refusal.line, refusal.column)
        hint = None if refusal.hint is None else at(refusal.hint.line, refusal.hint.column)
        yield ShownProblem(start, end, refusal.reason, severity, refusal.codemod, _link(refusal.codemod), hint=hint)


def _compiled_on(data: bytes, line: int) -> str | None:
    """The name of the function that a line compiles: its definition with decorators, or an assignment."""
    try:
        tree = parse_quietly(SourceText.decode(data).text)
    except (SourceError, SyntaxError):
        return None
    names = read_names(tree, "", is_package=False)
    for statement, scope in names.scopes.items():
        if not first_line(statement) <= line:
            continue
        if isinstance(statement, ast.FunctionDef) and line <= statement.lineno:
            if any(is_jit_decorator(names, each, scope) for each in statement.decorator_list):
                return statement.name
        elif isinstance(statement, ast.Assign) and line <= (statement.end_lineno or 0):
            made, target = statement.value, statement.targets[0]
            if isinstance(made, ast.Call) and names.resolve(made.func, scope) in JIT_KINDS:
                return getattr(target, "attr", getattr(target, "id", None))
    return None


def _why_not(results: Iterable[Rewrite], path: str) -> Iterator[str]:
    """Why a hint of the file at `path` is not rewritten, the causes first. Other programs' troubles are no reason."""
    refusals = []
    for result in results:
        if result.failure is not None and (result.path == path or is_bug(result.failure)):
            yield f"{result.path}: {result.failure}"
        if result.path == path:
            yield from (str(error).partition("\n")[0] for error in result.errors)
        refusals += [refusal for refusal in result.refusals if refusal.hint is not None]
    yield from map(str, sorted(refusals, key=lambda refusal: (refusal.is_consequence, refusal)))


def _edits(result: Rewrite, units: Units) -> Iterator[tuple[Position, Position, str]]:
    source = SourceText.decode(result.original)
    for edit in result.edits:
        yield position_at(source, edit.start, units), position_at(source, edit.end, units), edit.text


def _hints(result: Rewrite) -> tuple[HintReference, ...]:
    """The hints of a file, whatever became of them."""
    found = {hint for edit in result.edits for hint in edit.hints if not hint.text.startswith(("import ", "from "))}
    found |= {refusal.hint for refusal in result.refusals if refusal.hint is not None}
    found |= {HintReference(left.line, left.column, left.text) for left in result.left}
    return tuple(sorted(found))


def _meaning(hint: HintReference) -> str:
    """What the directive of a hint is for."""
    words = _WORD.findall(hint.text)
    directive = next((DIRECTIVES[word] for word in words if word in DIRECTIVES), None)
    return "" if directive is None else f"**{directive.name}** {directive.role.value}."


def _fate(result: Rewrite, line: int) -> Iterable[str]:
    for refusal in result.refusals:
        if refusal.hint is not None and refusal.hint.line == line:
            yield f"Refused: {refusal.reason} [{refusal.codemod}]."
    for left in result.left:
        if left.line == line:
            yield f"Left alone: {left.reason}."
    if result.failed:
        yield "This file has errors, so all of its hints stay."


def _bytes(sources: _OpenSources, path: str, line: int) -> Iterator[str]:
    """What the last traces of the program say about bytes, or why nothing is known."""
    folder = cache_folder(KIND)
    known, stale = list[str](), list[str]()
    for traced in traces_of(folder, path) if folder is not None else ():
        call = f"`{traced.step}`, traced for `{traced.arguments}`"
        changed = traced.changed_source(sources.load)
        if changed is None:
            known.append("\n".join([f"{call}:", *(f"- {sentence}" for sentence in traced.at(path, line))]))
        else:
            stale.append(f"{call}, was of other sources: {shown(changed)} has changed since. Trace it again for bytes.")
    yield from known or stale[:1] or [_UNKNOWN]


def _link(codemod: str) -> str | None:
    registry = Registry()
    found = _LINK.search(registry.page(codemod)) if codemod in registry else None
    return found[1] if found else None
