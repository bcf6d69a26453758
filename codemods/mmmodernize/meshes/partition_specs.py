"""Calls with partition specs: which arguments are specs, and how they are written without a mesh context."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from mmmodernize.calls.call_forms import call_of
from mmmodernize.names.shared_names import CONSTRAINTS, GONE_VALUES, PJIT
from mmmodernize.sites.site import OldNameSite
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.source.branches import sides
from mmrewrite.source.names import numbered

_SPEC = "jax.sharding.PartitionSpec"
SPECS = frozenset(
    (
        _SPEC,
        "jax.P",
        "jax.experimental.PartitionSpec",
        "jax.experimental.pjit.PartitionSpec",
        "jax.experimental.maps.PartitionSpec",
        "jax.interpreters.pxla.PartitionSpec",
        "jax.interpreters.sharded_jit.PartitionSpec",
    )
)
TREE_MAPS = frozenset(
    ("jax.tree_map", "jax.tree_multimap", "jax.tree_util.tree_map", "jax.tree_util.tree_multimap", "jax.tree.map")
)
_SPEC_KEYWORDS = {
    "in_axis_resources": "in_shardings",
    "out_axis_resources": "out_shardings",
    "in_shardings": "in_shardings",
    "out_shardings": "out_shardings",
}


@dataclass(frozen=True)
class Specs:
    """The call that takes specs, the specs, and whether `*` or `**` may hide others."""

    call: ast.Call | None
    values: tuple[ast.expr, ...]
    is_hidden: bool = False


def specs_of(module: ModuleUses, use: OldNameUse) -> Specs:
    """The arguments of a use of `pjit` or `with_sharding_constraint` that are partition specs."""
    form = call_of(module, use.node)
    if form is None:
        holder = module.parents.get(use.node)
        is_seen = use.name in CONSTRAINTS or isinstance(holder, ast.FunctionDef) or is_alias(module, use.node)
        return Specs(None, (), not is_seen)
    positional, keywords = form.positional, form.keywords
    if use.name in CONSTRAINTS:
        found = [*positional[1:2], *(k.value for k in keywords if k.arg in ("axis_resources", "shardings"))]
    else:
        found = [*positional[1:3], *(k.value for k in keywords if k.arg in _SPEC_KEYWORDS)]
    return Specs(form.call, tuple(found), use.name in PJIT and bool(form.stars))


def is_alias(module: ModuleUses, node: ast.expr) -> bool:
    """Whether an expression is only assigned to names, each of which has no other binding."""
    holder = module.parents[node]
    if isinstance(holder, ast.Tuple):
        holder = module.parents[holder]
    if not isinstance(holder, ast.Assign):
        return False
    names = [name.id for target in holder.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    scope = module.scope_of(node)
    return bool(names) and all(module.facts.names.binding(name, scope) for name in names)


def needs_mesh(module: ModuleUses, spec: ast.expr) -> bool:
    """Whether a spec needs a mesh to mean anything, as all do but shardings."""
    kind = kind_of(module, spec)
    if kind == "tree":
        return any(needs_mesh(module, part) for part in parts_of(spec))
    return kind != "sharding"


def has_spec(module: ModuleUses, spec: ast.expr, *, by_name: bool = True) -> bool:
    """Whether a partition spec is seen in a tree of specs, or where a name in it is bound, rather than shardings."""
    kind, held = kind_of(module, spec), [*parts_of(spec)]
    if kind == "unknown" and isinstance(spec, ast.Name) and by_name:
        binding = module.facts.names.binding(spec.id, module.scope_of(spec))
        value = binding.value if binding is not None and binding.kind != "parameter" else None
        return value is not None and has_spec(module, value, by_name=False)
    if isinstance(spec, ast.Call) and module.full_name(spec.func) == "builtins.dict":
        held += [keyword.value for keyword in spec.keywords]
    return _holds_specs_only(module, spec) or any(has_spec(module, part, by_name=by_name) for part in held)


def has_leaf(spec: ast.expr) -> bool:
    """Whether a tree of specs may have leaves: `()` has none."""
    return any(map(has_leaf, parts_of(spec))) if isinstance(spec, ast.Tuple | ast.List | ast.Dict) else True


def parts_of(tree: ast.AST) -> Iterator[ast.expr]:
    """The parts of a tree that is written out; of a comprehension, the expression that makes them."""
    if isinstance(tree, ast.Tuple | ast.List):
        yield from tree.elts
    elif isinstance(tree, ast.Dict):
        yield from tree.values
    elif isinstance(tree, ast.DictComp):
        yield tree.value
    elif isinstance(tree, ast.ListComp | ast.GeneratorExp):
        yield tree.elt
    elif isinstance(tree, ast.Starred | ast.NamedExpr):
        yield tree.value
    else:
        yield from sides(tree)


def kind_of(module: ModuleUses, spec: ast.expr) -> str:
    """The kind of an expression for specs: `none`, `spec`, `sharding`, `tree` (written out), `gone` or `unknown`."""
    names, scope = module.facts.names, module.scope_of(spec)
    if isinstance(spec, ast.Constant) and spec.value is None:
        return "none"
    if isinstance(spec, ast.Tuple | ast.List) and not any(isinstance(part, ast.Starred) for part in spec.elts):
        return "tree"
    if sides(spec) or (isinstance(spec, ast.Dict) and None not in spec.keys):
        return "tree"
    if isinstance(spec, ast.Call):
        made = names.resolve(spec.func, scope) or ""
        if made in SPECS:
            return "spec"
        return "sharding" if made.startswith("jax.sharding.") and made.endswith("Sharding") else "unknown"
    if isinstance(spec, ast.Name | ast.Attribute) and names.resolve(spec, scope) in GONE_VALUES:
        return "gone"
    if isinstance(spec, ast.Name):
        binding = names.binding(spec.id, scope)
        if binding is not None and isinstance(binding.value, ast.Call):
            return kind_of(module, binding.value)
    return "unknown"


def make_explicit(site: OldNameSite, spec: ast.expr, mesh: str | None, *, keeps_none: bool = False) -> None:
    """Rewrite a spec to say what it meant under a mesh: `None` is replicated, and with `mesh` every spec names it.

    To `pjit`, `None` meant replicated; to `jax.jit` it means that nothing is specified, and `keeps_none`.
    """
    kind = kind_of(site.module, spec)
    if kind == "tree":
        for part in parts_of(spec):
            make_explicit(site, part, mesh, keeps_none=keeps_none)
    elif kind == "none" and not keeps_none:
        replicated = f"{site.spell(_SPEC)}()"
        site.replace(spec, f"{site.spell('jax.sharding.NamedSharding')}({mesh}, {replicated})" if mesh else replicated)
    elif kind == "spec" and mesh:
        site.wrap(spec, f"{site.spell('jax.sharding.NamedSharding')}({mesh}, ", ")")
    elif kind == "gone":
        _refuse_gone(site, spec)
    elif kind == "unknown" and not _is_explicit_already(site, spec):
        _make_explicit_later(site, spec, mesh, keeps_none=keeps_none)


def _make_explicit_later(site: OldNameSite, spec: ast.expr, mesh: str | None, *, keeps_none: bool) -> None:
    """Have a tree of specs that is made at run time say what it means, leaf by leaf."""
    made, tree_map = site.spell(_SPEC), site.spell("jax.tree.map")
    leaf = next(name for name in numbered("s") if name not in (mesh, made))
    if mesh is None:
        site.wrap(
            spec, f"{tree_map}(lambda {leaf}: {made}() if {leaf} is None else {leaf}, ", f", {_stop_at_none(leaf)})"
        )
        return
    sharding = site.spell("jax.sharding.NamedSharding")
    if _holds_specs_only(site.module, spec):
        site.wrap(spec, f"{tree_map}(lambda {leaf}: {sharding}({mesh}, {leaf}), ", ")")
        return
    if keeps_none:
        each = f"{sharding}({mesh}, {leaf}) if isinstance({leaf}, {made}) else {leaf}"
        site.wrap(spec, f"{tree_map}(lambda {leaf}: {each}, ", ")")
        return
    each = f"{sharding}({mesh}, {leaf} or {made}()) if {leaf} is None or isinstance({leaf}, {made}) else {leaf}"
    site.wrap(spec, f"{tree_map}(lambda {leaf}: {each}, ", f", {_stop_at_none(leaf)})")


def _stop_at_none(leaf: str) -> str:
    return f"is_leaf=lambda {leaf}: {leaf} is None"


def _holds_specs_only(module: ModuleUses, tree: ast.expr) -> bool:
    """Whether every leaf of a tree is seen to be a partition spec."""
    names, scope = module.facts.names, module.scope_of(tree)
    if isinstance(tree, ast.Name):
        binding = names.binding(tree.id, scope)
        is_assigned = binding is not None and isinstance(binding.statement, ast.Assign | ast.AnnAssign)
        return (
            is_assigned
            and binding is not None
            and binding.value is not None
            and (binding.kind != "parameter" and _holds_specs_only(module, binding.value))
        )
    if isinstance(tree, ast.Call) and names.resolve(tree.func, scope) in TREE_MAPS and tree.args:
        function = tree.args[0]
        return isinstance(function, ast.Lambda) and kind_of(module, function.body) == "spec"
    return kind_of(module, tree) == "spec"


def refuse_gone(site: OldNameSite, spec: ast.expr) -> None:
    """Refuse a tree of specs with a value that JAX no longer has."""
    kind = kind_of(site.module, spec)
    if kind == "gone":
        _refuse_gone(site, spec)
    for part in parts_of(spec) if kind == "tree" else ():
        refuse_gone(site, part)


def _refuse_gone(site: OldNameSite, spec: ast.expr) -> NoReturn:
    site.refuse(f"`{site.text(spec)}` has no successor; write the sharding that it stands for", spec)


def _is_explicit_already(site: OldNameSite, spec: ast.expr) -> bool:
    """Whether a tree went through `compat.replicate_none`, which earlier versions wrote."""
    return isinstance(spec, ast.Call) and site.resolve(spec.func) == "mmruntime.compat.replicate_none"


def new_keyword(name: str | None) -> str | None:
    """The keyword of `jax.jit` for one of `pjit` that takes specs, None for other keywords."""
    return _SPEC_KEYWORDS.get(name or "")
