"""Which sites of a region are plain JAX by themselves, and how they name their mesh.

A `pjit` whose mesh has a name where its specs stand becomes `jax.jit` with shardings, whatever else runs in the
context: `compat.mesh_context` changes nothing for it. A context goes away if all that it leads to names its mesh. What
a site runs in is read where the source shows it, at a call in the block of a `with`; otherwise it is every context that
reaches the site.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mmmodernize.calls.handed_functions import Place, call_with
from mmmodernize.meshes.mesh_contexts import CALLED, ENTERED, ENVIRONMENT, LEFT, STATEMENT, WITH, MeshContext
from mmmodernize.meshes.mesh_members import TAKE_SPECS, Member
from mmmodernize.meshes.mesh_names import MeshName, UnnamedMesh, mesh_name
from mmmodernize.names.shared_names import OLD_MESHES
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope
from mmrewrite.values.uses import reads_of

if TYPE_CHECKING:
    from mmmodernize.meshes.mesh_regions import MeshRegions

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
_BY_HAND = (ENTERED, STATEMENT, LEFT, ENVIRONMENT)


@dataclass(frozen=True)
class MeshText:
    """What a mesh is called at a site; `given_by` is a `with` that must give it that name."""

    text: str
    given_by: MeshContext | None = None


@dataclass(eq=False)
class PlainSites:
    """The plain sites among some members.

    Attributes:
        regions: What is known of all members.
        members: The members of one region.
        reached_by: The contexts that reach each member.
    """

    regions: MeshRegions
    members: Sequence[Member]
    reached_by: Mapping[Member, Sequence[MeshContext]]
    named: dict[Member, MeshText] = field(default_factory=dict)
    removed: dict[MeshContext, str | None] = field(default_factory=dict)
    reasons: dict[Member, str] = field(default_factory=dict)
    ambient: set[MeshContext] = field(default_factory=set)
    in_ambient: set[Member] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._entered = {member: self._runs_in(member) for member in self.members}
        for member in self.members:
            if member.kind in TAKE_SPECS:
                found = self._text_for(member)
                if isinstance(found, MeshText):
                    self.named[member] = found
                else:
                    self.reasons[member] = found
        for member in self.members:
            if member.context is not None:
                reason = self._why_stays(member.context)
                if reason is None:
                    self.removed[member.context] = self.name_left_by(member.context)
                else:
                    self.reasons[member] = reason

    @property
    def names_given(self) -> dict[MeshContext, str]:
        """The contexts that stay and must give their mesh a name, with that name."""
        given = {found.given_by: found.text for found in self.named.values()}
        gone = {*self.removed, *self.ambient}
        return {context: name for context, name in given.items() if context is not None and context not in gone}

    @cached_property
    def _contexts(self) -> dict[ast.stmt, list[MeshContext]]:
        found: dict[ast.stmt, list[MeshContext]] = {}
        for member in self.members:
            if member.context is not None:
                found.setdefault(member.context.holder, []).append(member.context)
        return found

    @cached_property
    def _names(self) -> dict[MeshContext, MeshName]:
        contexts = [context for found in self._contexts.values() for context in found]
        return {context: mesh_name(context, self.regions.flow) for context in contexts}

    # What a site runs in

    def _runs_in(self, member: Member) -> tuple[MeshContext, ...]:
        """The contexts that a member may run in."""
        places = self._places(member)
        if places:
            around = [self._around(module, place) for module, place in places]
            if all(context is not None for context in around):
                return tuple(dict.fromkeys(context for context in around if context is not None))
        return tuple(self.reached_by[member])

    def is_seen_inside(self, member: Member) -> bool:
        """Whether the source shows every call of a member in the block of a `with`."""
        places = self._places(member)
        return bool(places) and all(self._around(module, place) is not None for module, place in places or ())

    def _places(self, member: Member) -> Sequence[Place] | None:
        """The calls that look for the mesh of a member, None if not all of them are seen."""
        if not isinstance(member.node, ast.expr):
            return None
        form = member.call
        is_called = form is not None and form.is_called
        if member.kind == "constraint":
            return [(member.module, form.call)] if form is not None and is_called else None
        if member.kind not in ("pjit", "jit"):
            return None
        module, value = member.module, form.call if form is not None else member.node
        holder = module.parents[value]
        if isinstance(holder, ast.FunctionDef) and value in holder.decorator_list:
            return self._calls_of(module, holder.name, module.facts.names.scopes[holder])
        if not is_called:
            return None
        direct = call_with(module, value)
        if direct is not None:
            return [(module, direct)]
        if self._decorating(module, value) is not None:
            return [(module, value)]
        if isinstance(holder, ast.Assign) and [*map(type, holder.targets)] == [ast.Name]:
            (target,) = holder.targets
            assert isinstance(target, ast.Name)
            found = self._calls_of(module, target.id, module.scope_of(holder))
            if found is not None:
                return found
        return self.regions.handed.calls_of(module, value)

    def _calls_of(self, module: ModuleUses, name: str, scope: Scope) -> Sequence[Place] | None:
        """Every call of a compiled function by its only name, None if it is used otherwise."""
        owner = scope.owner(name)
        if owner is None or owner.kind not in ("function", "module") or len(owner.bindings[name]) != 1:
            return None
        found: list[Place] = []
        for place in reads_of(self.regions.flow, module, owner, name):
            is_decorated = self._decorating(place.module, place.node) is not None
            call = place.node if is_decorated else call_with(place.module, place.node)
            if call is None or place.held or place.module is not module:
                return None
            found.append((module, call))
        return found

    def _around(self, module: ModuleUses, place: ast.AST) -> MeshContext | None:
        """The context of the `with` around a place in the same function, None where another one may be in context."""
        if self._is_set_by_hand:
            return None
        decorating = self._decorating(module, place)
        if decorating is not None:
            return decorating
        inner = place
        for holder in module.above(place):
            if isinstance(holder, _DEFINITIONS):
                return None
            found = self._contexts.get(holder, ()) if isinstance(holder, ast.With) else ()
            if found:
                (context, *others) = found
                is_clear = context.kind == WITH and context.is_sure and not context.is_conditional and not others
                return context if is_clear and inner in context.body and not context.outlasts else None
            inner = holder
        return None

    def _decorating(self, module: ModuleUses, function: ast.AST) -> MeshContext | None:
        """The mesh that is called with a function, whose every call then runs in it: `mesh(function)`."""
        call = module.parents.get(function)
        return self._decorators.get(call.func) if isinstance(call, ast.Call) and function in call.args else None

    @cached_property
    def _decorators(self) -> dict[ast.AST, MeshContext]:
        contexts = (context for found in self._contexts.values() for context in found)
        return {context.node: context for context in contexts if context.kind == CALLED and context.is_sure}

    @cached_property
    def _is_set_by_hand(self) -> bool:
        """Whether a context may be entered in a block, and stay, without a `with` of its own."""
        contexts = (member.context for member in self.members if member.context is not None)
        return any(context.kind in _BY_HAND and (context.outlasts or context.kind != ENTERED) for context in contexts)

    # Sites

    def _why_unplain(self, member: Member) -> str | None:
        """Why plain JAX cannot say what a site says, whatever its mesh is called, in words for a message, else None."""
        place = member.place
        if member.specs is None or member.specs.is_hidden:
            return f"{place} hides its specs"
        if member.is_other_name:
            return f"{place} gives `pjit` another name"
        form = member.call
        if form is None or (form.positional and not form.is_called):
            return f"{place} is no call with its specs"
        if form.stars:
            return f"{place} hides its specs"
        if not member.needs_mesh:
            return f"{place} has no specs, so only the context says on which devices it runs"
        if not self.is_seen_inside(member):
            reason = self.regions.why_not_of_contexts(member)
            if reason is not None:
                return f"{place} {reason}"
        if not self._entered[member]:
            return f"{place} is reached by no `with mesh:` that is in view"
        return None

    def _text_for(self, member: Member) -> MeshText | str:
        """What the mesh is called at a site, or why that is not known, in words for a message."""
        why = self._why_unplain(member)
        if why is not None:
            return why
        place, contexts = member.place, self._entered[member]
        for context in contexts:
            if not context.is_sure:
                return f"{context.place}: {context.doubt}"
        local = self._local_name(member, contexts)
        if local is not None:
            return MeshText(local)
        handed = {self._handed_mesh(member, context) for context in contexts}
        (text, *others) = handed
        if text is not None and not others:
            return MeshText(text)
        names = {self._names[context] for context in contexts}
        if len(names) > 1:
            return f"{place} is reached with several meshes"
        (name,) = names
        reason = name.hidden_at(member.module, member.node)
        if reason is not None:
            return f"{place}: {reason}"
        given_by = None
        if isinstance(name, UnnamedMesh):
            given_by = contexts[0]
            if given_by.item is None or given_by.item.optional_vars is not None or len(contexts) > 1:
                return f"{place}: the mesh of line {name.made[0]} has no name; make it in a statement above"
        return MeshText(name.text_at(member.module, member.node), given_by)

    def _local_name(self, member: Member, contexts: Sequence[MeshContext]) -> str | None:
        """The name that a `with` enters, at a site in its block where it is bound to nothing else."""
        if len(contexts) != 1:
            return None
        (context,) = contexts
        module = context.module
        if member.module is not module:
            return None
        if member.call is not None and self._decorating(module, member.call.call) is context:
            # The mesh is read before the function is compiled, and nothing binds it in between.
            return None if self._is_computed(context.node) else ast.unparse(context.node)
        if self._around(module, member.node) is not context:
            return None
        if isinstance(context.node, ast.Attribute):
            return self._local_attribute(member, context, context.node)
        if not isinstance(context.node, ast.Name):
            return None
        name = context.node.id
        owner = module.scope_of(context.node).owner(name)
        if owner is None or module.scope_of(member.node).owner(name) is not owner:
            return None
        for binding in owner.bindings[name]:
            if binding.statement is context.holder or context.holder in module.above(binding.node):
                return None
        return name

    def _handed_mesh(self, member: Member, context: MeshContext) -> str | None:
        """The mesh that is handed to a class along with a function, for the context in which its methods call it."""
        form, attribute = member.call, _copied(context)
        if form is None or attribute is None:
            return None
        found = self.regions.handed.attribute_beside(member.module, form.call, (context.module, attribute))
        return ast.unparse(found) if found is not None else None

    def _local_attribute(self, member: Member, context: MeshContext, node: ast.Attribute) -> str | None:
        """An attribute such as `self.mesh` in the first statement of its block, where it is still what was entered."""
        if not isinstance(node.value, ast.Name) or member.module.statement_of(member.node) is not context.body[0]:
            return None
        inside = {part for part in ast.walk(context.body[0]) if isinstance(part, ast.Attribute | ast.Name)}
        is_bound = any(
            isinstance(part.ctx, ast.Store)
            and (part.attr if isinstance(part, ast.Attribute) else part.id) in (node.attr, node.value.id)
            for part in inside
        )
        return None if is_bound or self._is_computed(node) else ast.unparse(node)

    def _is_computed(self, node: ast.AST) -> bool:
        """Whether an expression is no name or attribute, or one that a method may compute."""
        if isinstance(node, ast.Name):
            return False
        return not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)) or any(
            name in module.methods
            for module in self.regions.modules.values()
            for name in (node.attr, "__getattr__", "__getattribute__")
        )

    # Contexts

    def name_left_by(self, context: MeshContext) -> str | None:
        """The name of the mesh of a context that goes away, None for a copy of a mesh that no site needs."""
        is_needed = any(found.given_by is context for found in self.named.values())
        is_copy = isinstance(context.node, ast.Call) and _copied(context) is not None
        return None if is_copy and not is_needed and context.name is None else self._names[context].text

    def _why_stays(self, context: MeshContext) -> str | None:
        """Why a context must stay, in words for a message, else None."""
        if not context.is_sure:
            return f"{context.place}: {context.doubt}"
        reason = self.regions.why_context_stays(context)
        if reason is not None:
            return f"{context.place} {reason}"
        dependents = self._dependents(context)
        for member in dependents:
            if member.context is not None or member in self.named:
                continue
            if member.kind == "pjit" and not member.is_resolved_late and not member.is_other_name:
                continue
            if member.kind == "constraint" and not member.needs_mesh and member.specs is not None:
                continue
            return self.reasons.get(member) or f"{member.place} looks for the mesh in context"
        if not any(member in self.named for member in dependents):
            return f"{context.place}: nothing in view uses this mesh, so what does cannot be seen"
        if self.regions.orphan is not None and self._led_to(context) is None:
            return f"{self.regions.orphan.place} may be reached as well, though it cannot be seen from where"
        return None

    def _dependents(self, context: MeshContext) -> list[Member]:
        """The members that look for the mesh of a context, and the contexts that are entered in it."""
        found = [member for member in self.members if context in self._entered[member]]
        led_to = self._led_to(context)
        return found if led_to is None else [member for member in found if not led_to.isdisjoint(member.holders)]

    def _led_to(self, context: MeshContext) -> Set[ast.AST] | None:
        if context not in self._code_of:
            self._code_of[context] = self.regions.code.led_to(context.module, context.body)
        return self._code_of[context]

    @cached_property
    def _code_of(self) -> dict[MeshContext, Set[ast.AST] | None]:
        return {}

    def find_set(self) -> None:
        """Find the contexts that `jax.set_mesh` replaces, since they create nothing, and what no others reach.

        The functions of `compat` look for that mesh as well.
        """
        for member in self.members:
            context = member.context
            if context is None or context in self.removed or context.kind != WITH or not context.is_sure:
                continue
            if self._is_set_by_hand:
                continue
            reason = self.regions.why_not_ambient(context)
            if reason is not None:
                self.reasons[member] = "; and ".join(dict.fromkeys((self.reasons[member], reason)))
                continue
            dependents = self._dependents(context)
            if all(self._has_mesh_of(context, other) for other in dependents):
                self.ambient.add(context)
                # Sites that its mesh would get a name for find it there.
                named = self.named.items()
                self.named = {other: found for other, found in named if found.given_by is not context}
        for member in self.members:
            if member.kind in TAKE_SPECS and member not in self.named:
                is_set = self._entered[member] and self.ambient.issuperset(self._entered[member])
                if is_set and self._why_unplain(member) is None:
                    self.in_ambient.add(member)

    def _has_mesh_of(self, context: MeshContext, member: Member) -> bool:
        """Whether a member that names a mesh names that of a context."""
        if member.kind in ("shim", "xmap"):
            # It stays, and looks for the mesh of `with mesh:` alone.
            return False
        if member.kind in TAKE_SPECS and not member.needs_mesh and not member.has_no_spec:
            return False
        if member not in self.named:
            return True
        return {self._names[other] for other in self._entered[member]} == {self._names[context]}


def _copied(context: MeshContext) -> ast.expr | None:
    """The mesh that a context enters, or makes a copy of: `mesh` in `Mesh(mesh.devices, mesh.axis_names)`."""
    node = context.node
    if not isinstance(node, ast.Call):
        return node if isinstance(node, ast.expr) else None
    made = context.module.full_name(node.func)
    if (made not in OLD_MESHES and made != "jax.sharding.Mesh") or len(node.args) != 2 or node.keywords:
        return None
    devices, names = node.args
    if not isinstance(devices, ast.Attribute) or not isinstance(names, ast.Attribute):
        return None
    is_copy = (devices.attr, names.attr) == ("devices", "axis_names")
    return devices.value if is_copy and ast.dump(devices.value) == ast.dump(names.value) else None
