"""Sites that one mesh context reaches, and in which of two styles they are rewritten together.

Named: every spec becomes a `NamedSharding` of the mesh, whose name each site can see, and the context goes away. That
is exact whatever else the context holds. Set: the context becomes `jax.set_mesh(mesh)` and specs stay. Then everything
that is created in it lands on the whole mesh, so it is taken only where nothing is.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mmrewrite.modernize.contexts import ENVIRONMENTS, WITH, MeshContext, find_contexts
from mmrewrite.modernize.eager import Eager
from mmrewrite.modernize.engine import Codemods
from mmrewrite.modernize.guards import guard_of
from mmrewrite.modernize.pjit import CONSTRAINTS, PJIT, XMAPS, Specs, has_leaf, needs_mesh, specs_of
from mmrewrite.modernize.reach import WideReach
from mmrewrite.modernize.site import Context
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.modernize.visible import MeshName, mesh_name
from mmrewrite.values import Refusal

if TYPE_CHECKING:
    from mmrewrite.modernize.run import Decision

NAMED, SET, NEITHER = "named", "set", "neither"

# Libraries that look for a mesh in context. They must find one, so the context must stay.
_LOOK_FOR_A_MESH = (
    "flax.linen.with_logical_constraint",
    "flax.linen.with_logical_partitioning",
    "flax.linen.with_partitioning",
    "flax.linen.partitioning",
    "flax.linen.spmd",
    "flax.nnx.with_partitioning",
    "flax.nnx.with_sharding_constraint",
    "flax.partitioning",
    "haliax",
    "levanter",
    "paxml",
    "praxis",
    "t5x",
)


@dataclass(frozen=True, eq=False)
class Member:
    """One thing that depends on the mesh in context."""

    module: ModuleUses
    node: ast.AST
    kind: str
    context: MeshContext | None = None
    specs: Specs | None = None

    @property
    def needs_mesh(self) -> bool:
        """Whether a spec must be given its mesh here once no context gives it."""
        return self.specs is not None and any(needs_mesh(self.module, spec) for spec in self.specs.values)

    @property
    def has_no_spec(self) -> bool:
        """Whether this is a `pjit` for which only the context says on which devices it runs."""
        if self.kind != "pjit" or self.specs is None:
            return False
        is_used = self.specs.call is not None or isinstance(self.module.parents[self.node], ast.FunctionDef)
        return is_used and not any(map(has_leaf, self.specs.values))

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.module.facts.path}:{getattr(self.node, 'lineno', 1)}"


@dataclass(frozen=True)
class Plan:
    """How one site is rewritten: the style, the text of the mesh there, or why it must stay."""

    style: str
    mesh: str | None = None
    reason: str | None = None


@dataclass(eq=False)
class _Region:
    members: list[Member]
    contexts: dict[Member, list[MeshContext]]
    reached: dict[MeshContext, set[ast.AST]]
    style: str = NEITHER
    names: dict[MeshContext, MeshName] = field(default_factory=dict)

    def of(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]


class MeshRegions:
    """The regions of a project, and the plan of every site in them."""

    def __init__(self, context: Context) -> None:
        self._modules = context.modules
        self._reach = WideReach(context.project, context.modules)
        self._eager = Eager(context.modules, self._reach)
        self._members = [member for module in context.modules.values() for member in _members(module)]
        self._plans: dict[ast.AST, Plan] = {}
        self._groups: dict[ast.AST, int] = {}
        self._is_orphan: dict[Member, bool] = {}
        for number, region in enumerate(self._regions()):
            self._decide(region)
            for member in region.members:
                self._groups[member.node] = number

    def plan(self, node: ast.AST) -> Plan:
        """What is to be done at a site."""
        return self._plans.get(node, Plan(NEITHER))

    def context(self, node: ast.AST) -> MeshContext | None:
        """The mesh context whose mesh is `node`."""
        return next((member.context for member in self._members if member.node is node and member.context), None)

    @property
    def contexts(self) -> Iterator[MeshContext]:
        """Every mesh context of the project."""
        return (member.context for member in self._members if member.context is not None)

    def group(self, node: ast.AST) -> int | None:
        """The number of the region that a site belongs to."""
        return self._groups.get(node)

    def _regions(self) -> Iterator[_Region]:
        reached = {
            member.context: self._reach.closure(member.module, member.context.body)
            for member in self._members
            if member.context is not None
        }
        by_member = {
            member: [context for context in reached if _is_in(member, reached[context])] for member in self._members
        }
        self._is_orphan = {member: not contexts for member, contexts in by_member.items()}
        parent = {member: member for member in self._members}

        def root(member: Member) -> Member:
            while parent[member] is not member:
                member = parent[member]
            return member

        owners = {member.context: member for member in self._members if member.context is not None}
        for member, contexts in by_member.items():
            for context in contexts:
                parent[root(member)] = root(owners[context])
        for member in self._members:
            if member.kind == "pjit":
                below = self._reach.closure(member.module, [member.module.statement_of(member.node)])
                for other in self._members:
                    if other is not member and other.kind != "pjit" and _is_in(other, below):
                        parent[root(other)] = root(member)
        groups: dict[Member, list[Member]] = {}
        for member in self._members:
            groups.setdefault(root(member), []).append(member)
        for members in groups.values():
            yield _Region(
                members,
                {member: by_member[member] for member in members},
                {c: reached[c] for c in reached if owners[c] in members},
            )

    def _decide(self, region: _Region) -> None:
        for member in region.members:
            self._plans[member.node] = Plan(NEITHER)
        if not region.of("context"):
            for member in region.of("pjit"):
                if member.has_no_spec and not (member.specs and member.specs.is_hidden):
                    reason = (
                        "without specs this runs on the mesh in context, and no `with mesh:` in view reaches it; "
                        "write `jax.jit` if there is none, else give it specs"
                    )
                    self._plans[member.node] = Plan(NEITHER, reason=reason)
                elif member.needs_mesh:
                    reason = (
                        "no `with mesh:` in view reaches this, so its specs have no mesh; "
                        "give them one with `NamedSharding(mesh, spec)`"
                    )
                    self._plans[member.node] = Plan(NEITHER, reason=reason)
            return
        for member in region.of("shim"):
            for context in region.of("context"):
                reason = f"{member.place} chooses by the version of JAX, and what a mesh context reaches goes together"
                self._plans[context.node] = Plan(NEITHER, reason=reason)
            return
        if any(
            member.kind == "xmap" or (member.specs is not None and member.specs.is_hidden) for member in region.members
        ):
            # Its refusal draws in the others.
            return
        for member in region.of("context"):
            assert member.context is not None
            for facts in self._reach.not_given(member.module, member.context.body):
                if any(other.kind != "library" for other in _members(ModuleUses(facts))):
                    reason = f"this reaches {facts.path}, which is not among the files given; give it as well"
                    self._plans[member.node] = Plan(NEITHER, reason=reason)
                    return
        why_not_named = self._named(region)
        if why_not_named is None:
            return
        why_not_set = self._set(region)
        if why_not_set is None:
            for member in region.members:
                self._plans[member.node] = Plan(SET)
            return
        culprit, reason = why_not_set
        context = region.of("context")[0]
        text = f"{reason}. Either change that, or make `NamedSharding(mesh, spec)` possible everywhere: {why_not_named}"
        if culprit is None:
            self._plans[context.node] = Plan(NEITHER, reason=text)
        else:
            self._plans[culprit.node] = Plan(NEITHER, reason=text)

    def _named(self, region: _Region) -> str | None:
        """Plan the named style, or say why it cannot be."""
        for kind, what in (("guard", "asks for the mesh in context"), ("library", "looks for the mesh in context")):
            for member in region.of(kind):
                return f"{member.place} {what}"
        if not any(member.needs_mesh for member in region.members):
            return "nothing in view uses this mesh, so what does cannot be seen"
        for member in self._members:
            if (member.needs_mesh or member.kind == "guard") and self._is_orphan[member]:
                return f"{member.place} may be reached as well, though it cannot be seen from where"
        for member in region.of("context"):
            assert member.context is not None
            reason = _not_removable(member.context) or self._eager.unseen(member.context)
            if reason:
                return f"{member.place} {reason}"
            region.names[member.context] = mesh_name(member.context)
        plans: dict[ast.AST, Plan] = {}
        for member in region.members:
            contexts = region.contexts[member]
            if member.context is not None:
                text = region.names[member.context].text
                plans[member.node] = Plan(NAMED, text)
            elif member.has_no_spec:
                return f"{member.place} has no specs, so only the context says on which devices it runs"
            elif member.needs_mesh:
                names = {region.names[context] for context in contexts}
                if not names:
                    return f"{member.place} is reached by no `with mesh:` that is in view"
                if len(names) > 1:
                    return f"{member.place} is reached with several meshes"
                (name,) = names
                reason = name.hidden_at(member.module, member.node)
                if reason:
                    return f"{member.place}: {reason}"
                plans[member.node] = Plan(NAMED, name.text)
            else:
                plans[member.node] = Plan(NAMED)
        self._plans |= plans
        return None

    def _set(self, region: _Region) -> tuple[Member | None, str] | None:
        """Why a region cannot be rewritten with `jax.set_mesh`, else None."""
        for member in region.of("context"):
            assert member.context is not None
            reason = self._eager.problem(member.context)
            if reason is not None:
                return member, reason
        return None


def _members(module: ModuleUses) -> Iterator[Member]:
    for context in find_contexts(module):
        yield Member(module, context.node, "context", context)
    kinds = {
        **dict.fromkeys(PJIT, "pjit"),
        **dict.fromkeys(CONSTRAINTS, "constraint"),
        **dict.fromkeys(XMAPS, "xmap"),
        **dict.fromkeys(ENVIRONMENTS, "guard"),
    }
    contexts = {id(context.holder) for context in find_contexts(module)}
    for use in module.uses(kinds):
        if guard_of(module, use.node) is not None:
            yield Member(module, use.node, "shim")
            continue
        kind = kinds[use.name]
        if kind == "guard" and id(use.statement) in contexts:
            continue
        yield Member(module, use.node, kind, specs=specs_of(module, use) if kind in ("pjit", "constraint") else None)
    yield from _shims(module, kinds)
    for head, chain in module.chains:
        found = module.facts.names.resolve(chain[-1], module.scope_of(head)) or ""
        if any(found == name or found.startswith(f"{name}.") for name in _LOOK_FOR_A_MESH):
            yield Member(module, chain[-1], "library")


def _shims(module: ModuleUses, names: Collection[str]) -> Iterator[Member]:
    """Names with several meanings, one of which depends on the mesh in context."""
    for head, _ in module.chains:
        owner = module.scope_of(head).owner(head.id)
        bindings = owner.bindings[head.id] if owner is not None else []
        if len(bindings) > 1 and any(_leads_to(module, binding.target, names) for binding in bindings):
            yield Member(module, head, "shim")


def _leads_to(module: ModuleUses, target: str | None, names: Collection[str]) -> bool:
    return target is not None and module.facts.names.follow(target) in names


def _is_in(member: Member, nodes: Collection[ast.AST]) -> bool:
    return member.node in nodes or any(holder in nodes for holder in member.module.above(member.node))


def _not_removable(context: MeshContext) -> str | None:
    if context.kind != WITH:
        return "puts a mesh in context in another way than by `with mesh:`"
    assert context.item is not None and isinstance(context.holder, ast.With)
    if context.is_conditional:
        return "puts a mesh in context only sometimes"
    if context.item.optional_vars is not None and context.name is None:
        return "gives the mesh to something that is not a name"
    if len(context.holder.items) > 1 and (context.name is not None or isinstance(context.node, ast.Call)):
        return "makes the mesh among other items of a `with`; make it in a statement above"
    return None


DRAWN = "left as it is, because what one mesh context reaches is rewritten together"


def is_drawn(decision: Decision) -> bool:
    """Whether a site stays only because others do."""
    return decision.refusal is not None and decision.refusal.reason.startswith(DRAWN)


class Regions:
    """Draws every site of a region into the refusal of one."""

    def __init__(self, context: Context, codemods: Codemods) -> None:
        self._context, self._codemods = context, codemods

    def together(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions, with those refused that share a region with one that stays."""
        regional = [decision for decision in decisions if self._codemods[decision.codemod].regional]
        if not regional:
            return list(decisions)
        regions = self._context.analysis(MeshRegions)
        causes: dict[int, Decision] = {}
        for decision in regional:
            number = regions.group(decision.place.node)
            if number is not None and decision.stays and not is_drawn(decision):
                causes.setdefault(number, decision)
        return [self._drawn(decision, regions, causes) for decision in decisions]

    def _drawn(self, decision: Decision, regions: MeshRegions, causes: dict[int, Decision]) -> Decision:
        number = regions.group(decision.place.node)
        cause = causes.get(number) if number is not None else None
        stays = decision.stays and not is_drawn(decision)
        if cause is None or stays or not self._codemods[decision.codemod].regional:
            return decision
        source = decision.place.module.facts.source
        node = decision.place.node
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        line, column = source.position(source.offset(line, column))
        reason = f"{DRAWN}: {cause.place.path}:{getattr(cause.place.node, 'lineno', 1)} stays as it is"
        return replace(decision, refusal=Refusal(decision.place.path, line, column, reason, decision.codemod))
