"""Draft the edits of one module: run the codemods on its hints, and again without the hints that are refused."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.codemod.fragment import Cut, cuts_inside
from mmrewrite.codemod.imports import placed_imports
from mmrewrite.codemod.layout import indent_unit
from mmrewrite.codemod.meant_tree import MeantTree
from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.codemod.site import Draft, HintMistake, Insert, Site
from mmrewrite.directives.calls import Removal
from mmrewrite.directives.collect import CommentHints, Hint, first_errors
from mmrewrite.engine.comment_places import kept_comments
from mmrewrite.engine.edits import apply_edits, ordered_edits
from mmrewrite.engine.hint_imports import HintImporters, Unused, idle_imports, removed_imports
from mmrewrite.engine.settings import HintSettings
from mmrewrite.engine.sorted_imports import with_sorted_imports
from mmrewrite.project.facts import RUNTIME, Facts
from mmrewrite.project.project import Project
from mmrewrite.results import Edit, HintError, HintReference, Refusal
from mmrewrite.source.spans import first_line, span


@dataclass(frozen=True)
class Drafted:
    """The edits of one module, and the refusals by the offset of their hint."""

    edits: tuple[Edit, ...] = ()
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    errors: tuple[HintError, ...] = ()
    failure: str | None = None


def draft_module(
    facts: Facts,
    project: Project,
    codemods: Mapping[str, type[MeshCodemod]],
    settings: HintSettings,
    excluded: Collection[int],
    importers: HintImporters | None = None,
) -> Drafted:
    """Run `codemods`, in their order, on every hint of a module that is not `excluded` by its offset.

    `importers` knows the modules that import hint functions from each other, once all hints are decided.
    """
    refused: dict[int, Refusal] = {}
    errors: list[HintError] = []
    blocked = set(excluded)
    while True:
        active = [hint for hint in facts.hints.hints if hint.start not in blocked]
        draft = Draft(
            facts,
            project,
            tuple(_outer(_cuts(facts, active, codemods, importers))),
            indent_unit(facts),
            settings.width,
            settings.axes,
        )
        stopped = _run(draft, active, codemods, refused, errors)
        if not stopped:
            edits = () if errors or facts.hints.errors else _checked_edits(draft, active, importers)
            return Drafted(edits, refused, tuple(first_errors(errors, len(errors))))
        blocked |= stopped


def _checked_edits(draft: Draft, active: Sequence[Hint], importers: HintImporters | None) -> tuple[Edit, ...]:
    """The edits of a draft, once their text is seen to say what they mean."""
    # This writes the fragments, which know only then what `_meant` asks them.
    facts, (made, imports) = draft.facts, _edits(draft)
    edits = ordered_edits(made)
    if not edits:
        return edits
    found = idle_imports(facts, draft.project, edits)
    idle = [unused for unused in found if not any(_is_edited(removal, edits) for removal in unused.removals)]
    edits = with_sorted_imports(facts, ordered_edits((*edits, *_removals(draft, idle))), draft.width)
    starts = {hint.start for hint in active}
    cuts = [_cut(facts, comment, starts) for comment in facts.hints.comments if not starts.isdisjoint(_starts(comment))]
    edits = kept_comments(facts, edits, cuts)
    meant = _meant(draft, active, importers, idle, imports)
    meant.check(facts.tree, facts.source, apply_edits(facts.source.text, edits))
    return edits


def _starts(comment: CommentHints) -> Iterator[int]:
    return (hint.start for hint in comment.hints)


def _is_edited(removal: Removal, edits: Sequence[Edit]) -> bool:
    return any(edit.start < removal.end and removal.start < edit.end for edit in edits)


def _removals(draft: Draft, idle: Sequence[Unused]) -> Iterator[Edit]:
    """The edits that take away imports which nothing needs any more."""
    codemods, hints = _users(draft)
    for removal in (removal for each in idle for removal in each.removals):
        yield Edit(removal.start, removal.end, removal.text, codemods, hints)


def _meant(
    draft: Draft,
    active: Sequence[Hint],
    importers: HintImporters | None,
    idle: Sequence[Unused],
    imports: Iterable[Edit],
) -> MeantTree:
    """What the edits of a draft mean."""
    facts, meant = draft.facts, MeantTree()
    starts = {hint.start for hint in active}
    called = [called for called in facts.hints.calls if called.hint.start in starts]
    for one in called:
        if one.call.alone:
            meant.remove(one.call.statement)
    gone: set[ast.AST] = set()
    for unused in (*removed_imports(facts, importers or HintImporters((), {facts.path: called})), *idle):
        gone.update(unused.nodes)
        for node in unused.nodes:
            meant.remove(node)
        if unused.is_whole and facts.names.is_only(unused.statement):
            meant.replace(unused.statement, "pass")
        elif unused.is_whole:
            meant.remove(unused.statement)
    stays = [one.call for one in facts.hints.calls if one.hint.start not in starts]
    meant.put_back_hints(facts.source, stays, [each for each in facts.hints.imports if each.alias not in gone])
    for fragment in draft.fragments.values():
        if fragment.meant is not None:
            if not fragment.is_whole:
                meant.hold(fragment.statement, fragment.code, is_inner=fragment.is_inner)
            meant.restate(fragment.statement, fragment.meant)
    for edit in imports:
        meant.insert_import(facts.tree, facts.source, edit.text.strip(), edit.start)
    for insert in draft.inserts:
        if insert.code:
            meant.insert(insert.code, insert.offset, above=insert.above, below=insert.below)
    return meant


def _run(
    draft: Draft,
    active: Sequence[Hint],
    codemods: Mapping[str, type[MeshCodemod]],
    refused: dict[int, Refusal],
    errors: list[HintError],
) -> set[int]:
    """Decide every site. Returns the offsets of the hints to leave out next time: those of refusals, or of a mistake.

    What a refused site has registered is taken back, so each is decided as if the refused ones before it were left out.
    """
    facts, stopped = draft.facts, set[int]()
    for name, codemod in codemods.items():
        for hint in active:
            if hint.directive != codemod.directive or hint.kind not in codemod.kinds or hint.start in stopped:
                continue
            take_back = draft.checkpoint()
            problem = _attempt(draft, hint, name, codemod)
            if isinstance(problem, Refusal):
                refused[hint.start] = problem
                together = _same_site(hint, active)
                site = [other for other in active if other.start in together]
                rest = [other for other in site if other not in draft.done]
                _collect(draft, [other for other in rest if other is not hint], codemods, refused, errors)
                stopped |= together
                if len(rest) < len(site):
                    # Others were decided while a part of this site was there.
                    return stopped
                take_back()
                continue
            if problem is not None:
                errors.append(problem)
                stopped.add(hint.start)
                take_back()
    if stopped:
        return stopped
    alone = set[int]()
    for hint in active:
        owner = hint.record.part_of
        if owner is not None and hint not in draft.done:
            message = _why_alone(hint, owner, active, facts)
            if message is not None:
                errors.append(_hint_error(facts, hint.start, hint.end - hint.start, message))
            elif not errors:
                place = hint.reference
                reason = f"left as it is: the `{owner}(...)` that it belongs to stays"
                name = next(name for name, codemod in codemods.items() if codemod.consumes(hint))
                refused[hint.start] = Refusal(
                    facts.path, place.line, place.column, reason, name, place, is_consequence=True
                )
            alone.add(hint.start)
    return alone


def _attempt(draft: Draft, hint: Hint, name: str, codemod: type[MeshCodemod]) -> Refusal | HintError | None:
    """Rewrite a site. Returns the refusal or the mistake that is in the way, None if there is none."""
    facts, site = draft.facts, Site(draft, hint, name)
    try:
        if site.is_type_checking_only():
            site.refuse("code under `TYPE_CHECKING` does not run; move the hint to code that does")
        writer = site.written_by_text()
        if writer is not None:
            site.refuse(
                f"the `{writer.id}` on line {writer.lineno} may give any name here another meaning; put the settings "
                "into a module and import them"
            )
        codemod(site).rewrite()
    except SiteRefused as refusal:
        return Refusal(facts.path, refusal.line, refusal.column, refusal.reason, name, hint.reference)
    except HintMistake as mistake:
        return _hint_error(facts, mistake.start, mistake.length, mistake.message, mistake.fix)
    draft.done.add(hint)
    return None


def _collect(
    draft: Draft,
    hints: Sequence[Hint],
    codemods: Mapping[str, type[MeshCodemod]],
    refused: dict[int, Refusal],
    errors: list[HintError],
) -> None:
    """What is wrong with the other hints of a refused statement, so that it is all said at once.

    The draft is not used afterwards: all of these hints are left out of the next.
    """
    for name, codemod in codemods.items():
        for hint in hints:
            if hint.directive != codemod.directive or hint.kind not in codemod.kinds or hint.start in refused:
                continue
            problem = _attempt(draft, hint, name, codemod)
            if isinstance(problem, Refusal):
                # Of a directive that is there twice, once.
                if all((each.line, each.reason) != (problem.line, problem.reason) for each in refused.values()):
                    refused[hint.start] = problem
            elif problem is not None and problem not in errors:
                errors.append(problem)


def _why_alone(hint: Hint, owner: str, active: Sequence[Hint], facts: Facts) -> str | None:
    """Why no hint of the directive `owner` took this one with it; None if there is one that stays."""
    every = [other for other in facts.hints.hints if other.directive == owner]
    owners = [other for other in every if other in active]
    rivals = [other for other in facts.hints.hints if other.directive == hint.directive and other is not hint]
    if not every:
        return f"`{hint.directive}` belongs to a `{owner}(...)` hint, and this module has none"
    if len(owners) > 1:
        lines = " and ".join(str(other.reference.line) for other in owners)
        return f"this module has several `{owner}(...)`, on lines {lines}; write `{hint.directive}(...)` behind one"
    if owners and rivals:
        return (
            f"the `{owner}(...)` of line {owners[0].reference.line} has an `{hint.directive}(...)` already, on line "
            f"{rivals[0].reference.line}; put all pairs into that one"
        )
    return None


def _same_site(hint: Hint, active: Sequence[Hint]) -> set[int]:
    if hint.record.whole_module or hint.implied:
        return {hint.start}
    return {other.start for other in active if other.statement is hint.statement and not other.record.whole_module}


def _hint_error(facts: Facts, start: int, length: int, message: str, fix: str | None = None) -> HintError:
    line, column = facts.source.position(start)
    return HintError.at(facts.path, line, column, message, facts.source.line(line), length, fix)


def _cuts(
    facts: Facts, active: Sequence[Hint], codemods: Mapping[str, type[MeshCodemod]], importers: HintImporters | None
) -> Iterator[Cut]:
    starts = {hint.start for hint in active}
    for comment in facts.hints.comments:
        consumed = [hint for hint in comment.hints if hint.start in starts]
        if consumed:
            start, end, text = _cut(facts, comment, starts)
            yield Cut(start, end, text, *_made_by(consumed, codemods))
    called = [called for called in facts.hints.calls if called.hint.start in starts]
    for one in called:
        for removal in one.call.removals:
            yield Cut(removal.start, removal.end, removal.text, *_made_by([one.hint], codemods))
    importers = HintImporters((), {facts.path: called}) if importers is None else importers
    for unused in removed_imports(facts, importers):
        hints, names = _made_by([one.hint for one in called], codemods)
        if not hints:
            # Only the importers of this module have hints. In this file, the edit can but point at the import.
            line, column = facts.source.position(span(facts.source, unused.statement)[0])
            hints = (HintReference(line, column, ast.unparse(unused.statement)),)
            _, names = _made_by([one.hint for one in importers.hints_of_importers(facts)], codemods)
        for removal in unused.removals:
            yield Cut(removal.start, removal.end, removal.text, hints, names, removal.spacing)


def _outer(cuts: Iterable[Cut]) -> Iterator[Cut]:
    """The cuts in the order of the text, without those in text that goes as a whole: a comment in a hint's call."""
    gone = 0
    for cut in sorted(cuts, key=lambda cut: (cut.start, -cut.end)):
        if cut.end > gone:
            yield cut
            gone = gone if cut.text else cut.end


def _made_by(
    consumed: Sequence[Hint], codemods: Mapping[str, type[MeshCodemod]]
) -> tuple[tuple[HintReference, ...], tuple[str, ...]]:
    """Consumed hints, and the names of the codemods that consume them."""
    names = {name for name, codemod in codemods.items() for hint in consumed if codemod.consumes(hint)}
    return tuple(hint.reference for hint in consumed), tuple(sorted(names))


def _cut(facts: Facts, holder: CommentHints, starts: Collection[int]) -> tuple[int, int, str]:
    """The part of a comment to remove or replace when its hints at `starts` are consumed."""
    source, comment = facts.source, holder.comment
    consumed = {hint.start for hint in holder.hints if hint.start in starts}
    remaining = [source.text[start:end] for start, end in holder.directives if start not in consumed]
    last = holder.directives[-1][1]
    if remaining:
        return comment.body, last, "; ".join(remaining)
    rest = source.text[last : comment.end].lstrip("; \t")
    if rest:
        return comment.start, comment.end - len(rest), ""
    if comment.own_line:
        return source.line_starts[comment.line - 1], source.line_end(comment.line), ""
    before = source.text[: comment.start].rstrip(" \t")
    return len(before), comment.end, ""


def _edits(draft: Draft) -> tuple[list[Edit], list[Edit]]:
    """All edits of a draft, and those of them that write new imports."""
    source, found = draft.facts.source, list[Edit]()
    runtime = draft.imports.chosen(RUNTIME) or RUNTIME
    within: set[Cut] = set()
    for fragment in draft.fragments.values():
        if not fragment.codemods:
            continue
        inside = list(cuts_inside(draft.cuts, fragment.start, fragment.end))
        within.update(inside)
        text = fragment.render(runtime, draft.width, draft.hanging, source.newline)
        hints = {*fragment.hints, *(hint for cut in inside for hint in cut.hints)}
        names = tuple(dict.fromkeys(fragment.names))
        found.append(Edit(fragment.start, fragment.end, text, names, tuple(sorted(hints))))
    imports = list(_import_edits(draft))
    inserted = {*(edit.start for edit in imports), *(insert.offset for insert in draft.inserts)}
    replaced = {
        end
        for cut in draft.cuts
        for end in (cut.start, cut.end)
        if not cut.spacing and not inserted.isdisjoint((cut.start, cut.end))
    }
    for cut in draft.cuts:
        stays = cut.spacing and not replaced.isdisjoint((cut.start, cut.end))
        if not stays and cut not in within:
            found.append(Edit(cut.start, cut.end, cut.text, cut.codemods, cut.hints))
    last = {insert.above: insert for insert in draft.inserts if insert.above is not None}
    # The sort by place is stable: at one offset imports stay above a mesh that needs them.
    found += imports
    for insert in draft.inserts:
        lines = f"{insert.indent}{insert.text}{source.newline}"
        if insert.above is not None and last[insert.above] is insert:
            lines += source.newline * _blank_lines_below(draft.facts, insert)
        if insert.apart:
            lines = source.newline * _blank_lines_above(draft, insert) + lines
        if insert.offset and source.text[insert.offset - 1] not in "\r\n":
            lines = f"{source.newline}{insert.indent}{insert.text}"
        found.append(Edit(insert.offset, insert.offset, lines, (insert.codemod,), (insert.hint.reference,)))
    return found, imports


def _blank_lines_above(draft: Draft, insert: Insert) -> int:
    """Number of blank lines that a new function of the module lacks above it (PEP 8 asks for two)."""
    source = draft.facts.source
    line, _ = source.position(insert.offset)
    if any(other.offset == insert.offset for other in draft.inserts[: draft.inserts.index(insert)]):
        return 2
    others = {source.position(other.offset)[0] for other in draft.inserts if other is not insert}
    found = 0
    for above in range(line - 1, 0, -1):
        is_blank = not source.line(above).strip()
        start, end = source.line_starts[above - 1], source.line_end(above)
        goes = any(cut.start <= start and end <= cut.end for cut in draft.cuts)
        if above in others or not (is_blank or goes):
            break
        found += is_blank
    return max(0, (1 if insert.indent else 2) - found)


def _blank_lines_below(facts: Facts, insert: Insert) -> int:
    """Number of blank lines between new lines and the definition below them: as many as it has above it now."""
    if not isinstance(insert.above, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return 0
    line = first_line(insert.above)
    start, _ = facts.source.position(insert.offset)
    if any(not facts.source.line(between).strip() for between in range(start, line)):
        return 0
    while line > 1 and facts.source.line(line - 1).lstrip().startswith("#"):
        line -= 1
    blank = itertools.takewhile(lambda above: not facts.source.line(above).strip(), range(line - 1, 0, -1))
    return sum(1 for _ in blank)


def _import_edits(draft: Draft) -> Iterator[Edit]:
    facts = draft.facts
    # New names are used from the first edited top-level statement on, so they must be imported above it.
    lines = [first_line(facts.names.top_level(fragment.statement)) for fragment in draft.fragments.values()]
    lines += [facts.source.position(insert.offset)[0] for insert in draft.inserts]
    # The name of the runtime was reserved, and perhaps no codemod wrote it.
    new = [each for name, each in draft.imports.new.items() if name != RUNTIME or draft.uses_runtime]
    for offset, text, _ in placed_imports(facts, new, min(lines)) if new else ():
        yield Edit(offset, offset, text, *_users(draft))


def _users(draft: Draft) -> tuple[tuple[str, ...], tuple[HintReference, ...]]:
    """The codemods and the hints for which imports are edited."""
    users = dict.fromkeys(name for fragment in draft.fragments.values() for name in fragment.names)
    users |= dict.fromkeys(insert.codemod for insert in draft.inserts)
    return tuple(users), tuple(sorted({hint.reference for hint in draft.done}))
