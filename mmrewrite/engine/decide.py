"""The gates after the byte search: read the hints, decide by region, draft the edits, check the result."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrewrite.directives.calls import Reexports
from mmrewrite.directives.carrier import CARRIER
from mmrewrite.directives.collect import MOST_ERRORS, Hint
from mmrewrite.directives.comments import CARRIER_OR_NEAR
from mmrewrite.directives.vocabulary import Role
from mmrewrite.engine.hint_imports import HintImporters
from mmrewrite.engine.notebook import SUFFIX, Notebook, read_notebooks
from mmrewrite.engine.outcome import Outcome, outcomes_apart, rewritten, unchanged, unread
from mmrewrite.engine.regions import HintKey, find_regions
from mmrewrite.engine.self_check import SecondRun, self_check
from mmrewrite.engine.settings import HintSettings, Sources, no_file
from mmrewrite.project.axis_names import with_axis_names
from mmrewrite.project.facts import Facts, Importing, Loader, SourceFile, Unreadable, has_mark, read_facts
from mmrewrite.project.hinted_files import read_hinted
from mmrewrite.project.project import Project
from mmrewrite.project.reach import reach_of
from mmrewrite.results import HintError, LeftAlone, Refusal, Rewrite
from mmrewrite.source.failure import failure_of
from mmrewrite.source.file import may_import_all

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod
    from mmrewrite.engine.draft import Drafted

Codemods = Mapping[str, "type[MeshCodemod]"]

# Characters without hints that take as long to read as the rewrite of one hint takes.
_WORK_OF_HINT = 2_500

_TOGETHER = "left as it is, because a step and what it reaches are rewritten together"


def rewrite_marked(
    files: Sequence[SourceFile], codemods: Codemods, sources: Sources, settings: HintSettings
) -> dict[str, Rewrite]:
    """Rewrite the files that passed the first gate, and modules with axis names that they import."""
    # Listing the codemods adds the directives of other packages to the vocabulary.
    len(codemods)
    notebooks, results = read_notebooks(files)
    modules = [notebooks[file.path].module if file.path in notebooks else file for file in files]
    modules = [file for file in modules if file.path not in results]

    def importing(test: Callable[[bytes], bool]) -> Iterator[SourceFile]:
        for file in (*(file for file in sources.files if test(file.data)), *sources.importing(test)):
            more, failures = read_notebooks([file])
            notebooks.update(more)
            results.update(failures)
            if file.path not in failures:
                yield notebooks[file.path].module if file.path in notebooks else file

    results |= _rewrite_modules(modules, importing, codemods, sources, settings)
    for path, notebook in notebooks.items():
        result = results.get(path) or unchanged(notebook.module)
        results[path] = _with_hidden_hints(notebook, notebook.back(result))
    return results


def _with_hidden_hints(notebook: Notebook, result: Rewrite) -> Rewrite:
    """The result, and what became of hints on lines that are masked as they are not Python."""
    errors, left = list(result.errors), list(result.left)
    for cell, line, text, is_magic in notebook.hidden_lines():
        match = CARRIER_OR_NEAR.search(text)
        if match is None or not text[match.start() :].startswith(CARRIER):
            continue
        place = (f"{result.path}, cell {cell}", line, match.start() + 1)
        hint = text[match.end() :].strip()
        if is_magic:
            left.append(LeftAlone(*place, hint, "in a cell that its magic gives to another language"))
        else:
            message = "IPython code, or a cell that is not Python, is not rewritten; correct the cell, or move the hint"
            errors.append(HintError.at(*place, message, text, len(text) - match.start()))
    if len(errors) > len(result.errors):
        result = Rewrite(result.path, result.original, result.original, refusals=result.refusals)
    return replace(result, errors=tuple(errors), left=tuple(left))


def _rewrite_modules(
    files: Sequence[SourceFile],
    importing: Importing,
    codemods: Codemods,
    sources: Sources,
    settings: HintSettings,
) -> dict[str, Rewrite]:
    marked = [file for file in files if has_mark(file)]
    found, reexports = read_hinted(
        settings.track("Reading hints", marked, len(marked)),
        importing,
        lambda file, reexports: _read(file, codemods, settings, reexports),
    )
    unreadable = [facts for facts in found if isinstance(facts, Unreadable)]
    hinted = [facts for facts in found if isinstance(facts, Facts)]
    results = {facts.file.path: unread(facts) for facts in unreadable}
    if not any(map(_has_hints, hinted)):
        return results | {facts.path: rewritten(facts, _without_hints(facts)) for facts in hinted}
    read_already = {facts.file.path for facts in found}
    plain = (file for file in sources.files if not file.path.endswith(SUFFIX))
    others = {file.place: file for file in plain if file.path not in read_already}

    def load(place: str) -> bytes | None:
        return others[place].data if place in others else sources.load(place)

    hinted = with_axis_names(hinted, others, load, sources.adopt, settings.axes, settings.jaxtyping)
    starring = [*sources.starring, *(file for file in others.values() if may_import_all(file.data))]
    starred_in = [facts for facts in (read_facts(file, ()) for file in starring) if isinstance(facts, Facts)]
    callers = list(_callers(hinted, importing))

    @functools.cache
    def beside() -> Sequence[bytes]:
        may_import = _may_import(hinted)
        return [file.data for file in others.values() if may_import(file.data)]

    outcomes = _decide(hinted, codemods, load, settings, unreadable, starred_in, callers, beside)
    results |= {facts.path: rewritten(facts, outcomes[facts.path]) for facts in hinted}

    def again(modules: Sequence[Facts]) -> dict[str, Rewrite]:
        # Hints that were not chosen would be rewritten now.
        if settings.chosen is not None:
            return {}
        if not any(results[facts.path].changed and _has_hints(facts) for facts in modules):
            return {}
        modules = with_axis_names(modules, {}, load, no_file, settings.axes, settings.jaxtyping)
        outcomes = _decide(modules, codemods, load, settings, starred_in=starred_in, callers=callers, beside=beside)
        return {facts.path: rewritten(facts, outcomes[facts.path]) for facts in modules}

    second = SecondRun(
        lambda file: _read(file, codemods, settings, reexports),
        again,
        "rewritten",
        "statements",
        lambda file: bool(reexports.every) or has_mark(file),
    )
    return self_check(results, hinted, second, settings.track)


def _callers(hinted: Sequence[Facts], importing: Importing) -> Iterator[Facts]:
    """Modules that import hinted ones, if a gradient function that these call may be passed from there."""
    if not any(
        hint.record.role is Role.MICROBATCH and _calls_what_is_passed(facts, hint)
        for facts in hinted
        for hint in facts.hints.hints
    ):
        return
    known = {facts.file.path for facts in hinted}
    for file in importing(_may_import(hinted)):
        facts = read_facts(file, ()) if file.path not in known else None
        if isinstance(facts, Facts):
            yield facts


def _may_import(modules: Sequence[Facts]) -> Callable[[bytes], bool]:
    """A test of bytes: whether a file may import one of some modules, in a statement of one line or of several."""
    names = b"|".join(sorted({re.escape(facts.names.name.rpartition(".")[2]).encode() for facts in modules}))
    word = re.compile(rb"\b(?:" + names + rb")\b")
    return lambda data: b"import" in data and word.search(data) is not None


def _calls_what_is_passed(facts: Facts, hint: Hint) -> bool:
    """Whether a statement calls a parameter, or an attribute of an object, and makes no gradient function itself."""
    names, scope = facts.names, facts.scope_of(hint.statement)
    called = [call.func for call in names.calls.get(hint.statement, ())]
    if any(f"{names.resolve(each, scope)}".endswith("grad") for each in called):
        return False
    bindings = [names.binding(each.id, scope) for each in called if isinstance(each, ast.Name)]
    is_parameter = any(each is not None and each.kind == "parameter" for each in bindings)
    return is_parameter or any(
        isinstance(each, ast.Attribute) and names.resolve(each, scope) is None for each in called
    )


def _has_hints(facts: Facts) -> bool:
    return any(True for _ in facts.hints.hints)


def _without_hints(facts: Facts) -> Outcome:
    return Outcome(errors=tuple(sorted(facts.hints.errors)), left=tuple(facts.hints.left))


def _read(file: SourceFile, codemods: Codemods, settings: HintSettings, reexports: Reexports) -> Facts | Unreadable:
    """One file, in which hints that are calls and stay are part of the program."""
    facts = read_facts(file, codemods.keys(), reexports=reexports)
    if isinstance(facts, Unreadable) or not facts.hints.calls:
        return facts
    ordered = in_order(codemods)
    reasons = {
        called.hint.start: _reason_to_leave(called.hint, facts.path, ordered, settings) for called in facts.hints.calls
    }
    left = {start: reason for start, reason in reasons.items() if reason is not None}
    return read_facts(file, codemods.keys(), left, reexports) if left else facts


def _decide(
    modules: Sequence[Facts],
    codemods: Codemods,
    load: Loader,
    settings: HintSettings,
    unreadable: Sequence[Unreadable] = (),
    starred_in: Sequence[Facts] = (),
    callers: Sequence[Facts] = (),
    beside: Callable[[], Sequence[bytes]] = tuple,
) -> dict[str, Outcome]:
    """Decide all hints: the outcome of every module once refusals have stopped spreading."""
    ordered = in_order(codemods)

    def decide(modules: Sequence[Facts]) -> dict[str, Outcome]:
        project = Project(
            modules,
            load,
            codemods.keys(),
            by_name=settings.by_name,
            axes=settings.axes,
            starred_in=starred_in,
            callers=callers,
            beside=beside,
        )
        return _decided(_Decider(modules, project, ordered, settings), unreadable)

    return outcomes_apart(modules, decide)


def _decided(decider: _Decider, unreadable: Sequence[Unreadable]) -> dict[str, Outcome]:
    stale = list(decider.modules)
    while stale:
        decider.draft(stale)
        stale = decider.spread_refusals()
    decider.redraft_reexporters([facts.file for facts in unreadable])
    return decider.outcomes()


class _Decider:
    """Drafts the modules of a run until no refusal takes another hint with it.

    A refused hint takes its region with it, a module with an error takes the regions of all its hints, and a mesh that
    is not written changes what modules that import it can do. Each round only adds to `excluded` and to the meshes that
    the project withholds, so the rounds end at a fixed point, which does not depend on the order of the modules.

    Attributes:
        modules: The modules of the run.
        drafts: The latest draft of each module.
        excluded: The offsets of the hints to leave alone, by module.
        causes: Why a hint is refused.
        left: Hints that the user asked to leave alone.
    """

    def __init__(self, modules: Sequence[Facts], project: Project, codemods: Codemods, settings: HintSettings) -> None:
        self.modules, self._project, self._codemods, self._settings = modules, project, codemods, settings
        self.drafts: dict[str, Drafted] = {}
        self.causes: dict[HintKey, Refusal] = {}
        self.excluded: dict[str, set[int]] = {facts.path: set() for facts in modules}
        self.left = {facts.path: list(facts.hints.left) for facts in modules}
        self._hints = dict(self._open_hints())
        self._reach = reach_of(project)
        self._regions = find_regions(modules, self._reach, self._hints.values())
        if settings.chosen is not None:
            chosen = self._chosen(*settings.chosen)
            for key in self._hints.keys() - chosen:
                self._leave(*self._hints.pop(key), "not chosen")

    def _open_hints(self) -> Iterator[tuple[HintKey, tuple[Facts, Hint]]]:
        """The hints to rewrite; the others are left alone."""
        for facts in self.modules:
            for hint in facts.hints.hints:
                reason = _reason_to_leave(hint, facts.path, self._codemods, self._settings)
                if reason is None:
                    yield (facts.path, hint.start), (facts, hint)
                    continue
                self._leave(facts, hint, reason)

    def _leave(self, facts: Facts, hint: Hint, reason: str) -> None:
        place = hint.reference
        self.excluded[facts.path].add(hint.start)
        self._project.withheld.add(hint)
        self.left[facts.path].append(LeftAlone(facts.path, place.line, place.column, place.text, reason))

    def _chosen(self, path: str, line: int) -> set[HintKey]:
        """The hints of a line, those of their regions, and those about the modules that these hints are in."""
        named = {key for key, (_, hint) in self._hints.items() if key[0] == path and hint.reference.line == line}
        if any(self._hints[key][1].record.whole_module for key in named):
            around = self._around({path})
            named |= {key for key in self._hints if key[0] in around}
        chosen = named.union(*(region for region in self._regions if not region.isdisjoint(named))) & self._hints.keys()
        around = self._around({key[0] for key in chosen})
        return chosen | {key for key, (_, hint) in self._hints.items() if hint.record.whole_module and key[0] in around}

    def _around(self, paths: Collection[str]) -> set[str]:
        """Modules, and those that are connected with them by imports."""
        return {other.path for facts in self.modules if facts.path in paths for other in self._project.connected(facts)}

    def draft(self, modules: Sequence[Facts], importers: HintImporters | None = None) -> None:
        """Run the codemods on the hints of some modules that are not excluded."""
        # Not before the first hint is found: this imports LibCST.
        from mmrewrite.engine.draft import Drafted, draft_module
        from mmrewrite.engine.workers import in_workers

        def draft(facts: Facts) -> Drafted:
            excluded = self.excluded[facts.path]
            if len(facts.hints.errors) > MOST_ERRORS:
                # It stays as it is, and more of what is wrong with it would not be shown.
                return Drafted()
            try:
                drafted = draft_module(facts, self._project, self._codemods, self._settings, excluded, importers)
                unparsed = self._project.unparsed_import(facts) if drafted.edits else None
                return drafted if unparsed is None else Drafted(failure=f"it imports {unparsed}")
            except Exception as error:
                # One file's trouble is no reason to lose the others.
                return Drafted(failure=failure_of(error))

        work = sum(len(facts.source.text) + _WORK_OF_HINT * len(list(facts.hints.hints)) for facts in modules)
        settings = self._settings
        drafts = in_workers(draft, modules, work, settings.jobs, settings.track, "Rewriting")
        for facts, drafted in zip(modules, drafts, strict=True):
            self.drafts[facts.path] = drafted
            self.causes |= {(facts.path, start): refusal for start, refusal in drafted.refused.items()}
            self.excluded[facts.path] |= drafted.refused.keys()

    def spread_refusals(self) -> list[Facts]:
        """Refuse the hints that cannot be rewritten without the refused ones. Returns the modules to draft again."""
        broken = self._broken()
        lost = {
            mesh.hint
            for facts in self.modules
            for mesh in facts.meshes
            if mesh.hint is not None and (facts.path in broken or mesh.hint.start in self.excluded[facts.path])
        } - self._project.withheld
        refused = self._refused_with_region(broken)
        refused |= self._hints_without_step(broken, refused)
        self._project.withheld |= lost
        for (path, start), refusal in refused.items():
            if path not in broken:
                self.excluded[path].add(start)
                self.causes[path, start] = refusal
        # Modules that import a mesh which is no longer written have to do without.
        stale = {facts.path for facts in self.modules} if lost else {path for path, _ in refused}
        return [facts for facts in self.modules if facts.path in stale - broken]

    def _broken(self) -> set[str]:
        """Modules that stay as they are, whatever else happens."""
        drafts = self.drafts
        return {
            facts.path
            for facts in self.modules
            if facts.hints.errors or drafts[facts.path].errors or drafts[facts.path].failure is not None
        }

    def _refused_with_region(self, broken: Collection[str]) -> dict[HintKey, Refusal]:
        """Hints that stay because another of their region does, with the refusal that says so."""
        refused: dict[HintKey, Refusal] = {}
        for region in self._regions:
            # Axis names that the program has without a hint do no harm where they stay.
            causes = [key for key in region if key in self.causes and not self._is_implied(key)]
            places: list[tuple[str, int | None]] = [(self.causes[key].path, self.causes[key].line) for key in causes]
            places += [(path, None) for path, _ in region if path in broken]
            reasons = sorted(
                (f"{path} stays as it is" if line is None else f"{path}:{line} is refused", (path, line))
                for path, line in places
            )
            for key in sorted(region) if reasons else ():
                if key in self._hints and key not in self.causes:
                    refused[key] = self._refusal(key, *reasons[0])
        return refused

    def _hints_without_step(
        self, broken: Collection[str], refused: Mapping[HintKey, Refusal]
    ) -> dict[HintKey, Refusal]:
        """All other hints, when no step of the run is rewritten.

        Meshes would have no step, and a model that a step is given as an argument may belong to one that stays.
        """
        steps = [key for key, (_, hint) in self._hints.items() if hint.record.role is Role.COMPILE]
        if not steps or not all(key in self.causes or key in refused or key[0] in broken for key in steps):
            return {}
        return {
            key: self._refusal(
                key,
                "no step that would run on this mesh is rewritten"
                if hint.record.whole_module
                else "no step of this run is rewritten",
            )
            for key, (facts, hint) in self._hints.items()
            if key not in self.causes and key not in refused and facts.path not in broken
        }

    def _is_implied(self, key: HintKey) -> bool:
        return key in self._hints and self._hints[key][1].implied

    def _refusal(self, key: HintKey, reason: str, cause: tuple[str, int | None] | None = None) -> Refusal:
        facts, hint = self._hints[key]
        start = "left as it is" if hint.record.whole_module else _TOGETHER
        name = next(iter(_codemods_of(hint, self._codemods)), hint.directive)
        place = hint.reference
        reason = f"{start}: {reason}"
        return Refusal(facts.path, place.line, place.column, reason, name, place, is_consequence=True, cause=cause)

    def redraft_reexporters(self, unreadable: Sequence[SourceFile]) -> None:
        """Draft modules that re-export hint functions again, now that it is known which hints go away."""
        broken = self._broken()
        consumed = {
            facts.path: [
                called
                for called in facts.hints.calls
                if facts.path not in broken and called.hint.start not in self.excluded[facts.path]
            ]
            for facts in self.modules
        }
        importers = HintImporters(self.modules, consumed, unreadable)
        stale = [facts for facts in self.modules if facts.path not in broken and importers.is_reexporter(facts)]
        self.draft(stale, importers)

    def outcomes(self) -> dict[str, Outcome]:
        """The outcome of every module, after its last draft."""
        refusals: dict[str, list[Refusal]] = {facts.path: [] for facts in self.modules}
        for key, refusal in self.causes.items():
            # A hint that nobody wrote is not worth a report when it stays only with its region.
            if not (self._is_implied(key) and refusal.reason.startswith(_TOGETHER)):
                refusals[key[0]].append(refusal)
        for codemod in self._codemods.values():
            for refusal in codemod.review(self._project, self._reach, tuple(self.modules)):
                refusals.setdefault(refusal.path, []).append(refusal)
        return {facts.path: self._outcome(facts, refusals[facts.path]) for facts in self.modules}

    def _outcome(self, facts: Facts, refusals: Sequence[Refusal]) -> Outcome:
        drafted = self.drafts[facts.path]
        errors = tuple(sorted((*facts.hints.errors, *drafted.errors)))
        if drafted.failure is not None:
            return Outcome(errors=errors, failure=drafted.failure)
        edits = () if errors else drafted.edits
        return Outcome(edits, tuple(sorted(refusals)), errors, tuple(sorted(self.left[facts.path])))


def _reason_to_leave(hint: Hint, path: str, codemods: Codemods, settings: HintSettings) -> str | None:
    """Why the user wants a hint of the file at `path` left alone, else None."""
    for name in _codemods_of(hint, codemods):
        if name in hint.ignored:
            return f"`ignore[{name}]`"
        if settings.ignores(name, path):
            return f"{name} is ignored in this file by the configuration"
        if not settings.runs(name):
            return f"{name} is not selected"
    return None


def _codemods_of(hint: Hint, codemods: Codemods) -> Iterator[str]:
    """Names of the codemods that use a hint up."""
    return (name for name, codemod in codemods.items() if codemod.consumes(hint))


def in_order(codemods: Mapping[str, type[MeshCodemod]]) -> dict[str, type[MeshCodemod]]:
    """Codemods in an order that respects every `run_after`, else by name.

    Raises:
        ValueError: If `run_after` names no codemod or goes round in a circle.
    """
    ordered: dict[str, type[MeshCodemod]] = {}
    waiting = {name: codemods[name] for name in sorted(codemods)}
    for name, codemod in waiting.items():
        for before in codemod.run_after:
            if before not in waiting:
                raise ValueError(f"{name}: `run_after` names {before!r}, and there is no such codemod.")
    while waiting:
        ready = next((name for name in waiting if all(before in ordered for before in waiting[name].run_after)), None)
        if ready is None:
            raise ValueError(f"`run_after` goes round in a circle among {', '.join(waiting)}.")
        ordered[ready] = waiting.pop(ready)
    return ordered
