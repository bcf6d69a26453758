"""What a module imports from MultiMesh, under any of the names that it has had, and how `mmruntime` names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmmodernize.calls.call_forms import call_of
from mmmodernize.sites.site import EVERYWHERE, OldNameSite
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import dotted_name

RUNTIME = "mmruntime"
PACKAGES = ("multimesh.jax", "legate.jax")
PLUGINS = ("jax_plugins.multimesh", "jax_plugins.legate")
# What stands in files that may import it.
WORDS = ("multimesh", "legate")
MARKERS = tuple(word.encode() for word in WORDS)
# Switches of earlier versions: neighbouring tasks of one submesh are always one program in `mmruntime`.
SWITCHES = frozenset(("enable_task_fusion", "only_fuse_loop_tasks"))
# With a mesh it is JAX's own under MultiMesh too.
OLD_SHARD_MAP = "jax.experimental.shard_map.shard_map"
NAMES = frozenset(
    (
        *("Context", "MultiMesh", "Task", "TaskMesh", "autoshard", "clear_tasks", "context", "custom_partitioning"),
        *("enable_fast_path", "enable_recomputation", "flax", "ignore_transforms", "init", "init_test", "microbatch"),
        *("mjit", "parallelize", "register_task", "replicate_parameters_smaller_than_num_elements", "shard_map"),
        *("slice_global_mesh", "task", "tasks", "test_util", "with_sharding_constraint"),
    )
)
_NAMES_IN = {
    "flax": frozenset(("parallelize_step", "shard_axes", "task", "with_sharding_constraint")),
    "test_util": frozenset(("LegateJaxTestCase", "MultiMeshJaxTestCase")),
}


def owner_of(name: str) -> str | None:
    """The module of MultiMesh that a full name is, or belongs to."""
    return next((owner for owner in (*PACKAGES, *PLUGINS) if f"{name}.".startswith(f"{owner}.")), None)


def imports_of(module: ModuleUses) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module that import MultiMesh."""
    for node in module.nodes_of(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import) or not node.level:
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any(owner_of(f"{home}{alias.name}") for alias in node.names):
                yield node


def used_in(module: ModuleUses) -> Iterator[tuple[ast.expr, str]]:
    """Expressions that stand for something in MultiMesh, with its full name."""
    for head, chain in module.chains:
        scope = module.scope_of(head)
        if scope.owner(head.id) is None:
            continue
        for node in reversed(chain):
            name = module.facts.names.resolve_dotted(dotted_name(node) or "", scope)
            if name is not None and owner_of(name) is not None:
                yield node, name
                break


def unknown_name(name: str) -> str | None:
    """What `mmruntime` does not have of a full name in MultiMesh, with its module there; None if it has all."""
    owner = owner_of(name)
    rest = name.removeprefix(owner or "").lstrip(".").split(".")
    known = {"init", "init_test"} if owner in PLUGINS else NAMES | SWITCHES
    if rest[0] and rest[0] not in known:
        return f"{RUNTIME}.{rest[0]}"
    if len(rest) > 1 and rest[0] in _NAMES_IN and rest[1] not in _NAMES_IN[rest[0]]:
        return f"{RUNTIME}.{rest[0]}.{rest[1]}"
    return None


def is_carried(module: ModuleUses) -> bool:
    """Whether a module uses MultiMesh, and nothing in it that `mmruntime` lacks."""
    imports = list(imports_of(module))
    for statement in imports:
        if isinstance(statement, ast.ImportFrom):
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
            if any(alias.name == "*" for alias in statement.names) or any(map(unknown_name, names)):
                return False
    return bool(imports) and not any(unknown_name(name) for _, name in used_in(module))


def is_without_mesh(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a node is the function of a call of the old `shard_map` that gives no mesh."""
    form = call_of(module, node)
    is_call = form is not None and form.is_called and form.call.func is node
    return form is not None and is_call and form.count == 1 and form.keyword("mesh") is None and not form.stars


def spelled(site: OldNameSite, name: str) -> str:
    """A name of `mmruntime`, through an import of MultiMesh that becomes one of it, if there is one."""
    return _through_import(site, name) or site.spell(f"{RUNTIME}.{name}")


def spelled_compat(site: OldNameSite, function: str, because: str) -> str:
    """A function of `mmruntime.compat`, likewise; `because` is as in `OldNameSite.spell_compat`."""
    found = _through_import(site, f"compat.{function}")
    if found is None:
        return site.spell_compat(function, because)
    site.note_compat(function, because)
    return found


def _through_import(site: OldNameSite, name: str) -> str | None:
    existing = site.draft.imports.existing
    is_module = site.scope.function.kind == "module"
    line, column = (site.statement.lineno, site.statement.col_offset) if is_module else (EVERYWHERE, 0)
    for owner in PACKAGES:
        for full, rest in ((f"{owner}.{name}", ""), (owner, f".{name}")):
            found = existing(full, site.scope, line, column)
            if found is not None:
                return found + rest
    for place in imports_of(site.module):
        whole = isinstance(place, ast.Import) and place in site.facts.tree.body
        if whole and any(alias.name in PACKAGES and alias.asname is None for alias in place.names):
            return f"{RUNTIME}.{name}"
    return None
