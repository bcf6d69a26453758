"""The modules of a project in which logical axis names count as hints, and those hints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mmrewrite.axis_names import declared_names, found_hints, may_name_axes
from mmrewrite.engine import Settings
from mmrewrite.project import Facts, Loader, Project, SourceFile, place_of, read_facts

Adopt = Callable[[str], SourceFile | None]


def with_axis_names(
    hinted: Sequence[Facts], others: Mapping[str, SourceFile], load: Loader, adopt: Adopt, settings: Settings
) -> list[Facts]:
    """The hinted modules and those that they lead to and that name axes, each with the hints found in it.

    Args:
        hinted: Modules with hints, or that had some; their `hints.found` is filled in.
        others: Files without hints, by the place from which they are imported.
        load: Bytes of a file that a name leads into.
        adopt: The file at a place that may change though it was not among the marked ones, None if it may not.
        settings: What the user asked for.
    """
    if not any(mesh for facts in hinted for mesh in facts.meshes):
        return list(hinted)
    modules = [*hinted, *_reached(hinted, others, load, adopt)]
    project = Project(modules, load, ())
    known = declared_names(modules, settings.axes)
    for facts in project.facts.values():
        facts.hints.found = list(found_hints(facts, known, settings.jaxtyping))
    return [facts for facts in modules if facts in hinted or facts.hints.found or may_name_axes(facts.file.data)]


def _reached(hinted: Collection[Facts], others: Mapping[str, SourceFile], load: Loader, adopt: Adopt) -> list[Facts]:
    """Modules that name axes and that the hinted ones import, however indirectly."""
    project = Project(hinted, load, ())
    seen: dict[str, Facts] = {place_of(facts.file): facts for facts in hinted}
    known = set(seen)
    queue = list(hinted)
    found: list[Facts] = []
    while queue:
        for facts in project.imported(queue.pop()):
            place = place_of(facts.file)
            if place in seen:
                continue
            seen[place] = facts
            queue.append(facts)
            if place not in known and may_name_axes(facts.file.data):
                file = others.get(place) or adopt(place)
                read = read_facts(file, ()) if file is not None and file.data == facts.file.data else None
                if isinstance(read, Facts):
                    found.append(read)
    return sorted(found, key=lambda facts: facts.path)
