"""The uses of names that are newer than the releases that an upgrade leads to."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mmmodernize.doubts.looked_up_names import homes_asked
from mmmodernize.modules.passed_modules import star_origins
from mmmodernize.modules.project_as_written import ProjectAsWritten, read_as_written
from mmmodernize.names.name_index import ROOTS
from mmmodernize.names.newer_index import Lacking
from mmmodernize.sites.decision import left_at
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.engine.notebook import read_notebooks
from mmrewrite.engine.outcome import Outcome, rewritten, unchanged, unread
from mmrewrite.project.facts import Facts, Loader, SourceFile, Unreadable
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone, Rewrite
from mmrewrite.source.failure import failure_of
from mmrewrite.source.names import dotted_name
from mmrewrite.source.spans import span


@dataclass(frozen=True)
class NewerUses:
    """The uses in one file, as places that are left alone.

    Attributes:
        missing: Those that nothing guards; the reason says what is not certain of one, if anything.
        guarded: Those in code that chooses by the version; the reason says where. None if the file is not read.
    """

    missing: Rewrite
    guarded: Rewrite | None = None


def uses_of_newer(
    files: Sequence[SourceFile], load: Loader, lacking: Lacking, among: Collection[str] = ()
) -> Iterator[NewerUses]:
    """The uses of names that are lacking, for each file that may have one.

    Args:
        files: The modules and notebooks.
        load: The bytes of a file that a name leads into.
        lacking: The names.
        among: The paths of files to be read whatever their bytes, as they take names from others.
    """
    gated = [file for file in files if file.path in among or lacking.may_be_in(file.data)] if lacking.names else []
    notebooks, failed = read_notebooks(gated)
    yield from map(NewerUses, failed.values())

    def back(result: Rewrite) -> Rewrite:
        return notebooks[result.path].back(result) if result.path in notebooks else result

    read: list[Facts] = []
    for file in gated:
        if file.path not in failed:
            facts = read_as_written(notebooks[file.path].module if file.path in notebooks else file)
            if isinstance(facts, Unreadable):
                yield NewerUses(back(unread(facts)))
            else:
                read.append(facts)
    project = ProjectAsWritten(read, load, ())
    for facts in read:
        try:
            found = list(_uses(ModuleUses(facts, project=project), project, lacking))
        except Exception as error:
            yield NewerUses(back(unchanged(facts.file, failure_of(error))))
            continue
        missing, guarded = (
            back(
                rewritten(facts, Outcome(left=tuple(sorted({item for item, guards in found if guards == is_guarded}))))
            )
            for is_guarded in (False, True)
        )
        yield NewerUses(missing, guarded)


def _uses(module: ModuleUses, project: Project, lacking: Lacking) -> Iterator[tuple[LeftAlone, bool]]:
    """Each use, and whether the code around it chooses by the version."""
    source = module.facts.source
    for node, name, doubt in _places(module, project, lacking):
        if lacking.of_name(name) is not None:
            guard = guard_of(module, node, wanted=lacking.wanted)
            text = source.text[slice(*span(source, node))].splitlines()[0]
            left = left_at(module, node, guard.reason if guard else doubt, name, text)
            yield replace(left, is_settled=guard is not None and guard.is_settled), guard is not None


def _places(module: ModuleUses, project: Project, lacking: Lacking) -> Iterator[tuple[ast.expr | ast.alias, str, str]]:
    """Nodes that may be a name that is lacking, with its full name, and what is not certain of it."""
    names = module.facts.names
    for item in module.imported:
        if item.name.partition(".")[0] in ROOTS:
            yield item.alias, item.name, ""
    wanted = [name for name in module.names_below(ROOTS) if lacking.of_name(name) is not None]
    for use in module.uses(wanted):
        # An alias of the project is told where it is made.
        if use.is_direct or not isinstance(use.node, ast.Name):
            yield use.node, use.name, ""
    for string in module.strings:
        for home in homes_asked(module, string, ()):
            full = f"{home}.{string.value!s}"
            if full in lacking.names:
                yield string, full, ""
    for star in names.stars:
        origins = [each for each in star_origins(module.facts, star, project) if each.partition(".")[0] in ROOTS]
        where = f"it comes by `import *` of line {star.lineno}, if nothing else binds it"
        for head, chain in module.chains if origins else ():
            for node in chain if module.scope_of(head).owner(head.id) is None else ():
                found = next((each for each in origins if f"{each}.{dotted_name(node)}" in lacking.names), None)
                if found is not None:
                    yield node, f"{found}.{dotted_name(node)}", where
