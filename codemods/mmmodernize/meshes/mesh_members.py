"""Sites that depend on the mesh in context."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from mmmodernize.calls.call_forms import call_of
from mmmodernize.meshes.mesh_contexts import MeshContext, MeshContexts
from mmmodernize.meshes.partition_specs import (
    Specs,
    has_leaf,
    has_spec,
    is_alias,
    needs_mesh,
    specs_of,
)
from mmmodernize.names.shared_names import CONSTRAINTS, ENVIRONMENTS, PJIT, XMAPS
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.source.calls import CallForm

# Sharding hints of Flax, which must find a mesh in context, so the context must stay. They also find that of
# `compat.mesh_context`.
_HINTS = (
    "flax.linen.with_logical_constraint",
    "flax.linen.with_logical_partitioning",
    "flax.linen.with_partitioning",
    *(
        f"flax.linen.{module}.{name}"
        for module in ("partitioning", "spmd")
        for name in (
            *("LogicallyPartitioned", "Partitioned", "param_with_axes", "variable_with_axes"),
            *("with_logical_constraint", "with_logical_partitioning", "with_partitioning", "with_sharding_constraint"),
        )
    ),
)
# Libraries that must find a mesh in context. Not all of them find that of `compat.mesh_context`.
_LOOK_FOR_A_MESH = (
    *("flax.nnx.with_partitioning", "flax.nnx.with_sharding_constraint", "flax.partitioning", "haliax", "levanter"),
    *("paxml", "praxis", "t5x"),
)
# The kinds of sites that are given specs. `jax.jit` has taken them in no release under `with mesh:`, but under
# `jax.set_mesh`: where a mesh context reaches it, it means that mesh, or raises.
TAKE_SPECS = ("pjit", "jit", "constraint")


@dataclass(frozen=True, eq=False)
class Member:
    """One site that depends on the mesh in context."""

    module: ModuleUses
    node: ast.AST
    kind: str
    context: MeshContext | None = None
    specs: Specs | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether this only may be a mesh context."""
        return self.context is not None and not self.context.is_sure

    @cached_property
    def holders(self) -> tuple[ast.AST, ...]:
        """Its node and all that hold it."""
        return self.node, *self.module.above(self.node)

    @cached_property
    def call(self) -> CallForm | None:
        """The call with its arguments, or the `partial` of it."""
        return call_of(self.module, self.node) if isinstance(self.node, ast.expr) else None

    @property
    def needs_mesh(self) -> bool:
        """Whether a spec must name its mesh here once there is no context."""
        return self.specs is not None and any(needs_mesh(self.module, spec) for spec in self.specs.values)

    @property
    def depends_on_a_mesh(self) -> bool:
        """Whether this does something else, or fails, where another mesh or none is in context."""
        if self.kind == "jit":
            return False
        return self.is_resolved_late or self.needs_mesh or self.kind in ("guard", "shim", "xmap")

    @property
    def has_no_spec(self) -> bool:
        """Whether this is a `pjit` without specs, whose devices only the context tells."""
        if self.kind != "pjit" or self.specs is None:
            return False
        is_used = self.specs.call is not None or isinstance(self.module.parents[self.node], ast.FunctionDef)
        return is_used and not any(map(has_leaf, self.specs.values))

    @property
    def is_resolved_late(self) -> bool:
        """Whether this is a `pjit` that needs the mesh in context when it is called."""
        is_hidden = self.specs is not None and self.specs.is_hidden
        return self.kind == "pjit" and (self.needs_mesh or self.has_no_spec or is_hidden)

    @property
    def is_other_name(self) -> bool:
        """Whether this makes an alias of `pjit`."""
        return self.kind == "pjit" and isinstance(self.node, ast.expr) and is_alias(self.module, self.node)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.module.facts.path}:{getattr(self.node, 'lineno', 1)}"


def find_members(module: ModuleUses, mesh_contexts: MeshContexts) -> Iterator[Member]:
    """Every site of a module that depends on the mesh in context."""
    contexts = mesh_contexts.of(module)
    for context in contexts:
        yield Member(module, context.node, "context", context)
    kinds = {
        **dict.fromkeys(PJIT, "pjit"),
        **dict.fromkeys(CONSTRAINTS, "constraint"),
        **dict.fromkeys(XMAPS, "xmap"),
        **dict.fromkeys(ENVIRONMENTS, "guard"),
    }
    holders = {id(context.holder) for context in contexts}
    for use in module.uses(kinds):
        if guard_of(module, use.node) is not None:
            yield Member(module, use.node, "shim")
            continue
        kind = kinds[use.name]
        if kind == "guard" and id(use.statement) in holders:
            continue
        yield Member(module, use.node, kind, specs=specs_of(module, use) if kind in ("pjit", "constraint") else None)
    yield from (Member(module, use.node, "jit", specs=specs) for use, specs in jits_with_specs(module))
    yield from _shims(module, kinds)
    for kind, names in (("hint", _HINTS), ("library", _LOOK_FOR_A_MESH)):
        for use in module.uses(module.names_below(names)):
            # A project that is one of these libraries shows what it does with the mesh.
            if kind == "hint" or not mesh_contexts.values.flow.project.holds(use.name, module.facts):
                yield Member(module, use.node, kind)


def jits_with_specs(module: ModuleUses) -> Iterator[tuple[OldNameUse, Specs]]:
    """Each `jax.jit` of a module that is given specs."""
    for use in module.uses(("jax.jit",)):
        specs = specs_of(module, use)
        if any(has_spec(module, value) for value in specs.values):
            yield use, specs


def _shims(module: ModuleUses, names: Collection[str]) -> Iterator[Member]:
    """Names with several meanings, one of which depends on the mesh in context."""
    several = {
        name
        for scope in module.facts.names.inner.values()
        for name, bindings in scope.bindings.items()
        if len(bindings) > 1 and any(_leads_to(module, binding.target, names) for binding in bindings)
    }
    for head in module.names_read if several else ():
        if head.id not in several:
            continue
        owner = module.scope_of(head).owner(head.id)
        bindings = owner.bindings[head.id] if owner is not None else []
        if len(bindings) < 2 or not any(_leads_to(module, binding.target, names) for binding in bindings):
            continue
        if module.full_name(head) is None:
            yield Member(module, head, "shim")


def _leads_to(module: ModuleUses, target: str | None, names: Collection[str]) -> bool:
    return target is not None and module.facts.names.follow(target) in names
