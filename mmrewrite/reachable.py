"""The modules of a project in which logical axis names count as hints, and those hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mmrewrite.engine.rewrite import Settings
from mmrewrite.project.axis_names import declared_names, found_hints, may_name_axes
from mmrewrite.project.facts import Facts, Loader, SourceFile, place_of, read_facts
from mmrewrite.project.project import Project

Adopt = Callable[[str], SourceFile | None]


def with_axis_names(
    hinted: Sequence[Facts], others: Mapping[str, SourceFile], load: Loader, adopt: Adopt, settings: Settings
) -> list[Facts]:
    """The hinted modules, and those that they lead to and that name axes, each with the hints found in it.

    Args:
        hinted: Modules with hints, or that had some; their `hints.found` is filled in.
        others: Files without hints, by the place from which they are imported.
        load: Bytes of a file that a name leads into.
        adopt: The file at a place that may change though it was not among the marked ones, None if it may not.
        settings: What the user asked for.
    """
    meshes = [facts for facts in hinted if facts.meshes]
    if not meshes:
        return list(hinted)
    modules = [*hinted, *_reached(hinted, others, load, adopt)]
    project = Project(modules, load, ())
    groups = [project.connected(facts) for facts in meshes]
    for facts in modules:
        mine = [group for group in groups if facts in group]
        # A step may get its mesh from a module that nothing imports yet.
        mine = mine or (groups if len(groups) == 1 else [])
        known = frozenset(name for group in mine for name in declared_names(group, settings.axes))
        facts.hints.axis_names = known
        facts.hints.found = list(found_hints(facts, known, settings.jaxtyping)) if mine else []
    return modules


def _reached(hinted: Sequence[Facts], others: Mapping[str, SourceFile], load: Loader, adopt: Adopt) -> list[Facts]:
    """Modules that name axes and that the hinted ones import, however indirectly."""
    project = Project(hinted, load, ())
    known = {place_of(facts.file) for facts in hinted}
    found: list[Facts] = []
    for place, facts in project.imported_by(hinted).items():
        if place not in known and may_name_axes(facts.file.data):
            file = others.get(place) or adopt(place)
            read = read_facts(file, ()) if file is not None and file.data == facts.file.data else None
            if isinstance(read, Facts):
                found.append(read)
    return sorted(found, key=lambda facts: facts.path)
