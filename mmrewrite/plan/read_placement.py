"""Read from the rewritten sources which tasks and loops run on which mesh, without running them.

A task belongs to the mesh of the steps that reach it.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.plan.read_calls import FoundSite, Sites, join_sites, read_calls
from mmrewrite.plan.sites import LoopSite, MeshSite, StepSite, TaskSite
from mmrewrite.project.facts import RUNTIME, Facts, Loader, Mesh, SourceFile, Unreadable, has_mark, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, reach_of
from mmrewrite.results import Rewrite

_DEVICES = 8

_PlacedSite = FoundSite[TaskSite] | FoundSite[LoopSite]


@dataclass(frozen=True)
class PlacedRegion:
    """A mesh, its steps, and the tasks and loops that they reach. Without a mesh: those that no step reaches."""

    mesh: MeshSite | None
    steps: tuple[StepSite, ...]
    tasks: tuple[TaskSite, ...]
    loops: tuple[LoopSite, ...]


def may_place(data: bytes) -> bool:
    """Whether a file can hold hints or calls of the runtime."""
    return may_have_hints(data) or RUNTIME.encode() in data


def read_regions(
    files: Sequence[SourceFile], rewrites: Iterable[Rewrite], load: Loader, codemods: Sequence[str]
) -> tuple[PlacedRegion, ...]:
    """The regions of a program, one for each mesh, in the order of the files.

    Args:
        files: The modules of the run.
        rewrites: The rewrites of some of them; the others are read as they are.
        load: Reads the file of a module that is imported from outside of the run.
        codemods: The names of codemods, which hints may mention.
    """
    results = {rewrite.path: rewrite for rewrite in rewrites}
    modules: list[Facts] = []
    sites: list[Sites] = []
    for file in sorted(files, key=lambda file: file.path):
        rewrite = results.get(file.path)
        changed = rewrite is not None and rewrite.changed
        data = rewrite.result if rewrite is not None and changed else file.data
        if RUNTIME.encode() not in data and not has_mark(file):
            continue
        facts = read_facts(dataclasses.replace(file, data=data), codemods)
        original = read_facts(file, codemods)
        if isinstance(facts, Unreadable) or isinstance(original, Unreadable):
            continue
        modules.append(facts)
        sites.append(read_calls(facts, original, rewrite.edits if rewrite is not None and changed else ()))
    project = Project(modules, load, codemods)
    return _regions(join_sites(sites), project, reach_of(project))


def devices_needed(regions: Iterable[PlacedRegion]) -> int:
    """The number of virtual devices that the meshes of known size need; at least eight."""
    return max([_DEVICES, *(count for count in _mesh_sizes(regions) if count is not None)])


def too_few_devices(count: int | None, regions: Iterable[PlacedRegion]) -> str | None:
    """Why no mesh can be made of so many virtual devices, None if one can, or the source does not tell."""
    sizes = _mesh_sizes(regions)
    known = [size for size in sizes if size is not None]
    if count is None or not known or len(known) < len(sizes) or count >= min(known):
        return None
    whose = "the mesh needs" if len(known) == 1 else "the smallest mesh needs"
    return f"--devices {count}: {whose} {min(known)}; give as many, or leave --devices out"


def _mesh_sizes(regions: Iterable[PlacedRegion]) -> list[int | None]:
    """The number of devices of each mesh, None where the source does not tell."""
    sizes = [region.mesh.sizes for region in regions if region.mesh is not None]
    return [None if known is None else math.prod(known.values()) for known in sizes]


def _regions(sites: Sites, project: Project, reach: Reach) -> tuple[PlacedRegion, ...]:
    steps: dict[FoundSite[MeshSite] | None, list[FoundSite[StepSite]]] = {mesh: [] for mesh in sites.meshes.values()}
    for step in sites.steps:
        steps.setdefault(_mesh_of(step, sites.meshes), []).append(step)
    claimed: dict[FoundSite[MeshSite] | None, list[_PlacedSite]] = {
        mesh: list(_reached(own, sites, project, reach)) for mesh, own in steps.items()
    }
    reached = {found for held in claimed.values() for found in held}
    placed: list[_PlacedSite] = [*sites.tasks, *sites.loops]
    rest = [found for found in placed if found not in reached]
    if rest:
        # Tasks that no step reaches can only run on the one mesh, if there is one.
        only_mesh = next(iter(sites.meshes.values())) if len(sites.meshes) == 1 else None
        claimed.setdefault(only_mesh, []).extend(rest)
    regions = []
    for mesh, held in claimed.items():
        own = [step.site for step in steps.get(mesh, ())]
        tasks = [found.site for found in sites.tasks if found in held]
        loops = [found.site for found in sites.loops if found in held]
        site = mesh.site if mesh is not None else None
        if site or own or tasks or loops:
            regions.append(PlacedRegion(site, tuple(own), tuple(tasks), tuple(loops)))
    return tuple(regions)


def _reached(
    steps: Iterable[FoundSite[StepSite]], sites: Sites, project: Project, reach: Reach
) -> Iterator[_PlacedSite]:
    """Tasks and loops that the steps reach."""
    candidates: list[_PlacedSite] = [*sites.tasks, *sites.loops]
    for step in steps:
        facts = step.facts
        found = _inside(candidates, facts, [facts.names.top_level(step.statement)], reach)
        if not any(isinstance(each.site, TaskSite) for each in found):
            # The step takes its model as an argument: any code that its module reaches may be that model.
            found = _inside(candidates, facts, facts.tree.body, reach)
        if not any(isinstance(each.site, TaskSite) for each in found):
            for other in project.imported(facts):
                found |= _inside(candidates, other, other.tree.body, reach)
        yield from found


def _inside(
    candidates: Sequence[_PlacedSite], facts: Facts, starts: Iterable[ast.stmt], reach: Reach
) -> set[_PlacedSite]:
    nodes = {item.node for start in starts for item in reach.from_node(facts, start)}
    return {
        found
        for found in candidates
        if found.statement in nodes or any(holder in nodes for holder in found.facts.names.around(found.statement))
    }


def _mesh_of(step: FoundSite[StepSite], meshes: Mapping[Mesh, FoundSite[MeshSite]]) -> FoundSite[MeshSite] | None:
    """The mesh that a step names, else the only mesh, else None."""
    node, facts = step.mesh, step.facts
    if node is not None:
        scope = facts.scope_of(step.statement)
        resolved = facts.names.resolve(node, scope)
        for mesh, found in meshes.items():
            owner = found.facts.names
            if resolved is not None and resolved == f"{owner.name}.{mesh.name}" and mesh.scope is owner.scope:
                return found
            if isinstance(node, ast.Name) and node.id == mesh.name and scope.owner(node.id) is mesh.scope:
                return found
    return next(iter(meshes.values())) if len(meshes) == 1 else None
