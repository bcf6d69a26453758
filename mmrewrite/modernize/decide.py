"""The gates after the byte search: read the modules, decide every site, draft what is not refused, check the result."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mmrewrite.codemod.site import SiteRefused
from mmrewrite.engine.self_check import apply_edits, bug, text_kept
from mmrewrite.modernize.ambiguous_names import unclear_uses
from mmrewrite.modernize.analysis.mesh_regions import MeshRegions
from mmrewrite.modernize.analysis.xmap_chains import XmapChains, leave_chains, leave_modules
from mmrewrite.modernize.codemod import Codemods
from mmrewrite.modernize.decision import DRAWN, Decision
from mmrewrite.modernize.edits.imports import ImportEdits
from mmrewrite.modernize.edits.line_breaking import break_grown_calls
from mmrewrite.modernize.names_in_strings import mentions
from mmrewrite.modernize.notebook import SUFFIX, NotANotebook, Notebook
from mmrewrite.modernize.settings import Settings
from mmrewrite.modernize.site import Context, Location, ModuleDraft, OldNameSite, PointEdit
from mmrewrite.modernize.uses import ModuleUses, group_by_name
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.project.facts import Facts, Loader, SourceFile, Unreadable, read_facts
from mmrewrite.project.project import Project
from mmrewrite.results import Edit, LeftAlone, Refusal, Rewrite


@dataclass(eq=False)
class _Outcome:
    edits: tuple[Edit, ...] = ()
    failure: str | None = None
    refusals: list[Refusal] = field(default_factory=list)
    left: list[LeftAlone] = field(default_factory=list)


def modernize_files(
    files: Sequence[SourceFile], codemods: Codemods, load: Loader, settings: Settings
) -> dict[str, Rewrite]:
    """Modernize the files that passed the first gate."""
    notebooks, results = _notebooks(files)
    modules = [notebooks[file.path].module if file.path in notebooks else file for file in files]
    unreadable, read = _read(file for file in modules if file.path not in results)
    results |= unreadable
    outcomes = _decide(read, codemods, load, settings)
    for facts in read:
        results[facts.path] = _result(facts, outcomes[facts.path])
    results = _checked(results, read, codemods, load, settings)
    for path, notebook in notebooks.items():
        results[path] = notebook.back(results[path])
    return results


def _notebooks(files: Iterable[SourceFile]) -> tuple[dict[str, Notebook], dict[str, Rewrite]]:
    """The notebooks among the files, and what to say of those that are none."""
    notebooks: dict[str, Notebook] = {}
    results: dict[str, Rewrite] = {}
    for file in files:
        if file.path.endswith(SUFFIX):
            try:
                notebooks[file.path] = Notebook.read(file)
            except NotANotebook as problem:
                results[file.path] = Rewrite(file.path, file.data, file.data, failure=str(problem))
    return notebooks, results


def _read(files: Iterable[SourceFile]) -> tuple[dict[str, Rewrite], list[Facts]]:
    results: dict[str, Rewrite] = {}
    read: list[Facts] = []
    for file in sorted(files, key=lambda file: file.path):
        facts = read_facts(file, ())
        if isinstance(facts, Unreadable):
            results[file.path] = Rewrite(file.path, file.data, file.data, failure=facts.message)
        else:
            read.append(_without_synonyms(facts))
    return results, read


def _without_synonyms(facts: Facts) -> Facts:
    """Old homes of a name are what this is about, so they are not taken for the new ones."""
    facts.names.synonyms = {}
    return facts


class _OldProject(Project):
    """A project whose modules are read without taking old names for new ones."""

    def _read(self, place: str, name: str, is_package: bool, root: str) -> Facts | None:
        facts = super()._read(place, name, is_package, root)
        return None if facts is None else _without_synonyms(facts)


def _decide(modules: Sequence[Facts], codemods: Codemods, load: Loader, settings: Settings) -> dict[str, _Outcome]:
    ordered = dict(sorted(codemods.items()))
    owners = group_by_name({name: (*codemod.names, *codemod.moved) for name, codemod in ordered.items()})
    active = {
        name for name, codemod in codemods.items() if settings.runs(name, on_request_only=codemod.on_request_only)
    }
    moved = {old: new for name in sorted(active) for old, new in codemods[name].moved.items()}
    project = _OldProject(modules, load, ())
    context = Context(project, {facts.path: ModuleUses(facts) for facts in modules}, settings, moved)
    outcomes = {facts.path: _Outcome() for facts in modules}
    decisions = [
        _judge(place, name, codemods, context)
        for module in context.modules.values()
        for name, codemod in ordered.items()
        for place in codemod.find(module, context)
    ]

    def judge_again(decision: Decision) -> Decision:
        return leave_chains([_judge(decision.place, decision.codemod, codemods, context)], context)[0]

    decisions = _decide_together(leave_chains(decisions, context), context, codemods, judge_again)
    decisions = leave_modules(decisions, context, codemods)
    for decision in decisions:
        outcome = outcomes[decision.place.path]
        if decision.refusal is not None:
            outcome.refusals.append(decision.refusal)
        elif decision.left is not None:
            outcome.left.append(_left(decision.place, decision.left))
    for path, module in context.modules.items():
        outcome = outcomes[path]
        try:
            draft = ModuleDraft(module)
            for decision in decisions:
                if decision.place.module is module and not decision.stays:
                    codemods[decision.codemod](OldNameSite(decision.place, draft, context, decision.codemod)).rewrite()
            kept = {
                decision.place.use.name
                for decision in decisions
                if decision.place.module is module and decision.stays and decision.place.use is not None
            }
            kept |= {name for codemod in codemods.values() for name in codemod.keeps(module)}
            if draft.edits or context.analysis(XmapChains).line_in(module) is None:
                draft.edits += tuple(ImportEdits(draft, context, owners, active, kept).edits())
            outcome.edits = break_grown_calls(tuple(_ordered(draft.edits)), module, settings.width)
        except Exception as error:
            outcome.failure = bug(_where(error))
        outcome.left += mentions(module, owners)
        told = {(item.line, item.column) for item in outcome.refusals} | {
            (item.line, item.column) for item in outcome.left
        }
        outcome.left += (item for item in unclear_uses(module, owners) if (item.line, item.column) not in told)
    return outcomes


def _judge(place: Location, name: str, codemods: Codemods, context: Context) -> Decision:
    """Try one site by itself."""
    guard = guard_of(place.module, place.node)
    if guard is not None:
        return Decision(place, name, left=guard)
    if not context.settings.runs(name, on_request_only=codemods[name].on_request_only):
        return Decision(place, name, left=f"{name} is not selected")
    site = OldNameSite(place, ModuleDraft(place.module), context, name)
    try:
        codemods[name](site).rewrite()
    except SiteRefused as refusal:
        found = Refusal(place.path, refusal.line, refusal.column, refusal.reason, name)
        return Decision(place, name, refusal=found)
    return Decision(place, name)


def _is_drawn(decision: Decision) -> bool:
    """Whether a site stays only because others do."""
    return decision.refusal is not None and decision.refusal.reason.startswith(DRAWN)


def _decide_together(
    decisions: Sequence[Decision], context: Context, codemods: Codemods, judge: Callable[[Decision], Decision]
) -> list[Decision]:
    """The decisions, where no region is rewritten in part in a style that does not allow it.

    A region of which a site stays takes the compat style, in which each stands by itself, and is judged again; where it
    cannot, all of it stays.
    """
    if not any(codemods[decision.codemod].regional for decision in decisions):
        return list(decisions)
    regions = context.analysis(MeshRegions)
    changed = {number for number in _causes(decisions, regions, codemods) if regions.make_compat(number)}
    decisions = [
        judge(decision)
        if codemods[decision.codemod].regional and regions.group(decision.place.node) in changed
        else decision
        for decision in decisions
    ]
    causes = _causes(decisions, regions, codemods)
    return [_drawn(decision, regions, causes, codemods) for decision in decisions]


def _causes(decisions: Sequence[Decision], regions: MeshRegions, codemods: Codemods) -> dict[int, Decision]:
    """The first site of each region that stays for a reason of its own."""
    causes: dict[int, Decision] = {}
    for decision in decisions:
        number = regions.group(decision.place.node)
        if codemods[decision.codemod].regional and number is not None and decision.stays and not _is_drawn(decision):
            causes.setdefault(number, decision)
    return causes


def _drawn(decision: Decision, regions: MeshRegions, causes: dict[int, Decision], codemods: Codemods) -> Decision:
    place = decision.place
    number = regions.group(place.node)
    cause = causes.get(number) if number is not None else None
    stays = decision.stays and not _is_drawn(decision)
    if cause is None or stays or regions.stands_by_itself(place.node) or not codemods[decision.codemod].regional:
        return decision
    source = place.module.facts.source
    line, column = source.position(
        source.offset(getattr(place.node, "lineno", 1), getattr(place.node, "col_offset", 0))
    )
    reason = f"{DRAWN}: {cause.place.path}:{getattr(cause.place.node, 'lineno', 1)} stays as it is"
    return replace(decision, refusal=Refusal(place.path, line, column, reason, decision.codemod))


def _left(place: Location, because: str) -> LeftAlone:
    site = OldNameSite(place, ModuleDraft(place.module), Context(None, {}, Settings()), "")  # type: ignore[arg-type]
    line, column = site.source.position(site.span(place.node)[0])
    return LeftAlone(place.path, line, column, site.text(place.node).splitlines()[0], because)


def _ordered(edits: Iterable[PointEdit]) -> Iterator[Edit]:
    """Edits in order, those that say the same once; two that differ at one place are our mistake."""
    position = 0
    removed = 0
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.end <= removed and not edit.text:
            continue
        if not edit.text:
            removed = edit.end
        if edit.start < position:
            raise AssertionError(f"edits overlap at line {edit.because.line}")
        position = edit.end
        yield Edit(edit.start, edit.end, edit.text, (edit.codemod,), (edit.because,))


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}, at {os.path.basename(frame.filename)}:{frame.lineno}"


def _result(facts: Facts, outcome: _Outcome) -> Rewrite:
    data = facts.file.data
    refusals, left = tuple(sorted(set(outcome.refusals))), tuple(sorted(set(outcome.left)))
    if outcome.failure is not None:
        return Rewrite(facts.path, data, data, refusals=refusals, failure=outcome.failure)
    try:
        result = facts.source.encode(apply_edits(facts.source, outcome.edits))
    except UnicodeEncodeError as error:
        return Rewrite(facts.path, data, data, failure=f"the result cannot be written in this file's encoding: {error}")
    return Rewrite(facts.path, data, result, outcome.edits, refusals, (), left)


def _checked(
    results: dict[str, Rewrite], read: Sequence[Facts], codemods: Codemods, load: Loader, settings: Settings
) -> dict[str, Rewrite]:
    """Hold our own output to what it promises: it parses, and a second pass leaves it alone."""
    if not any(result.changed for result in results.values()):
        return results
    again: list[Facts] = []
    for facts in read:
        result = results[facts.path]
        second = read_facts(replace(facts.file, data=result.result), ())
        if isinstance(second, Unreadable):
            results[facts.path] = _failed(result, f"the modernized file does not parse: {second.message}")
            again.append(_without_synonyms(_reread(facts)))
            continue
        if text_kept(facts, result) != facts.source.text:
            results[facts.path] = _failed(result, "text outside the edited places changed")
        again.append(_without_synonyms(second))
    outcomes = _decide(again, codemods, load, settings)
    for facts in again:
        if results[facts.path].changed and _result(facts, outcomes[facts.path]).changed:
            results[facts.path] = _failed(results[facts.path], "a second run would change the file again")
    return results


def _reread(facts: Facts) -> Facts:
    found = read_facts(facts.file, ())
    assert isinstance(found, Facts)
    return found


def _failed(result: Rewrite, problem: str) -> Rewrite:
    return Rewrite(result.path, result.original, result.original, refusals=result.refusals, failure=bug(problem))
