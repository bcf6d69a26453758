"""Find the mesh of a step, in its own module or in another one of the project."""

from __future__ import annotations

import ast
import keyword

from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts, Mesh
from mmrewrite.source.names import relative_import
from mmrewrite.source.spans import first_line


def mesh_expression(site: Site) -> str:
    """The mesh as source text at the hint's place, imported if necessary; refuses unless exactly one fits."""
    here = [mesh for mesh in site.facts.meshes if mesh.hint is None or mesh.hint in site.draft.done]
    visible = [mesh for mesh in here if mesh.scope in tuple(site.scope.chain())]
    if visible:
        return _visible_mesh(site, visible)
    if here:
        site.refuse(
            f"the mesh of line {here[0].statement.lineno} is local to a function that this step is not part of; write "
            "the `mesh(...)` hint at module level"
        )
    refused = [mesh for mesh in site.facts.meshes if mesh.scope in tuple(site.scope.chain())]
    if refused:
        site.refuse(
            f"the mesh of this step is that of line {refused[0].statement.lineno}, which stays as it is; see the "
            "message about it"
        )
    elsewhere = [(facts, mesh) for facts in _other_modules(site) for mesh in _module_level(site, facts)]
    if len(elsewhere) == 1:
        return _imported_mesh(site, *elsewhere[0])
    if elsewhere:
        places = ", ".join(f"{facts.path}:{mesh.statement.lineno}" for facts, mesh in elsewhere)
        site.refuse(f"more than one mesh could be meant ({places}); import the one to use in this module")
    for facts in _other_modules(site):
        if any(mesh.scope is facts.names.scope for mesh in facts.meshes):
            site.refuse(
                f"the mesh of this step is in {facts.path}, which stays as it is; see the message about that file"
            )
    site.refuse(
        "no mesh for this step: write `# mm: mesh(stage=4)` with your axes above it, or in the module that owns the "
        "training loop"
    )


def _visible_mesh(site: Site, meshes: list[Mesh]) -> str:
    scopes = list(site.scope.chain())
    nearest = min(scopes.index(mesh.scope) for mesh in meshes)
    fitting = [mesh for mesh in meshes if scopes.index(mesh.scope) == nearest]
    # Code in the scope of the mesh runs from top to bottom; a function runs later, when the mesh is made.
    runs_at_once = site.scope is fitting[0].scope or (site.scope.kind == "class" and nearest == 1)
    if runs_at_once:
        line = first_line(site.statement)
        above = [mesh for mesh in fitting if first_line(mesh.statement) <= line]
        if not above:
            site.refuse(f"the mesh is made on line {fitting[0].statement.lineno}, below this step; move its hint up")
        fitting = above
    if len({mesh.name for mesh in fitting}) > 1:
        names = ", ".join(f"`{mesh.name}` (line {mesh.statement.lineno})" for mesh in fitting)
        site.refuse(f"more than one mesh could be meant: {names}; keep one per module")
    mesh = fitting[0]
    if site.scope.owner(mesh.name) not in (None, mesh.scope):
        return _second_name(site, mesh)
    return mesh.name


def _second_name(site: Site, mesh: Mesh) -> str:
    """Another name for a mesh whose own means something else at the hint's place, bound below the mesh."""
    if mesh not in site.draft.second_names:
        site.draft.second_names[mesh] = site.new_name(mesh.name)
        site.insert_below(f"{site.draft.second_names[mesh]} = {mesh.name}", mesh.statement)
    return site.draft.second_names[mesh]


def _other_modules(site: Site) -> list[Facts]:
    found = {facts.path: facts for facts in site.project.facts.values() if facts is not site.facts}
    for facts in site.project.imported(site.facts):
        found.setdefault(facts.path, facts)
    return [found[path] for path in sorted(found)]


def _module_level(site: Site, facts: Facts) -> list[Mesh]:
    return [
        mesh
        for mesh in facts.meshes
        if mesh.scope is facts.names.scope and (mesh.hint is None or mesh.hint not in site.project.withheld)
    ]


def _imported_mesh(site: Site, owner: Facts, mesh: Mesh) -> str:
    imports, module = site.draft.imports, owner.names.name
    found = imports.existing(f"{module}.{mesh.name}", site.scope, site.line)
    if found:
        return found
    importable = all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split("."))
    if not importable or site.project.module(module, site.facts) is not owner:
        site.refuse(
            f"the mesh is in {owner.path}, which this module cannot import; move the `mesh(...)` hint to a module that "
            "both can import, or here"
        )
    if site.facts in site.project.imported_by([owner]).values():
        site.refuse(
            f"the mesh is in {owner.path}, which imports this module, so this module cannot import it; move the "
            "`mesh(...)` hint to a module that both import, or here"
        )
    by_module = imports.existing(module, site.scope, site.line)
    if by_module:
        return f"{by_module}.{mesh.name}"
    return imports.member(_import_path(site.facts, owner), mesh.name, (mesh.name,))


def _import_path(facts: Facts, owner: Facts) -> str:
    """The module to import from, relative if this module has relative imports, else absolute."""
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in facts.tree.body)
    parts, target = facts.names.name.split("."), owner.names.name.split(".")
    package = parts if facts.names.is_package else parts[:-1]
    if not relative or not package or package[0] != target[0]:
        return owner.names.name
    return relative_import(package, owner.names.name)
