"""Sites that one mesh context reaches, and in which of three styles they are rewritten.

Named: every spec becomes a `NamedSharding` of the mesh, whose name each site can see, and the context goes away. That
is exact whatever else runs in the context. Set: the context becomes `jax.set_mesh(mesh)` and specs stay. Arrays created
in it then land on the whole mesh, so this style is only for contexts that create none. In both, all sites of a region
are rewritten, or none.

Compat: the context becomes `compat.mesh_context(mesh)`, which does what `with mesh:` did, and `pjit` becomes
`compat.pjit`, which looks up the mesh when it is called, as constraints do by themselves. All of these work together
with the old forms, so every site stands by itself, and no code out of view matters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmmodernize.calls.call_forms import given_to
from mmmodernize.calls.components import bits, combined
from mmmodernize.calls.handed_functions import HandedFunctions
from mmmodernize.calls.wide_reach import OutsideReach, WideReach
from mmmodernize.meshes.code_in_view import CodeInView
from mmmodernize.meshes.mesh_contexts import (
    CALLED,
    ENVIRONMENT,
    LEFT,
    STATEMENT,
    WITH,
    MeshContext,
    MeshContexts,
    call_out_of_view,
)
from mmmodernize.meshes.mesh_extents import ContextExtents
from mmmodernize.meshes.mesh_members import Member, find_members
from mmmodernize.meshes.meshless_calls import MeshlessCalls
from mmmodernize.meshes.plain_constraints import PlainConstraints
from mmmodernize.meshes.plain_sites import PlainSites
from mmmodernize.meshes.uncompiled_code import UncompiledCode, suspension
from mmmodernize.names.shared_names import PJIT, SET_A_MESH
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.uses import uses_of
from mmrewrite.values.value import Function

NAMED, SET, COMPAT, NEITHER = "named", "set", "compat", "neither"

_NO_CONTEXT = (
    "no mesh context in view reaches it, so its callers say which mesh it is for; give the files with `with mesh:` as "
    "well, or write its specs as `NamedSharding`s"
)


@dataclass(frozen=True)
class SitePlan:
    """How one site is rewritten: the style, the text of the mesh there, or the reason why it must stay.

    `why_compat` says for the compat style what rules the other two out.
    """

    style: str
    mesh: str | None = None
    reason: str | None = None
    why_compat: str = ""


@dataclass(eq=False)
class _MeshRegion:
    """Sites that depend on each other, and the contexts that reach each."""

    members: list[Member]
    contexts: dict[Member, list[MeshContext]]

    def of(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]

    @property
    def own_contexts(self) -> list[MeshContext]:
        return [member.context for member in self.members if member.context is not None]


class MeshRegions:
    """The regions of a project, and the plan of every site in them.

    Attributes:
        flow: The values of the project.
        modules: Its modules that may change.
        code: What of the project's code is in view.
        handed: What becomes of functions that are handed to classes.
        meshless_calls: Which sites may run without a mesh.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self.flow, self.modules = context.flow, context.modules
        self._reach = WideReach(context.project, context.modules)
        self.handed = HandedFunctions(self.flow)
        self._uncompiled_code = UncompiledCode(context.modules, self.flow)
        self.code = CodeInView(self.flow)
        self._has_members: dict[str, bool] = {}
        self._hidden: dict[MeshContext, str | None] = {}
        self._contexts = context.analysis(MeshContexts)
        found = [member for module in context.modules.values() for member in find_members(module, self._contexts)]
        if self.sets_a_mesh is not None:
            # There `jax.jit` may find a mesh for its specs.
            found = [member for member in found if member.kind != "jit"]
        self._sure = [member.context for member in found if member.context is not None and member.context.is_sure]
        todays = (each for module in context.modules.values() for each in self._contexts.of_today(module))
        inside = [(each.module, each.body) for each in (*self._sure, *todays)]
        self._outside = OutsideReach(self._reach, inside)
        if not any(member.depends_on_a_mesh for member in found):
            # Then nothing depends on what only may be a mesh context, and code is not followed from there.
            found = [each for each in found if not each.is_unsure or (each.context and each.context.kind == LEFT)]
        contexts = [member.context for member in found if member.context is not None]
        self._extents = ContextExtents(contexts, self.modules, self._reach)
        self._members = list(self._relevant(found))
        self.meshless_calls = MeshlessCalls(
            context.modules, self._outside, {node for _, nodes in inside for node in nodes}
        )
        self._plans: dict[ast.AST, SitePlan] = {}
        self._plain: dict[_MeshRegion, PlainSites] = {}
        self._regions = list(self._find())
        self._groups = {member.node: number for number, region in enumerate(self._regions) for member in region.members}
        for region in self._regions:
            self._decide(region)

    def plan(self, node: ast.AST) -> SitePlan:
        """How a site is rewritten."""
        return self._plans.get(node, SitePlan(NEITHER))

    def environment_mesh(self, context: MeshContext) -> ast.expr | None:
        """The mesh of `thread_resources.env = ResourceEnv(mesh, ())`, None for other environments."""
        return self._uncompiled_code.environment_mesh(context)

    def context(self, node: ast.AST) -> MeshContext | None:
        """The mesh context whose mesh is `node`."""
        return next((member.context for member in self._members if member.node is node and member.context), None)

    @property
    def contexts(self) -> Iterator[MeshContext]:
        """Every mesh context of the project."""
        return (member.context for member in self._members if member.context is not None)

    @cached_property
    def compiled_with_specs(self) -> frozenset[ast.AST]:
        """Each `jax.jit` of the project that is given specs, and that a mesh context reaches."""
        return frozenset(
            member.node for region in self._regions for member in region.of("jit") if region.contexts[member]
        )

    def group(self, node: ast.AST) -> int | None:
        """The number of the region that a site belongs to."""
        return self._groups.get(node)

    def stands_by_itself(self, node: ast.AST) -> bool:
        """Whether a site may be rewritten although others of its region stay."""
        return self.plan(node).style == COMPAT

    def make_compat(self, number: int, because: str) -> bool:
        """Plan the compat style for a region that cannot be rewritten whole; whether that changes anything."""
        region = self._regions[number]
        is_whole = any(self.plan(member.node).style in (NAMED, SET) for member in region.members)
        if not is_whole or self._why_not_compat(region) is not None:
            return False
        self._plan_all(region, SitePlan(COMPAT, why_compat=because))
        return True

    def _plan_all(self, region: _MeshRegion, plan: SitePlan) -> None:
        self._plans |= {member.node: plan for member in region.members}

    def _relevant(self, members: Sequence[Member]) -> Iterator[Member]:
        """The members, but for what may be a mesh context and reaches nothing that depends on one by itself."""
        leading = self._leading_to([member for member in members if member.depends_on_a_mesh], members)
        by_hand = set()
        left = []
        for member in members:
            context = member.context
            if context is not None and member.is_unsure and context.kind == LEFT:
                left.append(member)
            elif context is None or context.is_sure or any(map(leading, self._nodes_in(context))):
                if context is not None and context.kind == STATEMENT:
                    by_hand.add(member.module)
                yield member
        # A context that is entered by hand is left in the same way.
        yield from (member for member in left if member.module in by_hand)

    def _nodes_in(self, context: MeshContext) -> Iterator[ast.AST]:
        return (node for _, nodes in self._extents.of(context) for node in nodes)

    def _leading_to(self, dependent: Sequence[Member], members: Sequence[Member]) -> Callable[[ast.AST], int]:
        """Whether a node of what may be a mesh context leads to members, but through mesh contexts."""
        if not dependent:
            return lambda node: 0
        for member in members:
            if member.context is not None and not member.context.is_sure:
                self._outside.visit(self._extents.of(member.context))
        return self._outside.leading({node: 1 for member in dependent for node in member.holders})

    def _find(self) -> Iterator[_MeshRegion]:
        contexts = [member.context for member in self._members if member.context is not None]
        reached = self._reach.led_from([self._extents.of(context) for context in contexts])
        by_member = {
            member: [contexts[number] for number in bits(combined(reached, member.holders))] for member in self._members
        }
        for member, found in by_member.items() if len(contexts) > 1 else ():
            passed_to = [*self._passed_to(member, contexts, reached, is_reached=bool(found))]
            found += [each for each in dict.fromkeys(passed_to) if each not in found]
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
        pjits = [member for member in self._members if member.kind == "pjit"]
        reached = self._reach.led_from(
            [[(member.module, [member.module.statement_of(member.node)])] for member in pjits]
        )
        for other in self._members:
            if other.kind != "pjit" or other.is_other_name:
                for number in bits(combined(reached, other.holders)):
                    parent[root(other)] = root(pjits[number])
        by_hand: dict[ModuleUses, Member] = {}
        for context, member in owners.items():
            if context.kind in (STATEMENT, LEFT):
                parent[root(member)] = root(by_hand.setdefault(member.module, member))
        groups: dict[Member, list[Member]] = {}
        for member in self._members:
            groups.setdefault(root(member), []).append(member)
        for members in groups.values():
            yield _MeshRegion(members, {member: by_member[member] for member in members})

    def _passed_to(
        self,
        member: Member,
        contexts: Sequence[MeshContext],
        reached: Callable[[ast.AST], int],
        *,
        is_reached: bool,
    ) -> Iterator[MeshContext]:
        """The contexts that may run the function of a site where that comes to them as a value."""
        function = _function_of(member)
        used = uses_of(self.flow, member.module, function) if function is not None else None
        for call in used.calls if used is not None else ():
            module = next((each for each in self.modules.values() if call.node in each.parents), None)
            if module is not None and call.node is not None:
                yield from (
                    contexts[number] for number in bits(combined(reached, (call.node, *module.above(call.node))))
                )
        decorators = {each.node for each in contexts if each.kind == CALLED}
        holders = [place.module.parents[place.node] for place, _ in used.escapes] if used is not None else []
        if is_reached and not all(isinstance(each, ast.Call) and each.func in decorators for each in holders):
            # Code out of view may have it. What no context reaches names no mesh in any case.
            yield from filter(self._unseen, contexts)

    def _decide(self, region: _MeshRegion) -> None:
        self._plan_all(region, SitePlan(NEITHER))
        pjits = region.of("pjit")
        if not region.of("context"):
            # One without specs is `jax.jit` where no mesh is in context.
            if any(member.is_resolved_late and not member.has_no_spec for member in pjits):
                late = [member for member in pjits if not member.has_no_spec]
                self._plans |= {member.node: SitePlan(COMPAT, why_compat=_NO_CONTEXT) for member in late}
            return
        why_not_named, why_not_set = self._why_not_whole(region), None
        if why_not_named is None:
            why_not_named = self._named(region)
            if why_not_named is None:
                return
            why_not_set = self._why_not_set(region)
            if why_not_set is None:
                self._plan_all(region, SitePlan(SET))
                return
        why_not_compat = self._why_not_compat(region)
        if why_not_compat is None:
            reasons = dict.fromkeys((why_not_named, why_not_set[1]) if why_not_set else (why_not_named,))
            self._plan_all(region, SitePlan(COMPAT, why_compat="; and ".join(reasons)))
            self._plan_plain(region)
            return
        unsure = [context for context in region.own_contexts if not context.is_sure]
        self._plans |= {context.node: SitePlan(NEITHER, reason=context.doubt) for context in unsure}
        if unsure:
            return
        culprit, reason = why_not_set or (region.of("context")[0], why_not_named)
        others = "; ".join(dict.fromkeys((why_not_named, why_not_compat)) if why_not_set else (why_not_compat,))
        text = f"{reason}. Either change that, or make another way possible: {others}"
        self._plans[culprit.node] = SitePlan(NEITHER, reason=text)

    def _why_not_whole(self, region: _MeshRegion) -> str | None:
        """The part of a region that cannot be seen or rewritten, in words for a message, else None."""
        for context in region.own_contexts:
            if not context.is_sure:
                return f"{context.place}: {context.doubt}"
        for member in region.members:
            if member.kind == "xmap":
                return f"{member.place} has no replacement"
            if member.kind == "shim":
                return f"{member.place} chooses by the version of JAX"
            if member.specs is not None and member.specs.is_hidden:
                return f"{member.place} hides its specs"
        for member in region.members:
            if member.needs_mesh:
                reason = self.meshless_calls.why(member)
                if reason is not None:
                    return f"{member.place} {reason}"
        for context in region.own_contexts:
            for facts in self._reach.not_given(context.module, context.body):
                if self._depends_on_a_mesh(facts):
                    return f"this reaches {facts.path}, which is not among the files given; give it as well"
        return None

    def _depends_on_a_mesh(self, facts: Facts) -> bool:
        """Whether a module that may not change has a site that would have to be rewritten with a mesh context."""
        if facts.path not in self._has_members:
            kinds = ("hint", "library")
            self._has_members[facts.path] = any(
                member.kind not in kinds and not member.is_unsure
                for member in find_members(ModuleUses(facts, project=self._reach.project), self._contexts)
            )
        return self._has_members[facts.path]

    def _why_not_compat(self, region: _MeshRegion) -> str | None:
        """What `compat.mesh_context` would change, in words for a message, else None."""
        for member in region.of("library"):
            if self._runs_uncompiled(region, member):
                return f"{member.place} looks for the mesh in context"
        for context in region.own_contexts:
            if context.kind == ENVIRONMENT and self._uncompiled_code.environment_mesh(context) is None:
                return "only `ResourceEnv(mesh, ...)` can be put in context; write `with mesh:`"
        return None

    def _plain_sites(self, region: _MeshRegion) -> PlainSites:
        """Which sites of a region are plain JAX by themselves."""
        if region not in self._plain:
            self._plain[region] = PlainSites(self, region.members, region.contexts)
        return self._plain[region]

    def _plan_plain(self, region: _MeshRegion) -> None:
        """Plan plain JAX for the sites of a region in the compat style that are exact by themselves."""
        if region.of("library"):
            # Such a library finds the mesh inside of `compat.pjit`.
            return
        found = self._plain_sites(region)
        found.find_set()
        constraints = PlainConstraints(self, self._uncompiled_code.run_by, found)
        for member in region.members:
            if member in found.named:
                self._plans[member.node] = SitePlan(NAMED, found.named[member].text)
            elif member.context in found.removed:
                self._plans[member.node] = SitePlan(NAMED, found.removed[member.context])
            elif member in found.in_ambient or member.context in found.ambient:
                self._plans[member.node] = SitePlan(SET)
            elif member.kind == "constraint":
                why = constraints.why_compat(member)
                self._plans[member.node] = SitePlan(SET) if why is None else SitePlan(COMPAT, why_compat=why)
            elif member.context is not None or member in found.reasons:
                name = found.names_given.get(member.context) if member.context is not None else None
                self._plans[member.node] = SitePlan(COMPAT, name, why_compat=found.reasons[member])

    @cached_property
    def sets_a_mesh(self) -> str | None:
        """A place of the project that sets a mesh as today's JAX does."""
        uses = ((module, use) for module in self.modules.values() for use in module.uses(SET_A_MESH))
        return next((f"{module.facts.path}:{getattr(use.node, 'lineno', 1)}" for module, use in uses), None)

    def why_not_of_contexts(self, member: Member) -> str | None:
        """Why a site may run in the mesh of none of the contexts that reach it, in words for a message, else None."""
        if member.kind == "constraint" and self.sets_a_mesh is not None:
            return f"may find the mesh that {self.sets_a_mesh} sets"
        return self.meshless_calls.why(member) or self._why_in_another(member)

    def _why_in_another(self, member: Member) -> str | None:
        """Why a site may run in another mesh than that of a context, in words for a message, else None."""
        others, reached = self._reached_by_others
        for number in bits(combined(reached, member.holders)):
            return f"is reached with the mesh of {others[number].place} as well"
        if self._contexts.hidden is not None:
            return f"may run in another mesh, as {self._contexts.hidden}"
        function = _function_of(member)
        used = uses_of(self.flow, member.module, function) if function is not None else None
        for place, _ in used.escapes if used is not None else ():
            call = call_out_of_view(self.flow, place)
            if call is not None:
                shown = ast.unparse(call.func)
                return f"may run in another mesh, as `{shown}` at {place.module.facts.path}:{call.lineno} is given it"
        return None

    @cached_property
    def _reached_by_others(self) -> tuple[Sequence[MeshContext], Callable[[ast.AST], int]]:
        """The contexts that stay, since they are of today or may be of a `MultiMesh`, and what they lead to."""
        others = [each for module in self.modules.values() for each in self._contexts.of_others(module)]
        return others, self._reach.led_from([[(each.module, each.body)] for each in others])

    @cached_property
    def orphan(self) -> Member | None:
        """A site that needs the mesh in context, and that no context in view reaches."""
        # What `jax.jit` is given has its mesh from `jax.set_mesh`.
        named = (member for member in self._members if member.needs_mesh and member.kind != "jit")
        dependent = (*named, *(member for member in self._members if member.kind == "guard"))
        return next((member for member in dependent if self._is_orphan[member]), None)

    def why_context_stays(self, context: MeshContext) -> str | None:
        """Why a context cannot go away, whatever it leads to, in words for a message, else None."""
        reason = _not_removable(context) or self._unseen(context)
        if reason is None and any(map(self._depends_on_a_mesh, self._reach.not_given(context.module, context.body))):
            return "reaches a file that is not among those given, and looks for the mesh"
        return reason

    def _unseen(self, context: MeshContext) -> str | None:
        """A place in a context that may run code out of view, which may look for the mesh, in words, else None."""
        if context not in self._hidden:
            waits = suspension(context)
            why = self.code.why_not(context.module, context.body) if waits is None else None
            found = f"{waits}, and may look for the mesh" if waits is not None else None
            self._hidden[context] = f"{why}, which may look for the mesh" if why is not None else found
        return self._hidden[context]

    def why_not_ambient(self, context: MeshContext) -> str | None:
        """Why `jax.set_mesh` in place of a context would not be the same, in words for a message, else None."""
        # Code that looks for the mesh by hand finds that of `with mesh:` and of `compat.mesh_context` alone.
        return self._uncompiled_code.problem(context) or self._unseen(context)

    def _runs_uncompiled(self, region: _MeshRegion, member: Member) -> bool:
        """Whether a context leads to a site outside of the functions that `pjit` compiles."""
        reached, contexts = self._reached_uncompiled
        around = {contexts[number] for number in bits(combined(reached, member.holders))}
        return not around.isdisjoint(region.contexts[member])

    @cached_property
    def _reached_uncompiled(self) -> tuple[Callable[[ast.AST], int], Sequence[MeshContext]]:
        """Which contexts lead to a node outside of compiled functions."""
        contexts = tuple(self.contexts)
        uses = ((module, use) for module in self.modules.values() for use in module.uses(PJIT))
        compiled = ((module, given_to(module, use.node, "fun")) for module, use in uses)
        # They run where their shardings say, whatever the context.
        inside = [(module, each.body if isinstance(each, Function) else [each]) for module, each in compiled if each]
        reach = OutsideReach(self._reach, inside)
        return reach.led_from([self._extents.of(context) for context in contexts]), contexts

    def _named(self, region: _MeshRegion) -> str | None:
        """Plan the named style, or say why it is impossible."""
        for kind, what in (
            ("guard", "asks for the mesh in context"),
            ("hint", "looks for the mesh in context"),
            ("library", "looks for the mesh in context"),
        ):
            for member in region.of(kind):
                return f"{member.place} {what}"
        if not any(member.needs_mesh for member in region.members):
            return "nothing in view uses this mesh, so what does cannot be seen"
        if self.orphan is not None:
            return f"{self.orphan.place} may be reached as well, though it cannot be seen from where"
        found = self._plain_sites(region)
        plans: dict[ast.AST, SitePlan] = {}
        for member in sorted(region.members, key=lambda member: member.context is None):
            if member.context is not None:
                reason = self.why_context_stays(member.context)
                if reason is not None:
                    return f"{member.place} {reason}"
                plans[member.node] = SitePlan(NAMED, found.name_left_by(member.context))
            elif member in found.named:
                plans[member.node] = SitePlan(NAMED, found.named[member].text)
            elif member.needs_mesh or member.has_no_spec:
                return found.reasons[member]
            else:
                plans[member.node] = SitePlan(NAMED)
        self._plans |= plans
        return None

    def _why_not_set(self, region: _MeshRegion) -> tuple[Member, str] | None:
        """Why a region cannot be rewritten with `jax.set_mesh`, and the site at fault, else None."""
        for member in region.of("context"):
            assert member.context is not None
            reason = self.why_not_ambient(member.context)
            if reason is not None:
                return member, reason
        for member in region.members:
            if member.needs_mesh and not region.contexts[member]:
                return member, f"{member.place} is reached by no `with mesh:` that is in view"
            reason = self._why_in_another(member) if member.is_resolved_late else None
            if reason is not None:
                return member, f"{member.place} {reason}"
        return None


def _function_of(member: Member) -> ast.AST | None:
    """What is called where a site runs: the function that it compiles, or that around a constraint."""
    module, form = member.module, member.call
    if member.kind in ("pjit", "jit") and isinstance(member.node, ast.expr):
        value = form.call if form is not None else member.node
        holder = module.parents[value]
        return holder if isinstance(holder, Function) else value
    above = module.above(member.node) if member.kind == "constraint" else ()
    return next((each for each in above if isinstance(each, Function)), None)


def _not_removable(context: MeshContext) -> str | None:
    if context.kind != WITH:
        return "puts a mesh in context in another way than by `with mesh:`"
    assert context.item is not None and isinstance(context.holder, ast.With)
    if context.is_conditional:
        return "puts a mesh in context only sometimes"
    if context.item.optional_vars is not None and context.name is None:
        return "gives the mesh to something that is not a name"
    if isinstance(context.node, ast.NamedExpr):
        return "gives the mesh a name by `:=`; do that in a statement above"
    is_made_here = context.name is not None or context.is_computed
    if is_made_here and context.item is not context.holder.items[0]:
        return "makes the mesh behind other items of a `with`; make it in a statement above"
    return None
