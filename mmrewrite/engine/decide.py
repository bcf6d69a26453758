"""The second and third gate for the files that may hold hints: read, decide by region, draft, check, return values."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmrewrite.directives.calls import Handed
from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import Role
from mmrewrite.engine.self_check import apply_edits, bug, failed, text_kept
from mmrewrite.engine.settings import Settings, Sources
from mmrewrite.project.axis_names import with_axis_names
from mmrewrite.project.facts import Facts, Loader, SourceFile, Unreadable, has_mark, place_of, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reexported_hints import read_hinted
from mmrewrite.results import LeftAlone, Refusal, Rewrite

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod
    from mmrewrite.engine.draft import Outcome
    from mmrewrite.engine.hint_importers import Takers
    from mmrewrite.engine.regions import HintKey


_TOGETHER = "left as it is, because a step and what it reaches are rewritten together"


@dataclass(eq=False)
class _Decided:
    """The outcomes of all modules, once no refusal draws another one after it."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)
    left: dict[str, list[LeftAlone]] = field(default_factory=dict)


def rewrite_marked(
    files: Sequence[SourceFile],
    codemods: Mapping[str, type[MeshCodemod]],
    sources: Sources,
    settings: Settings,
) -> dict[str, Rewrite]:
    """Rewrite the files that passed the first gate, and those that they lead to and that name axes."""
    results: dict[str, Rewrite] = {}
    hinted: list[Facts] = []
    marked = [file for file in files if has_mark(file)]

    def importing(wanted: Callable[[bytes], bool]) -> Iterator[SourceFile]:
        yield from (file for file in sources.given if wanted(file.data))
        yield from sources.importing(wanted)

    def read(file: SourceFile, handed: Handed) -> Facts | Unreadable:
        return _read(file, codemods, settings, handed)

    found, handed = read_hinted(marked, importing, read)
    for facts in found:
        if isinstance(facts, Unreadable):
            results[facts.file.path] = Rewrite(facts.file.path, facts.file.data, facts.file.data, failure=facts.message)
        else:
            hinted.append(facts)
    if not any(True for facts in hinted for _ in facts.hints.hints):
        for facts in hinted:
            results[facts.path] = _unchanged(facts)
        return results
    read_already = {facts.file.path for facts in found}
    others = {place_of(file): file for file in sources.given if file.path not in read_already}

    def load(place: str) -> bytes | None:
        return others[place].data if place in others else sources.load(place)

    hinted = with_axis_names(hinted, others, load, sources.adopt, settings.axes, settings.jaxtyping)
    unreadable = [facts.file for facts in found if isinstance(facts, Unreadable)]
    decided = _decide(hinted, codemods, load, settings, unreadable)
    for facts in hinted:
        results[facts.path] = _result(facts, decided)
    return _checked(results, hinted, codemods, load, settings, handed)


def _read(
    file: SourceFile, codemods: Mapping[str, type[MeshCodemod]], settings: Settings, handed: Handed
) -> Facts | Unreadable:
    """One file, in which hints that are calls and stay are part of the program."""
    facts = read_facts(file, codemods.keys(), handed=handed)
    if isinstance(facts, Unreadable) or not facts.hints.calls:
        return facts
    ordered = in_order(codemods)
    reasons = {called.hint.start: _left_because(called.hint, ordered, settings) for called in facts.hints.calls}
    left = {start: because for start, because in reasons.items() if because is not None}
    return read_facts(file, codemods.keys(), left, handed) if left else facts


def _unchanged(facts: Facts) -> Rewrite:
    data = facts.file.data
    errors = tuple(sorted(facts.hints.errors))
    return Rewrite(facts.path, data, data, errors=errors, left=tuple(facts.hints.left))


def _decide(
    hinted: Sequence[Facts],
    codemods: Mapping[str, type[MeshCodemod]],
    load: Loader,
    settings: Settings,
    unreadable: Sequence[SourceFile] = (),
) -> _Decided:
    from mmrewrite.engine.regions import find_regions
    from mmrewrite.project.reach import Reach

    project = Project(hinted, load, codemods.keys())
    reach = Reach(project)
    ordered = in_order(codemods)
    decided = _Decided()
    excluded: dict[str, set[int]] = {}
    open_hints: list[tuple[Facts, Hint]] = []
    for facts in hinted:
        decided.left[facts.path] = list(facts.hints.left)
        excluded[facts.path] = set()
        for hint in facts.hints.hints:
            because = _left_because(hint, ordered, settings)
            if because is None:
                open_hints.append((facts, hint))
            else:
                excluded[facts.path].add(hint.start)
                project.withheld.add(hint)
                place = hint.reference
                decided.left[facts.path].append(LeftAlone(facts.path, place.line, place.column, place.text, because))
    regions = find_regions(hinted, reach, open_hints)
    causes: dict[HintKey, Refusal] = {}
    stale = list(hinted)
    while stale:
        for facts, outcome in _draft_all(stale, project, ordered, settings, excluded):
            decided.outcomes[facts.path] = outcome
            causes |= {(facts.path, start): refusal for start, refusal in outcome.refused.items()}
            excluded[facts.path] |= outcome.refused.keys()
        broken = _broken(hinted, decided.outcomes)
        lost = {
            mesh.hint
            for facts in hinted
            for mesh in facts.meshes
            if mesh.hint is not None and (facts.path in broken or mesh.hint.start in excluded[facts.path])
        } - project.withheld
        drawn = _drawn_in(open_hints, regions, causes, broken, ordered)
        # Who imports a mesh that will not be there must be asked again.
        project.withheld |= lost
        stale = [facts for facts in hinted if lost and facts.path not in broken]
        for facts in hinted:
            new = {start: cause for (path, start), cause in drawn.items() if path == facts.path}
            if new and facts.path not in broken:
                excluded[facts.path] |= new.keys()
                causes |= {(facts.path, start): cause for start, cause in new.items()}
                stale += [facts] if facts not in stale else []
    _let_go(decided, hinted, unreadable, project, ordered, settings, excluded)
    asked = {(facts.path, hint.start) for facts, hint in open_hints if not hint.found}
    for (path, start), refusal in causes.items():
        if (path, start) not in asked and refusal.reason.startswith(_TOGETHER):
            continue
        decided.refusals.setdefault(path, []).append(refusal)
    for codemod in ordered.values():
        for refusal in codemod.review(project, reach, tuple(hinted)):
            decided.refusals.setdefault(refusal.path, []).append(refusal)
    return decided


def _let_go(
    decided: _Decided,
    hinted: Sequence[Facts],
    unreadable: Sequence[SourceFile],
    project: Project,
    codemods: Mapping[str, type[MeshCodemod]],
    settings: Settings,
    excluded: Mapping[str, Collection[int]],
) -> None:
    """Draft again the modules whose hint imports others take, now that it is known which hints go away."""
    from mmrewrite.engine.hint_importers import Takers

    broken = _broken(hinted, decided.outcomes)
    consumed = {
        facts.path: [
            called
            for called in facts.hints.calls
            if facts.path not in broken and called.hint.start not in excluded[facts.path]
        ]
        for facts in hinted
    }
    takers = Takers(hinted, consumed, unreadable)
    stale = [facts for facts in hinted if facts.path not in broken and takers.changed(facts)]
    for facts, outcome in _draft_all(stale, project, codemods, settings, excluded, takers):
        decided.outcomes[facts.path] = outcome


def _left_because(hint: Hint, codemods: Mapping[str, type[MeshCodemod]], settings: Settings) -> str | None:
    for name in _codemods_of(hint, codemods):
        if name in hint.ignored:
            return f"`ignore[{name}]`"
        if settings.selected is not None and name not in settings.selected:
            return f"{name} is not selected"
    return None


def _draft_all(
    modules: Sequence[Facts],
    project: Project,
    codemods: Mapping[str, type[MeshCodemod]],
    settings: Settings,
    excluded: Mapping[str, Collection[int]],
    takers: Takers | None = None,
) -> Iterator[tuple[Facts, Outcome]]:
    from mmrewrite.engine.draft import Outcome, draft_module
    from mmrewrite.engine.workers import in_workers

    def draft(facts: Facts) -> Outcome:
        try:
            return draft_module(facts, project, codemods, settings, excluded[facts.path], takers)
        except RecursionError:
            return Outcome((), {}, (), "nested too deeply to be rewritten; split its longest expressions")
        except Exception as error:
            # One file's trouble is no reason to lose the others.
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            return Outcome((), {}, (), bug(f"{type(error).__name__}: {error}, at {place}"))

    work = sum(len(facts.source.text) for facts in modules)
    yield from zip(modules, in_workers(draft, modules, work, settings.jobs), strict=True)


def _drawn_in(
    hints: Sequence[tuple[Facts, Hint]],
    regions: Sequence[frozenset[HintKey]],
    causes: Mapping[HintKey, Refusal],
    broken: Collection[str],
    codemods: Mapping[str, type[MeshCodemod]],
) -> dict[HintKey, Refusal]:
    """Hints that must be left because something else of their region is, and what to say about them."""
    names = {(facts.path, hint.start): (facts, hint) for facts, hint in hints}
    found = {key for key, (_, hint) in names.items() if hint.found}
    drawn: dict[HintKey, Refusal] = {}
    for region in regions:
        # What the program says without a hint stays without harm where it cannot be rewritten.
        reasons = sorted(
            [
                f"{causes[key].path}:{causes[key].line} is refused"
                for key in region
                if key in causes and key not in found
            ]
            + [f"{path} stays as it is" for path, _ in region if path in broken]
        )
        for key in sorted(region) if reasons else ():
            if key not in causes and key in names:
                drawn[key] = _because(*names[key], reasons[0], codemods)
    users = [key for key, (_, hint) in names.items() if hint.record.role is Role.COMPILE]
    lost = {*causes, *drawn, *(key for key in users if key[0] in broken)}
    if users and all(key in lost for key in users):
        for key, (facts, hint) in names.items():
            if hint.record.whole_module and key not in causes and facts.path not in broken:
                drawn[key] = _because(facts, hint, "no step that would run on this mesh is rewritten", codemods)
    return drawn


def _broken(modules: Sequence[Facts], outcomes: Mapping[str, Outcome]) -> set[str]:
    """Modules that stay as they are, whatever else happens."""
    return {
        facts.path
        for facts in modules
        if facts.hints.errors or outcomes[facts.path].errors or outcomes[facts.path].failure is not None
    }


def _because(facts: Facts, hint: Hint, reason: str, codemods: Mapping[str, type[MeshCodemod]]) -> Refusal:

    message = f"{_TOGETHER}: {reason}"
    if hint.record.whole_module:
        message = f"left as it is: {reason}"
    name = next(iter(_codemods_of(hint, codemods)), hint.directive)
    return Refusal(facts.path, hint.reference.line, hint.reference.column, message, name)


def _codemods_of(hint: Hint, codemods: Mapping[str, type[MeshCodemod]]) -> Iterator[str]:
    """Names of the codemods whose site a hint is."""
    for name, codemod in codemods.items():
        if hint.directive in (codemod.directive, *codemod.takes) and hint.kind in codemod.kinds:
            yield name


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


def _result(facts: Facts, decided: _Decided) -> Rewrite:
    outcome = decided.outcomes[facts.path]
    data = facts.file.data
    errors = tuple(sorted((*facts.hints.errors, *outcome.errors)))
    if outcome.failure is not None:
        return Rewrite(facts.path, data, data, errors=errors, failure=outcome.failure)
    refusals = tuple(sorted(decided.refusals.get(facts.path, ())))
    left = tuple(sorted(decided.left[facts.path]))
    edits = () if errors else outcome.edits
    text = apply_edits(facts.source, edits)
    try:
        result = facts.source.encode(text)
    except UnicodeEncodeError as error:
        return Rewrite(facts.path, data, data, failure=f"the result cannot be written in this file's encoding: {error}")
    return Rewrite(facts.path, data, result, edits, refusals, errors, left)


def _checked(
    results: dict[str, Rewrite],
    hinted: Sequence[Facts],
    codemods: Mapping[str, type[MeshCodemod]],
    load: Loader,
    settings: Settings,
    handed: Handed,
) -> dict[str, Rewrite]:
    """Hold our own output to what it promises: it parses, and a second pass leaves it alone."""
    again: list[Facts] = []
    for facts in hinted:
        result = results[facts.path]
        if not result.changed:
            again.append(facts)
            continue
        file = SourceFile(facts.path, result.result, facts.file.module, facts.file.is_package, facts.file.root)
        second = _read(file, codemods, settings, handed)
        if isinstance(second, Facts):
            again.append(second)
        else:
            results[facts.path] = failed(result, f"the rewritten file does not parse: {second.message}")
        if text_kept(facts, result) != facts.source.text:
            results[facts.path] = failed(result, "text outside the edited statements changed")
    if any(results[facts.path].changed and any(True for _ in facts.hints.hints) for facts in again):
        again = with_axis_names(again, {}, load, lambda _: None, settings.axes, settings.jaxtyping)
        decided = _decide(again, codemods, load, settings)
        for facts in again:
            if results[facts.path].changed and _result(facts, decided).changed:
                results[facts.path] = failed(results[facts.path], "a second run would change the file again")
    return results
