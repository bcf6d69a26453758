"""The gates after the byte search: read the modules, decide every site, draft the edits, check the result."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mmmodernize.codemod import Codemods, ModernizeCodemod
from mmmodernize.doubts.ambiguous_names import (
    lacking_in_copies,
    members_of_passed,
    members_of_reexported,
    names_by_star,
    unclear_uses,
)
from mmmodernize.doubts.held_functions import find_held_keywords, keywords_of_held
from mmmodernize.doubts.looked_up_names import looked_up
from mmmodernize.doubts.names_in_strings import mentions, names_in_labels
from mmmodernize.edits.grown_calls import break_grown_calls
from mmmodernize.edits.imports import ImportEdits
from mmmodernize.meshes.mesh_regions import MeshRegions
from mmmodernize.meshes.xmap_chains import has_xmaps, leave_chains
from mmmodernize.modules.held_modules import HeldModules
from mmmodernize.modules.project_as_written import ProjectAsWritten, read_as_written
from mmmodernize.modules.project_names import SET_ITSELF, OwnMembers, PatchedNames, ProjectAge, ToldNames, copy_of
from mmmodernize.names.name_index import ROOTS
from mmmodernize.names.newer_index import Lacking
from mmmodernize.names.private_index import row_of
from mmmodernize.settings import ModernizeSettings
from mmmodernize.sites.decision import (
    LEFT_WITH_REGION,
    CarriedDecision,
    Decision,
    carried,
    left_at,
    refusal_of,
    restored,
)
from mmmodernize.sites.site import Location, ModernizeContext, ModuleDraft, OldNameSite, SiteLeft
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.engine.comment_places import kept_comments
from mmrewrite.engine.edits import apply_edits, ordered_edits, without_repeats
from mmrewrite.engine.notebook import read_notebooks
from mmrewrite.engine.outcome import Outcome, outcomes_apart, rewritten, unread
from mmrewrite.engine.self_check import SecondRun, self_check
from mmrewrite.engine.sorted_imports import with_sorted_imports
from mmrewrite.project.facts import Facts, Loader, SourceFile, Unreadable
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ImportedName, ModuleUses, group_by_name
from mmrewrite.results import CompatUse, Edit, LeftAlone, Refusal, Rewrite
from mmrewrite.source.failure import failure_of
from mmrewrite.source.spans import span


def modernize_files(
    files: Sequence[SourceFile], codemods: Codemods, load: Loader, settings: ModernizeSettings
) -> dict[str, Rewrite]:
    """Modernize the files that passed the first gate."""
    notebooks, results = read_notebooks(files)
    modules = [notebooks[file.path].module if file.path in notebooks else file for file in files]
    wanted = sorted((file for file in modules if file.path not in results), key=lambda file: file.path)
    found = list(map(read_as_written, settings.track("Reading", wanted, len(wanted))))
    results |= {facts.file.path: unread(facts) for facts in found if isinstance(facts, Unreadable)}
    read = [facts for facts in found if isinstance(facts, Facts)]
    hidden = {path: tuple(notebook.hidden_text()) for path, notebook in notebooks.items()}
    run = _ModernizeRun(dict(sorted(codemods.items())), load, settings, hidden)

    def rewrite(modules: Sequence[Facts], paths: Collection[str], run: _ModernizeRun) -> dict[str, Rewrite]:
        outcomes = outcomes_apart(modules, lambda these: _decide_rest(these, paths, run))
        return {facts.path: rewritten(facts, outcomes[facts.path]) for facts in modules if facts.path in paths}

    def rewrite_again(modules: Sequence[Facts]) -> dict[str, Rewrite]:
        unchanged = set(map(id, read))
        changed = {facts.path for facts in modules if id(facts) not in unchanged}
        return rewrite(modules, changed, replace(run, is_check=True))

    results |= rewrite(read, {facts.path for facts in read}, run)
    second = SecondRun(run.read_again, rewrite_again, "modernized", "places")
    results = self_check(results, read, second, settings.track)
    for path, notebook in notebooks.items():
        results[path] = notebook.back(results[path])
    return results


@dataclass(eq=False)
class _ModernizeRun:
    """What the run over the files and the one over its results share.

    `uses` are those of the modules that were looked at: what is read from a tree alone is read once. `hidden` are the
    lines of notebooks that are not read as Python. `is_check` says that only edits are asked for. `ahead` are results
    that were read again while other processes worked.
    """

    codemods: Codemods
    load: Loader
    settings: ModernizeSettings
    hidden: Mapping[str, Sequence[Mapping[int, str]]] = field(default_factory=dict)
    is_check: bool = False
    uses: dict[Facts, ModuleUses] = field(default_factory=dict)
    ahead: dict[str, Facts | Unreadable] = field(default_factory=dict)

    def uses_of(self, facts: Facts) -> ModuleUses:
        """The uses of a module, with names that are yet to be resolved among the modules of today's run."""
        known = self.uses.get(facts)
        self.uses[facts] = ModuleUses(facts) if known is None else known.unresolved()
        return self.uses[facts]

    def read_ahead(self, facts: Facts, outcome: Outcome, context: ModernizeContext) -> None:
        """Read what becomes of a module, and what its tree alone says, since the check will ask for that."""
        result = rewritten(facts, outcome)
        if result.changed and not self.is_check:
            again = self.ahead[facts.path] = read_as_written(replace(facts.file, data=result.result))
            if isinstance(again, Facts):
                again.names.homes = context.moved
                context.project.connect(again)
                try:
                    self.uses_of(again).look_ahead()
                except Exception:
                    # The check will come upon that as well, and say so.
                    return

    def read_again(self, file: SourceFile) -> Facts | Unreadable:
        """Read a result, unless that was done ahead."""
        known = self.ahead.pop(file.path, None)
        return known if known is not None and known.file == file else read_as_written(file)


class _ModuleError(Exception):
    """A codemod, or an analysis that it asked, failed on one module."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.path, self.message = path, message


@contextmanager
def _failures_of(path: str) -> Iterator[None]:
    """Say of whatever is raised that it failed on this module."""
    try:
        yield
    except Exception as error:
        raise _ModuleError(path, failure_of(error)) from error


# An analysis of the whole project that fails does so for every module in turn. Then all of them fail.
_MOST_FAILURES = 16


def _decide_rest(modules: Sequence[Facts], paths: Collection[str], run: _ModernizeRun) -> dict[str, Outcome]:
    """The outcomes for `paths`, without those on which a codemod fails, which are then as files that are not given.

    One file's trouble is no reason to lose the others; and what other files decide must not count on its edits.
    """
    failed: dict[str, Outcome] = {}
    while True:
        rest = [facts for facts in modules if facts.path not in failed]
        try:
            return failed | _decide(rest, paths, run)
        except _ModuleError as error:
            failed[error.path] = Outcome(failure=error.message)
            if len(failed) > _MOST_FAILURES:
                return failed | {facts.path: Outcome(failure=error.message) for facts in rest}


def _decide(modules: Sequence[Facts], paths: Collection[str], run: _ModernizeRun) -> dict[str, Outcome]:
    """Decide the sites of the modules at `paths`, and draft their edits."""
    codemods, context = run.codemods, _context(modules, run)
    unseen = _nothing_unseen if run.is_check else _unseen
    found = _outcomes_beside_regions(paths, context, run, unseen)
    if found is not None:
        return found
    to_do = [path for path in context.modules if path in paths]
    return _outcomes(_by_module(_decisions(context, paths, codemods), to_do), context, codemods, unseen)


def _outcomes(
    by_module: Mapping[str, Sequence[Decision]], context: ModernizeContext, codemods: Codemods, unseen: _FindUnseen
) -> dict[str, Outcome]:
    """The outcome of every module, drafted in several processes if there is enough to do."""
    # Not before there is anything to draft.
    from mmrewrite.engine.workers import in_workers

    def outcome(path: str) -> Outcome | _ModuleError:
        try:
            module = context.modules[path]
            return _outcome(module, by_module[path], context, codemods, unseen(module, context))
        except _ModuleError as error:
            return error

    paths = list(by_module)
    size = sum(len(context.modules[path].facts.source.text) for path in paths if by_module[path])
    found: dict[str, Outcome] = {}
    settings = context.settings
    outcomes = in_workers(outcome, paths, size, settings.jobs, settings.track, "Rewriting")
    for path, result in zip(paths, outcomes, strict=True):
        if isinstance(result, _ModuleError):
            raise result
        found[path] = result
    return found


@dataclass(frozen=True)
class _Unseen:
    """Old names in text, and names that may be old ones; what fails for certain is a refusal."""

    in_text: tuple[LeftAlone, ...]
    unclear: tuple[LeftAlone | Refusal, ...]

    def besides(self, reported: Collection[tuple[int, int]]) -> Iterator[LeftAlone | Refusal]:
        """The names where nothing else is reported."""
        yield from self.in_text
        reported = {*reported, *((item.line, item.column) for item in self.in_text)}
        for item in self.unclear:
            if (item.line, item.column) not in reported:
                reported.add((item.line, item.column))
                yield item


_FindUnseen = Callable[[ModuleUses, ModernizeContext], _Unseen]


@dataclass(frozen=True)
class _BesideRegions:
    """The findings in a module, other than at sites that are decided with their regions.

    `outcome` is what becomes of the module if it has no such sites, None where that fails.
    """

    decisions: tuple[CarriedDecision, ...]
    unseen: _Unseen
    outcome: Outcome | None


def _outcomes_beside_regions(
    paths: Collection[str], context: ModernizeContext, run: _ModernizeRun, unseen: _FindUnseen
) -> dict[str, Outcome] | None:
    """The outcomes, where worker processes do what needs no regions while this one finds them.

    Returns:
        None where one process is to do all of it, and where something fails: that one knows what fails first.
    """
    from mmrewrite.engine.workers import Workers, is_enough

    codemods, settings = run.codemods, run.settings
    regional = {name: codemod for name, codemod in codemods.items() if codemod.regional}
    others = {name: codemod for name, codemod in codemods.items() if not codemod.regional}
    to_do = [path for path in context.modules if path in paths]
    size = sum(len(context.modules[path].facts.source.text) for path in to_do)
    if not is_enough(len(to_do), size, settings.jobs) or has_xmaps(context):
        return None

    def do(path: str) -> _BesideRegions | None:
        module = context.modules[path]
        try:
            decisions, besides = _decisions_alone(context, path, others), unseen(module, context)
        except Exception:
            return None
        try:
            outcome = _outcome(module, decisions, context, codemods, besides)
        except Exception:
            outcome = None
        return _BesideRegions(carried(decisions, module), besides, outcome)

    try:
        _prepare(context, run)
    except Exception:
        return None
    found: dict[str, Outcome] = {}
    order = {name: index for index, name in enumerate(codemods)}
    with Workers(do, to_do, settings.jobs - 1) as workers:
        try:
            in_regions = _by_module(_decisions(context, paths, regional), to_do)
            results = workers.results_with_help(settings.track, "Rewriting")
            for path, result in zip(to_do, results, strict=True):
                if result is None:
                    return None
                module, outcome = context.modules[path], result.outcome
                if in_regions[path]:
                    decisions = [*(restored(each, module) for each in result.decisions), *in_regions[path]]
                    in_order = sorted(decisions, key=lambda decision: order[decision.codemod])
                    outcome = _outcome(module, in_order, context, codemods, result.unseen)
                if outcome is None:
                    return None
                found[path] = outcome
                run.read_ahead(module.facts, outcome, context)
        except _ModuleError:
            return None
    return found


def _prepare(context: ModernizeContext, run: _ModernizeRun) -> None:
    """Make what every process would make for itself otherwise."""
    context.look_ahead()
    for kind in (ProjectAge, OwnMembers, PatchedNames):
        context.analysis(kind)
    if not run.is_check:
        context.analysis(HeldModules).look_ahead()
        find_held_keywords(context)


def _by_module(decisions: Iterable[Decision], paths: Iterable[str]) -> dict[str, list[Decision]]:
    """The decisions about the modules at some paths, by path."""
    found: dict[str, list[Decision]] = {path: [] for path in paths}
    for decision in decisions:
        if decision.location.path in found:
            found[decision.location.path].append(decision)
    return found


def _context(modules: Sequence[Facts], run: _ModernizeRun) -> ModernizeContext:
    codemods, settings = run.codemods, run.settings
    active = [
        name for name, codemod in codemods.items() if settings.runs(name, on_request_only=codemod.on_request_only)
    ]
    target = (*settings.target, 0, 0, 0)[:3]
    lacking = Lacking.of(dict(settings.releases)) if settings.releases else Lacking({}, {})
    homes = (item for name in active for item in codemods[name].homes(target).items())
    moved = {old: new for old, new in homes if lacking.of_name(new) is None}
    for facts in modules:
        facts.names.homes = moved
    project = ProjectAsWritten(modules, run.load, ())
    return ModernizeContext(
        project,
        {facts.path: _uses(facts, project, run) for facts in modules},
        settings,
        _owners(tuple(codemods.items())),
        frozenset(active),
        moved,
        lacking,
        run.hidden,
    )


@lru_cache(maxsize=2)
def _owners(codemods: tuple[tuple[str, type[ModernizeCodemod]], ...]) -> Mapping[str, str]:
    return group_by_name(
        {name: (*codemod.names, *codemod.moved) for name, codemod in codemods},
        [name for name, codemod in codemods if codemod.takes_the_rest],
    )


def _uses(facts: Facts, project: Project, run: _ModernizeRun) -> ModuleUses:
    with _failures_of(facts.path):
        uses = run.uses_of(facts)

        def defines(name: str) -> bool:
            package, _, own = name.partition(".")
            is_own = package in ROOTS and bool(own)
            return is_own and (copy_of(package, project, facts) is not None or project.defines(name, facts))

        uses.defines, uses.project = defines, project
        return uses


# Decide


def _decisions(context: ModernizeContext, paths: Collection[str], codemods: Codemods) -> list[Decision]:
    """Decide every site: first by itself, then as part of the call chain of an `xmap`, then with its region."""
    to_decide = [path for path in context.modules if path in paths]
    wanted = {
        path: _decisions_alone(context, path, codemods)
        for path in context.settings.track("Deciding", to_decide, len(to_decide))
    }
    regional = {name: codemod for name, codemod in codemods.items() if codemod.regional}
    decisions = [decision for found in wanted.values() for decision in found]
    if len(wanted) < len(context.modules) and any(decision.codemod in regional for decision in decisions):
        # The sites of other modules may be of the same regions.
        decisions = [
            decision
            for path in context.modules
            for decision in (wanted[path] if path in wanted else _decisions_alone(context, path, regional))
        ]
    return _decide_together(leave_chains(decisions, context), context, codemods)


def _decisions_alone(context: ModernizeContext, path: str, codemods: Codemods) -> list[Decision]:
    module = context.modules[path]
    with _failures_of(path):
        found = [
            (location, name)
            for name, codemod in codemods.items()
            if codemod.may_be_at(module, context)
            for location in codemod.find(module, context)
        ]
    return [_judge(location, name, codemods, context) for location, name in found]


def _judge(location: Location, name: str, codemods: Codemods, context: ModernizeContext) -> Decision:
    """Try one site by itself."""
    change = codemods[name].change_of(location.use.name) if location.use is not None else None
    means_another = change[:2] if change is not None and change[2] == "changes" else None
    guard = guard_of(location.module, location.node, means_another)
    row = row_of(location.use.name) if guard is not None and guard.runs and location.use is not None else None
    if guard is not None and row is not None and row.is_gone:
        reason = f"`{location.text}` {row.history}, and runs today: {guard.reason}"
        return Decision(
            location, name, refusal=Refusal(location.path, *location.position, reason, name, location.reference)
        )
    if guard is not None:
        return Decision(location, name, guard.reason, is_settled=guard.is_settled)
    if name not in context.active:
        asked = f"it still works; `mmrewrite modernize --select {name}` rewrites it"
        return Decision(location, name, asked if codemods[name].on_request_only else f"{name} is not selected")
    if context.settings.ignores(name, location.path):
        return Decision(location, name, f"{name} is ignored in this file by the configuration")
    patch = context.analysis(PatchedNames).place_of(location.use, location.module) if location.use is not None else None
    if patch is not None:
        return Decision(location, name, SET_ITSELF.format(patch))
    site = OldNameSite(location, ModuleDraft(location.module), context, name)
    try:
        codemods[name](site).rewrite()
    except SiteRefused as refused:
        refusal = Refusal(location.path, refused.line, refused.column, refused.reason, name, location.reference)
        return Decision(location, name, refusal=refusal)
    except SiteLeft as left:
        return Decision(location, name, str(left))
    except Exception as error:
        raise _ModuleError(location.path, failure_of(error)) from error
    return Decision(location, name)


def _decide_together(decisions: Sequence[Decision], context: ModernizeContext, codemods: Codemods) -> list[Decision]:
    """The decisions, where no region is rewritten in part in a style that does not allow it.

    A region of which a site stays takes the compat style, in which each site stands by itself, and is judged again;
    where it cannot, all of it stays.
    """
    if not any(codemods[decision.codemod].regional for decision in decisions):
        return list(decisions)
    regions = context.analysis(MeshRegions)

    def region_of(decision: Decision) -> int | None:
        return regions.group(decision.location.node) if codemods[decision.codemod].regional else None

    def first_that_stays(decisions: Sequence[Decision]) -> dict[int, Decision]:
        """The first site of each region that stays for a reason of its own."""
        found: dict[int, Decision] = {}
        for decision in decisions:
            number = region_of(decision)
            if number is not None and decision.stays and not decision.is_left_with_region:
                found.setdefault(number, decision)
        return found

    def judge_again(decision: Decision) -> Decision:
        return leave_chains([_judge(decision.location, decision.codemod, codemods, context)], context)[0]

    def leave_with_region(decision: Decision, causes: Mapping[int, Decision]) -> Decision:
        number, node = region_of(decision), decision.location.node
        cause = causes.get(number) if number is not None else None
        stays = decision.stays and not decision.is_left_with_region
        if cause is None or stays or regions.stands_by_itself(node):
            return decision
        line, _ = cause.location.position
        return decision.refused(f"{LEFT_WITH_REGION}: {cause.location.path}:{line} stays as it is")

    changed = {
        number for number, cause in first_that_stays(decisions).items() if regions.make_compat(number, _stays(cause))
    }
    decisions = [judge_again(each) if region_of(each) in changed else each for each in decisions]
    causes = first_that_stays(decisions)
    return [leave_with_region(decision, causes) for decision in decisions]


def _stays(cause: Decision) -> str:
    line, _ = cause.location.position
    return f"{cause.location.path}:{line}, which the same mesh context reaches, stays as it is; see its refusal"


# Draft


def _outcome(
    module: ModuleUses,
    decisions: Sequence[Decision],
    context: ModernizeContext,
    codemods: Codemods,
    unseen: _Unseen,
) -> Outcome:
    """The edits of the sites that are rewritten, and a report of the others."""
    refusals = {decision.refusal for decision in decisions if decision.refusal is not None}
    left = {decision.left for decision in decisions if decision.left is not None}
    reported = {*((item.line, item.column) for item in refusals), *((item.line, item.column) for item in left)}
    for each in unseen.besides(reported):
        if isinstance(each, Refusal):
            refusals.add(each)
        else:
            left.add(each)
    with _failures_of(module.facts.path):
        edits, failing, idle, compat = _draft(module, decisions, context, codemods)
    told = tuple(sorted(left | idle))
    return Outcome(edits, tuple(sorted(refusals | failing)), left=told, compat=tuple(sorted(compat)))


def _unseen(module: ModuleUses, context: ModernizeContext) -> _Unseen:
    with _failures_of(module.facts.path):
        unclear = (
            *unclear_uses(module, context.analysis(ToldNames).names),
            *names_by_star(module, context),
            *lacking_in_copies(module, context),
            *looked_up(module, context),
            *members_of_passed(module, context),
            *members_of_reexported(module, context),
            *keywords_of_held(module, context),
            *names_in_labels(module, context),
        )
        return _Unseen(tuple(mentions(module, context)), unclear)


def _nothing_unseen(module: ModuleUses, context: ModernizeContext) -> _Unseen:
    return _Unseen((), ())


def _redirect(draft: ModuleDraft, staying: Collection[ast.AST], context: ModernizeContext, codemods: Codemods) -> None:
    """Write the new name at the other uses of an imported name whose import stays for the use that is refused."""
    module = draft.module
    for use in module.uses([name for name in context.moved if name in draft.kept]):
        is_imported = use.is_direct and isinstance(use.node, ast.Name)
        is_set = context.analysis(PatchedNames).place_of(use, module) is not None
        if is_imported and not is_set and use.node not in staying and guard_of(module, use.node) is None:
            site = OldNameSite(Location(module, use.node, use), draft, context, context.owners[use.name])
            start, _ = site.span(use.node)
            if not any(edit.start <= start < edit.end for edit in draft.edits):
                site.replace(use.node, codemods[site.codemod](site).spelled(context.moved[use.name]))


def _draft(
    module: ModuleUses, decisions: Sequence[Decision], context: ModernizeContext, codemods: Codemods
) -> tuple[tuple[Edit, ...], set[Refusal], set[LeftAlone], set[CompatUse]]:
    """Run the codemods on the sites that are rewritten, then edit the imports that they leave unused or lack.

    Returns:
        The edits, the imports that stay and fail, those that only warn, and the uses of `mmruntime.compat`.
    """
    staying = {decision.location.node: decision.location.use for decision in decisions if decision.stays}
    patched = context.analysis(PatchedNames)
    # The name of an import here stays, whoever sets that.
    places = {item: patched.set_at(item.name, module, "") for item in module.imported if item.name in context.moved}
    set_itself = {item: place for item, place in places.items() if place is not None}
    kept = {use.name for use in staying.values() if use is not None} | {item.name for item in set_itself}
    draft = ModuleDraft(module, kept=frozenset(kept))
    for decision in decisions:
        codemod = codemods[decision.codemod](OldNameSite(decision.location, draft, context, decision.codemod))
        if not decision.stays:
            codemod.rewrite()
        elif decision.is_left_with_region:
            codemod.rewrite_left()
    _redirect(draft, staying, context, codemods)
    imports = ImportEdits(draft, context, draft.kept)
    told = list(imports.staying())
    refused = {_refused(module, context, item, reason) for item, reason, fails in told if fails}
    idle = {_left(module, item, reason) for item, reason, fails in told if not fails}
    idle |= {_left(module, item, SET_ITSELF.format(place)) for item, place in set_itself.items()}
    draft.edits += tuple(imports.edits())
    edits = ordered_edits(without_repeats(draft.edits))
    edits = with_sorted_imports(module.facts, edits, context.settings.width)
    edits = kept_comments(module.facts, break_grown_calls(edits, module, context.settings.width))
    if edits:
        source, hints = module.facts.source, module.facts.hints
        draft.meant.put_back_hints(source, [each.call for each in hints.calls], hints.imports)
        draft.meant.check(module.facts.tree, source, apply_edits(source.text, edits), module.quoted)
    return edits, refused, idle, set(draft.compat)


def _left(module: ModuleUses, item: ImportedName, reason: str) -> LeftAlone:
    source = module.facts.source
    return left_at(module, item.alias, reason, item.name, source.text[slice(*span(source, item.alias))])


def _refused(module: ModuleUses, context: ModernizeContext, item: ImportedName, reason: str) -> Refusal:
    """The refusal of an import that fails today."""
    return refusal_of(_left(module, item, reason), context.owners.get(item.name, "report_old_names"))
